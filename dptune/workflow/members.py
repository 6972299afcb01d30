"""Whom attacks tell apart: records that were trained on, and records that were not."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from datasets import Dataset

from dptune.attacks.canaries import CanarySet
from dptune.attacks.planting import canary_rows
from dptune.attacks.settings import FEWEST_TEXTS
from dptune.conversation import without_training
from dptune.data.draws import by_hash, one_of_each, seeded_fractions
from dptune.data.records import Corpus
from dptune.dpsgd.dataset import IntArray
from dptune.dpsgd.ragged import kept_rows
from dptune.errors import DataError
from dptune.models.encode import encode_corpus
from dptune.models.loading import LoadedModel
from dptune.parts import values_of

HELD_OUT = "test"

Floats = npt.NDArray[np.float64]

_COLUMNS = ["id", "text", "unit_id"]
_HEAD = 1_000
"""Rows at either end of a corpus that are asked first if somebody can be attacked."""


@dataclass(frozen=True, kw_only=True)
class TrainedRows:
    """Which training records a model saw: those that its bound of sequences kept.

    Args:
        loaded: the model, with its tokenizer.
        max_tokens: longest sequence.
        max_sequences_per_unit: public contribution bound.
        folder: private folder for tokens while they are counted; None keeps to memory.
    """

    loaded: LoadedModel
    max_tokens: int
    max_sequences_per_unit: int
    folder: Path | None = None

    def of(self: Self, rows: Dataset) -> IntArray:
        """Return the places of records whose first sequence was trained on.

        A later sequence of a record alone counts for nothing: attacks see the first.

        Args:
            rows: the training split as it was encoded, canaries included.
        """
        units = list(values_of(rows, "unit_id"))
        reached = self._kept(units)  # each record has at least one sequence
        if self.loaded.class_names or not len(reached):
            return reached
        encoded = encode_corpus(
            rows.select_columns(_COLUMNS).select(reached),
            self.loaded.tokenizer,
            max_tokens=self.max_tokens,
            folder=self.folder,
        )
        kept = self._kept(list(values_of(encoded, "unit_id")))
        owners = list(values_of(encoded, "id"))
        is_first = np.array([a != b for a, b in pairwise([None, *owners])])
        is_kept = np.isin(np.flatnonzero(is_first), kept)
        found: IntArray = reached[is_kept]
        return found

    def _kept(self: Self, units: list[str]) -> IntArray:
        """Return what training keeps of rows that these units own, in their order."""
        return np.sort(kept_rows(units, self.max_sequences_per_unit).flat())


def members_and_others(
    corpus: Corpus, canaries: CanarySet, *, trained: TrainedRows, count: int
) -> tuple[Dataset, Dataset]:
    """Draw records that were trained on, without canaries, and records that were not.

    Members are records whose first sequence the bound of their unit kept. A held-out
    record with the text of a training record is no non-member: the model saw it. Nor is
    the training record a member: its text is no secret of its unit, and a text that one
    side alone has by construction would tell the sides apart without any model. So do
    texts that several units of one split have and the other has not: that none of their
    copies is on the other side is rare by itself, and one copy tells of the next. A
    record is attacked only where no other unit has its text, in either split.

    Of every unit one record is taken. Records of one are alike, and all on one side: as
    if each had been drawn by itself, they would tell the sides apart without any model,
    and intervals of rates would be as narrow as those of so many units.

    Args:
        corpus: the original view with canaries in its training split.
        canaries: what was planted.
        trained: tells which training records the model saw.
        count: of each side, at most; units whose records are attacked.

    Raises:
        DataError: there is nothing on a side.
    """
    rows, planted = corpus.split("train"), canary_rows(corpus.dataset, canaries)
    ids = list(values_of(rows, "id"))
    members = rows.select([i for i in trained.of(rows) if ids[i] not in planted])
    ends = {own: f"\n{canaries.spec.record(secret)}" for own, secret in planted.items()}
    sides = _alone(members, rows, corpus.split(HELD_OUT), ends)
    members, others = map(one_of_each_unit, sides)
    return sample_rows(members, count), sample_rows(others, count)


def refuse_without_controls(corpus: Corpus) -> None:
    """Refuse a corpus that no attack can tell anything of, before anything is spent.

    Args:
        corpus: as it was ingested, before canaries.

    Raises:
        DataError: a split is empty, or has too few texts that one unit alone has.
    """
    splits = [split for split, _ in _units_of_texts_alone(corpus.dataset)]
    if min(splits.count("train"), splits.count(HELD_OUT)) >= FEWEST_TEXTS:
        return
    from dptune.attacks.roc import refuse_too_few  # noqa: PLC0415 - sklearn

    rows = corpus.split("train")
    sides = _alone(rows, rows, corpus.split(HELD_OUT), {})
    refuse_too_few(*(len(one_of_each_unit(side)) for side in sides))


def _units_of_texts_alone(rows: Dataset) -> set[tuple[str, str]]:
    """Return units, with their split, that alone have a text of the first or last rows.

    As `repeated_texts`, in the memory of these rows: they nearly always say enough.
    """
    last = range(max(_HEAD, len(rows) - _HEAD), len(rows))
    looked_at = rows.select([*range(min(_HEAD, len(rows))), *last])
    owners: dict[str, set[tuple[str, str]]] = {
        without_training(text): set() for text in values_of(looked_at, "text")
    }
    columns = (values_of(rows, name) for name in ("text", "split", "unit_id"))
    for text, split, unit in zip(*columns, strict=True):
        if (known := owners.get(without_training(text))) is not None:
            known.add((split, unit))
    return {unit for (unit, *others) in owners.values() if not others}


def _alone(
    members: Dataset, rows: Dataset, held_out: Dataset, ends: Mapping[str, str]
) -> tuple[Dataset, Dataset]:
    """Leave out texts of several units on both sides.

    Args:
        members: those of the training split that may be attacked.
        rows: the training split.
        held_out: the test split.
        ends: see `repeated_texts`.

    Raises:
        DataError: there is nothing on a side.
    """
    if len(held_out) == 0:
        raise DataError(
            "the corpus must have a test split: without records that were not trained "
            "on, no attack has a control. Set data.splits.test."
        )
    repeated = repeated_texts(held_out, rows, ends)
    sides = without_texts(members, repeated), without_texts(held_out, repeated)
    if not all(map(len, sides)):
        raise DataError(
            "the training and the test split must each hold texts that one unit alone "
            f"has, got {len(sides[0])} and {len(sides[1])} to attack: no attack has a "
            "control. Deduplicate the data."
        )
    return sides


def repeated_texts(held_out: Dataset, rows: Dataset, ends: Mapping[str, str]) -> Floats:
    """Return fingerprints of the texts that both splits or several units have.

    Which turns of a conversation are learnt is no part of its text, nor is a canary on
    the last line of its host.

    Args:
        held_out: the test split.
        rows: the training split.
        ends: of its texts, by id, that were added when canaries were planted.
    """
    told = zip(values_of(rows, "id"), values_of(rows, "text"), strict=True)
    texts = chain(
        (text.removesuffix(ends.get(own, "")) for own, text in told),
        values_of(held_out, "text"),
    )
    units = chain(
        (f"train {unit}" for unit in values_of(rows, "unit_id")),
        (f"{HELD_OUT} {unit}" for unit in values_of(held_out, "unit_id")),
    )
    known = _fingerprints(map(without_training, texts))
    owners = _fingerprints(units)
    order = np.lexsort((owners, known))
    known, owners = known[order], owners[order]
    again = (known[1:] == known[:-1]) & (owners[1:] != owners[:-1])
    return np.unique(known[1:][again])


def without_texts(rows: Dataset, texts: Floats) -> Dataset:
    """Leave out records that have one of some texts, as `repeated_texts` has them."""
    known = _fingerprints(map(without_training, values_of(rows, "text")))
    return rows.select(np.flatnonzero(~np.isin(known, texts)))


def _fingerprints(names: Iterable[str]) -> Floats:
    """Tell texts apart in eight bytes each; two of 10^7 look alike once in 180 runs."""
    return seeded_fractions(names, seed=0, purpose="copies")


def one_of_each_unit(rows: Dataset) -> Dataset:
    """Take a row of every unit, chosen by a hash of its id."""
    chosen = one_of_each(values_of(rows, "id"), list(values_of(rows, "unit_id")))
    return rows if len(chosen) == len(rows) else rows.select(chosen)


def sample_rows(rows: Dataset, count: int) -> Dataset:
    """Take `count` rows, chosen by a hash of their ids."""
    if len(rows) <= count:
        return rows
    return rows.select(sorted(by_hash(values_of(rows, "id"))[:count]))
