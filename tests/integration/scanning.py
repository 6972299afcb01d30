"""Search every file that a run left, for pickles and for personal data."""

import html
import json
import pickletools
import re
import sqlite3
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ahocorasick_rs import BytesAhoCorasick

from dptune.attacks.canaries import CanarySet
from dptune.data.synthetic import generate_dialogues

_WORD = re.compile(rb"[0-9A-Za-z]+")
_PICKLE_SUFFIXES = {".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib", ".npy"}
_RESTRICTED = re.compile(
    r"/stores/[^/]+/(ingest/corpus|plant_canaries/(planted_corpus|canaries)"
    r"|detect/labelled_corpus|redact/redacted_corpus)/"
)


def files(*folders: Path) -> Iterator[Path]:
    """Every file below some folders."""
    for folder in folders:
        yield from (path for path in sorted(folder.rglob("*")) if path.is_file())


def is_restricted(path: Path) -> bool:
    """The only places that may hold record text or canaries."""
    return _RESTRICTED.search(path.as_posix()) is not None


def is_pickle(path: Path) -> bool:
    """Whether a file is one pickle, or an archive with one inside."""
    if path.suffix in _PICKLE_SUFFIXES:
        return True
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return any(Path(n).suffix in _PICKLE_SUFFIXES for n in archive.namelist())
    data = path.read_bytes()
    try:
        last = max((position for _, _, position in pickletools.genops(data)), default=0)
    except Exception:  # noqa: BLE001 - whatever a file that is no pickle does to it
        return False
    return 0 < last == len(data) - 1


def personal_strings(*, num_records: int, seed: int) -> set[str]:
    """Gold personal data of at least six characters: what no file may hold."""
    records = generate_dialogues(num_records=num_records, private=True, seed=seed)
    texts = {r.text[s.start : s.end] for r in records for s in r.spans}
    return {text for text in texts if len(text) >= 6}


def canary_strings(canaries: CanarySet) -> set[str]:
    """Secrets as a record, a JSON string or a table cell would show them.

    One of letters alone may be a word that pages print, such as the type MRN.
    """
    forms = ("access code is {}", '"{}"', "'{}'", ">{}<", ": {}\n", "={}&")
    secrets = canaries.planted + canaries.held_out
    told_apart = [s for s in secrets if any(c.isdigit() for c in s)]
    return {form.format(secret) for form in forms for secret in told_apart}


def spellings(text: str) -> set[bytes]:
    """A string as plain text, as JSON, and as HTML."""
    forms = {
        text,
        json.dumps(text)[1:-1] if not text.startswith('"') else text,
        html.escape(text) if not text.startswith(">") else text,
    }
    return {form.encode() for form in forms}


class Needles:
    """Many strings, searched for at once, as whole words."""

    def __init__(self, strings: Iterable[str]) -> None:
        self._forms = sorted({form for text in strings for form in spellings(text)})
        self._search = BytesAhoCorasick(self._forms)

    def found_in(self, data: bytes) -> set[str]:
        """The strings that some bytes hold."""
        hits = self._search.find_matches_as_indexes(data, overlapping=True)
        return {
            self._forms[index].decode()
            for index, start, end in hits
            if not (_WORD.match(data[start - 1 : start]) or _WORD.match(data, end))
        }


def database_text(path: Path) -> bytes:
    """Every value of every table of an SQLite file, one a line."""
    connection = sqlite3.connect(path)
    try:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        rows = [
            value if isinstance(value, bytes) else str(value).encode()
            for (table,) in tables
            for row in connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608
            for value in row
        ]
    finally:
        connection.close()
    return b"\n".join(rows)


def leaks(needles: Needles, *folders: Path) -> dict[str, set[str]]:
    """Files outside the restricted places that hold a needle, and which."""
    found = {}
    for path in files(*folders):
        if is_restricted(path):
            continue
        data = path.read_bytes()
        if data.startswith(b"SQLite format 3"):
            data += database_text(path)
        if strings := needles.found_in(data):
            found[str(path)] = strings
    return found
