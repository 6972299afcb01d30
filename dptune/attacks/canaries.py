"""Canaries: random secrets whose rank under a model says what it memorised.

A canary is a record of its own, such as `my access code is 417302`. Planted ones join
the training data, each copy as a privacy unit of its own; held-out ones follow the same
law and never do, so they are the control.
"""

import hashlib
import json
import random
import re
import secrets
import string
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dptune.errors import ConfigError, DataError, Problem

if TYPE_CHECKING:  # the schema of configurations needs the spec without Arrow
    from datasets import Dataset

Setting = Literal["as_detected", "missed", "not_missed"]

_PLACEHOLDER = "{secret}"
_ALPHABETS = {
    "digits": string.digits,
    "alphanumeric": string.digits + string.ascii_uppercase,
}
_COLUMNS = ("id", "text", "unit_id", "split")


class CanarySpec(BaseModel):
    """The law that canaries are drawn from, and how they are planted.

    Args:
        template: text of one canary record with `{secret}` exactly once.
        alphabet: `digits` (10 symbols) or `alphanumeric` (0-9, A-Z: 36 symbols).
        length: symbols of a secret.
        num_planted: canaries that join the training data.
        num_held_out: controls of the same law that do not.
        insertions: copies of each planted canary, each in a unit of its own, so that a
            record guarantee for one canary is the group guarantee of that size.
        setting: `as_detected` leaves the detector's spans, `missed` takes the secrets'
            spans away, `not_missed` forces them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    template: str = "my access code is {secret}"
    alphabet: Literal["digits", "alphanumeric"] = "digits"
    length: int = Field(default=6, ge=1, le=32)
    num_planted: int = Field(ge=0)
    num_held_out: int = Field(ge=0)
    insertions: int = Field(default=1, ge=1)
    setting: Setting = "as_detected"

    @field_validator("template")
    @classmethod
    def _check_template(cls: type[Self], template: str) -> str:
        """The secret must have exactly one place."""
        if template.count(_PLACEHOLDER) != 1:
            raise ValueError(f"template must hold {_PLACEHOLDER} exactly once.")
        return template

    @model_validator(mode="after")
    def _check_size(self: Self) -> Self:
        """All canaries must be distinct, so the space must be large enough."""
        if self.num_planted + self.num_held_out > self.space_size:
            raise ValueError(
                "num_planted + num_held_out must be at most the number of candidates, "
                f"got {self.num_planted + self.num_held_out} of {self.space_size}."
            )
        return self

    @property
    def symbols(self: Self) -> str:
        """The symbols a secret is made of, in candidate order."""
        return _ALPHABETS[self.alphabet]

    @property
    def space_size(self: Self) -> int:
        """The number |R| of candidates."""
        return int(len(self.symbols) ** self.length)

    @property
    def prefix(self: Self) -> str:
        """Text before the secret."""
        return self.template.split(_PLACEHOLDER)[0]

    @property
    def suffix(self: Self) -> str:
        """Text after the secret."""
        return self.template.split(_PLACEHOLDER)[1]

    def record(self: Self, secret: str) -> str:
        """The whole text of one canary record."""
        return self.template.replace(_PLACEHOLDER, secret)

    def secret_at(self: Self, index: int) -> str:
        """The candidate at `index` in `[0, space_size)`, in lexicographic order."""
        base = len(self.symbols)
        out = []
        for _ in range(self.length):
            index, digit = divmod(index, base)
            out.append(self.symbols[digit])
        return "".join(reversed(out))

    def index_of(self: Self, secret: str) -> int:
        """Inverse of `secret_at`.

        Raises:
            ConfigError: the secret is not one of the candidates.
        """
        if len(secret) != self.length or not set(secret) <= set(self.symbols):
            raise ConfigError(
                "secret must be a candidate of its canary spec. Draw canaries with "
                "draw_canaries, or load the set together with its own spec."
            )
        index = 0
        for symbol in secret:
            index = index * len(self.symbols) + self.symbols.index(symbol)
        return index


class CanarySet(BaseModel):
    """Drawn canaries. Restricted: its JSON holds the secrets, its `repr` does not.

    Args:
        spec: the law they were drawn from.
        planted: secrets that join the training data.
        held_out: control secrets.
        nonce: random text that keeps `digest` from being guessed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    restricted: ClassVar[bool] = True

    schema_version: int = 1
    spec: CanarySpec
    planted: tuple[str, ...] = Field(repr=False)
    held_out: tuple[str, ...] = Field(repr=False)
    nonce: str = Field(repr=False)

    @model_validator(mode="after")
    def _check_secrets(self: Self) -> Self:
        """Secrets are distinct, of the spec's law, and as many as it says."""
        drawn = self.planted + self.held_out
        if len(set(drawn)) != len(drawn):
            raise ValueError("planted and held_out must all be distinct.")
        counts = (len(self.planted), len(self.held_out))
        if counts != (self.spec.num_planted, self.spec.num_held_out):
            raise ValueError(f"the spec plans other counts than {counts}.")
        for secret in drawn:
            self.spec.index_of(secret)
        return self

    @property
    def digest(self: Self) -> str:
        """Commitment to spec and secrets, safe to print on a report."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    @property
    def num_expected(self: Self) -> int:
        """Canary records that a training view must hold."""
        return len(self.planted) * self.spec.insertions


def draw_canaries(spec: CanarySpec, *, seed: int | None = None) -> CanarySet:
    """Draw distinct canaries uniformly from the spec's candidates.

    Args:
        spec: the law and the counts.
        seed: only for tests; None draws from the operating system's secure source.

    Returns:
        Planted and held-out canaries, all distinct.

    Privacy:
        The result is restricted: whoever knows a secret can find it in a model.
    """
    source = secrets.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311 - seeded only in tests
    total = spec.num_planted + spec.num_held_out
    drawn = [spec.secret_at(i) for i in _distinct_indices(spec, total, source)]
    return CanarySet(
        spec=spec,
        planted=tuple(drawn[: spec.num_planted]),
        held_out=tuple(drawn[spec.num_planted :]),
        nonce=f"{source.getrandbits(128):032x}",
    )


def _distinct_indices(spec: CanarySpec, count: int, source: random.Random) -> list[int]:
    """Distinct uniform candidate indices; `range` cannot sample above 2^63."""
    if 4 * count >= spec.space_size:
        return source.sample(range(spec.space_size), count)
    found: dict[int, None] = {}
    while len(found) < count:
        found[source.randrange(spec.space_size)] = None
    return list(found)


def canary_ids(canaries: CanarySet) -> dict[str, str]:
    """Row id `canary-<i>-<copy>` of every planted copy, with its secret."""
    return {
        f"canary-{i}-{copy}": secret
        for i, secret in enumerate(canaries.planted)
        for copy in range(canaries.spec.insertions)
    }


def plant(dataset: "Dataset", canaries: CanarySet) -> "Dataset":
    """Append every planted copy as a record, and a unit, of its own.

    Args:
        dataset: columns `id`, `text`, `unit_id`, `split`; others are filled with None.
        canaries: what to plant.

    Returns:
        The data set with `canaries.num_expected` more rows of split `train`.

    Raises:
        DataError: a column is missing, or a row has the id of a canary.
    """
    missing = [c for c in _COLUMNS if c not in dataset.column_names]
    if missing:
        raise DataError([_missing_column(column) for column in missing])
    rows = canary_ids(canaries)
    for column in ("id", "unit_id"):
        _refuse_taken(dataset, column=column, ids=rows)
    if not rows:
        return dataset
    ids = list(rows)
    columns: dict[str, list[Any]] = {c: [None] * len(ids) for c in dataset.column_names}
    columns["id"] = ids
    columns["unit_id"] = ids
    columns["text"] = [canaries.spec.record(secret) for secret in rows.values()]
    columns["split"] = ["train"] * len(ids)
    from datasets import Dataset, concatenate_datasets  # noqa: PLC0415 - see above

    added = Dataset.from_dict(columns, features=dataset.features)
    return concatenate_datasets([dataset, added])


def _missing_column(column: str) -> Problem:
    """Problem of an absent column."""
    return Problem(
        path=f"column {column}",
        message="must be present.",
        next_step="Plant canaries after ingest and before detection.",
    )


def _refuse_taken(dataset: "Dataset", *, column: str, ids: dict[str, str]) -> None:
    """Raise if a row already carries the id of a canary."""
    taken = sorted(set(dataset[column]) & set(ids))
    if taken:
        raise DataError(
            f"column {column} must not hold canary ids, got {len(taken)} such as "
            f"{taken[0]}. Plant canaries once, into the corpus as it was ingested."
        )


def planted_count(texts: Iterable[str], canaries: CanarySet) -> int:
    """Count the planted canary records that a training view really holds.

    Args:
        texts: the texts of the training view, or text decoded from its tokens.
        canaries: the plan.

    Returns:
        Occurrences of planted records; compare with `canaries.num_expected`.
    """
    return _count_records(texts, canaries.spec, frozenset(canaries.planted))


def held_out_count(texts: Iterable[str], canaries: CanarySet) -> int:
    """Count control records in a training view: anything but 0 spoils the control."""
    return _count_records(texts, canaries.spec, frozenset(canaries.held_out))


def _count_records(
    texts: Iterable[str], spec: CanarySpec, wanted: frozenset[str]
) -> int:
    """Occurrences of `prefix + secret + suffix` for the wanted secrets."""
    symbol = f"[{re.escape(spec.symbols)}]"
    pattern = re.compile(
        ("" if spec.prefix else f"(?<!{symbol})")
        + f"(?={re.escape(spec.prefix)}({symbol}{{{spec.length}}})"
        + (re.escape(spec.suffix) if spec.suffix else f"(?!{symbol})")
        + ")"
    )
    return sum(found in wanted for text in texts for found in pattern.findall(text))


def apply_setting(
    dataset: "Dataset", canaries: CanarySet, *, entity_type: str = "SECRET"
) -> "Dataset":
    """Edit the spans of canary rows as the setting says, and of no other row.

    Args:
        dataset: columns `id` and `spans` (list of struct `start, end, entity_type,
            recognizer, confidence`), code points of `text`.
        canaries: what was planted. `missed` cuts the secret out of every span that
            touches it; `not_missed` adds a span over exactly the secret; `as_detected`
            changes nothing.
        entity_type: type of the forced span; `SECRET` counts in every tier.

    Returns:
        The data set, its other rows and its features unchanged.

    Raises:
        DataError: the data set has no `spans` column, or lacks canary rows.
    """
    if "spans" not in dataset.column_names:
        raise DataError([_missing_column("spans")])
    spec = canaries.spec
    rows = canary_ids(canaries)
    absent = len(rows.keys() - set(dataset["id"]))
    if absent:
        raise DataError(
            f"dataset must hold every canary row, got {absent} of {len(rows)} absent. "
            "Plant canaries before detection, and keep their rows."
        )
    if spec.setting == "as_detected" or not rows:
        return dataset
    start = len(spec.prefix)
    end = start + spec.length
    forced = {
        "start": start,
        "end": end,
        "entity_type": entity_type,
        "recognizer": "canary",
        "confidence": 1.0,
    }

    def edit(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] not in rows:
            return {"spans": row["spans"]}
        spans = row["spans"] or []
        if spec.setting == "missed":
            return {"spans": [p for s in spans for p in _cut(s, start=start, end=end)]}
        return {"spans": sorted([*spans, forced], key=lambda s: (s["start"], s["end"]))}

    return dataset.map(edit, features=dataset.features, load_from_cache_file=False)


def _cut(span: dict[str, Any], *, start: int, end: int) -> list[dict[str, Any]]:
    """What is left of a span outside `[start, end)`: none, one or two pieces."""
    if span["end"] <= start or span["start"] >= end:
        return [span]
    pieces = []
    if span["start"] < start:
        pieces.append({**span, "end": start})
    if span["end"] > end:
        pieces.append({**span, "start": end})
    return pieces
