"""Units in parts, from what was detected in each record: one part for every tier."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from dptune.detection.scoring import SensitivityTable
from dptune.dpsgd.dataset import FloatArray, IntArray, UnitDataset
from dptune.errors import ConfigError, DataError, PrivacyError, Problem
from dptune.mechanisms.atdp import ordinary_weight, token_weights
from dptune.mechanisms.sa_adp import (
    PROTECTED,
    Tier,
    group_view,
    tiers_of_types,
    token_tiers,
)
from dptune.recipes import Recipe
from dptune.settings import ScreenedSettings, TierSettings, TokenWeightSettings
from dptune.text import Span


def tiers_for(
    settings: TierSettings, table: SensitivityTable | None
) -> dict[str, Tier]:
    """Return the tier of every type, if the table may be used.

    Raises:
        PrivacyError: there is no table, or its counts are private and the form claims
            something.
    """
    sound = settings.form == "sound"
    if table is None or (sound and table.counts == "non_private"):
        raise PrivacyError(
            "tiers must come from a table of sensitivities whose counts are public or "
            "released. Set scoring.counts to table or released."
        )
    return tiers_of_types(table, spare=not sound)


def in_tiers(
    encoded: Dataset,
    records: Dataset,
    *,
    tier_of: Mapping[str, Tier],
    mask: int | None,
    max_sequences_per_unit: int,
) -> UnitDataset:
    """Make parts of encoded rows: the losses of a unit's low and high secrets.

    Rows without a target of a tier are left out of its part. What is no secret is
    `unnoised`, of all units.

    **Privacy**: a row's parts follow from its own record and public tiers. With a mask
    the values of a tier's secrets reach its own part only, see `group_view`.

    Args:
        encoded: rows of `encode_corpus` with offsets.
        records: columns `id, text, spans` of the records that were encoded.
        tier_of: tier by type.
        mask: id of the token that hides other tiers; None for the paper's form.
        max_sequences_per_unit: public contribution bound.

    Raises:
        DataError: there is no secret to protect in any record.
    """
    rows: dict[Tier, list[_Row]] = {t: [] for t in Tier}
    seen: Counter[str] = Counter()
    for row in _labelled(encoded, records, tier_of=tier_of):
        seen[row.unit] += 1
        if seen[row.unit] > max_sequences_per_unit:
            continue
        for tier in Tier:
            shown, own = row.view(row.tokens, group=tier, mask=mask)
            if tier is Tier.NONE or own.any():
                rows[tier].append(replace(row, tokens=shown, weights=own))
    unnoised = UnitDataset.from_columns(
        [row.tokens.tolist() for row in rows[Tier.NONE]],
        [row.weights.tolist() for row in rows[Tier.NONE]],
        [row.unit for row in rows[Tier.NONE]],
        max_sequences_per_unit=max_sequences_per_unit,
    )
    parts = [(kind, r) for kind, tier in enumerate(PROTECTED) for r in rows[tier]]
    if not parts:
        raise DataError(
            "records must hold secrets for a stage with tiers, which clips and noises "
            "nothing else, got none that a loss reaches. Check detection, or choose a "
            "recipe without tiers."
        )
    return UnitDataset.from_columns(
        [row.tokens.tolist() for _, row in parts],
        [row.weights.tolist() for _, row in parts],
        [f"{kind} {row.unit}" for kind, row in parts],
        max_sequences_per_unit=max_sequences_per_unit,
        kinds=[kind for kind, _ in parts],
        unnoised=unnoised,
    )


def count_leaks(
    encoded: Dataset,
    records: Dataset,
    *,
    tier_of: Mapping[str, Tier],
    mask: int | None,
) -> int:
    """Count rows in which other values of one tier's secrets reach another group.

    Every secret of a tier is replaced, token by token; what the other groups are given
    must stay as it is.

    Args:
        encoded: see `in_tiers`.
        records: see `in_tiers`.
        tier_of: tier by type.
        mask: as in training.
    """
    return sum(
        _leaks(row, mask=mask) for row in _labelled(encoded, records, tier_of=tier_of)
    )


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A row of tokens and the tier of each. Private."""

    tokens: IntArray = field(repr=False)
    weights: FloatArray = field(repr=False)
    tiers: IntArray = field(repr=False)
    unit: str = field(repr=False)

    def view(
        self, tokens: IntArray, *, group: Tier, mask: int | None
    ) -> tuple[IntArray, FloatArray]:
        """Return what a group is given of these tokens."""
        return group_view(tokens, self.weights, self.tiers, group=group, mask=mask)


def _leaks(row: _Row, *, mask: int | None) -> bool:
    """Whether a group's view of a row depends on the secrets of another tier."""
    for tier in PROTECTED:
        other = np.where(row.tiers == tier, row.tokens + 1, row.tokens)
        for group in Tier:
            views = (row.view(t, group=group, mask=mask) for t in (row.tokens, other))
            same = all(np.array_equal(a, b) for a, b in zip(*views, strict=True))
            if group is not tier and not same:
                return True
    return False


def _labelled(
    encoded: Dataset, records: Dataset, *, tier_of: Mapping[str, Tier]
) -> Iterator[_Row]:
    """Yield the rows with the tier of each of their tokens."""
    place = {record: index for index, record in enumerate(records["id"])}
    texts, spans = records["text"], records["spans"]
    for row in encoded:
        index = place[row["id"]]
        tiers = token_tiers(
            len(texts[index]),
            zip(row["token_starts"], row["token_ends"], strict=True),
            [Span.from_row(s) for s in spans[index]],
            tier_of=tier_of,
        )
        yield _Row(
            tokens=np.asarray(row["input_ids"], np.int64),
            weights=np.asarray(row["loss_weights"], np.float32),
            tiers=tiers,
            unit=row["unit_id"],
        )


def weighted(
    encoded: Dataset, records: Dataset, settings: TokenWeightSettings
) -> Dataset:
    """Weigh every token by whether its record's labels call it sensitive.

    **Privacy**: the weights of a row follow from its own record and from public
    numbers, so that a change of one record changes the weights of no other.

    Args:
        encoded: rows of `encode_corpus` with offsets.
        records: columns `id, text, spans` of the records that were encoded.
        settings: public shares.

    Returns:
        The rows with `loss_weights` of 1, of the ordinary weight, or of 0 where they
        were 0.
    """
    ordinary = ordinary_weight(
        settings.sensitive_share, target_share=settings.target_share
    )
    place = {record: index for index, record in enumerate(records["id"])}
    texts, spans = records["text"], records["spans"]

    def weights(row: dict[str, Any]) -> list[float]:
        index = place[row["id"]]
        found = token_weights(
            texts[index],
            zip(row["token_starts"], row["token_ends"], strict=True),
            [_span(span) for span in spans[index]],
            ordinary=ordinary,
        )
        old = np.asarray(row["loss_weights"], np.float32)
        return np.where(old > 0, found, old).tolist()  # type: ignore[no-any-return]

    kept = encoded.data.table.drop_columns(
        ["token_starts", "token_ends", "loss_weights"]
    )
    column = pa.array([weights(row) for row in encoded], pa.list_(pa.float32()))
    return Dataset(kept.append_column("loss_weights", column))


def _span(row: dict[str, Any]) -> Span:
    """Read a span of a labelled corpus."""
    return Span.from_row(row)


def screened_units(
    units: Iterable[str], settings: ScreenedSettings, *, num_drawn: int
) -> frozenset[str]:
    """Draw the units that are to be read, by public coins.

    **Privacy**: the draw looks at ids alone, so that no secret decides it. Ids must not
    be hashes of texts, which `check_selective` refuses.

    Args:
        units: ids of all privacy units of the training split, in any order, each as
            often as it has records.
        settings: the public seed.
        num_drawn: how many, which follows from the planned number of units, as
            `settings.num_units` has it.

    References:
        Shi et al. (2022), "Just Fine-tune Twice", sections 3.1 and 6.2: 0.1 % there.
    """

    def coin(unit: str) -> bytes:
        return hashlib.sha256(f"{settings.public_seed} {unit}".encode()).digest()

    return frozenset(sorted(set(units), key=coin)[:num_drawn])


def rows_to_read(rows: Dataset, recipe: Recipe, *, num_units: int) -> frozenset[int]:
    """Return the rows of a corpus that people have to read for a recipe.

    Canaries come in later, as units of their own, and can only take the place of units
    that are drawn here.

    Args:
        rows: of the training split.
        recipe: with a stage that is screened.
        num_units: units that the run is planned for, canaries included.

    Raises:
        ConfigError: no stage is screened.
    """
    settings = [stage.screened for stage in recipe.stages if stage.screened is not None]
    if not settings:
        problem = Problem(
            path="recipe",
            message=f"must have a stage with screened to be read, got {recipe.name}.",
            next_step="Choose jft_screened.",
        )
        raise ConfigError([problem])
    units = rows["unit_id"]
    chosen: set[str] = set()
    for one in settings:
        chosen |= screened_units(units, one, num_drawn=one.num_units(num_units))
    return frozenset(i for i, unit in enumerate(units) if unit in chosen)


def screened_rows(
    rows: Dataset, settings: ScreenedSettings, *, num_drawn: int
) -> Dataset:
    """Return the records of the units that are to be read, in their order."""
    chosen = screened_units(rows["unit_id"], settings, num_drawn=num_drawn)
    places = [i for i, unit in enumerate(rows["unit_id"]) if unit in chosen]
    return rows.select(places)
