"""The one command line: `python run.py --help`."""

import sys

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
