"""What one unit reaches of others, from files that differ in one unit to the corpus.

Distances are between multisets of training examples, by the real `build_corpus`. The
clip bounds what an example adds, so that `c` examples more and `d` less move a sum by
`max(c, d)` replacements at most: a claim under add or remove needs 1 in all.
"""

import json
import tempfile
from collections import Counter
from copy import copy
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.data import building, deduplication, table
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.source import JsonlSource, TextSource
from dptune.data.splitting import SplitSettings
from dptune.errors import DataError
from dptune.privacy import PrivacyUnit

TEXTS = ("a b c", "a  b c", "d e f", "g h i")
HALVES = SplitSettings(validation=0.0, test=0.5)
SPACER = [{"id": f"s{i}", "text": f"spacer {i}", "label": 0} for i in range(8)]


def read(rows, *, unit=PrivacyUnit.RECORD, columns=None, **arguments):
    """Build a corpus of a file with these rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return build_corpus(
            JsonlSource(path=path, **({"id_column": "id"} | (columns or {}))),
            privacy_unit=unit,
            **{
                "splits": HALVES,
                "near_duplicate_threshold": None,
                "min_records": 1,
                "validate": False,
            }
            | arguments,
        )


def trained(rows, **arguments):
    """Count the training examples: text and label."""
    part = read(rows, **arguments).split("train")
    labels = part["label"] if "label" in part.column_names else [None] * len(part)
    return Counter(zip(part["text"], labels, strict=True))


def change(before, after):
    """Count examples that go, and that come."""
    return (before - after).total(), (after - before).total()


ids = st.integers(0, 9).map(lambda i: f"r{i}")
record = st.fixed_dictionaries({"text": st.sampled_from(TEXTS), "label": st.just(0)})
corpora = st.dictionaries(ids, record, max_size=8)


def listed(records):
    return [*SPACER, *({"id": name, **row} for name, row in records.items())]


def neighbors(records, name, row):
    """Without a record, with it, and with another text in its place."""
    without = {k: v for k, v in records.items() if k != name}
    return without, without | {name: row}


@settings(max_examples=40, deadline=None)
@given(corpora, ids, record)
def test_dropping_exact_copies_is_free_for_records_without_labels(records, name, row):
    """The lemma: one text at most, whoever owned the copy that stays."""
    without, with_it = (listed(r) for r in neighbors(records, name, row))
    gone, come = change(trained(without), trained(with_it))
    assert gone == 0
    assert come <= 1


@settings(max_examples=40, deadline=None)
@given(corpora, ids, record, ids, record)
def test_replacing_a_record_exchanges_one_text_at_most(
    records, old, row, new, other_row
):
    """Whatever id, and so split, the record has that comes in the place of another."""
    kept = {k: v for k, v in records.items() if k not in {old, new}}
    one, other = kept | {old: row}, kept | {new: other_row}
    gone, come = change(trained(listed(one)), trained(listed(other)))
    assert max(gone, come) <= 1


def changes(pairs, **arguments):
    """Count what goes and what comes in each pair; equal files are read once."""
    files = {json.dumps(rows): rows for pair in pairs for rows in pair}
    counts = {name: trained(rows, **arguments) for name, rows in files.items()}
    return [change(*(counts[json.dumps(rows)] for rows in pair)) for pair in pairs]


def worst(pairs, **arguments):
    """Return the largest sum of what goes and what comes over pairs of neighbors."""
    return max(gone + come for gone, come in changes(pairs, **arguments))


def pairs_of_copies(*variants):
    """Two copies of one text, and the second alone, at many ids."""
    pairs = []
    for i in range(5):
        for j in range(5):
            if i != j:
                rows = [
                    {"id": f"r{k}", **v} for k, v in zip((i, j), variants, strict=True)
                ]
                pairs.append(([*SPACER, *rows], [*SPACER, rows[1]]))
    return pairs


def test_twin_with_labels_exchanges_an_example_and_is_conditional():
    pairs = pairs_of_copies({"text": "x y", "label": 0}, {"text": "x y", "label": 1})
    columns = {"id_column": "id", "label_column": "label"}
    across = {"columns": columns, "duplicates": Duplicates.EXACT}
    assert worst(pairs, **across) == 2
    assert not read(pairs[0][0], **across).report.duplicates_are_free
    assert worst(pairs, columns=columns) <= 1  # the default
    assert read(pairs[0][0], columns=columns).report.duplicates_are_free


def test_twin_that_takes_other_blanks_for_a_copy_exchanges_a_text(monkeypatch):
    pairs = pairs_of_copies({"text": "x y", "label": 0}, {"text": "x  y", "label": 0})
    assert worst(pairs) <= 1
    plain = table.text_digest
    monkeypatch.setattr(
        table, "text_digest", lambda text: plain(" ".join(text.split()))
    )
    assert worst(pairs) == 2


def test_twin_in_which_held_out_copies_decide_adds_two_texts(monkeypatch):
    """A record that leaves the test set for the training set, where one copy waits."""

    def exchanged():
        pairs = []
        for ids in permutations(range(4), 3):
            kept, old, new = (f"r{i}" for i in ids)
            rest = [*SPACER, {"id": kept, "text": "x y"}]
            one = [*rest, {"id": old, "text": "x y"}]
            pairs.append((one, [*rest, {"id": new, "text": "z"}]))
        return max(map(max, changes(pairs)))

    assert exchanged() == 1
    monkeypatch.setattr(deduplication, "_LATE", {"train": 2, "validation": 1})
    assert exchanged() == 2


USERS = [
    {"id": f"{user}{i}", "user": user, "text": f"line {i} that everybody wrote"}
    for user in ("first", *(f"u{n:02}" for n in range(20)))
    for i in range(3)
]
OWN = [
    {"id": f"own{n}", "user": f"u{n:02}", "text": f"line of number {n} alone"}
    for n in range(20)
]
USER_COLUMNS = {"id_column": "id", "unit_column": "user"}


def texts_of_others(rows, **arguments):
    corpus = read(rows, unit=PrivacyUnit.USER, columns=USER_COLUMNS, **arguments)
    found = {unit: [] for unit in corpus.dataset["unit_id"] if unit != "first"}
    for unit, text in zip(
        corpus.dataset["unit_id"], corpus.dataset["text"], strict=True
    ):
        if unit in found:
            found[unit].append(text)
    return found, corpus.report


def others_changed(**arguments):
    """Count other users whose texts change when the first one leaves."""
    rows = [*USERS, *OWN]
    before, report = texts_of_others(rows, **arguments)
    after, _ = texts_of_others([r for r in rows if r["user"] != "first"], **arguments)
    return sum(before[unit] != after[unit] for unit in before), report


def test_duplicates_of_users_go_within_a_user_alone():
    """The attack of the issue: one user leaves, and all others get their texts back."""
    changed, report = others_changed()
    assert (changed, report.duplicates_are_free) == (0, True)
    changed, report = others_changed(duplicates=Duplicates.EXACT)
    assert changed >= 1  # the twin: what was the rule before
    assert (report.deduplicated, report.duplicates_are_free) == (True, False)


def test_near_duplicates_are_never_free():
    for unit in PrivacyUnit:
        assert not Duplicates.NEAR.is_free(privacy_unit=unit, has_labels=False)


def test_share_of_units_is_drawn_for_each_by_itself():
    """One user more pushes nobody out; a limit on records does, and says so."""
    more = [
        {"id": f"first-{i}", "user": "first", "text": f"more {i}"} for i in range(40)
    ]

    def changed(**arguments):
        with_it, report = texts_of_others([*OWN, *more], **arguments)
        without, _ = texts_of_others(OWN, **arguments)
        return sum(with_it.get(u) != without[u] for u in without), report.sampled

    assert changed(sample_share=0.6) == (0, False)
    pushed, sampled = changed(max_records=20)
    assert pushed > 1
    assert sampled


def test_share_of_units_takes_whole_units_by_their_names():
    corpus = read(
        [*USERS, *OWN],
        unit=PrivacyUnit.USER,
        columns=USER_COLUMNS,
        duplicates=Duplicates.KEEP,
        sample_share=0.6,
    )
    count = Counter(corpus.dataset["unit_id"])
    assert 5 < len(count) < 21
    assert set(count.values()) <= {3, 4}


def test_split_of_a_column_that_one_unit_holds_alone_is_refused(monkeypatch):
    """Its removal would make the program cut a test set from everybody else."""
    rows = [{"id": f"r{i}", "text": f"text {i}", "part": "train"} for i in range(40)]
    only = [*rows, {"id": "x", "text": "the only one", "part": "test"}]
    columns = {"id_column": "id", "split_column": "part"}
    with pytest.raises(DataError, match="at least 2 privacy units"):
        read(only, columns=columns)
    two = [*only, {"id": "y", "text": "another", "part": "test"}]
    assert len(read(two, columns=columns).split("train")) == 40
    monkeypatch.setattr(building, "check_given_by_column", lambda *_, **__: None)
    assert max(change(trained(only, columns=columns), trained(rows, columns=columns)))
    gone, _ = change(trained(only, columns=columns), trained(rows, columns=columns))
    assert gone > 10


def test_label_of_one_record_decides_no_class_of_another():
    """With one word among them `01` stayed text; alone it was read as the number 1."""
    rows = [
        {"id": f"r{i}", "text": f"text {i}", "label": label}
        for i, label in enumerate(("01", "1", "2", "3"))
    ]
    columns = {"id_column": "id", "label_column": "label"}

    def labels(rows):
        found = read(rows, columns=columns).dataset
        return dict(zip(found["id"], map(str, found["label"]), strict=True))

    alone = labels(rows)
    with_word = labels([*rows, {"id": "x", "text": "text", "label": "word"}])
    assert {**alone, "x": "word"} == with_word


def test_copies_without_ids_share_a_split(monkeypatch):
    """A copy's number says how many others there are, and must not draw its split."""
    rows = [
        {"text": f"text {i}", "label": label} for i in range(12) for label in range(3)
    ]
    less = [row for row in rows if row["label"] or row["text"] != "text 0"]
    columns = {"id_column": None, "label_column": "label"}
    arguments = {"columns": columns, "allow_content_hash_ids": True}

    def most():
        pairs = []
        for i in range(12):
            less = [r for r in rows if r["label"] or r["text"] != f"text {i}"]
            pairs.append((rows, less))
        return worst(pairs, **arguments)

    assert len(less) == len(rows) - 1
    assert most() <= 1
    plain = building.assign_splits
    monkeypatch.setattr(
        building,
        "assign_splits",
        lambda records, **more: plain(_named(records), **more),
    )
    assert most() > 1


def _named(records):
    """Draw the split by the name of a copy, number and all."""
    twin = copy(records)
    twin.draw_keys = records.unit_ids
    return twin


def test_replaced_text_moves_the_number_of_units_where_texts_decide_it():
    """What `replacement_keeps_num_units` is named for; with ids and `keep` it stays."""
    rows = [{"id": f"r{i}", "text": f"text {i}"} for i in range(20)]
    neighbors = [[*rows[1:], {"id": "r0", "text": f"text {i}"}] for i in range(1, 12)]

    def numbers(**arguments):
        found = (read(r, **arguments).report.num_units for r in (rows, *neighbors))
        return len({number["train"] for number in found})

    assert numbers(duplicates=Duplicates.KEEP) == 1
    assert numbers(duplicates=Duplicates.EXACT) > 1
    hashed = {"columns": {"id_column": None}, "allow_content_hash_ids": True}
    assert numbers(duplicates=Duplicates.KEEP, **hashed) > 1


@pytest.mark.parametrize(
    ("unit", "record", "named"),
    [
        (PrivacyUnit.RECORD, "line", True),
        (PrivacyUnit.DOCUMENT, "line", False),
        (PrivacyUnit.RECORD, "document", False),
    ],
)
def test_ids_by_place_in_a_file_are_named_where_they_are_units(
    tmp_path, unit, record, named
):
    """A line that is taken out renames all behind it, and moves them between splits."""
    lines = [f"line {i} of a file" for i in range(60)]

    def corpus(lines):
        (tmp_path / "a.txt").write_text("\n".join(lines))
        source = TextSource(path=tmp_path / "a.txt", record=record, position_ids=True)
        return build_corpus(
            source,
            privacy_unit=unit,
            splits=SplitSettings(validation=0.0, test=0.5 if named else 0.0),
            min_records=1,
            validate=False,
        )

    one, other = corpus(lines), corpus(lines[1:])
    assert (one.report.assumes == ("positions_name_records",)) is named
    if named:
        sets = (Counter(c.split("train")["text"]) for c in (one, other))
        assert sum(change(*sets)) > 5
