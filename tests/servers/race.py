"""Decide on one version, side by side with a process that decides on another.

python -m tests.servers.race RUN POLICY FOLDER TWIN

Two such processes meet twice, in FOLDER. After its gate decided, each waits for the
other: both have decided before either can move the champion. And each waits when it has
looked, as promotion does, whether its decision still stands: who holds the lock cannot
be met there, so that waiting ends; without the lock (TWIN `unlocked`) both have looked
before either promotes. TWIN `unheeding` does not look.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from infra.stacks.local import ensure_local_stack, isolate
from infra.workspace import REPOSITORY, current_workspace

SURELY, HARDLY = 600.0, 10.0
"""Seconds for a meeting that must take place, and for one that must not."""


class Meeting:
    """A place where two processes wait for each other.

    Args:
        folder: of this place.
        name: of this process.
        patience: in seconds.
        needed: whether the other must come.
    """

    def __init__(self, folder: Path, *, name: str, patience: float, needed: bool):
        self.folder, self.name = folder, name
        self.patience, self.needed = patience, needed
        folder.mkdir(parents=True, exist_ok=True)

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Have a function's caller wait here, the first time."""

        def waiting(*arguments: Any, **options: Any) -> Any:
            found = function(*arguments, **options)
            self._wait()
            return found

        return waiting

    def _wait(self) -> None:
        (self.folder / self.name).touch()
        end = time.monotonic() + self.patience
        while len(list(self.folder.iterdir())) < 2:
            if time.monotonic() > end:
                if self.needed:
                    raise TimeoutError(f"nobody came to {self.folder.name}")
                return
            time.sleep(0.05)


def main(run_id: str, policy: str, folder: Path, twin: str) -> None:
    """Plant the meetings and the bug, then run the pipeline."""
    isolate(current_workspace())
    ensure_local_stack(current_workspace())
    from zenml.utils import source_utils  # noqa: PLC0415 - must follow `isolate`

    source_utils.set_custom_source_root(str(REPOSITORY))
    from steps import (  # noqa: PLC0415 - steps import them late
        _deciding,
        _evidence,
        _promoting,
        _registry,
    )
    from tests.servers.deciding import decide_pipeline  # noqa: PLC0415

    unlocked = twin == "unlocked"
    decided = Meeting(folder / "decided", name=run_id, patience=SURELY, needed=True)
    looked = Meeting(
        folder / "looked",
        name=run_id,
        patience=SURELY if unlocked else HARDLY,
        needed=unlocked,
    )
    _evidence.cut_trail = lambda _model: ""  # the race begins without a champion
    if twin != "sound":  # the log would refuse what the twin lets through
        _promoting.refuse_superseded = lambda *_: None
    _deciding.decide_on = decided.after(_deciding.decide_on)
    look = _deciding.decide_beside_champion
    if unlocked:
        _registry.moving_champion = lambda _model: nullcontext()
    if twin == "unheeding":
        _deciding.decide_beside_champion = lambda _version, decision: decision
    else:
        _deciding.decide_beside_champion = looked.after(look)
    decide_pipeline(run_id=run_id, policy=json.loads(policy))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
