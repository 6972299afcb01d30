"""Which values are one: spellings of a name are, names of other people are not."""

import unicodedata

import pytest

from dptune.redaction import engine, forms, names, pseudonyms
from dptune.redaction.engine import redact_text, replacement
from dptune.redaction.operators import Operator
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.review.lists import AllowFilter, ListKey, ReviewLists, extended
from dptune.spellings import one_form
from dptune.text import Span

pytest.importorskip("faker", reason="needs the extra pseudonyms")

FORMED = (Operator.NUMBERED, Operator.HASH, Operator.PSEUDONYM)
OTHERS = [
    *(("सीता", "सुता"), ("कमल", "कमला"), ("মীনা", "মানু"), ("น้ำ", "นา"), ("ராம", "ராமு")),
    *(
        ("మీనా", "మానా"),
        ("ക", "കി"),
        ("がく", "かく"),
        ("Ann", "Anna"),
        ("Müller", "Miller"),
    ),
    *(("김", "기"), ("កា", "កី"), ("Michael", "Michal"), ("12", "21")),
]
EQUALS = [
    *(("John", "Jo\u200bhn"), ("John", "Jo\u00adhn"), ("José", "Jose"), ("Zoë", "ZOE")),
    *(("Müller", "Mueller"), ("MÜLLER", "Mu\u0308ller"), ("Strauß", "STRAUSS")),
    *(
        ("O'Brien", "OBRIEN"),
        ("Søren", "Soeren"),
        ("Łukasz", "Lukasz"),
        ("सीता", "सीता\u200c"),
    ),
    *(("كمال", "كَمال"), ("שָׁרָה", "שרה"), ("Ｊｏｈｎ", "John"), ("4471", "44\u200b71")),
    *(("Jo\ufeffhn", "John"), ("Ann\u2060 Lee", "ann lee"), ("٤٤٧١", "4471")),
]


def written(operator, *values, kind="PERSON"):
    """Write values of one record."""
    rule = replacement(operator, pseudonyms=Pseudonyms(key=bytes(16)), unit_id="u")
    span = Span(start=0, end=1, entity_type=kind)
    return [rule(span, value) for value in values]


@pytest.mark.parametrize("operator", FORMED)
@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_forms_of_different_names_differ_under_every_operator(operator, one, other):
    made = written(operator, one, other)
    assert made[0] != made[1]
    assert one_form(one) != one_form(other)


@pytest.mark.parametrize("operator", FORMED)
@pytest.mark.parametrize(("one", "other"), EQUALS)
def test_forms_of_spellings_of_a_name_are_equal(operator, one, other):
    made = written(operator, one, other)
    if operator is Operator.PSEUDONYM:  # written in the case and digits of each
        made = [one_form(value) for value in made]
    assert made[0] == made[1]
    assert not {"\u200b", "\u00ad", "\ufeff"} & set("".join(made))


def letters_only(value):
    """The form of before: marks fall, and accents stay."""
    folded = unicodedata.normalize("NFKC", value).casefold()
    return "".join(filter(str.isalnum, folded)) or folded


@pytest.mark.parametrize("operator", FORMED)
def test_forms_twin_of_letters_alone_is_caught_both_ways(monkeypatch, operator):
    for module in (forms, names, pseudonyms):
        monkeypatch.setattr(module, "one_form", letters_only)
    with pytest.raises(AssertionError):
        test_forms_of_different_names_differ_under_every_operator(operator, *OTHERS[0])
    with pytest.raises(AssertionError):
        test_forms_of_spellings_of_a_name_are_equal(operator, "José", "Jose")


@pytest.mark.parametrize(
    ("allowed", "name"),
    [("कमल", "कमला"), ("น้ำ", "นา"), ("rosé", "Rose"), ("सीता", "सुता")],
)
def test_forms_of_an_allow_list_unmask_no_other_name(allowed, name):
    key = ListKey(secret=bytes(32))
    lists = extended(ReviewLists(), key, allow=[key.allow_name(allowed)])
    span = Span(start=0, end=len(name), entity_type="PERSON", confidence=0.5)
    assert AllowFilter(lists, key).keep([span], name) == [span]
    mark = Span(start=0, end=len(allowed), entity_type="PERSON", confidence=0.5)
    assert AllowFilter(lists, key).keep([mark], allowed) == []


def test_forms_of_numbered_values_count_within_a_record():
    spans = [Span(start=a, end=a + 4, entity_type="PERSON") for a in (0, 5, 10)]
    made = redact_text("José Jose Josa", spans, Operator.NUMBERED).text
    assert made == "<PERSON_1> <PERSON_1> <PERSON_2>"
    assert one_form("😀") != one_form("😁")


SIGNED = [
    *(("IP", "1.1.11.1", "11.1.1.1"), ("IP", "2001:470::1:2", "2001:470:1::2")),
    *(("DATE", "1/12", "11/2"), ("DATE", "2020-1-12", "2020-11-2")),
    *(("AMOUNT", "$1.50", "$150"), ("AMOUNT", "1.5 million", "15 million")),
]


@pytest.mark.parametrize("operator", FORMED)
@pytest.mark.parametrize(("kind", "one", "other"), SIGNED)
def test_forms_keep_signs_that_tell_values_apart(operator, kind, one, other):
    made = written(operator, one, other, kind=kind)
    assert made[0] != made[1] or made[0] == "<mask>"


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        *(("DATE", "Jan. 5", "jan 5"), ("DATE", "2020-03-03", "2020/03/03")),
        *(("IP", "10.0.0\u200b.1", "10.0.0.1"), ("PHONE", "+44 20-79", "+44.2079")),
    ],
)
def test_forms_fold_signs_that_do_not(kind, one, other):
    for operator in (Operator.NUMBERED, Operator.HASH):
        made = written(operator, one, other, kind=kind)
        assert made[0] == made[1]


def test_forms_twin_without_signs_is_caught(monkeypatch):
    for module in (engine, pseudonyms):
        monkeypatch.setattr(module, "form_of", lambda _kind, value: one_form(value))
    for operator in FORMED:
        with pytest.raises(AssertionError):
            test_forms_keep_signs_that_tell_values_apart(operator, *SIGNED[0])
