"""Names and words that are put into carriers and silver texts."""

import importlib.metadata
import json
import zoneinfo
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

import faker
from tagger_corpus import Labelled

from dptune.detection.names import TOKEN, form
from dptune.detection.words import (
    CLOSED,
    GIVEN_NAME,
    LEXICAL,
    NOUN,
    PLACE,
    PROPER_ONLY,
    PROPER_TOO,
    load_lexicon,
)

ENGLISH = ("en_US", "en_US", "en_GB", "en_IN", "en_IE", "en_NZ", "en_PK")
OTHERS = (
    "de_DE", "fr_FR", "es_ES", "es_MX", "it_IT", "nl_NL", "pt_BR", "pl_PL", "tr_TR",
    "sv_SE", "da_DK", "no_NO", "fi_FI", "cs_CZ", "hu_HU", "ro_RO", "hr_HR", "id_ID",
    "vi_VN", "fil_PH", "yo_NG", "ha_NG", "ig_NG", "zu_ZA", "tw_GH", "az_AZ", "sq_AL",
    "lt_LT", "et_EE", "ga_IE", "fr_DZ", "sl_SI", "sk_SK", "es_AR",
)  # fmt: skip
_PROPER = PROPER_ONLY | PROPER_TOO | GIVEN_NAME | PLACE
WITH_PLACES = {
    "en_US", "en_GB", "en_IN", "de_DE", "fr_FR", "es_ES", "pl_PL", "it_IT", "sv_SE",
}  # fmt: skip
NUM_CARRIER_ROUNDS = 24


@dataclass(frozen=True)
class Fillers:
    """Lists to draw from."""

    given: list[str]
    surnames: list[str]
    towns: list[str]
    countries: list[str]
    companies: list[str]
    streets: list[str]
    nouns: list[str]
    made_up: list[str]
    drugs: list[str]
    packages: list[str]
    terms: list[str]

    @classmethod
    def draw(
        cls,
        rows: list[Labelled],
        drugs: list[str],
        *,
        seed: int,
        terms: Iterable[str] = (),
        software: Iterable[str] = (),
    ) -> "Fillers":
        """Draw names from Faker, and places and companies from the silver texts."""
        given, surnames, towns, streets, companies = [], [], [], [], []
        for locale in (*ENGLISH * 4, *OTHERS):
            try:
                fake = faker.Faker(locale)
            except AttributeError:
                continue
            fake.seed_instance(seed + len(given))
            for _ in range(1500):
                given.append(fake.first_name())
                surnames.append(fake.last_name())
            if locale in WITH_PLACES:
                towns += [fake.city() for _ in range(150)]
                streets += [fake.street_name() for _ in range(150)]
                companies += [fake.company() for _ in range(80)]
        found = {kind: [] for kind in ("PLACE", "ORG", "PERSON")}
        for row in rows:
            if row["source"] in {"wiki", "imdb"}:
                for start, end, kind in row["spans"]:
                    if kind in found and end - start < 30:
                        found[kind].append(row["text"][start:end].removeprefix("the "))
        path = resources.files("dptune.detection").joinpath("word_lists.json")
        lists = json.loads(path.read_text("utf8"))["lists"]
        given += [name.title() for name in lists["given_name"]] * 25
        draw = Random(seed)  # noqa: S311  # no secret
        zones = [
            zone.split("/")[-1].replace("_", " ")
            for zone in sorted(zoneinfo.available_timezones())
            if "/" in zone and "Etc" not in zone and "GMT" not in zone
        ]
        countries = [c.title() for c in lists["place"]]
        readings = load_lexicon().readings
        persons = {name.lower() for name in (*given, *surnames)}
        packages = {
            name
            for package in importlib.metadata.distributions()
            for name in (package.name, package.name.split("-")[0])
            if len(name) > 3
        }
        nouns = sorted(
            word
            for word, reading in readings.items()
            if reading & NOUN
            and not reading & (CLOSED | _PROPER)
            and word.isalpha()
            and len(word) > 3
        )
        return cls(
            given=[n for n in given if n.isprintable()],
            surnames=surnames,
            towns=towns + zones * 3 + draw.choices(found["PLACE"], k=4000),
            countries=countries,
            companies=companies + draw.choices(found["ORG"], k=3000),
            streets=streets,
            nouns=nouns,
            made_up=sorted(_made_up(rows)),
            drugs=[d for d in drugs if d not in persons and not form(d)[2] & _PROPER],
            packages=[
                p for p in sorted({*packages, *software}) if p.lower() not in persons
            ],
            terms=sorted(set(terms) - persons),
        )

    def noun(self, draw: Random) -> str:
        """Draw a noun of the lexicon, a drug, or a term, rare ones included."""
        kind = draw.random()
        if kind < 0.10:
            return draw.choice(self.drugs)
        return draw.choice(self.terms if kind < 0.14 else self.nouns)

    def full(self, draw: Random) -> str:
        """Draw a full name."""
        first, last = draw.choice(self.given), draw.choice(self.surnames)
        kind = draw.random()
        if kind < 0.08:
            return f"{first} {draw.choice('ABCDEFGHJKLMNPRSTW')}. {last}"
        if kind < 0.12:
            return f"{first[0]}. {last}"
        if kind < 0.17:
            return f"{first} {draw.choice(self.given)} {last}"
        return f"{first} {last}"

    def name_like(self, kind: str, size: int, draw: Random) -> str:
        """Draw a person or a place of about as many words."""
        if kind == "PLACE":
            return draw.choice(self.towns if draw.random() < 0.8 else self.countries)
        if size == 1:
            return draw.choice(self.given if draw.random() < 0.55 else self.surnames)
        return self.full(draw)

    def slot(self, name: str, draw: Random) -> str:
        """Draw what fills a slot of a carrier."""
        lists = {
            "n": self.given, "l": self.surnames, "c": self.towns, "k": self.countries,
            "o": self.companies, "a": self.streets, "w": self.nouns, "x": self.made_up,
        }  # fmt: skip
        if name == "f":
            return self.full(draw)
        if name in {"y", "z"}:
            word = draw.choice(self.drugs if name == "y" else self.packages)
            return word.capitalize() if draw.random() < 0.45 else word
        if name in {"t", "T", "W"}:
            word = draw.choice(self.nouns if name == "W" else self.terms)
            return word if name == "t" else word.capitalize()
        if name == "d":
            return str(draw.randrange(10 ** draw.randrange(1, 6)))
        return draw.choice(lists[name])


def _made_up(rows: list[Labelled]) -> set[str]:
    """Collect words of docstrings that the lexicon does not know, in lower case."""
    found: dict[str, int] = {}
    for row in rows:
        if row["source"] == "docs":
            for token in TOKEN.findall(row["text"]):
                is_plain = token.isalpha() and token.islower() and len(token) > 2
                if is_plain and not form(token)[2] & LEXICAL:
                    found[token] = found.get(token, 0) + 1
    return {token for token, count in found.items() if count > 1}


_LABEL_OF_SLOT = {
    **dict.fromkeys("nlf", "PERSON"),
    **dict.fromkeys("cka", "PLACE"),
    "o": "ORG",
}


def fill_carriers(fillers: Fillers, draw: Random) -> Iterator[Labelled]:
    """Yield every carrier some times with other values."""
    carriers: dict[str, Any] = json.loads(
        (Path(__file__).parent / "tagger_carriers.json").read_text("utf8")
    )
    for _ in range(NUM_CARRIER_ROUNDS):
        for carrier in (*carriers["named"], *carriers["public"], *carriers["public"]):
            yield fill(carrier, fillers, draw)


def fill(carrier: str, fillers: Fillers, draw: Random) -> Labelled:
    """Fill the slots of a carrier and note where names stand."""
    text, spans, position = "", [], 0
    while position < len(carrier):
        letter = carrier[position]
        if letter == "{" and carrier[position + 2 : position + 3] == "}":
            name = carrier[position + 1]
            value = fillers.slot(name, draw)
            if name in _LABEL_OF_SLOT:
                spans.append((len(text), len(text) + len(value), _LABEL_OF_SLOT[name]))
            text += value
            position += 3
        else:
            doubled = carrier[position : position + 2] in ("{{", "}}")
            text += letter
            position += 2 if doubled else 1
    return {"text": text, "source": "carrier", "spans": spans}
