"""Splits by unit."""

from collections import defaultdict
from contextlib import contextmanager

from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.data.engine import open_engine
from dptune.data.records import ProblemLog
from dptune.data.source import SPLITS
from dptune.data.splitting import SplitSettings, assign_splits, check_leaks
from tests.support.sources import written_table

SETTINGS = SplitSettings(validation=0.2, test=0.1)


@contextmanager
def table(units, splits=None):
    """Checked records of some units, in order."""
    rows = [
        (str(i), "x", unit, None if splits is None else splits[i])
        for i, unit in enumerate(units)
    ]
    with open_engine(None) as engine:
        yield written_table(engine, rows)


def assigned(units, splits=None, *, settings=SETTINGS, seed=0, given=frozenset()):
    with table(units, splits) as found:
        codes = assign_splits(found, settings=settings, seed=seed, given=given)
    return [SPLITS[code] for code in codes]


def sides(units, splits):
    found = defaultdict(set)
    for unit, split in zip(units, splits, strict=True):
        found[unit].add(split)
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text("ab \u00e9\u65e5", max_size=3), min_size=1, max_size=60),
    st.integers(0, 5),
)
def test_assign_splits_never_divides_a_unit(units, seed):
    found = sides(units, assigned(units, seed=seed))
    assert all(len(splits) == 1 for splits in found.values())


def test_assign_splits_by_record_would_divide_units():
    splits = assigned([str(i) for i in range(100)])
    log = ProblemLog()
    with table([str(i % 10) for i in range(100)], splits) as twin:
        check_leaks(twin, log=log)
    assert log


def test_assign_splits_meets_shares():
    count = assigned([str(i) for i in range(20_000)]).count
    # Binomial stddev 57 and 42; six of each.
    assert abs(count("validation") - 4000) < 342
    assert abs(count("test") - 2000) < 255


def test_assign_splits_with_more_units_moves_nobody():
    few = [str(i) for i in range(100)]
    many = [str(i) for i in range(-500, 700)][::-1]
    first, second = sides(few, assigned(few)), sides(many, assigned(many))
    assert all(second[unit] == found for unit, found in first.items())


def test_assign_splits_of_another_seed_differs():
    units = [str(i) for i in range(200)]
    assert assigned(units) == assigned(units)
    assert assigned(units) != assigned(units, seed=1)


def test_assign_splits_cuts_only_what_the_source_leaves_open():
    units = [str(i) for i in range(501)]
    splits = assigned(units, [*["train"] * 500, "test"], given={"train", "test"})
    assert splits.count("test") == 1
    assert 50 < splits.count("validation") < 150


def test_assign_splits_with_zero_shares_keeps_all_in_train():
    units = [str(i) for i in range(50)]
    settings = SplitSettings(validation=0, test=0)
    assert set(assigned(units, settings=settings)) == {"train"}
