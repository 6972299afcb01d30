"""When a step may be answered from the cache.

A cached answer is keyed by the step's parameters, by the *contents* of its inputs
(every materializer here hashes contents) and by the library's source, so that editing a
helper invalidates what it made. Verdicts and registry changes are never cached.
"""

import hashlib
import uuid
from functools import cache
from pathlib import Path

from zenml.config.cache_policy import CachePolicy

import dptune
from infra.workspace import REPOSITORY

_DECIDES = {
    *(".py", ".json", ".toml", ".gz", ".safetensors"),
    *(".j2", ".css", ".js"),
}
"""Code, rules, words and weights that answers follow from, and pages."""


@cache
def library_digest() -> str:
    """Return a hash of the library's source and data files.

    It is the same in a clone and in a wheel of it.
    """
    digest = hashlib.sha256()
    library = Path(dptune.__file__).parent
    for folder in (library, REPOSITORY / "steps", REPOSITORY / "materializers"):
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(folder.parent)
            if file.suffix in _DECIDES and "_application" not in name.parts:
                digest.update(str(name).encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def fresh() -> str:
    """Return a key that never repeats."""
    return uuid.uuid4().hex


BY_CONTENT = CachePolicy(cache_func=library_digest)
NEVER = CachePolicy(cache_func=fresh)
