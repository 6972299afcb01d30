"""How long `import dptune` and `dptune --help` take, and that neither loads torch.

    .venv/bin/python benchmarks/start_time.py

Each is started anew some times. Seconds are of the processor, since other work on the
machine stretches those of the clock; a start waits for nothing else. Python's own start
is in them, and stands beside them. Exit 1 where a bar is missed.
"""

import resource
import statistics
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
STARTS = 15
HELP = (
    "import sys; sys.argv = ['dptune', '--help']; from dptune.command import main\n"
    "try: main()\nexcept SystemExit: pass\n"
)
TORCH = "\nsys.exit('torch' in sys.modules)"
CASES = {
    "python": ("import sys", 0.0),
    "import dptune": ("import sys, dptune", 0.15),
    "dptune --help": (HELP, 0.6),
}


def start(code: str) -> float:
    """Run code in a process of its own; seconds. Exits where it loads torch."""
    before = used()
    command = [sys.executable, "-c", code + TORCH]
    done = subprocess.run(
        command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        sys.exit("torch was loaded")
    return used() - before


def used() -> float:
    """Seconds of the processor that ended children took."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def main() -> int:
    """Print a line for each case."""
    missed = 0
    for name, (code, bar) in CASES.items():
        start(code)  # bytecode is written
        seconds = statistics.median(start(code) for _ in range(STARTS))
        said = f", at most {bar:g} s" if bar else ""
        print(f"{name}: {seconds:.3f} s, median of {STARTS} starts{said}")
        missed += bool(bar) and seconds > bar
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
