"""Is what a base model learns from without noise, as public, private text in a copy?

Names of files do not tell it: a copy may have another name, format or order, hold more
than the private data, or less. So texts are compared, whatever they are called.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dptune.config import TrainConfig
from dptune.conversation import said_in_turns
from dptune.data.readers import read_records
from dptune.data.records import Corpus, ProblemLog
from dptune.errors import ConfigError, Problem
from dptune.letters import is_unspaced
from dptune.models.source import ArchitectureSource, TrainedTokenizer
from dptune.workflow.ingest import read_public

_WORDS: Final = re.compile(r"\w+")
_ESCAPE: Final = re.compile(r"\\+(?:u([0-9A-Fa-f]{4})|[nrtbf\"/])")
_FEWEST_WORDS: Final = 8
_RUN: Final = 13
_LEAST_COVERED: Final = 0.95
_MOST: Final = 0.01
_MOST_RECORDS: Final = 1 << 15
_WORDS_AT_ONCE: Final = 1 << 18
_NO_LETTERS: Final = frozenset(["Mn", "Me", "Cf"])
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""Odd, near 2^64 over the golden ratio (Knuth, volume 3, section 6.4)."""

Hashes = NDArray[np.uint64]


def check_public_texts(
    config: TrainConfig,
    corpus: Corpus | None,
    *,
    data_root: Path,
    validate: bool = True,
    folder: Path | None = None,
) -> tuple[str, ...]:
    """Read every public text of a run, and refuse one that holds the private data.

    Args:
        config: of the run.
        corpus: as it was ingested, before canaries; None where it cannot be read.
        data_root: folder that relative paths start from.
        validate: see `read_public`.
        folder: see `read_public`.

    Returns:
        Warnings of public texts that hold fewer of them.

    Raises:
        DataError: a public text cannot be used.
        ConfigError: more than 1 % of the private records stand in it; where there are
            more than 2^15, of as many, evenly spread.
    """
    problems, warnings = [], []
    records = list[str]()
    if corpus is not None:
        step = -(-len(corpus.dataset) // _MOST_RECORDS)
        records += islice(corpus.values("text"), 0, None, step)
    texts = _public(config, data_root=data_root, validate=validate, folder=folder)
    for path, public in texts:
        share = share_told(records, public)
        if share > _MOST:
            problems.append(
                Problem(
                    path=path,
                    message="must be public text, but holds "
                    f"{share:.1%} of the private records, under "
                    "whatever name: they would be learnt without noise.",
                    next_step="Take them out of it, or name another text.",
                )
            )
        elif share:
            warnings.append(
                f"{path} holds {share:.2%} of the private records. They are learnt "
                "without noise, and every claim takes what they say as public "
                "(base_model_is_public). Take them out, unless many people write so."
            )
    if problems:
        raise ConfigError(problems)
    return tuple(warnings)


def share_told(private: Iterable[str], public: Iterable[str]) -> float:
    r"""Return the share of private records that public texts hold, in pieces or whole.

    A record is told where every line of it is a line somewhere, or 19 of 20 of its
    words stand in runs of 13 words (of all of them, if it has fewer) that follow each
    other somewhere: Brown et al. (2020), appendix C, tell copies by as many. So texts
    may be joined, cut, wrapped otherwise and have more around them. Case, blanks,
    punctuation, accents, spellings of Unicode and escapes of JSON and HTML do not
    matter. Records of fewer than eight words are not counted, which many people write;
    a letter of a script without blanks is half a word. 0 where there are no others.

    >>> told = ["Ann: I have lived in the old mill since", "May. Is that right?"]
    >>> share_told(["I have lived in the old mill since may"], told)
    1.0
    >>> share_told(["I have lived in the old mill since June"], told)
    0.0
    """
    own = [*filter(None, map(_Record.of, private))]
    wanted = np.unique(np.concatenate([_NONE, *(record.hashes for record in own)]))
    if not len(wanted):
        return 0.0
    lengths = {record.run for record in own}
    found = np.zeros(len(wanted), bool)
    for hashes in _hashes_of(public, lengths):
        places = _places(wanted, hashes)
        found[places[wanted[places] == hashes]] = True
    told = [record.is_told(found[_places(wanted, record.hashes)]) for record in own]
    return float(np.mean(told))


@dataclass(frozen=True, kw_only=True)
class _Record:
    """What a private record is known by.

    Args:
        run: words of a run.
        num_runs: how many the record has.
        hashes: of its runs, then of its lines, `(num_runs + lines,)`.
    """

    run: int
    num_runs: int
    hashes: Hashes

    @classmethod
    def of(cls, text: str) -> "_Record | None":
        """Hash a record; None for one that is too short to count."""
        lines = _told(text)
        words = [*chain(*lines)]
        if sum(0.5 if is_unspaced(word[0]) else 1 for word in words) < _FEWEST_WORDS:
            return None
        run = min(len(words), _RUN)
        (runs,) = _runs(_hashed(words), {run})
        hashes = np.concatenate([runs, _hashed(map(" ".join, lines))])
        return cls(run=run, num_runs=len(runs), hashes=hashes)

    def is_told(self, found: NDArray[np.bool_]) -> bool:
        """Decide by which of its hashes stand in public texts."""
        runs, lines = found[: self.num_runs], found[self.num_runs :]
        covered = np.convolve(runs, np.ones(self.run)) > 0  # (words,)
        return bool(lines.all() or covered.mean() >= _LEAST_COVERED)


def _public(
    config: TrainConfig, *, data_root: Path, validate: bool, folder: Path | None
) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield where a run names public texts, and the texts."""
    model = config.model
    if (shown := model.pretraining) is not None:
        read = read_public(shown, data_root=data_root, validate=validate, folder=folder)
        yield "model.pretraining.source", read.values("text")
    if model.public_text is not None:
        log = ProblemLog()
        records = read_records(model.public_text, data_root=data_root, log=log)
        texts = [r.text for r in records if isinstance(r.text, str)]
        log.raise_if_any()
        yield "model.public_text", texts
    if not isinstance(model.source, ArchitectureSource):
        return
    tokenizer = model.source.tokenizer
    files = []
    if isinstance(tokenizer, TrainedTokenizer):
        files = [data_root / name for name in tokenizer.public_text]
    if files and all(file.is_file() for file in files):  # `check_source` tells
        from dptune.models.tokenizer import (  # noqa: PLC0415 - transformers
            read_public_text,
        )

        yield "model.source.tokenizer.public_text", read_public_text(files)


def _told(text: str) -> list[list[str]]:
    """Return the words of every line of a text that has some."""
    said = html.unescape(_ESCAPE.sub(_unescaped, said_in_turns(text)))
    if not said.isascii():
        said = unicodedata.normalize("NFKD", said).translate(_LETTERS)
    return [*filter(None, map(_WORDS.findall, said.casefold().splitlines()))]


def _unescaped(escape: re.Match[str]) -> str:
    """Read an escape of JSON, such as of a file whose lines are taken as they are."""
    return chr(int(escape[1], 16)) if escape[1] else "\n"


class _Letters(dict[int, str]):
    """Drops accents and what does not show; makes letters without blanks words."""

    def __missing__(self, code: int) -> str:
        """Look a character up, once."""
        letter = chr(code)
        if unicodedata.category(letter) in _NO_LETTERS:
            letter = ""
        elif is_unspaced(letter):
            letter = f" {letter} "
        self[code] = letter
        return letter


def _hashes_of(texts: Iterable[str], lengths: set[int]) -> Iterator[Hashes]:
    """Hash all lines of texts, and all runs of words: texts are read as one."""
    lines, words = list[str](), list[str]()
    for text in texts:
        told = _told(text)
        lines += map(" ".join, told)
        words += chain(*told)
        if len(words) >= _WORDS_AT_ONCE:
            yield from (_hashed(lines), *_runs(_hashed(words), lengths))
            lines, words = [], words[1 - _RUN :]
    yield from (_hashed(lines), *_runs(_hashed(words), lengths))


def _hashed(texts: Iterable[str]) -> Hashes:
    """Hash texts into 64 bits each, which are others in another process."""
    return np.array([*map(hash, texts)], np.int64).view(np.uint64)


def _runs(words: Hashes, lengths: set[int]) -> Iterator[Hashes]:
    """Hash all runs of some lengths: a polynomial modulo 2^64 in the words' hashes."""
    for length in lengths:
        runs = np.zeros(max(0, len(words) - length + 1), np.uint64)
        for place in range(length):
            runs *= _FACTOR
            runs += words[place : place + len(runs)]
        yield runs


def _places(known: Hashes, wanted: Hashes) -> NDArray[np.int64]:
    """Find where hashes stand, or would, among sorted ones, of which there are some."""
    return np.minimum(np.searchsorted(known, wanted), len(known) - 1)


_LETTERS: Final = _Letters()
_NONE: Final = np.empty(0, np.uint64)
