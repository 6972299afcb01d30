"""Sharded models: what any number of ranks goes on from, and nodes with copies.

The ranks are forked from one process, for all tests, see tests/sharded_ranks.py.
"""

import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

from tests import ranks as base
from tests import sharded_ranks as scenarios
from tests.support import models
from tests.unit.dpsgd.test_distributed import (
    Left,
    alone,
    is_right_noise,
    relative,
)

FOUR = range(4)


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    scenarios.run_to(folder / "begun-by-1", stop=scenarios.STOP)
    base.run_scenarios(folder, scenarios.SCENARIOS)
    return Left(folder=folder)


@pytest.fixture(scope="module")
def uninterrupted():
    return scenarios.run_to(None)


@pytest.mark.parametrize("begun", [2, 4])
def test_one_process_goes_on_from_shards(left, uninterrupted, tmp_path, begun):
    shutil.copytree(left.folder / f"begun-by-{begun}", tmp_path / "begun")
    weights, figures = scenarios.run_to(tmp_path / "begun")
    expected, whole = uninterrupted
    assert relative(weights, expected) <= 1e-6
    assert figures["resumed_from_step"] == scenarios.STOP
    assert figures["curve"] == pytest.approx(whole["curve"], rel=1e-5)


def test_moments_that_are_left_behind_are_caught(
    left, uninterrupted, tmp_path, monkeypatch
):
    shutil.copytree(left.folder / "begun-by-2", tmp_path / "begun")
    monkeypatch.setattr(torch.optim.AdamW, "load_state_dict", lambda *_: None)
    weights, _ = scenarios.run_to(tmp_path / "begun")
    assert relative(weights, uninterrupted[0]) > 1e-4


@pytest.mark.parametrize("size", scenarios.BEFORE)
def test_another_number_of_ranks_goes_on(left, uninterrupted, size):
    expected, _ = uninterrupted
    for rank in range(size):
        name = f"on-{size}"
        assert relative(left.tensors(name, rank), expected) <= 1e-6
        assert left.figures(name, rank)["resumed_from_step"] == scenarios.STOP


@pytest.mark.parametrize("begun", [2, 4])
def test_every_rank_of_one_node_writes_its_rows_and_nobody_the_whole(left, begun):
    (step,) = (left.folder / f"begun-by-{begun}").glob("step-*")
    written = {"shard-00001": {}, "shard-00002": {}}
    for file in step.glob("*.safetensors"):
        shapes = {name: value.shape for name, value in load_file(file).items()}
        written[file.name.partition("-model")[0]] |= shapes
    first, second = written.values()
    for number, (name, whole) in enumerate(models.tiny_gpt2().named_parameters()):
        rows = math.ceil(len(whole) / 2)
        for key in (f"weights.{name}", f"optimizer.{number}.exp_avg"):
            assert (first[key][0], second[key][0]) == (rows, len(whole) - rows)
    assert {path.suffix for path in step.iterdir()} == {".safetensors", ".json"}


def test_rank_that_cannot_write_leaves_the_checkpoint_before(left):
    kinds = [left.figures("failing", rank) for rank in (0, 1)]
    assert kinds == [
        ["DptuneError", ["step-00000002"]],
        ["OSError", ["step-00000002"]],
    ]
    for rank in (0, 1):
        assert left.figures("mended", rank)["resumed_from_step"] == 2


def test_altered_shard_is_refused_by_name_on_all_ranks(left):
    for rank in (0, 1):
        kind, message = left.figures("damaged", rank)
        assert kind == "ArtifactError"
        assert "shard-00002-model-00001-of-" in message


@pytest.mark.parametrize(("kind", "drawn"), scenarios.SUMS)
def test_sum_over_nodes_is_that_of_one_process(left, kind, drawn):
    expected, totals = alone(kind, drawn)
    for rank in FOUR:
        assert relative(left.tensors(f"sum-{kind}-{drawn}", rank), expected) <= 1e-6
        figures = [totals.num_tokens, totals.nll, totals.weight]
        assert left.figures(f"sum-{kind}-{drawn}", rank) == pytest.approx(figures)


@pytest.mark.parametrize("twin", ["twin-nodes-alone", "twin-units-by-shard"])
def test_sums_of_one_node_or_of_units_taken_twice_are_caught(left, twin):
    expected, _ = alone("tied", "uneven")
    assert relative(left.tensors(twin), expected) > 0.1


def is_the_same_everywhere(left, name):
    first, *others = (left.tensors(name, rank) for rank in FOUR)
    return all(torch.equal(found[key], first[key]) for found in others for key in first)


def test_noise_over_nodes_is_one_draw(left):
    assert is_right_noise(left.tensors("noise"))
    assert is_the_same_everywhere(left, "noise")


def test_noise_in_every_node_is_caught(left):
    assert not is_right_noise(left.tensors("twin-every-node"))


def test_nodes_without_noise_of_the_first_are_caught(left):
    assert not is_the_same_everywhere(left, "twin-nodes-alone-noise")


@pytest.mark.parametrize("name", scenarios.HSDP_PLANS)
def test_training_over_nodes_is_that_of_one_process(left, name):
    expected, figures = base.trained_unchecked(
        plan=scenarios.HSDP_PLANS[name], num_steps=4
    )
    for rank in FOUR:
        found = left.figures(f"train-{name}", rank)
        assert relative(left.tensors(f"train-{name}", rank), expected) <= 1e-5
        assert found["num_tokens"] == figures["num_tokens"]
        assert len(found["charges"]) == (len(figures["charges"]) if rank == 0 else 0)


@pytest.mark.parametrize("name", [*scenarios.NODES, "uneven"])
def test_nodes_that_do_not_fit_are_refused_before_a_charge(left, name):
    for rank in FOUR:
        (kind, message), charges = left.figures(f"refused-{name}", rank)
        assert (kind, charges) == ("ConfigError", [])
        assert "hsdp with 4 ranks" in message
        if name == "uneven":
            assert "ranks_per_node=1, 3" in message
