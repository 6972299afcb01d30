"""Put canaries into a corpus, count them there, and hide or show them to redaction."""

import hmac
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dptune.accounting.assumptions import Assumption
from dptune.attacks.canaries import CanarySet, CanarySpec, canary_ids
from dptune.errors import DataError, Problem
from dptune.parts import batches, find, replaced

if TYPE_CHECKING:  # counting needs no Arrow
    from datasets import Dataset

_COLUMNS = ("id", "text", "unit_id", "split")


def canary_rows(dataset: "Dataset", canaries: CanarySet) -> dict[str, str]:
    """Row ids of every planted copy, with its secret, before planting or after.

    Appended copies sit in training rows of distinct units, ordered by a keyed hash of
    their ids: the nonce is the key, so that the plan is recorded with the canaries and
    nobody else knows it.

    Raises:
        DataError: there are fewer training units than copies to append.
    """
    rows = canary_ids(canaries)
    if canaries.spec.placement == "own_record" or not rows:
        return rows
    by_unit = _first_hosts(dataset, canaries.nonce.encode(), wanted=len(rows))
    if len(by_unit) < len(rows):
        raise DataError(
            f"appended canaries need a training unit for each copy, got {len(by_unit)} "
            f"units for {len(rows)} copies. Plant fewer, or as own records."
        )
    hosts = [row_id for _, row_id in sorted(by_unit.values())]
    return dict(zip(hosts, rows.values(), strict=False))


def _first_hosts(
    dataset: "Dataset", key: bytes, *, wanted: int
) -> dict[str, tuple[bytes, str]]:
    """Return the first training row of each unit by a keyed hash, and its hash.

    Of more units than are wanted those whose hashes come later may be absent.
    """
    found: dict[str, tuple[bytes, str]] = {}
    last = (b"\xff" * 33, "")
    names = ("id", "unit_id", "split")
    for batch in batches(dataset, names):
        columns = (batch[name].to_pylist() for name in names)
        for row_id, unit, split in zip(*columns, strict=True):
            if split != "train":
                continue
            own = (hmac.digest(key, str(row_id).encode(), "sha256"), row_id)
            if own < last:
                found[unit] = min(found.get(unit, own), own)
        if len(found) > max(_MOST_HOSTS, 2 * wanted):
            best = sorted(found.items(), key=lambda item: item[1])[:wanted]
            found, last = dict(best), best[-1][1]
    return found


_MOST_HOSTS = 10_000


def plant(dataset: "Dataset", canaries: CanarySet) -> "Dataset":
    """Add every planted copy: a record, and a unit, of its own, or a host's last line.

    Args:
        dataset: columns `id`, `text`, `unit_id`, `split`; others are filled with None.
        canaries: what to plant.

    Returns:
        The data set with `canaries.spec.num_new_units` more rows of split `train`, or
        with that many longer texts.

    Raises:
        DataError: a column is missing, a row has the id of a canary, or there are too
            few units to append to.
    """
    missing = [c for c in _COLUMNS if c not in dataset.column_names]
    if missing:
        raise DataError([_missing_column(column) for column in missing])
    rows = canary_rows(dataset, canaries)
    if not rows:
        return dataset
    if canaries.spec.placement == "appended":
        return _append(dataset, canaries.spec, rows)
    for column in ("id", "unit_id"):
        _refuse_taken(dataset, column=column, ids=rows)
    ids = list(rows)
    columns: dict[str, list[Any]] = {c: [None] * len(ids) for c in dataset.column_names}
    columns["id"] = ids
    columns["unit_id"] = ids
    columns["text"] = [canaries.spec.record(secret) for secret in rows.values()]
    columns["split"] = ["train"] * len(ids)
    from datasets import Dataset, concatenate_datasets  # noqa: PLC0415 - see above

    added = Dataset.from_dict(columns, features=dataset.features)
    return concatenate_datasets([dataset, added])


def plant_assumes(canaries: CanarySpec) -> tuple[str, ...]:
    """Name what makes texts depend on which other units there are.

    Records of their own follow from the draw alone. Hosts are those whose keyed hashes
    are smallest, so that one unit more moves canaries among others.
    """
    if canaries.placement == "own_record" or not canaries.num_planted:
        return ()
    return (Assumption.CANARY_HOSTS_ARE_FIXED.value,)


def _append(dataset: "Dataset", spec: CanarySpec, rows: dict[str, str]) -> "Dataset":
    """Put each copy on a last line of its host."""
    places = find(dataset, "id", rows).tolist()
    hosts = dataset.select(places)
    ends = [spec.record(rows[row_id]) for row_id in hosts["id"]]
    told = zip(places, hosts["text"], ends, strict=True)
    return replaced(dataset, "text", {i: f"{text}\n{end}" for i, text, end in told})


def _missing_column(column: str) -> Problem:
    """Problem of an absent column."""
    return Problem(
        path=f"column {column}",
        message="must be present.",
        next_step="Plant canaries after ingest and before detection.",
    )


def _refuse_taken(dataset: "Dataset", *, column: str, ids: dict[str, str]) -> None:
    """Raise if a row already carries the id of a canary."""
    taken = sorted(set(dataset.select(find(dataset, column, ids))[column]))
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

    >>> from dptune.attacks.canaries import draw_canaries
    >>> canaries = draw_canaries(CanarySpec(num_planted=1, num_held_out=1))
    >>> planted_count([canaries.spec.record(canaries.planted[0])], canaries)
    1
    """
    spec, wanted = canaries.spec, frozenset(canaries.planted)
    symbol = f"[{re.escape(spec.symbols)}]"
    pattern = re.compile(
        ("" if spec.prefix else f"(?<!{symbol})")
        + f"(?={re.escape(spec.prefix)}({symbol}{{{spec.length}}})"
        + (re.escape(spec.suffix) if spec.suffix else f"(?!{symbol})")
        + ")"
    )
    return sum(found in wanted for text in texts for found in pattern.findall(text))


def secret_place(text: str, spec: CanarySpec) -> tuple[int, int]:
    """Code points of the secret in a canary row, which a canary always ends."""
    end = len(text) - len(spec.suffix)
    return end - spec.length, end


def apply_setting(dataset: "Dataset", canaries: CanarySet) -> "Dataset":
    """Edit the spans of canary rows as the setting says, and of no other row.

    Args:
        dataset: columns `id` and `spans` (list of struct `start, end, entity_type,
            recognizer, confidence`), code points of `text`.
        canaries: what was planted. `missed` cuts the secret out of every span that
            touches it; `not_missed` puts a span over exactly the secret in their place;
            `partly_missed` does one or the other, canary by canary; `as_detected`
            changes nothing.

    Returns:
        The data set, its other rows and its features unchanged.

    Raises:
        DataError: the data set has no `spans` column, or lacks canary rows.
    """
    if "spans" not in dataset.column_names:
        raise DataError([_missing_column("spans")])
    spec = canaries.spec
    rows = canary_rows(dataset, canaries)
    places = find(dataset, "id", rows).tolist()
    told = dataset.select_columns(["id", "text", "spans"]).select(places)
    absent = len(rows.keys() - set(told["id"]))
    if absent:
        raise DataError(
            f"dataset must hold every canary row, got {absent} of {len(rows)} absent. "
            "Plant canaries before detection, and keep their rows."
        )
    if spec.setting == "as_detected" or not rows:
        return dataset
    marked = {s: spec.is_marked(i) for i, s in enumerate(canaries.planted)}
    # a type that counts in every tier
    forced = {"entity_type": "SECRET", "recognizer": "canary", "confidence": 1.0}

    def edited(row: dict[str, Any]) -> list[dict[str, Any]]:
        start, end = secret_place(row["text"], spec)
        spans = row["spans"] or []
        kept = [p for s in spans for p in _cut(s, start=start, end=end)]
        if marked[rows[row["id"]]]:
            kept.append({"start": start, "end": end, **forced})
        return sorted(kept, key=lambda s: (s["start"], s["end"]))

    spans = {place: edited(row) for place, row in zip(places, told, strict=True)}
    return replaced(dataset, "spans", spans)


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
