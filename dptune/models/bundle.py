"""A model on disk, named by what it holds."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ModelBundle:
    """A directory of safetensors weights, configuration and tokenizer.

    Args:
        path: the directory; never changed after it was made.
        digest: SHA-256 over weights, configuration and tokenizer.
    """

    path: Path
    digest: str
