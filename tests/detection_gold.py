"""Gold texts of ../shared/data and the figures that a detector reaches on them.

Read by `benchmarks/detection.py`, which writes docs/DETECTION.md, and by the golden
tests, which hold the bars. A word counts as found when all its letters and digits are
covered, and as masked when any of them is.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dptune.detection.patterns import lower_in_place
from dptune.detection.recognizer import STRUCTURED_TYPES
from dptune.text import Span
from tests.detection_fields import draw_records
from tests.detection_values import Values
from tests.support.detection_quality import DetectionQuality, evaluate

Detect = Callable[[Sequence[str]], Sequence[Sequence[Span]]]

# What each type of presidio_synth may rightly be called here.
PRESIDIO_TYPES = {
    "PERSON": {"PERSON"},
    "STREET_ADDRESS": {"ADDRESS", "ZIP"},
    "GPE": {"GPE", "LOC", "ADDRESS"},
    "ORGANIZATION": {"ORG"},
    "CREDIT_CARD": {"CREDIT_CARD"},
    "DATE_TIME": {"DATE", "TIME"},
    "TITLE": {"TITLE", "PERSON"},
    "PHONE_NUMBER": {"PHONE"},
    "AGE": {"AGE", "DATE"},
    "NRP": {"NORP", "LANGUAGE"},
    "EMAIL_ADDRESS": {"EMAIL"},
    "ZIP_CODE": {"ZIP", "ADDRESS"},
    "DOMAIN_NAME": {"URL"},
    "IBAN_CODE": {"IBAN"},
    "US_SSN": {"SSN"},
    "IP_ADDRESS": {"IP"},
    "US_DRIVER_LICENSE": {"LICENSE", "ID"},
}


FORMED_TYPES = {"EMAIL", "CREDIT_CARD", "IBAN", "SSN", "IP", "PHONE"}


@dataclass(frozen=True, kw_only=True)
class WordFigures:
    """Recall over gold words, and how many words are masked.

    Args:
        gold: number of gold words.
        recall: share of them that is found.
        masked_share: of the words with a letter or digit.
        masked_token_share: of all tokens of the gold file, punctuation included, as
            published figures count.
    """

    gold: int
    recall: float
    masked_share: float
    masked_token_share: float


@dataclass(frozen=True, kw_only=True)
class TypeFigures:
    """Share of gold spans that got the right type, in all and by gold type."""

    accuracy: float
    by_type: dict[str, float]


Word = tuple[int, int, bool]
"""Start, end, is gold."""


def read(path: Path) -> str:
    """Read a gzip file as UTF-8."""
    with gzip.open(path, "rt", encoding="utf8") as file:
        return file.read()


def presidio(folder: Path) -> tuple[list[str], list[list[Span]]]:
    """Return texts and gold spans of presidio_synth (Microsoft, MIT)."""
    rows = json.loads(read(folder / "presidio_synth" / "synth_dataset_v2.json.gz"))
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
    return [row["full_text"] for row in rows], gold


def measure_presidio(
    folder: Path, detect: Detect, *, lower: bool = False
) -> DetectionQuality:
    """Measure coverage of spans, of the texts as they are or in lower case."""
    texts, gold = presidio(folder)
    if lower:
        texts = [lower_in_place(text) for text in texts]
    return evaluate(gold, detect(texts), texts)


def measure_types(folder: Path, detect: Detect) -> TypeFigures:
    """Measure how many gold spans are called what they are.

    A gold span is called by the predicted span that covers most of it; one that nothing
    covers is wrong.
    """
    texts, gold = presidio(folder)
    hits: dict[str, list[bool]] = {}
    for spans, found in zip(gold, detect(texts), strict=True):
        for span in spans:
            kind = main_type(span, found)
            right = kind in PRESIDIO_TYPES[span.entity_type]
            hits.setdefault(span.entity_type, []).append(right)
    count = sum(map(len, hits.values()))
    return TypeFigures(
        accuracy=sum(map(sum, hits.values())) / count,
        by_type={kind: sum(row) / len(row) for kind, row in sorted(hits.items())},
    )


def main_type(span: Span, found: Sequence[Span]) -> str:
    """Return the type of the found span that covers most of a gold span."""
    overlaps = [
        (min(span.end, s.end) - max(span.start, s.start), s.entity_type) for s in found
    ]
    best = max(overlaps, key=lambda pair: pair[0], default=(0, ""))
    return best[1] if best[0] > 0 else ""


STYLES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "lower case": str.lower,
    "capitals": str.upper,
}
TABLES = Path(__file__).parent / "tables"
CLEAN = ("technical", "medical", "everyday", "products")


def clean_text(*kinds: str) -> list[str]:
    """Return sentences without personal data: tables of our own making.

    `products` is dense with names of software, drugs, species, games and buttons;
    `others`, by hands that had seen neither program nor tables, has a thousand of all
    kinds, rare words among them.
    """
    files = [TABLES / f"clean_{kind}.txt" for kind in kinds or CLEAN]
    return [line for file in files for line in file.read_text("utf8").splitlines()]


def share_of_words_masked(texts: Sequence[str], detect: Detect) -> float:
    """Return the share of words of which anything is masked."""
    masked = words = 0
    for text, spans in zip(texts, detect(texts), strict=True):
        marks = {i for span in spans for i in range(span.start, span.end)}
        for match in re.finditer(r"\w+", text):
            words += 1
            masked += not marks.isdisjoint(range(*match.span()))
    return masked / words


def styled(
    rows: Iterator[tuple[str, list[Word]]], style: str
) -> list[tuple[str, list[Word]]]:
    """Write sentences in a style; those whose length changes are left out."""
    write = STYLES[style]
    return [(write(t), words) for t, words in rows if len(write(t)) == len(t)]


def uner(folder: Path, split: str) -> Iterator[tuple[str, list[Word]]]:
    """Yield sentences of Universal NER, English EWT (CC BY-SA 4.0)."""
    blocks = read(folder / "uner_ewt" / f"{split}.iob2.gz").split("\n\n")
    for text, rows in _blocks(blocks):
        yield text, _align(text, [(row[1], row[2] != "O") for row in rows])


def contextual(
    folder: Path, split: str, *, high: bool
) -> Iterator[tuple[str, list[Word]]]:
    """Yield sentences of UD English EWT with the gold of a contextual tier.

    Low: proper nouns, pronouns, numbers, subjects, and objects (also those of
    prepositions). High: also verbs and roots. Punctuation is never gold.
    """
    blocks = read(folder / "ud_ewt" / f"{split}.conllu.gz").split("\n\n")
    for text, rows in _blocks(blocks):
        words = [row for row in rows if row[0].isdigit()]
        children: dict[str, list[list[str]]] = {}
        for row in words:
            children.setdefault(row[6], []).append(row)
        forms = [(row[1], _is_contextual(row, children, high=high)) for row in words]
        yield text, _align(text, forms)


def _is_contextual(
    row: list[str], children: dict[str, list[list[str]]], *, high: bool
) -> bool:
    tag, relation = row[3], row[7].split(":")[0]
    if tag == "PUNCT":
        return False
    is_object = relation in {"obl", "nmod"} and any(
        child[7].split(":")[0] == "case" and child[3] == "ADP"
        for child in children.get(row[0], ())
    )
    is_low = (
        tag in {"PROPN", "PRON", "NUM"}
        or relation in {"nsubj", "csubj", "obj", "iobj"}
        or is_object
    )
    return is_low or (high and (tag == "VERB" or relation == "root"))


def _blocks(blocks: list[str]) -> Iterator[tuple[str, list[list[str]]]]:
    for block in blocks:
        lines = block.split("\n")
        text = next((x[9:] for x in lines if x.startswith("# text = ")), None)
        if text is not None:
            rows = [x.split("\t") for x in lines if x and not x.startswith("#")]
            yield text, rows


def _align(text: str, forms: list[tuple[str, bool]]) -> list[Word]:
    """Find the words of a sentence in its text."""
    words: list[Word] = []
    position = 0
    for form, is_gold in forms:
        start = text.find(form, position)
        if start < 0:  # the form is not written so: part of a contraction
            continue
        position = start + len(form)
        words.append((start, position, is_gold))
    return words


def measure_words(
    rows: Sequence[tuple[str, list[Word]]], detect: Detect
) -> WordFigures:
    """Measure recall of gold words, and the share of words masked.

    Words without a letter or digit count in neither.
    """
    gold = covered = words = masked = tokens = masked_tokens = 0
    found = detect([text for text, _ in rows])
    for (text, row), spans in zip(rows, found, strict=True):
        marks = {i for s in spans for i in range(s.start, s.end)}
        for start, end, is_gold in row:
            tokens += 1
            masked_tokens += not marks.isdisjoint(range(start, end))
            letters = [i for i in range(start, end) if text[i].isalnum()]
            if not letters:
                continue
            gold += is_gold
            covered += is_gold and marks.issuperset(letters)
            words += 1
            masked += not marks.isdisjoint(letters)
    return WordFigures(
        gold=gold,
        recall=covered / gold,
        masked_share=masked / words,
        masked_token_share=masked_tokens / tokens,
    )


_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November"
    r"|December|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?\b"
_TO = r"(?: ?[,/–-] ?| and | to | or )"
_DATES = (
    re.compile(
        rf"\b{_MONTH}\b\.?,? {{0,2}}(?:the )?{_DAY}(?! ?@[.,]@)"
        rf"(?:{_TO}{_DAY}(?! ?@))?"
    ),
    re.compile(rf"(?:\b{_DAY}{_TO})?\b{_DAY}(?: of)? {_MONTH}\b"),
)


def measure_days(folder: Path, detect: Detect) -> tuple[int, int]:
    """Count month-and-day dates of WikiText-2, and those of which a day is kept."""
    total = kept = 0
    for split in ("train", "valid", "test"):
        lines = read(folder / "wikitext-2" / f"wiki.{split}.raw.gz").split("\n")
        lines = [line for line in lines if any(d.search(line) for d in _DATES)]
        for line, spans in zip(lines, detect(lines), strict=True):
            marks = {i for s in spans for i in range(s.start, s.end)}
            for match in (m for dates in _DATES for m in dates.finditer(line)):
                digits = {i for i in range(*match.span()) if line[i].isdigit()}
                total += 1
                kept += not digits <= marks
    return total, kept


def measure_records(detect: Detect, *, seed: int, rounds: int) -> dict[str, float]:
    """Measure the share of values of drawn records that are covered, by form."""
    shares = {}
    for form, records in draw_records(seed, rounds).items():
        hits = []
        for text, values in records:
            marks = {i for s in detect([text])[0] for i in range(s.start, s.end)}
            hits += [all(i in marks for i in v if text[i].isalnum()) for v in values]
        shares[form] = sum(hits) / len(hits)
    return shares


def measure_abcd_names(folder: Path, detect: Detect) -> WordFigures:
    """Measure customers' names in ABCD (ASAPP, MIT) wherever they stand."""
    lines = read(folder / "abcd" / "test.jsonl.gz").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    total = found = words = masked = tokens = masked_tokens = 0
    for text, spans in zip(texts, detect(texts), strict=True):
        marks = {i for s in spans for i in range(s.start, s.end)}
        names = set(re.findall(r"pulled up for (\w+ \w+)\.", text))
        for name in names | {part for full in names for part in full.split()}:
            for match in re.finditer(rf"(?i)\b{name}\b", text):
                total += 1
                found += all(i in marks for i in range(*match.span()) if text[i] != " ")
        for match in re.finditer(r"\w+|[^\w\s]", text):
            is_masked = not marks.isdisjoint(range(*match.span()))
            tokens += 1
            masked_tokens += is_masked
            if match.group().isalnum():
                words += 1
                masked += is_masked
    return WordFigures(
        gold=total,
        recall=found / total,
        masked_share=masked / words,
        masked_token_share=masked_tokens / tokens,
    )


def measure_structured(detect: Detect, *, seed: int, rounds: int) -> dict[str, float]:
    """Measure the share of drawn values whose letters and digits are all covered."""
    draw = Values(seed)
    kinds, texts, ranges = [], [], []
    for _ in range(rounds):
        for kind, value in draw.true_values().items():
            text, start = draw.frame(value)
            kinds.append(kind)
            texts.append(text)
            ranges.append((start, start + len(value)))
    hits: dict[str, list[bool]] = {}
    found = detect(texts)
    for kind, text, (start, end), spans in zip(
        kinds, texts, ranges, found, strict=True
    ):
        marks = {i for s in spans for i in range(s.start, s.end)}
        letters = {i for i in range(start, end) if _matters(kind, text, start, i)}
        hits.setdefault(kind, []).append(marks >= letters)
    return {kind: sum(row) / len(row) for kind, row in sorted(hits.items())}


def _matters(kind: str, text: str, start: int, position: int) -> bool:
    """Tell whether a character of a written value identifies: labels do not."""
    if not text[position].isalnum():
        return False
    label = re.match(r"(?i)ssn |mailto:", text[start:])
    if label and position < start + label.end():
        return False
    words = r"(?i)\b(?:at|dot)\b" if kind in {"EMAIL", "IP"} else r"(?!)"
    inside = (m.span() for m in re.finditer(words, text))
    tail = re.compile(r"/24|:8080").search(text, start) if kind == "IP" else None
    if tail and tail.start() <= position < tail.end():
        return False
    return not any(a <= position < b for a, b in inside)


def measure_near_misses(
    detect: Detect, *, seed: int, rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Measure how often near misses are flagged.

    Returns:
        the share of values with a wrong checksum that are called one of the types with
        a form of their own (they may be some other number), and the share of versions,
        ISBNs and prices that are called anything structured.
    """
    draw = Values(seed)
    called: dict[str, list[bool]] = {}
    flagged: dict[str, list[bool]] = {}
    for _ in range(rounds):
        for kind, value in draw.invalid_values().items():
            text, _start = draw.frame(value)
            kinds = {s.entity_type for s in detect([text])[0]}
            called.setdefault(kind, []).append(bool(kinds & FORMED_TYPES))
        for kind, value in draw.public_values().items():
            text, _start = draw.frame(value)
            kinds = {s.entity_type for s in detect([text])[0]}
            flagged.setdefault(kind, []).append(bool(kinds & STRUCTURED_TYPES))
    first, second = (
        {kind: sum(row) / len(row) for kind, row in sorted(table.items())}
        for table in (called, flagged)
    )
    return first, second
