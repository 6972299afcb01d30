"""Is what a base model learns from without noise, as public, private text in a copy?

Names of files do not tell it: a copy may have another name, format or order, hold more
than the private data, or less. So texts are compared, whatever they are called.
"""

import re
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dptune.config import TrainConfig
from dptune.conversation import said_in_turns
from dptune.data.readers import read_records
from dptune.data.records import Corpus, ProblemLog
from dptune.errors import ConfigError, Problem
from dptune.models.source import ArchitectureSource, TrainedTokenizer
from dptune.workflow.ingest import read_public

_WORDS: Final = re.compile(r"\w+")
_FEWEST_WORDS: Final = 8
_MOST: Final = 0.01

Hashes = NDArray[np.uint64]


def check_public_texts(
    config: TrainConfig,
    corpus: Corpus | None,
    *,
    data_root: Path,
    validate: bool = True,
    folder: Path | None = None,
) -> None:
    """Read every public text of a run, and refuse one that holds the private data.

    Args:
        config: of the run.
        corpus: as it was ingested, before canaries; None where it cannot be read.
        data_root: folder that relative paths start from.
        validate: see `read_public`.
        folder: see `read_public`.

    Raises:
        DataError: a public text cannot be used.
        ConfigError: more than 1 % of the private records stand in it.
    """
    problems = []
    texts = _public(config, data_root=data_root, validate=validate, folder=folder)
    for path, public in texts:
        share = 0.0 if corpus is None else share_told(corpus.values("text"), public)
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
    if problems:
        raise ConfigError(problems)


def share_told(private: Iterable[str], public: Iterable[str]) -> float:
    r"""Return the share of private records that public texts hold, whole or by lines.

    Case, blanks and punctuation do not matter, nor what one record is: a record is told
    where every line of it is a line somewhere, or all of it is one. Records of fewer
    than eight words are not counted, which many people write; 0 where there are no
    others.

    >>> told = ["Ann said:", "I have lived in the old mill since May"]
    >>> share_told(["ann said\ni have lived in the old mill since may"], told)
    1.0
    >>> share_told(["ann said: I have lived in the old mill since June"], told)
    0.0
    """
    known = np.unique(_hashes(line for text in public for line in _told(text)))
    if not len(known):
        return 0.0
    num_told = num_records = 0
    for text in private:
        whole, *lines = _told(text)
        if len(whole) >= _FEWEST_WORDS:
            found = _among(known, _hashes([whole, *lines]))
            num_told += bool(found[0] or found[1:].all())
            num_records += 1
    return num_told / max(1, num_records)


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
    """Return the words of a text, and of every line that has some."""
    lines = [*map(_WORDS.findall, said_in_turns(text).casefold().splitlines())]
    return [list(chain(*lines)), *filter(None, lines)]


def _hashes(lines: Iterable[list[str]]) -> Hashes:
    """Hash the words of lines into 64 bits each."""
    digests = (blake2b(" ".join(words).encode(), digest_size=8) for words in lines)
    numbers = (int.from_bytes(digest.digest()) for digest in digests)
    return np.frombuffer(array("Q", numbers), np.uint64)


def _among(known: Hashes, wanted: Hashes) -> NDArray[np.bool_]:
    """Tell which hashes are among sorted ones, of which there are some."""
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.asarray(known[places] == wanted)
