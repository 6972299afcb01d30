"""Pseudonyms: equal for equal values, different for other keys, nobody's number."""

import unicodedata

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.errors import ConfigError
from dptune.identifiers import IBAN_LENGTHS, has_iban_digits, is_luhn_valid
from dptune.redaction import names, pseudonyms
from dptune.redaction.engine import redact_dataset, redact_text
from dptune.redaction.operators import Operator
from dptune.redaction.pseudonyms import _MAKERS, Pseudonyms, Scope
from dptune.spellings import one_form
from dptune.text import Span

pytest.importorskip("faker", reason="needs the extra pseudonyms")

KEY = b"0123456789abcdef"


def invent(value, kind="PERSON", *, key=KEY, unit="u", scope=Scope.UNIT):
    replace = Pseudonyms(key=key, scope=scope).replacement(unit)
    return replace(Span(start=0, end=len(value), entity_type=kind), value)


def test_pseudonym_is_equal_for_equal_values_of_a_unit():
    assert invent("Ann Lee") == invent("Ann Lee")
    assert one_form(invent("ann  lee")) == one_form(invent("Ann Lee"))
    assert invent("Ann Lee") != invent("Bo Diaz")


def test_pseudonym_depends_on_key_and_unit():
    other = invent("Ann Lee", key=KEY[::-1])
    assert len({invent("Ann Lee"), other, invent("Ann Lee", unit="v")}) == 3
    everywhere = {
        invent("Ann Lee", unit=u, scope=Scope.CORPUS) for u in ("u", "v", None)
    }
    assert len(everywhere) == 1


@pytest.mark.parametrize("kind", [*_MAKERS, "DATE", "PHONE", "ID", "ZIP"])
@pytest.mark.parametrize("value", ["Ann Lee", "4111 1111 1111 1111", "2001-04-05"])
def test_pseudonym_is_never_the_value(kind, value):
    assert one_form(invent(value, kind)) != one_form(value)


def test_pseudonym_shapes():
    assert invent("ann").islower()
    assert invent("ANN LEE").isupper()
    assert " " not in invent("Ann")
    assert invent("(977) 625-2661", "PHONE")[0] == "("
    assert invent("x@y.org", "EMAIL").endswith(".invalid")
    assert invent("10.0.0.1", "IP").startswith("203.0.113.")
    assert invent("123-45-6789", "SSN").startswith("000-")
    assert invent(" Ann ")[0] == invent(" Ann ")[-1] == " "


@given(st.integers(0, 10**16 - 1), st.booleans())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_pseudonym_card_has_the_checksum_of_the_original_and_no_issuer(number, valid):
    digits = f"{number:016d}"
    if valid:
        digits = next(
            digits[:-1] + c for c in "0123456789" if is_luhn_valid(digits[:-1] + c)
        )
    written = " ".join(digits[i : i + 4] for i in range(0, 16, 4))
    made = invent(written, "CREDIT_CARD")
    bare = made.replace(" ", "")
    assert [len(part) for part in made.split()] == [4, 4, 4, 4]
    assert is_luhn_valid(bare) == is_luhn_valid(digits)
    assert bare[0] == digits[0]
    assert bare[1:6] == "00000", "an issuer's number might be somebody's"


IBANS = [
    *("DE89 3704 0044 0532 0130 00", "GB29 NWBK 6016 1331 9268 19"),
    *("FR1420041010050500013M02606", "NL91ABNA0417164300", "nl91abna0417164300"),
    *("PL61 1090 1014 0000 0712 1981 2874", "TR33 0006 1005 1978 6457 8413 26"),
    *("ES91-2100-0418-4502-0005-1332", "IT60X0542811101000000123456"),
    *("SA03 8000 0000 6080 1016 7519", "CH9300762011623852957"),
]


@pytest.mark.parametrize("value", IBANS)
def test_pseudonym_iban_is_valid_where_the_original_is(value):
    made = invent(value, "IBAN")
    compact = "".join(filter(str.isalnum, made)).upper()
    assert has_iban_digits(compact)
    assert len(compact) == IBAN_LENGTHS[compact[:2]]
    assert [c.isdigit() for c in made] == [c.isdigit() for c in value]
    assert [c.islower() for c in made] == [c.islower() for c in value]
    assert "".join(filter(str.isdigit, compact[4:])).startswith("0000")
    broken = value[:-1] + ("1" if value[-1] != "1" else "2")
    other = "".join(filter(str.isalnum, invent(broken, "IBAN"))).upper()
    assert not has_iban_digits(other)


TOGETHER = [
    # one person, written in many ways: what each word became must be one word
    *("Ann Lee", "Ann", "Lee", "ANN LEE", "ann lee", "Lee, Ann", "Ms Lee", "Mrs. Lee"),
    *("Dr. Ann Lee", "ann", "LEE", "Ann-Lee", "lee ann", "Prof Lee", "Ann  Lee"),
]


def test_pseudonyms_of_the_parts_of_a_name_are_the_parts_of_its_pseudonym():
    first, last = invent("Ann Lee").split()
    ours = {"ann": first.lower(), "lee": last.lower()}
    for value in TOGETHER:
        made = invent(value)
        words = value.lower().replace(",", " ").replace("-", " ").split()
        titles = {"ms", "mrs.", "dr.", "prof"}
        wanted = [w if w in titles else ours[w] for w in words]
        assert made.lower().replace(",", " ").replace("-", " ").split() == wanted
    assert invent("A. Lee") == f"{first[0]}. {last}"
    assert invent("A.L.") == f"{first[0]}.{last[0]}."
    local, _, domain = invent("ann.lee42@acme.com", "EMAIL").partition("@")
    assert local[:-2] == f"{first}.{last}".lower()
    assert invent("@ann_lee", "USERNAME") == f"@{first}_{last}".lower()
    assert invent("https://www.acme.com/ann", "URL") == f"https://{domain}"
    assert invent("Acme Inc.", "ORG") == invent("Acme", "ORG") + " Inc."


def test_pseudonyms_twin_that_draws_whole_names_does_not_fit(monkeypatch):
    """The twin draws a name for the value as a whole, as it was before."""

    def whole(self, value, attempt):
        draw = self.draw(one_form(value), str(attempt))
        pool = names._pool("en_US", "family")
        return " ".join(draw.choice(pool) for _ in value.split())

    monkeypatch.setattr(names.NameMaker, "name", whole)
    with pytest.raises(AssertionError):
        test_pseudonyms_of_the_parts_of_a_name_are_the_parts_of_its_pseudonym()


GENDERS = {
    "female": "Mary Linda Susan Jessica Emily Sophie Katharina Giulia Agnieszka Marie",
    "male": "James Robert Michael Daniel Matthew Pierre Wolfgang Giuseppe Mehmet Jan",
}


@pytest.mark.parametrize("gender", GENDERS)
def test_pseudonyms_keep_the_gender_of_known_given_names(gender):
    pool = set(names._pool("en_US", gender))
    for name in GENDERS[gender].split():
        made = {invent(name, unit=str(unit)) for unit in range(5)}
        assert made <= pool
        assert name not in made


@pytest.mark.parametrize(
    "value",
    [
        "王小明",
        "Иван Петров",
        "محمد علي",
        "राम कुमार",
        "שרה לוי",
        "Γιώργος",
        "สมชาย",
        "김민수",
    ],
)
@pytest.mark.parametrize("kind", ["PERSON", "ID"])
def test_pseudonyms_keep_the_alphabet(value, kind):
    made = invent(value, kind)
    scripts = [
        {names.script_of(c) for c in text if c.isalpha()} for text in (made, value)
    ]
    assert scripts[0] == scripts[1]
    assert one_form(made) != one_form(value)


@pytest.mark.parametrize(
    "value",
    ["wanda17 zorn", "Jose\u0301 Dı\u0301az", "राम कुमार", "عَلِيّ", "Linda1962", "II ٣"],
)
def test_pseudonyms_of_names_copy_no_digit_and_no_mark(value):
    """A mark on a letter, or a number behind a name, says something of it."""
    for unit in map(str, range(8)):
        made = invent(value, unit=unit)
        marks = {c for c in value if unicodedata.category(c)[0] == "M"}
        assert not marks & set(made)
    digits = [c for c in value if c.isdecimal()]
    drawn = {
        tuple(c for c in invent(value, unit=str(u)) if c.isdecimal()) for u in range(20)
    }
    assert {len(found) for found in drawn} == {len(digits)}
    assert len(drawn) > 1 or not digits


def test_pseudonyms_drop_particles_that_tell_where_a_name_is_from():
    assert "van" not in invent("Ludwig van Beethoven").split()
    assert invent("Beethoven") in invent("Ludwig van Beethoven")


def test_pseudonyms_short_key_and_missing_unit_are_refused():
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        Pseudonyms(key=b"short")
    with pytest.raises(ConfigError, match="unit_id must be given"):
        invent("Ann", unit=None)
    with pytest.raises(ConfigError, match="pseudonyms must be given"):
        redact_text("Ann", [], Operator.PSEUDONYM)
    assert "0123" not in repr(Pseudonyms(key=KEY))


def test_redact_dataset_is_consistent_within_a_unit():
    span = {"start": 0, "end": 7, "entity_type": "PERSON"}
    corpus = datasets.Dataset.from_dict(
        {
            "text": ["Ann Lee ran", "Ann Lee sat", "Ann Lee hid"],
            "unit_id": ["a", "a", "b"],
            "spans": [[span]] * 3,
        }
    )
    made = redact_dataset(
        corpus, operator=Operator.PSEUDONYM, pseudonyms=Pseudonyms(key=KEY)
    )["text"]
    one, two, three = (text[:-4] for text in made)
    assert one == two != three
    assert "Ann Lee" not in (one, three)


@pytest.mark.parametrize("kind", [*_MAKERS, "DATE", "PHONE", "ID"])
@given(value=st.text("aZé\u0301ß王あا्\u200d\u00ad😀\ud800١½'’\"-_.@ 4/", min_size=1))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_pseudonyms_of_any_text_are_another_text(kind, value):
    made = invent(value, kind)
    assert not value.strip() or one_form(made) != one_form(value.strip())


MANY = {
    "PERSON": names._pool("en_US", "male")[:60] + names._pool("en_US", "female")[:60],
    "IP": [f"10.0.{n // 250}.{n % 250}" for n in range(400)],
    "ORG": [f"{name} Inc." for name in names._pool("en_US", "family")[:200]],
    "GPE": names._pool("en_US", "family")[:200],
    "EMAIL": [f"{name}@b.org" for name in names._pool("en_US", "male")[:60]],
    "URL": [f"https://b.org/{n}" for n in range(60)],
    "ID": [str(n) for n in range(10, 60)],
    "NORP": ["Irish", "Danish", "Welsh"],
}


def collisions(kind, unit="u", scope=Scope.UNIT):
    keys = Pseudonyms(key=KEY, scope=scope)
    made = {}
    for value in dict.fromkeys(MANY[kind]):
        span = Span(start=0, end=len(value), entity_type=kind)
        made[value] = keys.replacement(unit)(span, value)
        assert keys.replacement(unit)(span, value) == made[value]
    return len(made) - len(set(made.values()))


@pytest.mark.parametrize("kind", MANY)
def test_pseudonyms_of_different_values_of_a_unit_differ(kind):
    assert collisions(kind) == 0


def test_pseudonyms_twin_that_draws_each_by_itself_collides(monkeypatch):
    def alone(self, what, plain, candidates, **_form):
        return next(made for made in candidates if one_form(made) != plain)

    monkeypatch.setattr(pseudonyms._Inventor, "choose", alone)
    for kind in ("PERSON", "IP"):
        with pytest.raises(AssertionError):
            test_pseudonyms_of_different_values_of_a_unit_differ(kind)


def test_pseudonyms_over_a_corpus_depend_on_no_other_unit():
    """What a unit's text becomes must not tell who else is in the corpus."""
    assert collisions("PERSON", scope=Scope.CORPUS) > 0
    keys = Pseudonyms(key=KEY, scope=Scope.CORPUS)
    for value in MANY["PERSON"]:
        span = Span(start=0, end=len(value), entity_type="PERSON")
        made = keys.replacement("others")(span, value)
        assert made == invent(value, scope=Scope.CORPUS)


def test_pseudonyms_of_a_unit_depend_on_no_other_unit():
    keys = Pseudonyms(key=KEY)
    for unit in ("a", "b", "u"):
        made = []
        for value in MANY["PERSON"]:
            span = Span(start=0, end=len(value), entity_type="PERSON")
            made.append(keys.replacement(unit)(span, value))
    alone = Pseudonyms(key=KEY)
    span = Span(start=0, end=1, entity_type="PERSON")
    assert made == [alone.replacement("u")(span, value) for value in MANY["PERSON"]]


def test_pseudonyms_share_names_where_the_pool_is_empty():
    keys = Pseudonyms(key=KEY)
    for n in range(40):
        span = Span(start=0, end=1, entity_type="ID")
        made = keys.replacement("u")(span, str(n % 10))
        assert made.isdecimal()
        assert made != str(n % 10)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        *(
            ("Don Draper", []),
            ("John Lord", []),
            ("Ben Affleck", []),
            ("Lord, John", []),
        ),
        *(("Dr Lord", ["Dr"]), ("Lord Byron", ["Lord"]), ("Lee, Mrs.", ["Mrs"])),
        *(("Frau Dr. Weber", ["Frau", "Dr"]), ("Ann Lee, PhD", ["PhD"])),
        *(("Bob Lee III", ["III"]), ("Lee, Dr. Ann", ["Dr"]), ("Sir Don Lee", ["Sir"])),
    ],
)
def test_pseudonyms_keep_titles_and_no_names_that_look_like_some(value, kept):
    def words(text):
        return "".join(c if c.isalpha() else " " for c in text).split()

    for unit in map(str, range(6)):
        made = words(invent(value, unit=unit))
        assert len(made) == len(words(value))
        assert [word for word in words(value) if word in made] == kept


@pytest.mark.parametrize("locale", ["hi_IN", "th_TH"])
def test_pseudonyms_are_drawn_from_names_with_marks_too(locale):
    keys = Pseudonyms(key=KEY, locale=locale)
    pool = dict.fromkeys([*names._names(locale, "family")][:40])
    span = Span(start=0, end=1, entity_type="PERSON")
    made = {one_form(keys.replacement("u")(span, value)) for value in pool}
    assert len(made) == len(set(map(one_form, pool)))
