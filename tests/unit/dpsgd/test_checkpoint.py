import json
import math
import pickle
import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

from dptune.dpsgd import checkpoint
from dptune.dpsgd.checkpoint import (
    TrainingState,
    claim_attempt,
    load_checkpoint,
    save_checkpoint,
)
from dptune.errors import ArtifactError

STATE = TrainingState(
    step=4,
    attempt=2,
    digest="abc",
    num_tokens=99,
    seconds=1.5,
    curve=((3, 0.25), (4, math.nan)),
)


CLOCK = torch.tensor(7, dtype=torch.int64)


def build(fill=0.0, name="adamw"):
    parameters = {"a": nn.Parameter(torch.full((2, 3), fill))}
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.SGD
    options = {} if name == "adamw" else {"momentum": 0.9}
    optimizer = kind(parameters.values(), lr=0.1, **options)
    parameters["a"].grad = torch.ones(2, 3)
    return parameters, optimizer


def load(folder, parameters, optimizer, digest="abc"):
    return load_checkpoint(
        folder, digest=digest, parameters=parameters, optimizer=optimizer
    )


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_round_trip_restores_weights_moments_and_figures(tmp_path, name):
    parameters, optimizer = build(1.0, name)
    optimizer.step()
    save_checkpoint(tmp_path, STATE, parameters, optimizer)
    others, other_optimizer = build(0.0, name)
    state = load(tmp_path, others, other_optimizer)
    assert state.curve[0] == (3, 0.25)
    assert math.isnan(state.curve[1][1])
    assert (state.step, state.attempt, state.num_tokens) == (4, 2, 99)
    for step in range(2):
        assert torch.equal(parameters["a"], others["a"]), step
        optimizer.step()
        other_optimizer.step()


def test_no_checkpoint_is_no_state(tmp_path):
    assert load(tmp_path / "absent", *build()) is None


def test_only_the_last_checkpoint_is_kept(tmp_path):
    parameters, optimizer = build()
    (tmp_path / ".writing-dead").mkdir()
    for step in (1, 2, 2):
        state = TrainingState(step=step, attempt=0, digest="abc")
        save_checkpoint(tmp_path, state, parameters, optimizer)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_kill_while_writing_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    parameters, optimizer = build(1.0)
    save_checkpoint(tmp_path, STATE, parameters, optimizer)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dptune.dpsgd.checkpoint._write", killed)
    later = TrainingState(step=8, attempt=2, digest="abc")
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, later, parameters, optimizer)
    assert load(tmp_path, *build()).step == 4


def test_checkpoint_of_another_run_is_refused(tmp_path):
    save_checkpoint(tmp_path, STATE, *build())
    with pytest.raises(ArtifactError, match="made by another"):
        load(tmp_path, *build(), digest="xyz")


def cut(file, _):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def one_bit(file, _):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def gone(file, _):
    file.unlink()


def exchanged(file, other):
    file.rename(file.with_name("half"))
    other.rename(file)
    file.with_name("half").rename(other)


def added(file, _):
    shutil.copy(file, file.with_name("shard-00002-model-00001-of-00001.safetensors"))


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A checkpoint of a file for each tensor."""
    monkeypatch.setattr(checkpoint, "_FILE_BYTES", 1)
    parameters, optimizer = build()
    optimizer.step()
    save_checkpoint(tmp_path, STATE, parameters, optimizer)
    return tmp_path / "step-00000004"


@pytest.mark.parametrize("damage", [cut, one_bit, gone, exchanged, added])
def test_damaged_shard_is_refused_by_name(tmp_path, stored, damage):
    file, *_, other = sorted(stored.glob("*.safetensors"))
    damage(file, other)
    wrong = "shard-00002-" if damage is added else file.name
    with pytest.raises(ArtifactError, match=f"the shards that were written.*{wrong}"):
        load(tmp_path, *build())


@pytest.mark.parametrize("damage", [cut, gone])
def test_damaged_state_is_refused(tmp_path, stored, damage):
    damage(stored / "state.json", None)
    with pytest.raises(ArtifactError, match="cannot be read"):
        load(tmp_path, *build())


def test_shards_of_another_checkpoint_are_refused(tmp_path, stored):
    parameters, optimizer = build(2.0)
    optimizer.step()
    save_checkpoint(tmp_path / "other", STATE, parameters, optimizer)
    for file in (tmp_path / "other" / stored.name).glob("*.safetensors"):
        shutil.copy(file, stored)
    with pytest.raises(ArtifactError, match="the shards that were written"):
        load(tmp_path, *build())


def test_damage_that_no_digest_tells_is_missed(tmp_path, stored, monkeypatch):
    """The twin: without digests other weights would be taken for those of the run."""
    one_bit(min(stored.glob("*.safetensors")), None)
    digests = json.loads((stored / "state.json").read_text())["files"]
    monkeypatch.setattr(checkpoint, "_digest", lambda file: digests[file.name])
    assert load(tmp_path, *build()).step == 4


def test_checkpoint_holds_no_pickle(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("pickled")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    parameters, optimizer = build(1.0)
    optimizer.step()
    learned = replace(STATE, transform={"a.b": torch.ones(2)}, controller={"c": CLOCK})
    save_checkpoint(tmp_path, learned, parameters, optimizer)
    state = load(tmp_path, *build())
    assert torch.equal(state.transform["a.b"], torch.ones(2))
    assert torch.equal(state.controller["c"], CLOCK)
    files = (tmp_path / "step-00000004").iterdir()
    assert {file.suffix for file in files} == {".json", ".safetensors"}


def test_weights_of_another_shape_are_refused(tmp_path):
    save_checkpoint(tmp_path, STATE, *build())
    parameters = {"a": nn.Parameter(torch.zeros(5))}
    optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
    with pytest.raises(ArtifactError, match="do not match"):
        load(tmp_path, parameters, optimizer)


def test_unknown_format_is_refused(tmp_path):
    save_checkpoint(tmp_path, STATE, *build())
    path = tmp_path / "step-00000004" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(ArtifactError, match="format must be 3"):
        load(tmp_path, *build())


def test_attempts_are_never_given_twice(tmp_path):
    assert [claim_attempt(tmp_path) for _ in range(3)] == [0, 1, 2]
    (tmp_path / "attempts" / "1").unlink()
    assert claim_attempt(tmp_path) == 3
