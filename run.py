"""The one command line: `python run.py --help`."""

import os
import signal
import sys

os.umask(0o077)  # for bytecode too: who may write there writes what is run
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
# What comes while this is being loaded waits for `main`, which answers it in words.
signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # once all is said, without a trace
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
