"""Write the list of words that are terms, not names, for the judge of names.

    PYTHONPATH=. python benchmarks/public_words.py WORK_FOLDER

writes `public_words.txt` into the folder: words of ICD-10-CM titles, names of drugs,
words of Python packages' documents, nouns of WordNet and names of software that the
English lexicon does not know. What any text or Faker calls a person, a place, an
organization or a people is left out, and of WordNet and software what the census of the
United States counts as a name. See `tagger_corpus.py` for the texts. With `gzip -9n` it
becomes `dptune/detection/public_words.txt.gz`.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path

from tagger_corpus import Labelled, diseases, drugs
from tagger_names import Fillers
from tagger_terms import census_names, software, wordnet_nouns

from dptune.detection.words import GIVEN_NAME, LEXICAL, PLACE, plain, reading_of

_WORD = re.compile(r"[^\W\d_]+")
SEED = 20_261


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [plain(word).lower() for word in _WORD.findall(text)]


def names_in(rows: list[Labelled], docs: Counter[str]) -> set[str]:
    """Return the words that are parts of names somewhere.

    Packages and their parts are taken for names now and then in their own documents:
    they go if they are so often.
    """
    people: Counter[str] = Counter()
    names: set[str] = set()
    for row in rows:
        for start, end, kind in row["spans"]:
            words = words_of(row["text"][start:end])
            if row["source"] != "docs" and kind not in {"UNSURE", "MISC"}:
                names.update(words)
            elif kind == "PERSON":
                people.update(words)
    return names | {word for word in people if people[word] > 0.3 * docs[word]}


def main() -> None:
    """Collect, leave out, write."""
    folder = Path(sys.argv[1])
    lines = (folder / "silver.jsonl").read_text("utf8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    docs = Counter(
        w for r in rows if r["source"] == "docs" for w in words_of(r["text"])
    )
    terms = {word for word, count in docs.items() if count > 2}
    terms |= {word for text in diseases(folder) for word in words_of(text)}
    terms |= set(drugs(folder))
    listed = {word for title in software(folder) for word in words_of(title)}
    terms |= (wordnet_nouns(folder) | listed) - census_names(folder)
    people = Fillers.draw(rows, [], seed=SEED)
    names = names_in(rows, docs) | {
        word
        for name in (*people.given, *people.surnames, *people.towns)
        for word in words_of(name)
    }
    kept = sorted(
        word
        for word in terms - names
        if len(word) > 2 and not reading_of(word) & (LEXICAL | PLACE | GIVEN_NAME)
    )
    (folder / "public_words.txt").write_text("\n".join(kept) + "\n", "utf8")


if __name__ == "__main__":
    main()
