"""A rank of a stage whose draws are seen, and which is killed once; see `witness`."""

import os
import sys
from pathlib import Path

from dptune.errors import DptuneError
from dptune.workflow import rank

from .witness import watch

if __name__ == "__main__":
    if os.environ["RANK"] == "0":  # who draws all noise
        watch(Path(os.environ["WITNESS"]), twin=os.environ.get("TWIN", ""))
    try:
        rank.main(Path(sys.argv[1]))
    except DptuneError:
        sys.exit(1)
