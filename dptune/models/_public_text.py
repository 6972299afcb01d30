"""Read the public text that a tokenizer is trained on."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from dptune.errors import ModelError


def read_public_text(files: Sequence[Path]) -> Iterator[str]:
    """Yield lines of `.txt` files and the `text` of `.jsonl` files, gzipped or not.

    Raises:
        ModelError: a file cannot be read, or a JSON line has no `text`.
    """
    for path in files:
        try:
            yield from _texts(path)
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"the public text {path} must be readable UTF-8 lines, or JSON lines "
                f"with a text field ({type(error).__name__}). Check the path."
            ) from None


def _texts(path: Path) -> Iterator[str]:
    """Yield the texts of one file."""
    is_json = ".jsonl" in path.suffixes
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"] if is_json else line
