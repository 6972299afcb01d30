"""Splits by unit."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.data.records import ProblemLog, Record
from dptune.data.splitting import SplitSettings, assign_splits, check_leaks

SETTINGS = SplitSettings(validation=0.2, test=0.1)


def record(number, unit, split=None):
    return Record(
        id=str(number),
        text="x",
        unit_id=unit,
        draw_key=unit,
        split=split,
        label=None,
        location="row",
    )


def sides(rows):
    found = defaultdict(set)
    for row in rows:
        found[row.unit_id].add(row.split)
    return found


@settings(max_examples=40)
@given(st.lists(st.text(max_size=3), max_size=60), st.integers(0, 5))
def test_assign_splits_never_divides_a_unit(units, seed):
    rows = assign_splits(
        [record(i, unit) for i, unit in enumerate(units)], settings=SETTINGS, seed=seed
    )
    assert all(len(found) == 1 for found in sides(rows).values())


def test_assign_splits_by_record_would_divide_units():
    rows = assign_splits(
        [record(i, str(i)) for i in range(100)], settings=SETTINGS, seed=0
    )
    twin = [record(i, str(i % 10), row.split) for i, row in enumerate(rows)]
    log = ProblemLog()
    check_leaks(twin, log=log)
    assert log


def test_assign_splits_meets_shares():
    rows = assign_splits(
        [record(i, str(i)) for i in range(20_000)], settings=SETTINGS, seed=0
    )
    count = [row.split for row in rows].count
    # Binomial stddev 57 and 42; six of each.
    assert abs(count("validation") - 4000) < 342
    assert abs(count("test") - 2000) < 255


def test_assign_splits_with_more_units_moves_nobody():
    few = [record(i, str(i)) for i in range(100)]
    many = [record(i, str(i)) for i in range(-500, 700)]
    first = sides(assign_splits(few, settings=SETTINGS, seed=0))
    second = sides(assign_splits(many[::-1], settings=SETTINGS, seed=0))
    assert all(second[unit] == found for unit, found in first.items())


def test_assign_splits_of_another_seed_differs():
    rows = [record(i, str(i)) for i in range(200)]
    one = assign_splits(rows, settings=SETTINGS, seed=0)
    assert one == assign_splits(rows, settings=SETTINGS, seed=0)
    assert one != assign_splits(rows, settings=SETTINGS, seed=1)


def test_assign_splits_cuts_only_what_the_source_leaves_open():
    rows = [record(i, str(i), "train") for i in range(500)]
    rows.append(record(500, "500", "test"))
    placed = assign_splits(rows, settings=SETTINGS, seed=0, given={"train", "test"})
    splits = [row.split for row in placed]
    assert splits.count("test") == 1
    assert 50 < splits.count("validation") < 150


def test_assign_splits_with_zero_shares_keeps_all_in_train():
    rows = assign_splits(
        [record(i, str(i)) for i in range(50)],
        settings=SplitSettings(validation=0, test=0),
        seed=0,
    )
    assert {row.split for row in rows} == {"train"}
