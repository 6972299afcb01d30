"""Split a corpus by privacy unit, so that no unit is on both sides."""

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dptune.data.draws import seeded_fractions
from dptune.data.engine import count, load
from dptune.data.records import AT_END, MAX_ROWS_NAMED, ProblemLog
from dptune.data.source import SPLITS
from dptune.data.table import RecordTable, Splits, split_code
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
    table: RecordTable,
    *,
    settings: SplitSettings,
    seed: int,
    given: AbstractSet[str] = frozenset(),
) -> Splits:
    """Give every record its split.

    A unit's side depends on its id and the seed alone: it is the same on every machine,
    and adding or removing other units moves nobody.

    Args:
        table: checked records; those with a split keep it unless it is `train` and
            another split has yet to be cut.
        settings: expected shares.
        seed: public; another seed gives another split.
        given: splits that the source decides; the others are cut.

    Returns:
        For each record the place of its split in `SPLITS`, `(records,)`.
    """
    shares = {
        "test": 0.0 if "test" in given else settings.test,
        "validation": 0.0 if "validation" in given else settings.validation,
    }
    drawn = [
        _draw(seeded_fractions(keys.to_pylist(), seed=seed, purpose="split"), shares)
        for keys in (table.draw_keys() if any(shares.values()) else ())
    ]
    sides = np.concatenate(drawn) if drawn else np.zeros_like(table.splits)
    return np.where(table.splits > split_code("train"), table.splits, sides)


def _draw(fractions: npt.NDArray[np.float64], shares: dict[str, float]) -> Splits:
    """Place units by their hashed ids."""
    sides = np.full(len(fractions), split_code("train"), np.int8)
    is_open = np.ones(len(fractions), bool)
    for split, share in shares.items():
        sides[is_open & (fractions < share)] = split_code(split)
        is_open &= fractions >= share
        fractions = fractions - share
    return sides


def check_leaks(table: RecordTable, *, log: ProblemLog) -> None:
    """Report units that the source puts into several splits."""
    if not table.named:
        return
    leaking = (
        "is_sound AND unit IN (SELECT unit FROM records WHERE is_sound AND unit IS "
        "NOT NULL GROUP BY unit HAVING min(split) <> max(split))"
    )
    rows, number = table.locations(leaking, limit=MAX_ROWS_NAMED)
    if number:
        log.add_rows(
            rows,
            "privacy unit must be in one split, got one in several.",
            "Let dptune split (one path, no split_column), or repair the files.",
            count=number,
            place=AT_END,
        )


def check_given_by_column(
    table: RecordTable,
    taken: npt.NDArray[np.bool_],
    *,
    given: AbstractSet[str],
    log: ProblemLog,
) -> None:
    """Report splits of a column that hang on one unit.

    Whether a split is cut from training or given would be that unit's doing, and its
    removal would move all others.
    """
    load(table.engine, "taken", {"pos": np.flatnonzero(taken)})
    for split in sorted(given):
        is_one = count(
            table.engine,
            "SELECT min(name) = max(name) FROM (SELECT coalesce(unit, id) AS name FROM "  # noqa: S608 - ours
            "records SEMI JOIN taken USING (pos) "
            f"WHERE split = {split_code(split)})",
        )
        if is_one:
            log.add(
                f"split {split}",
                "must hold at least 2 privacy units, got 1: one unit would decide "
                "whether the split is given.",
                "Name more units in split_column, or let dptune split.",
            )


def check_sizes(
    present: AbstractSet[str],
    *,
    settings: SplitSettings,
    given: set[str],
    log: ProblemLog,
) -> None:
    """Report splits that should be there and are empty."""
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
