"""How often does the default policy err?

    PYTHONPATH=. python benchmarks/gate_errors.py --clean 4000 --leaking 1000

Simulated runs from `tests/gate_runs.py`, with every shape of canaries: models that have
memorized nothing, and models that leak 2.5 bits on average, in three ways, or of which
one canary is at rank 1. Prints Markdown.
"""

import argparse

from tests import gate_runs as runs

OUTCOMES = ("PASS", "BLOCK", "INVALID", "INCONCLUSIVE")


def row(model: str, shape: str, num: int, rates: dict[str, float], mean: float) -> str:
    """Write one line of the table."""
    shares = " | ".join(f"{rates.get(name, 0.0):.2%}" for name in OUTCOMES)
    return f"| {model} | {shape} | {num:,} | {mean:.2f} | {shares} |"


def main() -> None:
    """Print one line for every kind of model and every shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clean", type=int, default=4000)
    parser.add_argument("--leaking", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args()
    draws = runs.clean_draws(max(options.clean, options.leaking), seed=options.seed)
    kinds = {"clean": (runs.Shape.uniform, options.clean)}
    kinds |= {name: (draw, options.leaking) for name, draw in runs.LEAKS.items()}
    print("| model | canaries | runs | mean bits | " + " | ".join(OUTCOMES) + " |")
    print("|---" * (4 + len(OUTCOMES)) + "|")
    for name, shape in runs.SHAPES.items():
        for model, (draw, num) in kinds.items():
            found, mean = runs.outcomes(shape, draw, draws[:num], seed=options.seed)
            print(row(model, name, num, found, mean), flush=True)


if __name__ == "__main__":
    main()
