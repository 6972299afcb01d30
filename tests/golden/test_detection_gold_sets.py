"""Detection against gold spans of real and generated text.

`presidio_synth` (Microsoft, MIT), Universal NER English EWT test (CC BY-SA 4.0) and
ABCD test (ASAPP, MIT) are read from ../shared/data. The bounds are targets; measured
with rules alone: presidio_synth .975 of spans fully covered, UNER EWT test .954 of
entity tokens at 16.3 % of words masked, ABCD names .9999. The rules were written while
looking at misses in presidio_synth, UNER EWT dev and ABCD, so that only the figure for
UNER test comes from texts whose misses nobody had read.
"""

import gzip
import json
import random
import re

import pytest

from dptune.detection.engine import build_engine
from dptune.detection.evaluate import evaluate
from dptune.detection.recognizer import STRUCTURED_TYPES, Tier
from dptune.detection.validators import is_iban_valid, is_luhn_valid
from dptune.text import Span


@pytest.fixture(scope="module")
def low():
    return build_engine(tier=Tier.LOW_ENTITY)


def read(path):
    with gzip.open(path, "rt", encoding="utf8") as file:
        return file.read()


def test_presidio_synth_spans_are_fully_covered(shared_data):
    path = shared_data / "presidio_synth" / "synth_dataset_v2.json.gz"
    rows = json.loads(read(path))
    texts = [row["full_text"] for row in rows]
    gold = [
        [
            Span(
                start=span["start_position"],
                end=span["end_position"],
                entity_type=span["entity_type"],
            )
            for span in row["spans"]
        ]
        for row in rows
    ]
    predicted = build_engine(tier=Tier.HIGH_ENTITY).detect(texts)
    quality = evaluate(gold, predicted, texts)
    assert quality.num_gold_spans == 2863
    assert quality.span_recall >= 0.95
    recall = {row.entity_type: row.span_recall for row in quality.types}
    structured = ["EMAIL_ADDRESS", "US_SSN", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS"]
    structured += ["PHONE_NUMBER", "DOMAIN_NAME", "ZIP_CODE", "US_DRIVER_LICENSE"]
    assert min(recall[name] for name in structured) >= 0.98


def sentences(shared_data):
    """Yield text and (start, end, is entity) of each word of UNER EWT test."""
    for block in read(shared_data / "uner_ewt" / "test.iob2.gz").split("\n\n"):
        lines = block.split("\n")
        text = next((x[9:] for x in lines if x.startswith("# text = ")), None)
        words, position = [], 0
        for line in lines:
            if text is None or not line or line.startswith("#"):
                continue
            _, form, tag, *_ = line.split("\t")
            start = text.index(form, position)
            position = start + len(form)
            words.append((start, position, tag != "O"))
        if text is not None:
            yield text, words


def test_uner_ewt_token_recall_and_masked_words(shared_data, low):
    rows = list(sentences(shared_data))
    gold = covered = words = masked = 0
    for (text, tokens), spans in zip(
        rows, low.detect([t for t, _ in rows]), strict=True
    ):
        marks = {i for s in spans for i in range(s.start, s.end)}
        for start, end, is_entity in tokens:
            letters = [i for i in range(start, end) if text[i].isalnum()]
            hit = marks.issuperset(letters or [start])
            gold += is_entity
            covered += is_entity and hit
            words += bool(letters)
            masked += bool(letters) and not marks.isdisjoint(letters)
    assert gold == 1679
    assert covered / gold >= 0.95
    assert masked / words <= 0.20


def test_abcd_names_are_found_wherever_they_stand(shared_data, low):
    lines = read(shared_data / "abcd" / "test.jsonl.gz").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    total = found = 0
    for text, spans in zip(texts, low.detect(texts), strict=True):
        marks = {i for s in spans for i in range(s.start, s.end)}
        names = set(re.findall(r"pulled up for (\w+ \w+)\.", text))
        parts = {part for name in names for part in name.split()}
        for name_or_part in names | parts:
            for match in re.finditer(rf"(?i)\b{name_or_part}\b", text):
                total += 1
                found += all(i in marks for i in range(*match.span()) if text[i] != " ")
    assert total > 3000
    assert found / total >= 0.99


def test_customersim_numbers_are_all_found(shared_data, low):
    path = shared_data / "customersim" / "test.jsonl.gz"
    canaries = shared_data / "customersim" / "canaries.jsonl.gz"
    lines = (read(path) + read(canaries)).splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    shape = re.compile(
        r"\d{5,}|\d{3}-\d{5}-\d{4}|\b(?=\w*\d)(?=\w*[A-Z])[A-Z0-9]{10}\b"
    )
    total = 0
    for text, spans in zip(texts, low.detect(texts), strict=True):
        marks = {i for s in spans for i in range(s.start, s.end)}
        for match in shape.finditer(text):
            total += 1
            assert all(i in marks for i in range(*match.span()) if text[i] != "-")
    assert total > 1900


class Generator:
    """Draws identifiers of each form and near misses of each form."""

    def __init__(self, seed):
        self.random = random.Random(seed)  # noqa: S311  # test data

    def digits(self, count):
        return "".join(self.random.choice("0123456789") for _ in range(count))

    def grouped(self, digits):
        return " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))

    def card(self, *, valid):
        while True:
            digits = "4" + self.digits(15)
            if is_luhn_valid(digits) == valid:
                return self.random.choice([digits, self.grouped(digits)])

    def iban(self, *, valid):
        for check in self.random.sample(range(2, 99), 97):
            text = f"GB{check:02d}NWBK{self.fixed}"
            if is_iban_valid(text) == valid:
                return self.random.choice([text, self.grouped(text)])
        raise AssertionError

    @property
    def fixed(self):
        return "60161331926819"

    def phone(self):
        area, last = self.random.randint(201, 989), self.digits(4)
        middle = self.random.randint(201, 989)
        form = self.random.choice(
            [
                "({}) {}-{}",
                "{}-{}-{}",
                "{}.{}.{}",
                "+1 {} {} {}",
                "{}{}{}",
                "+44 {} {} {}",
            ]
        )
        return form.format(area, middle, last)

    def ssn(self, *, valid):
        area = self.random.randint(100, 665) if valid else 666
        group, serial = self.random.randint(1, 99), self.random.randint(1, 9999)
        return f"{area}-{group:02d}-{serial:04d}"

    def code(self):
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"
        while True:
            text = "".join(self.random.choice(letters) for _ in range(10))
            if not text.isalpha() and not text.isdigit():
                return text

    def true_values(self):
        name = self.random.choice(["ann.lee", "zoe_w", "b.ng+x"])
        order = self.random.randint(100, 999)
        ip = ".".join(str(self.random.randint(1, 254)) for _ in range(4))
        mac = ":".join(f"{self.random.randint(0, 255):02x}" for _ in range(6))
        return {
            "EMAIL": f"{name}{self.digits(2)}@example.org",
            "PHONE": self.phone(),
            "CREDIT_CARD": self.card(valid=True),
            "IBAN": self.iban(valid=True),
            "SSN": self.ssn(valid=True),
            "IP": ip,
            "MAC": mac,
            "ID": self.code(),
            "ORDER_ID": f"{order}-{self.digits(5)}-{self.digits(4)}",
            "URL": f"https://example.org/{self.digits(4)}",
        }

    def near_misses(self):
        one = self.random.randint
        isbn = "978030640615"
        return {
            "CREDIT_CARD": self.card(valid=False),
            "IBAN": self.iban(valid=False),
            "SSN": self.ssn(valid=False),
            "IP": f"version {one(1, 9)}.{one(0, 30)}.{one(0, 30)}.{one(0, 99)}",
            "PHONE": f"ISBN {isbn}7",
            "ID": f"${one(10, 9999)}.{one(10, 99)}",
            "ORDER_ID": f"v{one(1, 20)}.{one(0, 20)}.{one(0, 20000)}",
        }


FRAMES = ["it is {}.", "{}", "my friend said {} yesterday", "USR: {}\nSYS: ok"]
ROUNDS = 150


def test_structured_values_are_found(low):
    generator = Generator(7)
    texts, gold = [], []
    for number in range(ROUNDS):
        for kind, value in generator.true_values().items():
            text = FRAMES[number % len(FRAMES)].format(value)
            start = text.index(value)
            texts.append(text)
            gold.append([Span(start=start, end=start + len(value), entity_type=kind)])
    quality = evaluate(gold, low.detect(texts), texts)
    assert min(row.span_recall for row in quality.types) >= 0.98


def test_near_misses_are_not_called_what_they_imitate(low):
    """A failed checksum may still be some other number (ID), never a card."""
    generator = Generator(8)
    called = total = flagged_public = public = 0
    for number in range(ROUNDS):
        for kind, value in generator.near_misses().items():
            text = FRAMES[number % len(FRAMES)].format(value)
            kinds = {s.entity_type for s in low.detect([text])[0]} & STRUCTURED_TYPES
            total += 1
            called += kind in kinds
            if kind in ("IP", "PHONE", "ID", "ORDER_ID"):
                public += 1
                flagged_public += bool(kinds)
    assert called / total <= 0.05
    assert flagged_public / public <= 0.05
