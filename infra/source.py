"""The source that cached answers follow from."""

import hashlib
from functools import cache
from pathlib import Path

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
