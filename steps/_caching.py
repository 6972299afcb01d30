"""When a step may be answered from the cache.

A cached answer is keyed by the step's parameters, by the *contents* of its inputs
(every materializer here hashes contents) and by the library's source, so that editing a
helper invalidates what it made. Verdicts and registry changes are never cached.
"""

import uuid

from zenml.config.cache_policy import CachePolicy

from infra.source import library_digest


def fresh() -> str:
    """Return a key that never repeats."""
    return uuid.uuid4().hex


BY_CONTENT = CachePolicy(cache_func=library_digest)
NEVER = CachePolicy(cache_func=fresh)
