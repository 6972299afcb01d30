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
