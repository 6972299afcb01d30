"""When a step may be answered from the cache.

A cached answer is keyed by the step's parameters, by the *contents* of its inputs
(every materializer here hashes contents) and by the library's source, so that editing a
helper invalidates what it made. Verdicts and registry changes are never cached.
"""

import hashlib
import uuid
from functools import cache

from zenml.config.cache_policy import CachePolicy

from infra.workspace import REPOSITORY


@cache
def library_digest() -> str:
    """Return a hash of the library's source and data files."""
    digest = hashlib.sha256()
    for folder in ("dptune", "steps", "materializers"):
        for file in sorted((REPOSITORY / folder).rglob("*")):
            if file.is_file() and file.suffix in {".py", ".json", ".j2", ".css"}:
                digest.update(str(file.relative_to(REPOSITORY)).encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def fresh() -> str:
    """Return a key that never repeats."""
    return uuid.uuid4().hex


BY_CONTENT = CachePolicy(cache_func=library_digest)
NEVER = CachePolicy(cache_func=fresh)
