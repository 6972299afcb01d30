"""Invented dialogues and their exact spans."""

import re
import subprocess
import sys
import time
from collections import Counter

import pytest

from dptune.data import synthetic
from dptune.data.source import SyntheticSource
from dptune.data.synthetic import generate_dialogues, gold_spans
from dptune.data.validation import EMAIL
from dptune.errors import ConfigError

FORMS = {
    "EMAIL": r"[a-z0-9._]+@(mail\.)?example\.(com|org|net)",
    "PHONE": r".*555.?01[0-9]{2}",
    "ORDER_ID": r"[0-9]{3}-[0-9]{5}-[0-9]{4}|[0-9]{10}|#[0-9]{7,9}|ord-[0-9]{6}",
    "ACCOUNT_ID": r"ac-[0-9]{6}|[a-z][a-z0-9]{8}[0-9]",
    "DATE": r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9/]{10}|[0-9]{1,2} \w+ [0-9]{4}"
    r"|\w+ [0-9]{1,2}(, [0-9]{4})?",
    "ADDRESS": r"[0-9]+ \w+ \w+( apt [0-9]+)?, [\w ]+, [a-z]{2} [0-9]{5}",
    "PERSON": r"[a-z]+(( [a-z]\.)? [a-z]+)?",
}


@pytest.fixture(scope="module")
def private():
    return generate_dialogues(num_records=4000, private=True, seed=0)


@pytest.fixture(scope="module")
def public():
    return generate_dialogues(num_records=4000, private=False, seed=0)


def test_generate_dialogues_takes_two_seconds_for_4000_at_most():
    start = time.process_time()
    generate_dialogues(num_records=4000, private=True, seed=5)
    assert time.process_time() - start < 2


def test_gold_spans_are_exact(private):
    for dialogue in private:
        for span in dialogue.spans:
            value = dialogue.text[span.start : span.end].lower()
            assert re.fullmatch(FORMS[span.entity_type], value), span.entity_type


def test_gold_spans_are_ordered_and_apart(private):
    for dialogue in private:
        ends = [0, *(span.end for span in dialogue.spans)]
        assert all(
            end <= span.start for end, span in zip(ends, dialogue.spans, strict=False)
        )


def test_gold_spans_leave_no_personal_value_outside(private):
    for dialogue in private:
        rest, position = "", 0
        values = set()
        for span in dialogue.spans:
            rest += dialogue.text[position : span.start] + "|"
            values.add(dialogue.text[span.start : span.end].lower())
            position = span.end
        rest = (rest + dialogue.text[position:]).lower()
        for value in values:
            assert not re.search(rf"\b{re.escape(value)}\b", rest)


def test_gold_spans_shifted_by_one_would_fail(private):
    misses = sum(
        not re.fullmatch(FORMS[span.entity_type], d.text[span.start + 1 : span.end + 1])
        for d in private[:200]
        for span in d.spans
    )
    assert misses > 500


def test_private_dialogues_cover_all_types(private):
    counts = Counter(span.entity_type for d in private for span in d.spans)
    assert set(counts) == set(FORMS)
    assert min(counts.values()) > 500
    assert all(dialogue.spans for dialogue in private)


def test_public_dialogues_name_nobody(public):
    assert not any(dialogue.spans for dialogue in public)
    text = "\n".join(dialogue.text for dialogue in public)
    assert not re.search(EMAIL, text)
    assert "555" not in re.findall(r"\b[0-9]{3}\b(?=-)", text)
    assert set("0123456789") <= set(text)


def test_dialogues_differ_and_have_forty_to_ninety_words(private, public):
    for half in (private, public):
        assert len({dialogue.text for dialogue in half}) == len(half)
        assert len({dialogue.id for dialogue in half}) == len(half)
        lengths = [len(dialogue.text.split()) for dialogue in half]
        assert min(lengths) >= 40
        assert max(lengths) <= 90
        for dialogue in half:
            assert re.fullmatch(r"((SYS|USR): \S[^\n]*(\n|$))+", dialogue.text)
            assert "{" not in dialogue.text


def test_templates_are_many():
    content = synthetic._content()
    pairs = [
        *content["private"]["personal_topics"].values(),
        *content["private"]["details"].values(),
        *content["public"]["public_topics"],
    ]
    turns = {turn for pair in pairs for side in pair for turn in side}
    assert len(turns | set(content["private"]["give_name"])) > 180


def test_customers_keep_name_and_address(private):
    found = {}
    for dialogue in private:
        for span in dialogue.spans:
            if span.entity_type in ("ADDRESS", "EMAIL", "PHONE"):
                value = dialogue.text[span.start : span.end].lower()
                found.setdefault((dialogue.unit_id, span.entity_type), set()).add(value)
    assert all(len(values) == 1 for values in found.values())
    sizes = Counter(Counter(d.unit_id for d in private).values())
    assert set(sizes) >= {1, 2, 3, 4}
    assert (
        len({v for (_, kind), vs in found.items() if kind == "ADDRESS" for v in vs})
        > 800
    )


def test_generate_dialogues_of_fewer_is_a_prefix(private):
    assert generate_dialogues(num_records=50, private=True, seed=0) == private[:50]


def test_generate_dialogues_of_another_seed_differs(private):
    other = generate_dialogues(num_records=50, private=True, seed=1)
    assert not {d.text for d in other} & {d.text for d in private}
    assert not {d.unit_id for d in other} & {d.unit_id for d in private}


def test_generate_dialogues_is_the_same_in_another_process(private):
    code = (
        "from dptune.data.synthetic import generate_dialogues as g;"
        "import hashlib;"
        "t = ''.join(d.text for d in g(num_records=20, private=True, seed=0));"
        "print(hashlib.sha256(t.encode()).hexdigest())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_gold_spans_by_id(private):
    spans = gold_spans(SyntheticSource(num_records=10))
    assert spans == {d.id: d.spans for d in private[:10]}


def test_synthetic_record_hides_its_text(private):
    assert private[0].text[:20] not in repr(private[0])


@pytest.mark.parametrize("arguments", [{"num_records": 0}, {"seed": -1}])
def test_generate_dialogues_out_of_range_is_refused(arguments):
    with pytest.raises(ConfigError):
        generate_dialogues(**{"num_records": 1, "private": True, "seed": 0} | arguments)
