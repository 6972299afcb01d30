"""Whatever is done to a log of any length, the first bad entry is named."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dptune.accounting.store.log import Head, Row, canonical, entry_hash, first_break


def chain(contents):
    """Build a log as `append` does."""
    rows, previous = [], Head().hash
    for sequence, content in enumerate(contents, start=1):
        written = canonical({"kind": "spend", "value": content})
        digest = entry_hash(sequence, previous, written)
        rows.append(
            Row(sequence=sequence, previous=previous, hash=digest, content=written)
        )
        previous = digest
    return rows


def head(rows):
    return Head(sequence=rows[-1].sequence, hash=rows[-1].hash)


def named(rows, end):
    found = first_break(rows, [end])
    return found.sequence if found else None


LOGS = st.lists(st.integers(0, 3), min_size=2, max_size=12).map(chain)


@st.composite
def tampered(draw):
    """A log, what was done to it, its old head, and the first bad entry."""
    rows = draw(LOGS)
    end, number = head(rows), draw(st.integers(1, len(rows)))
    row, others = rows[number - 1], list(rows)
    match draw(st.sampled_from(["edit", "rehash", "delete", "cut", "move", "repeat"])):
        case "edit":
            others[number - 1] = replace(row, content=row.content + " ")
        case "rehash":
            content = canonical({"kind": "spend", "value": 9})
            digest = entry_hash(number, row.previous, content)
            others[number - 1] = replace(row, content=content, hash=digest)
        case "delete":
            del others[number - 1]
        case "cut":
            del others[number - 1 :]
        case "move":
            other = draw(st.integers(1, len(rows)).filter(lambda x: x != number))
            a, b = sorted((number, other))
            others[a - 1] = replace(rows[b - 1], sequence=a)
            others[b - 1] = replace(rows[a - 1], sequence=b)
            number = a
        case "repeat":
            rest = rows[number - 1 :]
            others[number:] = [replace(r, sequence=r.sequence + 1) for r in rest]
            number += 1
    return others, end, number


@given(LOGS)
def test_untouched_log_has_no_break(rows):
    assert named(rows, head(rows)) is None


@given(tampered())
def test_first_bad_entry_is_named_every_time(case):
    rows, end, number = case
    assert named(rows, end) == number


def test_twin_that_trusts_each_row_by_itself_misses_a_cut_and_a_new_hash():
    rows = chain([1, 2, 3])
    forged = chain([1, 9, 3])
    for case, bad in ((rows[:2], 3), ([rows[0], forged[1], rows[2]], 2)):
        assert all(row.hash == row.true_hash for row in case)
        assert named(case, head(rows)) == bad
