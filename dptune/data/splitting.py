"""Split a corpus by privacy unit, so that no unit is on both sides."""

import math
from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from dptune.data.records import ProblemLog, Record, seeded_fraction
from dptune.data.source import SPLITS
from dptune.errors import ConfigError, Problem


@dataclass(frozen=True, kw_only=True)
class SplitSettings:
    """Expected shares of the units that go to validation and test.

    Where the source gives some splits itself, only the others are cut from its `train`.
    A share of 0 makes no such split.

    Args:
        validation: in [0, 1).
        test: in [0, 1), with `validation + test < 1`.

    Raises:
        ConfigError: a share is out of range, or nothing is left for training.
    """

    validation: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        """Check both shares and report both at once."""
        problems = [
            Problem(
                path=f"splits.{name}",
                message=f"must be in [0, 1), got {name}={value}.",
                next_step="0.1 is common.",
            )
            for name, value in (("validation", self.validation), ("test", self.test))
            if not (math.isfinite(value) and 0 <= value < 1)
        ]
        if not problems and self.validation + self.test >= 1:
            total = self.validation + self.test
            problems.append(
                Problem(
                    path="splits",
                    message=f"must leave a share for train, got {total} for the rest.",
                    next_step="Lower validation or test.",
                )
            )
        if problems:
            raise ConfigError(problems)


def assign_splits(
    records: Sequence[Record],
    *,
    settings: SplitSettings,
    seed: int,
    given: AbstractSet[str] = frozenset(),
) -> list[Record]:
    """Give every record its split.

    A unit's side depends on its id and the seed alone: it is the same on every machine,
    and adding or removing other units moves nobody.

    Args:
        records: checked records; those with a split keep it unless it is `train` and
            another split has yet to be cut.
        settings: expected shares.
        seed: public; another seed gives another split.
        given: splits that the source decides; the others are cut.
    """
    shares = {
        "test": 0.0 if "test" in given else settings.test,
        "validation": 0.0 if "validation" in given else settings.validation,
    }
    return [
        record
        if record.split not in (None, "train")
        else replace(record, split=_draw(record.draw_key, shares, seed))
        for record in records
    ]


def _draw(key: str, shares: dict[str, float], seed: int) -> str:
    """Place a unit by its hashed id."""
    fraction = seeded_fraction(key, seed=seed, purpose="split")
    for split, share in shares.items():
        if fraction < share:
            return split
        fraction -= share
    return "train"


def check_leaks(records: Sequence[Record], *, log: ProblemLog) -> None:
    """Report units that the source puts into several splits."""
    splits = defaultdict(set)
    for record in records:
        splits[record.unit_id].add(record.split)
    for record in records:
        if len(splits[record.unit_id]) > 1:
            log.add_row(
                record.location,
                "privacy unit must be in one split, got one in several.",
                "Let dptune split (one path, no split_column), or repair the files.",
            )


def check_given_by_column(
    records: Sequence[Record], *, given: AbstractSet[str], log: ProblemLog
) -> None:
    """Report splits of a column that hang on one unit.

    Whether a split is cut from training or given would be that unit's doing, and its
    removal would move all others.
    """
    units = defaultdict(set)
    for record in records:
        units[record.split].add(record.unit_id)
    for split in sorted(given):
        if len(units[split]) == 1:
            log.add(
                f"split {split}",
                "must hold at least 2 privacy units, got 1: one unit would decide "
                "whether the split is given.",
                "Name more units in split_column, or let dptune split.",
            )


def check_sizes(
    records: Sequence[Record],
    *,
    settings: SplitSettings,
    given: set[str],
    log: ProblemLog,
) -> None:
    """Report splits that should be there and are empty."""
    present = {record.split for record in records}
    wanted = {"train", *given}
    wanted |= {"validation"} if settings.validation > 0 else set()
    wanted |= {"test"} if settings.test > 0 else set()
    for split in SPLITS:
        if split in wanted - present:
            log.add(
                f"split {split}",
                "must hold a record, got 0.",
                "Give more privacy units, another share (0 for no such split), or a "
                "file for this split.",
            )
