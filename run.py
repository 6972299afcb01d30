"""The one command line: `python run.py --help`."""

import sys

from cli.main import main

if __name__ == "__main__":
    sys.exit(main())
