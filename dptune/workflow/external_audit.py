"""A model that this project did not train, and texts that its owner vouches for."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from dptune.attacks.canaries import CanarySet
from dptune.attacks.exposure import exposure_report
from dptune.attacks.inference import Tell, unwatched
from dptune.attacks.membership import membership_report
from dptune.attacks.planting import planted_count
from dptune.attacks.settings import AttackSettings
from dptune.config import PerformanceSettings
from dptune.data.collated import unit_name
from dptune.errors import ConfigError, DataError, Problem
from dptune.jsons import parse_json
from dptune.models.check import most_positions
from dptune.models.digest import model_digest
from dptune.models.encode import record_tokens
from dptune.models.loading import load_model
from dptune.models.source import ModelBundle
from dptune.results import ExposureReport, MembershipReport
from dptune.settings import Settings
from dptune.workflow.canary_ranking import CanaryRanking
from dptune.workflow.device import pick_device
from dptune.workflow.shadows import shadow_training
from dptune.workflow.sides import one_of_each

_LEAST = 50


class ForeignModel(Settings):
    """Where a model lies, and what it is said to have been trained on.

    Args:
        model: directory in the Hugging Face layout, safetensors only.
        base: likewise, what it was trained from.
        members: texts that it was trained on: a line each, or JSON lines with `text`,
            and with `owner` where a person has several.
        non_members: texts of the same law that it was not.
        canaries: a canary set as JSON, if there is one.
        max_tokens: longest sequence, if the models can read it.
    """

    model: Path
    base: Path
    members: Path
    non_members: Path
    canaries: Path | None = None
    max_tokens: int = Field(default=256, ge=8)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        folders = [p for p in (self.model, self.base) if not p.is_dir()]
        files = [p for p in (self.members, self.non_members) if not p.is_file()]
        if folders or files:
            names = ", ".join(path.name for path in (*folders, *files))
            raise ValueError(f"must be there: {names}")
        return self

    def bundle(self: Self) -> ModelBundle:
        """The model, named by its weights."""
        return ModelBundle(path=self.model, digest=model_digest(self.model))

    def base_bundle(self: Self) -> ModelBundle:
        """What it was trained from."""
        return ModelBundle(path=self.base, digest=model_digest(self.base))


def attack_foreign(
    foreign: ForeignModel,
    *,
    attacks: AttackSettings,
    performance: PerformanceSettings,
    say: Callable[[str], None] = lambda _: None,
    tell: Tell = unwatched,
) -> MembershipReport:
    """Attack the membership of the given texts, the base model beside.

    Args:
        foreign: the model and its texts.
        attacks: how many records, how many bootstrap draws, which shadow models.
        performance: memory and speed.
        say: called with what shadow models will take.
        tell: told how much of each piece of work is done.
    """
    model, base = foreign.bundle(), foreign.base_bundle()
    loaded, loaded_base = load_model(model.path), load_model(base.path)
    groups = [side[: attacks.num_members] for side in sides_of(foreign)]
    limits = [most_positions(one.model.config) for one in (loaded, loaded_base)]
    longest = min(foreign.max_tokens, *filter(None, limits))
    shadows = shadow_training(
        loaded_base,
        attacks,
        max_tokens=longest,
        performance=performance,
        say=say,
        tell=tell,
    )
    encoded = [
        [record_tokens(text, loaded.tokenizer)[:longest] for text in texts]
        for texts in groups
    ]
    return membership_report(
        *encoded,
        member_texts=groups[0],
        non_member_texts=groups[1],
        model=loaded.model,
        base_model=loaded_base.model,
        model_digest=model.digest,
        base_model_digest=base.digest,
        batch_size=performance.evaluation_batch_size,
        device=pick_device(performance.device),
        num_resamples=attacks.num_bootstrap,
        train_shadow=shadows.train if shadows else None,
        num_shadows=shadows.settings.num_models if shadows else 0,
        tell=tell,
    )


def sides_of(foreign: ForeignModel) -> tuple[list[str], list[str]]:
    """Read one text of each owner, members and non-members.

    Raises:
        DataError: a file cannot be read, or has too few owners for an attack.
    """
    files = foreign.members, foreign.non_members
    rows = [_read_rows(path) for path in files]
    texts = [[text for text, _ in side] for side in rows]
    owners = [[name for _, name in side if name is not None] or None for side in rows]
    sides = one_of_each(*texts, member_owners=owners[0], non_member_owners=owners[1])
    for path, side in zip(files, sides, strict=True):
        if len(side) < _LEAST:
            raise DataError(
                f"{path.name} must hold texts of at least {_LEAST} owners, got "
                f"{len(side)}. An attack on fewer says nothing."
            )
    return sides


def rank_foreign(
    foreign: ForeignModel,
    *,
    performance: PerformanceSettings,
    cache: Path,
    tell: Tell = unwatched,
) -> ExposureReport:
    """Rank the given canaries under the model and its base.

    Args:
        foreign: the model, its canaries, and the texts that hold the planted ones.
        performance: memory and speed.
        cache: folder for candidate tries.
        tell: told how many nodes are ranked.
    """
    canaries = read_canaries(foreign.canaries)
    if canaries.spec.role is not None:
        raise ConfigError(
            "canaries must be of plain texts for a model from elsewhere, got some of "
            f"role {canaries.spec.role}. Rank them in the run that planted them."
        )
    attacks = AttackSettings()
    ranking = CanaryRanking(
        canaries=canaries,
        attacks=attacks,
        device=pick_device(performance.device),
        cache=cache,
    )
    model, base = foreign.bundle(), foreign.base_bundle()
    return exposure_report(
        measured=ranking.measure(
            load_model(model.path), partial(tell, "exposure, model")
        ),
        base=ranking.measure(load_model(base.path), partial(tell, "exposure, base")),
        canary_set=canaries,
        model_digest=model.digest,
        base_model_digest=base.digest,
        planted_found=planted_count(read_texts(foreign.members), canaries),
        scoring=attacks.scoring,
    )


def read_texts(path: Path) -> list[str]:
    """Read texts: a line each, or JSON lines with a key `text`. Never quotes them.

    Raises:
        DataError: the file cannot be read, or holds too few texts for an attack.
    """
    return [text for text, _ in _read_rows(path)]


def _read_rows(path: Path) -> list[tuple[str, str | None]]:
    """Read texts, and who owns them; None where a file does not say."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{path.name} must be readable UTF-8 text.") from None
    filled = [(i, line) for i, line in enumerate(lines, start=1) if line.strip()]
    if path.suffix == ".jsonl":
        rows = [_row(path, number, line) for number, line in filled]
    else:
        rows = [(line, None) for _, line in filled]
    if len(rows) < _LEAST:
        raise DataError(
            f"{path.name} must hold at least {_LEAST} texts, got {len(rows)}. An "
            "attack on fewer says nothing."
        )
    owned = sum(owner is not None for _, owner in rows)
    if 0 < owned < len(rows):
        raise DataError(
            f"{path.name} must name an owner in every row or in none, got {owned} of "
            f"{len(rows)}. Give rows without one an owner each."
        )
    return rows


def read_canaries(path: Path | None) -> CanarySet:
    """Read a canary set. Never quotes it.

    Raises:
        DataError: it is no canary set.
    """
    try:
        return CanarySet.model_validate_json(Path(path or "").read_bytes())
    except (OSError, ValidationError):
        raise DataError(
            "canaries must be a file that holds a canary set as JSON, as "
            "`plant_canaries` keeps it."
        ) from None


def _row(path: Path, number: int, line: str) -> tuple[str, str | None]:
    """Return the text of one JSON line, and its owner."""
    try:
        row = parse_json(line)
        text, owner = row["text"], row.get("owner")
    except (ValueError, KeyError, TypeError):
        text, owner = None, None
    name, where = unit_name(owner), f"{path.name} line {number}"
    if not isinstance(text, str):
        message = "must be JSON with a key `text`."
        raise DataError([Problem(path=where, message=message)])
    if owner is not None and name is None:
        message = "must have an owner that is text or a whole number."
        raise DataError([Problem(path=where, message=message)])
    return text, name
