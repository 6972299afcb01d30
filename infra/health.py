"""Whether this process can run the pipeline: the health check of the images.

`python -m infra.health` exits with 0, or with 1 and a line for each problem.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

FOLDERS = ("HOME", "TMPDIR", "DPTUNE_HOME")
"""Variables that name the folders a run writes to."""

_PIN = re.compile(r"([\w.-]+)(?:\[.*\])?==([^;\s]+)(?:; extra == \"(\w+)\")?")
_EXTRAS = (None, "cluster")


def pinned_requirements() -> dict[str, str]:
    """Read the exact versions that the project asks for, and those of a cluster."""
    found = filter(None, map(_PIN.fullmatch, requires("dptune") or ()))
    return {pin[1]: pin[2] for pin in found if pin[3] in _EXTRAS}


def health_problems(
    *, requirements: Mapping[str, str], folders: Sequence[Path], user: int
) -> Iterator[str]:
    """Say what keeps this process from running the pipeline as it was tested.

    Args:
        requirements: names of packages, and their versions.
        folders: that must be writable.
        user: number of the process' user.
    """
    if user == 0:
        yield "the process runs as root. Start it as user 10001."
    for name, wanted in requirements.items():
        found = _installed(name)
        if found is None or found.split("+")[0] != wanted:
            yield f"{name} must be {wanted}, got {found}. Build the image again."
    for folder in folders:
        if not os.access(folder, os.W_OK):
            yield f"{folder} must be writable. Mount a volume there."


def main() -> int:
    """Check this process."""
    folders = [Path(os.environ[name]) for name in FOLDERS if name in os.environ]
    found = list(
        health_problems(
            requirements=pinned_requirements(), folders=folders, user=os.getuid()
        )
    )
    sys.stderr.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


def _installed(name: str) -> str | None:
    """Return the version of a package, or None where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
