"""The command `dptune`: what the repository's `run.py` does, from wherever it lies.

The application (commands, pipelines, steps) is no part of the library: it imports
dptune, never the other way round. In a wheel it lies in a folder of its own inside of
the package, with the names that it has in the repository, so that the world sees one
name and ZenML, which knows steps by their place below the main program's folder, sees
the same names everywhere.
"""

import runpy
import sys
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent


def application() -> Path:
    """Return the folder of the application: in the wheel, or the repository.

    Raises:
        FileNotFoundError: neither is there, such as where the library alone was copied.
    """
    for folder in (_PACKAGE / "_application", _PACKAGE.parent):
        if (folder / "run.py").is_file() and (folder / "cli").is_dir():
            return folder
    raise FileNotFoundError("the command of dptune is not installed beside its library")


def main() -> None:
    """Run the application's program as Python runs a script."""
    folder = application()
    sys.path.insert(0, str(folder))
    sys.argv[0] = "dptune"
    runpy.run_path(str(folder / "run.py"), run_name="__main__")
