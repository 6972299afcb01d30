r"""Texts with labels for the tagger: silver by a published pipeline, and gold.

    pip install --no-deps --target WORK_FOLDER/packages \
        simple-icd-10-cm==1.5.0 drug-named-entity-recognition==2.0.9
    and what tagger_terms.py names
    PYTHONPATH=. python benchmarks/tagger_corpus.py WORK_FOLDER    about 10 minutes

writes `silver.jsonl` into a folder of your choice: texts of WikiText-2 (train), IMDB
(train), ABCD (train), docstrings and descriptions of the installed Python packages, and
titles of diseases (ICD-10-CM), with the names that spaCy's `en_core_web_sm` finds in
them; and `drugs.txt`. No validation or test split is read.

`benchmarks/train_tagger.py` adds Universal NER's gold for EWT (dev), and puts names of
Faker into carriers (`tagger_carriers.json`) and into the silver texts.
"""

import ast
import bz2
import gzip
import importlib.metadata
import importlib.util
import json
import pickletools
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import spacy

from tests import detection_gold as gold

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
Labelled = dict[str, Any]
"""`text`, `source`, and `spans`: triples of start, end and label."""

LABEL_OF_TYPE = {
    "PERSON": "PERSON",
    "GPE": "PLACE",
    "LOC": "PLACE",
    "FAC": "PLACE",
    "ORG": "ORG",
    "NORP": "NORP",
    **dict.fromkeys(["PRODUCT", "EVENT", "WORK_OF_ART", "LAW", "LANGUAGE"], "MISC"),
}
PACKAGES = ("numpy", "scipy", "sklearn", "pydantic", "sqlalchemy", "spacy", "boto3")
_PULLED_UP = re.compile(r"pulled up for (\w+ \w+)\.")


def wikitext(data: Path) -> Iterator[str]:
    """Yield a third of the training lines, written as people write."""
    with gzip.open(data / "wikitext-2" / "wiki.train.raw.gz", "rt", "utf8") as file:
        for number, line in enumerate(file):
            text = line.strip()
            if number % 3 == 0 and len(text) > 40 and not text.startswith("="):
                yield detokenize(text)


def detokenize(text: str) -> str:
    """Put signs back where WikiText parted them from words."""
    text = re.sub(r" @(.)@ ", r"\1", text)
    text = re.sub(r" ([.,;:!?)\]%])", r"\1", text)
    text = re.sub(r"([(\[$£]) ", r"\1", text)
    text = re.sub(r" (n't|'[a-z]{1,2})\b", r"\1", text)
    return re.sub(r'" ([^"]*) "', r'"\1"', text)


def imdb(data: Path) -> Iterator[str]:
    """Yield some training reviews."""
    table = pandas.read_parquet(data / "imdb" / "train.parquet")
    for text in table["text"][::13]:
        yield re.sub(r"(<br ?/?>)+", "\n", text)


def abcd(data: Path) -> Iterator[str]:
    """Yield the sample of training dialogues."""
    lines = gold.read(data / "abcd" / "train_sample.jsonl.gz").splitlines()
    for line in lines:
        yield re.sub(r"\n+", "\n", json.loads(line)["text"])


def docstrings() -> Iterator[str]:
    """Yield docstrings of the standard library and of pinned packages."""
    folders = [Path(sysconfig.get_path("stdlib"))]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        folders += map(Path, (spec.submodule_search_locations or ()) if spec else ())
    for folder in folders:
        files = (f for f in sorted(folder.rglob("*.py")) if "test" not in str(f))
        texts = [
            t
            for f in files
            if "site-packages" not in str(f.relative_to(folder))
            for t in _docstrings(f)
        ]
        random.Random(0).shuffle(texts)  # noqa: S311  # no secret
        yield from texts[:1500]


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the paragraphs of prose of one file."""
    try:
        tree = ast.parse(path.read_text("utf8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        for paragraph in (text or "").split("\n\n"):
            prose = " ".join(paragraph.split())
            if 60 < len(prose) < 900 and ">>>" not in prose and "--" not in prose:
                yield prose


def descriptions() -> Iterator[str]:
    """Yield paragraphs of what installed packages say of themselves."""
    for package in sorted(importlib.metadata.distributions(), key=lambda d: d.name):
        text = str(package.metadata.get_payload() or package.metadata["Description"])
        text = re.sub(
            r"```.*?```|`|\*|<[^>]*>|!?\[([^\]]*)\]\([^)]*\)", r"\1", text, flags=re.S
        )
        for paragraph in text.split("\n\n"):
            prose = " ".join(paragraph.split())
            if 60 < len(prose) < 900 and "http" not in prose and "==" not in prose:
                yield prose


def diseases(folder: Path) -> Iterator[str]:
    """Yield titles of ICD-10-CM, several to a line."""
    (path,) = folder.glob("packages/simple_icd_10_cm/data/*.xml")
    titles = re.findall(r"<(?:desc|note)>([^<&]{8,120})</", path.read_text("utf8"))
    titles = sorted(set(titles))
    random.Random(0).shuffle(titles)  # noqa: S311  # no secret
    for first in range(0, 15_000, 3):
        yield ". ".join(titles[first : first + 3]) + "."


def drugs(folder: Path) -> list[str]:
    """Return names of drugs; the pickle is read as a list of strings, never run."""
    (path,) = folder.glob("packages/drug_named_entity_recognition/*.pkl.bz2")
    strings = {
        value
        for code, value, _ in pickletools.genops(bz2.decompress(path.read_bytes()))
        if "UNICODE" in code.name and value.isalpha() and value.isascii()
    }
    return sorted(name.lower() for name in strings if 4 < len(name) < 20)


def label(
    pipeline: spacy.Language, texts: list[str], source: str
) -> Iterator[Labelled]:
    """Label texts; a proper noun that is no entity is unsure."""
    for text, doc in zip(texts, pipeline.pipe(texts, batch_size=64), strict=True):
        spans = [
            (e.start_char, e.end_char, LABEL_OF_TYPE[e.label_])
            for e in doc.ents
            if e.label_ in LABEL_OF_TYPE
        ]
        spans += [
            (t.idx, t.idx + len(t.text), "UNSURE")
            for t in doc
            if t.tag_ in ("NNP", "NNPS") and not t.ent_type_
        ]
        if source == "abcd":
            spans += _customers(text)
        yield {"text": text, "source": source, "spans": spans}


def _customers(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the names of an ABCD dialogue wherever they stand."""
    names = set(_PULLED_UP.findall(text))
    for name in names | {part for full in names for part in full.split()}:
        for match in re.finditer(rf"(?i)\b{name}\b", text):
            yield (*match.span(), "PERSON")


def uner_dev(data: Path) -> Iterator[Labelled]:
    """Yield the gold sentences of the development split."""
    labels = {"PER": "PERSON", "LOC": "PLACE", "ORG": "ORG"}
    blocks = gold.read(data / "uner_ewt" / "dev.iob2.gz").split("\n\n")
    for text, rows in gold._blocks(blocks):
        words = gold._align(text, [(row[1], row[2][2:]) for row in rows])
        spans = [(start, end, labels[kind]) for start, end, kind in words if kind]
        yield {"text": text, "source": "uner", "spans": spans}


def main() -> None:
    """Write the silver texts."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    pipeline = spacy.load(DATA / "en_core_web_sm_3_8", exclude=["parser", "lemmatizer"])
    sources = {
        "abcd": abcd(DATA),
        "docs": (*docstrings(), *descriptions()),
        "imdb": imdb(DATA),
        "wiki": wikitext(DATA),
    }
    (folder / "drugs.txt").write_text("\n".join(drugs(folder)), "utf8")
    with (folder / "silver.jsonl").open("w", encoding="utf8") as file:
        for text in diseases(folder):
            row = {"text": text, "source": "diseases", "spans": []}
            file.write(json.dumps(row) + "\n")
        for source, texts in sources.items():
            words = 0
            for made in label(pipeline, list(texts), source):
                words += len(made["text"].split())
                file.write(json.dumps(made) + "\n")
            print(source, words, "words", flush=True)


if __name__ == "__main__":
    main()
