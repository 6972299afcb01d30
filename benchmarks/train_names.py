"""Train what Arabic and Hindi names look like, from the tables and ordinary words.

    python benchmarks/train_names.py [--out FILE]

The ordinary words are the keys of simplemma's dictionaries, which only this program
needs (`pip install simplemma==2.0.0`), and the words outside the brackets of the tables
of sentences that are named below; the fourth and the later ones are not among them.
"""

import argparse
import re
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from scipy.sparse import csr_matrix
from sklearn.linear_model import SGDClassifier

from dptune.detection.languages.namelike import BUCKETS, pieces_of
from dptune.detection.languages.tables import SPACED, load, plain

ROOT = Path(__file__).resolve().parents[1]
TABLES = ("first", "second", "third", "fifth")
WORD = {
    "ar": "[\u0620-\u064a\u066e-\u06d3]{2,40}",
    "hi": "[\u0900-\u0963\u0970-\u097f]{2,40}",
}
NAME_WEIGHT = {"hi": 8.0, "ar": 12.0}
OWN_WEIGHT = 6.0
KNOWN = (
    *("stop", "titles", "labels", "label_words", "roles", "nouns", "orgs"),
    *("orgs_before", "doing", "months", "weekdays", "of_people", "vocatives"),
)


def words_of(code: str) -> tuple[list[str], list[str], set[str]]:
    """Return names, ordinary words, and which of these are sure to be common."""
    from simplemma.strategies.dictionaries import (  # noqa: PLC0415  # no dependency
        dictionary_factory,
    )

    lists = load(code).words
    common = frozenset[str]().union(*map(lists, KNOWN))
    names = lists("given") | lists("surnames") | lists("places")
    names = {w for w in names - lists("ambiguous") - common if len(w) > 2}
    own = set(common)
    for table in TABLES:
        path = ROOT / f"tests/unit/detection/languages/{table}/{code}.txt"
        text = re.sub(r"\[[^\]]*\]", " ", path.read_text("utf8"))
        own |= set(re.findall(WORD[code], plain(text, code)[0]))
    dictionary = dictionary_factory.DefaultDictionaryFactory().get_dictionary(code)
    others = {plain(word, code)[0] for word in dictionary}
    others = {word for word in others if re.fullmatch(WORD[code], word)} - names
    return sorted(names), sorted(others | own), own


def table_of(words: list[str]) -> csr_matrix:
    """Return the pieces of words, one row a word."""
    columns: list[int] = []
    starts = [0]
    for word in words:
        columns += pieces_of(word)
        starts.append(len(columns))
    ones = np.ones(len(columns), dtype=np.float32)
    return csr_matrix((ones, columns, starts), shape=(len(words), BUCKETS))


def trained(code: str) -> dict[str, np.ndarray]:
    """Fit one language, and round its weights to bytes around 128."""
    names, others, own = words_of(code)
    labels = np.r_[np.ones(len(names)), np.zeros(len(others))]
    weights = [OWN_WEIGHT if word in own else 1.0 for word in others]
    model = SGDClassifier(loss="log_loss", alpha=2e-6, max_iter=30, random_state=0)
    model.fit(
        table_of(names + others),
        labels,
        sample_weight=np.r_[np.full(len(names), NAME_WEIGHT[code]), weights],
    )
    scale = 100 / np.abs(model.coef_[0]).max()
    rounded = np.clip(np.round(model.coef_[0] * scale), -127, 127) + 128
    bias = np.array([round(model.intercept_[0] * scale)], dtype=np.int64)
    return {code: rounded.astype(np.uint8), f"{code}_bias": bias}


def main() -> None:
    """Write the weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT / "dptune/detection/languages/data/names.safetensors"
    parser.add_argument("--out", type=Path, default=default)
    tables = [trained(code) for code in SPACED]
    save_file(
        {name: array for table in tables for name, array in table.items()},
        parser.parse_args().out,
    )


if __name__ == "__main__":
    main()
