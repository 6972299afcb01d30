"""The one command line: `python run.py --help`."""

import atexit
import gc
import os
import signal
import sys
from types import FrameType


def _too_late(number: int, _: FrameType | None) -> None:
    """Let a signal pass after the last word: the exit code stands; two end it."""
    signal.signal(number, signal.SIG_DFL)


def _ignore_signals() -> None:
    """Ignore signals while Python ends: it drops its handlers, and one would kill."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


gc.set_threshold(10_000)  # a fifth of the time that loading libraries takes
os.umask(0o077)  # for bytecode too: who may write there writes what is run
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
atexit.register(_ignore_signals)  # the first to be registered runs last
# What comes while this is being loaded waits for `main`, which answers it in words.
signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
for _number in _ENDING:
    if signal.getsignal(_number) is not signal.SIG_IGN:  # nohup keeps its meaning
        signal.signal(_number, _too_late)
try:
    from cli.main import main
except (ImportError, SyntaxError) as error:  # else exit code 1, which is a verdict
    sys.stderr.write(
        f"crash {type(error).__name__}: the installation is not complete. Nothing was "
        "created and no budget was spent. Run `make run`, which installs it.\n"
    )
    sys.exit(3)

if __name__ == "__main__":
    sys.exit(main())
