"""Gold spans are read in every documented format, and refused without quotes."""

import gzip
import json

import pytest

from dptune.data.gold import read_gold
from dptune.errors import DataError

ROWS = {
    "ours": {
        "text": "I am Ann",
        "spans": [{"start": 5, "end": 8, "entity_type": "PERSON"}],
    },
    "type": {"text": "I am Ann", "spans": [{"start": 5, "end": 8, "type": "PERSON"}]},
    "spacy": {"text": "I am Ann", "entities": [[5, 8, "PERSON"]]},
    "doccano": {"text": "I am Ann", "label": [[5, 8, "PERSON"]]},
    "presidio": {
        "full_text": "I am Ann",
        "spans": [{"start_position": 5, "end_position": 8, "entity_type": "PERSON"}],
    },
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("form", ["lines", "list", "gzip"])
def test_every_format_gives_the_same_span(name, form, tmp_path):
    rows = [ROWS[name], ROWS[name]]
    content = (
        json.dumps(rows) if form == "list" else "\n".join(json.dumps(r) for r in rows)
    )
    path = tmp_path / ("gold.jsonl.gz" if form == "gzip" else "gold.jsonl")
    data = content.encode()
    path.write_bytes(gzip.compress(data) if form == "gzip" else data)
    found = read_gold(path)
    assert len(found) == 2
    ((span,),) = {row.spans for row in found}
    assert (span.start, span.end, span.entity_type) == (5, 8, "PERSON")
    assert "Ann" not in repr(found)


def test_iob2_joins_the_words_of_an_entity(tmp_path):
    path = tmp_path / "gold.iob2"
    path.write_text(
        "# text = Ann Lee met Bo.\n1\tAnn\tB-PER\n2\tLee\tI-PER\n3\tmet\tO\n"
        "4\tBo\tB-PER\n5\t.\tO\n\n1\tno\tO\n2\ttext\tB-LOC\n"
    )
    first, second = read_gold(path)
    assert [first.text[s.start : s.end] for s in first.spans] == ["Ann Lee", "Bo"]
    assert second.text == "no text"


def spans_of(content, tmp_path, name="gold.iob2"):
    path = tmp_path / name
    path.write_text(content)
    return [
        [(row.text[s.start : s.end], s.entity_type) for s in row.spans]
        for row in read_gold(path)
    ]


def rows_refused(content, tmp_path, name="gold.iob2"):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError) as refused:
        read_gold(path)
    assert not {"Ann", "Bob", "Lee"} & {*str(refused.value).split()}
    return [problem.path for problem in refused.value.problems]


@pytest.mark.parametrize("name", ["gold.iob2", "gold.bio", "gold.conll"])
def test_tags_of_single_and_last_words_are_read(name, tmp_path):
    content = (
        "1\tAnn\tS-PER\n2\tsaw\tO\n3\tBob\tB-PER\n4\tvan\tI-PER\n5\tLee\tE-PER\n"
        "6\tRome\tE-LOC\n7\tKim\tI-PER\n8\tJo\tI-PER\n9\tit\tB\n"
    )
    assert spans_of(content, tmp_path, name) == [
        [
            ("Ann", "PER"),
            ("Bob van Lee", "PER"),
            ("Rome", "LOC"),
            ("Kim Jo", "PER"),
            ("it", "SENSITIVE"),
        ]
    ]


def test_tags_of_bilou_are_read(tmp_path):
    content = (
        "1\tAnn\tU-PER\n2\tsaw\tO\n3\tBob\tB-PER\n4\tvan\tI-PER\n5\tLee\tL-PER\n"
        "6\tJo\tU-PER\n7\tKim\tL-PER\n"
    )
    found = [("Ann", "PER"), ("Bob van Lee", "PER"), ("Jo", "PER"), ("Kim", "PER")]
    assert spans_of(content, tmp_path) == [found]


@pytest.mark.parametrize(
    "row",
    [
        '{"text": "I am Ann", "spans": [[5, 8]], "spans": []}',
        '{"text": "I am Ann", "spans": [{"start": 5, "start": 7, "end": 8}]}',
        "[" * 100_000,
        '{"text": ' + "[" * 100_000,
    ],
    ids=lambda row: row[:40],
)
def test_row_that_says_two_things_or_is_too_deep_is_refused(row, tmp_path):
    """The last of two lists was taken: no gold span, and a recall of 100 %."""
    assert rows_refused(row, tmp_path, "gold.jsonl") == ["row 1"]


def test_signs_between_words_and_ends_of_lines_are_passed_over(tmp_path):
    content = (
        '\ufeff# text = "Ann" (Lee), ok\r\n1\tAnn\tB-PER\t-\tx\r\n2\tLee\tB-PER\r\n'
        "3\tok\tO\r\n\r\n\r\n1\tBob\tB-PER\r\n"
    )
    first, second = spans_of(content, tmp_path)
    assert first == [("Ann", "PER"), ("Lee", "PER")]
    assert second == [("Bob", "PER")]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        # a word that is written otherwise, with what follows it
        ("# text = Ann’s Bob\n1\tAnn's\tB-PER\n2\tBob\tB-PER\n", [2]),
        # one that stands further on only
        ("# text = Ann met Bob at a\n1\tAnn\tB-P\n2\ta\tO\n3\tBob\tB-P\n", [3]),
        ("# text = Ann\n1\tAnn\tB-P\n2\tLee\tB-P\n\n# text = Bob\n1\tLee\tO\n", [3, 6]),
        ("1\tAnn\tann\tPROPN\tB-PER\n2\tsaw\tsee\tVERB\tO\n", [1, 2]),
        ("Ann\tB-PER\nsaw\tO\n", [1, 2]),
        ("Ann NNP B-NP B-PER\n", [1]),
        ("1\tAnn\tB-PER\n2\tBob\tX-PER\n3\tLee\tB-\n4\t \tO\n5\tso\t_\n", [2, 3, 4, 5]),
    ],
)
def test_words_that_are_not_found_and_unknown_tags_are_named(content, rows, tmp_path):
    assert rows_refused(content, tmp_path) == [f"row {row}" for row in rows]


def test_second_list_of_spans_is_not_passed_over(tmp_path):
    row = {"text": "I am Ann", "spans": [], "entities": [[5, 8, "PERSON"]]}
    assert spans_of(json.dumps(row), tmp_path, "gold.jsonl") == [[("Ann", "PERSON")]]
    row["spans"] = [[0, 1, "PERSON"]]
    assert rows_refused(json.dumps(row), tmp_path, "gold.jsonl") == ["row 1"]
    row["spans"] = [{"start": 5, "end": 8, "type": "PERSON"}]
    row["label"] = ["letter"]
    assert spans_of(json.dumps(row), tmp_path, "gold.jsonl") == [[("Ann", "PERSON")]]
    row = {"text": "I am", "spans": [], "labels": ["letter"]}
    assert spans_of(json.dumps(row), tmp_path, "gold.jsonl") == [[]]


def test_rows_end_where_json_lines_do(tmp_path):
    row = ROWS["spacy"] | {"text": "I am Ann\u2028\x85ok"}
    content = "\ufeff" + json.dumps(row, ensure_ascii=False) + "\r\n"
    assert spans_of(content, tmp_path, "gold.jsonl") == [[("Ann", "PERSON")]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[1, 2",
        b'{"text": "Ann"}',
        b'{"text": 7, "spans": []}',
        b'{"text": "Ann", "spans": [{"start": 0, "end": 4}]}',
        b'{"text": "Ann", "spans": [{"start": 2, "end": 2}]}',
        b'{"text": "Ann", "spans": [{"start": "0", "end": 2}]}',
        b'{"text": "Ann", "spans": [[0]]}',
        b'{"text": "Ann", "spans": ["Ann"]}',
        b"null",
        b"Ann Lee",
    ],
)
def test_broken_files_are_refused_without_their_text(content, tmp_path):
    path = tmp_path / "gold.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        read_gold(path)
    assert "Ann" not in str(refused.value)


def test_every_bad_row_is_named_up_to_a_limit(tmp_path):
    path = tmp_path / "gold.jsonl"
    path.write_text("\n".join(["null"] * 50))
    with pytest.raises(DataError) as refused:
        read_gold(path)
    assert len(refused.value.problems) == 21
    assert "30 problems more" in str(refused.value)
