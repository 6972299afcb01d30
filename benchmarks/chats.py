"""Write ABCD and CustomerSim as conversations, for models that know chats.

    python benchmarks/chats.py ../shared/data FOLDER

What stands behind `SYS:` is the assistant's, behind `USR:` the user's, behind `ACT:`
the tool's; lines of one role in a row are one turn. FOLDER gets `abcd_train.jsonl`,
`abcd_valid.jsonl`, `abcd_test.jsonl` and the same of `customersim`, with the columns
`id` and `messages`.
"""

import gzip
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROLES = {"SYS": "assistant", "USR": "user", "ACT": "tool"}
SYSTEM = {"role": "system", "content": "You are an agent."}
FILES = {
    "abcd/train_sample": "abcd_train",
    "abcd/valid": "abcd_valid",
    "abcd/test": "abcd_test",
    "customersim/train": "customersim_train",
    "customersim/valid": "customersim_valid",
    "customersim/test": "customersim_test",
}


def messages(text: str) -> list[dict[str, str]]:
    """Return the turns of a dialogue, behind a short system turn."""
    return [
        SYSTEM,
        *(
            {"role": role, "content": "\n".join(content for _, content in lines)}
            for role, lines in itertools.groupby(_said(text), lambda said: said[0])
        ),
    ]


def _said(text: str) -> Iterator[tuple[str, str]]:
    """Yield role and content of lines; one without a mark goes on with the last."""
    role = SYSTEM["role"]
    for line in filter(None, map(str.strip, text.split("\n"))):
        mark, _, content = line.partition(":")
        is_marked = mark in ROLES and line != mark
        role = ROLES[mark] if is_marked else role
        said = content.strip() if is_marked else line
        if role != SYSTEM["role"] and said:
            yield role, said


def main() -> None:
    """Convert every file."""
    source, target = map(Path, sys.argv[1:])
    target.mkdir(parents=True, exist_ok=True)
    for file, name in FILES.items():
        with (
            gzip.open(source / f"{file}.jsonl.gz", "rt", encoding="utf-8") as lines,
            (target / f"{name}.jsonl").open("w", encoding="utf-8") as output,
        ):
            for row in map(json.loads, lines):
                chat = {"id": row["id"], "messages": messages(row["text"])}
                output.write(json.dumps(chat, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
