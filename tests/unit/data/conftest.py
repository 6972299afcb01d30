"""Small corpora in temporary files."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def write_jsonl(tmp_path):
    """Write rows as JSON lines and return the path."""

    def write(rows, name="corpus.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def rows():
    """Thirty different records of ten users."""
    return [
        {
            "id": f"r{i}",
            "user": f"u{i % 10}",
            "text": f"number {i} says {'-'.join(str(i * k) for k in range(3, 9))}",
        }
        for i in range(30)
    ]
