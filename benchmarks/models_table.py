"""Write docs/MODELS.md: which architectures train, and how.

PYTHONPATH=. python benchmarks/models_table.py [--results FILE] [--out FILE]
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import transformers

COLUMNS = tuple(
    (head, mode) for head in ("causal", "classifier") for mode in ("full", "lora")
)
HOW = {
    "trained": "yes",
    "trained with fixed shapes": "fixed shapes",
    "trained row by row": "row by row",
    "not finished": "not measured",
}
WHY = {
    "reads a row off its end-of-text token": "counts end-of-text tokens",
    "must draw nothing but dropout": "draws more than dropout",
    "keeps": "keeps state of earlier batches",
    "must not change": "writes to its weights or buffers",
    "padding must not reach": "padding reaches a loss",
    "must not depend on the other records": "rows reach each other",
    "needs more memory": "memory",
    "finite gradients": "gradients are not finite",
    "target_modules must be given": "no linear layer for adapters",
    "must be all Linear or all Conv1D": "name target_modules: two layouts",
    "takes no adapters": "peft refuses its layers",
    "batch normalisation": "batch normalisation",
    "Input language unknown": "needs a language",
    "from token ids alone": "needs more than token ids",
    "cannot compute a row": "short rows stop it",
    "cannot compute rows": "unequal rows stop it",
    "be differentiated": "not differentiable so",
}
INTRO = """# Models: what trains, and how

Every model type of transformers {version} that has a causal language model or a sequence
classifier, as a tiny random model, put through the check before a private stage and measured
([program](../benchmarks/architectures.py), [figures](../benchmarks/results/architectures.jsonl),
what is measured: [benchmarks](../benchmarks/README.md)). Written by
`benchmarks/models_table.py`. [ENGINE.md](ENGINE.md) says what the words mean:

| | |
|---|---|
| yes | rows side by side, as configured |
| fixed shapes | with `performance.fixed_shapes: true`, as the refusal says |
| row by row | with `performance.physical_batch_size: 1`, as the refusal says; adapters often need neither |
| no: ... | refused by name before anything is charged; use another model |
| not built | could not be made so small, or needs a package; nothing is known |
| – | transformers has no such head |

{counts}

Encoders with a decoder (T5, BART and their kin) are refused as language models: they read one text
and write another, and a record is one text. Their decoders alone are in the table.

| model type | causal, full | causal, LoRA | classifier, full | classifier, LoRA |
|---|---|---|---|---|
"""  # noqa: E501


def cell(line: dict[str, Any] | None) -> str:
    """Say in few words what became of a case."""
    if line is None:
        return "–"
    outcome = str(line["outcome"])
    if outcome != "refused":
        return HOW.get(outcome, outcome)
    last = str(line["reason"]).rpartition(" THEN ")[2]
    return "no: " + next((why for part, why in WHY.items() if part in last), last[:60])


def shares(lines: list[dict[str, Any]]) -> str:
    """Count what trained, of what was built and finished."""
    rows = ["| | built | trained | side by side | refused |", "|---|---|---|---|---|"]
    for head, mode in COLUMNS:
        some = [
            line
            for line in lines
            if f"/{head}/{mode}/" in line["case"]
            and (line["outcome"] == "refused" or "worst" in line)
        ]
        trained = [line for line in some if "worst" in line]
        plain = sum(line["outcome"] == "trained" for line in some)
        name = "LoRA" if mode == "lora" else mode
        rows.append(
            f"| {head}, {name} | {len(some)} | {len(trained)} "
            f"({len(trained) / max(1, len(some)):.1%}) | {plain} "
            f"| {len(some) - len(trained)} |"
        )
    return "\n".join(rows)


def table(lines: list[dict[str, Any]]) -> str:
    """Return the whole document."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        model_type, head, mode, _ = line["case"].split("/")
        found[model_type][head, mode] = line
    rows = [
        f"| {model_type} | "
        + " | ".join(cell(found[model_type].get(column)) for column in COLUMNS)
        + " |"
        for model_type in sorted(found)
    ]
    intro = INTRO.format(version=transformers.__version__, counts=shares(lines))
    return intro + "\n".join(rows) + "\n"


def main() -> None:
    """Write the file."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    results = here / "results" / "architectures.jsonl"
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--out", type=Path, default=here.parent / "docs" / "MODELS.md")
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    arguments.out.write_text(table(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
