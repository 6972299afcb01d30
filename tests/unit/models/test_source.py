"""The schema of model sources."""

import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from dptune.models.source import (
    ArchitectureSource,
    HubSource,
    ModelSource,
    PathSource,
    TrainedTokenizer,
)

ADAPTER = TypeAdapter(ModelSource)
ARCHITECTURE = {
    "kind": "architecture",
    "num_layers": 2,
    "num_heads": 4,
    "hidden_size": 64,
    "max_tokens": 128,
    "vocab_size": 512,
    "tokenizer": {"kind": "trained", "public_text": ["wiki/train.txt.gz"]},
}


def test_source_each_kind_parses_to_its_class():
    assert ADAPTER.validate_python({"kind": "hub", "id": "gpt2"}) == HubSource(
        kind="hub", id="gpt2", revision="main"
    )
    path = ADAPTER.validate_python({"kind": "path", "path": "models/small"})
    assert isinstance(path, PathSource)
    built = ADAPTER.validate_python(ARCHITECTURE)
    assert isinstance(built, ArchitectureSource)
    assert isinstance(built.tokenizer, TrainedTokenizer)


def test_source_is_frozen():
    source = ADAPTER.validate_python(ARCHITECTURE)
    with pytest.raises(ValidationError):
        source.seed = 1


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"num_layers": 49}, "num_layers"),
        ({"num_heads": 0}, "num_heads"),
        ({"hidden_size": 4}, "hidden_size"),
        ({"hidden_size": 66}, "multiple of num_heads=4"),
        ({"max_tokens": 7}, "max_tokens"),
        ({"vocab_size": 257}, "vocab_size"),
        ({"vocab_size": None}, "vocab_size must be given"),
        ({"tokenizer": {"kind": "hub", "id": "gpt2"}}, "must be left out"),
        ({"tokenizer": {"kind": "trained", "public_text": ["a.pkl"]}}, "must end with"),
        ({"tokenizer": {"kind": "trained", "public_text": ["../a.txt"]}}, "data root"),
        ({"seed": -1}, "seed"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_architecture_out_of_range_is_refused(change, where):
    with pytest.raises(ValidationError, match=where):
        ADAPTER.validate_python(ARCHITECTURE | change)


@pytest.mark.parametrize("path", ["/etc/model", "../model", "a/../../b", "C:\\m", ""])
def test_path_outside_the_data_root_is_refused(path):
    with pytest.raises(ValidationError):
        ADAPTER.validate_python({"kind": "path", "path": path})


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "hub", "id": "a/b/c"},
        {"kind": "hub", "id": "../gpt2"},
        {"kind": "hub", "id": "gpt2", "revision": ""},
        {"kind": "hub", "id": "gpt2", "trust_remote_code": True},
        {"kind": "url", "id": "gpt2"},
        {"id": "gpt2"},
    ],
)
def test_hub_source_malformed_is_refused(source):
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(source)


def test_source_module_imports_no_heavy_library():
    program = (
        "import sys, dptune.models.source\n"
        "sys.exit(bool({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0
