"""A script on two ranks against one process: equal sums, one noise, equal charges.

The ranks are started once, by torchrun, for all tests, see tests/script_ranks.py.
"""

import json
import math
import os
import shutil
import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

from infra.workspace import REPOSITORY
from tests import script_ranks as scenarios
from tests.forks import run_forked
from tests.support.statistics import (
    FALSE_ALARM_RATE,
    variance_bounds,
    variance_escape_probability,
)
from tests.unit.integrations.conftest import asked, make_rows

LAUNCH = (
    "-m tests.forked_agents 1 --standalone --nproc-per-node 2 --max-restarts 2 "
    "-m tests.script_ranks"
)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two ranks left, one of which was killed and started again."""
    folder = tmp_path_factory.mktemp("ranks")
    done = run_forked(*LAUNCH.split(), folder, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def figures(folder, name, rank=0):
    return json.loads((folder / f"{name}.{rank}.json").read_text())


def sums(folder, name, rank=0):
    return load_file(folder / f"{name}.{rank}.safetensors")["sums"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process leaves of the same script."""
    found = {}
    for name, asked_of_two in scenarios.SUMS.items():
        home = tmp_path_factory.mktemp(name)
        changes = asked_of_two | {"fsdp": None}
        trainer, steps, told = scenarios.watched(home, processes=1, **changes)
        held_out = Dataset.from_list(make_rows(16, seed=5, length=6))
        told["evaluated"] = trainer.evaluate(held_out)["eval_loss"]
        told["saved"] = {k: v.clone() for k, v in trainer.model.state_dict().items()}
        found[name] = steps, told
    return found


def relative(found, expected):
    """Greatest distance of a step's sum, over the norm of what is expected."""
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize("name", scenarios.SUMS)
def test_sums_of_two_ranks_are_those_of_one_process(two, alone, name):
    steps, told = alone[name]
    assert len(steps) == len(told["losses"]) == 6
    assert told["paid"] == figures(two, name)["paid"] == [4, 2]
    for rank in (0, 1):
        assert relative(sums(two, name, rank), steps) <= 1e-6
        assert figures(two, name, rank)["losses"] == pytest.approx(
            told["losses"], rel=1e-5
        )


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:fan_in_fan_out")
def test_adapters_of_trl_on_two_ranks_are_those_of_one_process(two, tmp_path):
    changes = scenarios.adapted_chats(processes=1)
    trainer, steps, told = scenarios.watched(tmp_path / "out", **changes)
    trainer.save_model(str(tmp_path / "saved"))
    expected = load_file(tmp_path / "saved" / "adapter_model.safetensors")
    for rank in (0, 1):
        assert relative(sums(two, "adapters", rank), steps) <= 1e-6
        assert figures(two, "adapters", rank)["paid"] == told["paid"] == [4, 2]
    found = load_file(two / "adapters" / "saved" / "adapter_model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["twin-parts", "twin-draws"])
def test_units_clipped_in_parts_and_draws_of_each_rank_are_caught(two, alone, name):
    steps, _ = alone["sums-ddp"]
    assert relative(sums(two, name), steps) > 0.1


@pytest.mark.parametrize("name", scenarios.SUMS)
def test_ranks_are_told_one_draw_which_is_that_of_one_process(two, alone, name):
    drawn = [
        [step for kind, step in told["events"] if kind == "draw"]
        for told in (alone[name][1], figures(two, name, 0), figures(two, name, 1))
    ]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len(set(map(tuple, drawn[0]))) > 0
    twin = [figures(two, "twin-draws", rank)["events"] for rank in (0, 1)]
    assert [e for e in twin[0] if e[0] == "draw"] != [
        e for e in twin[1] if e[0] == "draw"
    ]


@pytest.mark.parametrize("name", ["noise-ddp", "noise-fsdp"])
def test_charges_and_certificate_are_those_of_one_process(two, tmp_path, name):
    _, _, told = scenarios.watched(
        tmp_path,
        processes=1,
        privacy=asked(block_size=4),
        max_steps=2,
        save_strategy="no",
        patches=(scenarios.unchecked, scenarios.nobody),
    )
    assert 0 < told["certificate"]["epsilon"] < math.inf
    for rank in (0, 1):
        assert figures(two, name, rank)["paid"] == told["paid"] == [2]
        assert figures(two, name, rank)["certificate"] == told["certificate"]
    stored = (two / name / "privacy" / "certificate.json").read_text()
    assert json.loads(stored) == told["certificate"]


def is_paid_first(events):
    """Whether every step was drawn when its block had been paid."""
    paid = drawn = 0
    for kind, content in events:
        paid += content if kind == "charge" else 0
        drawn += kind == "draw"
        if drawn > paid:
            return False
    return drawn == paid == 6


def test_first_rank_pays_before_units_are_drawn_and_no_other_one_pays(two):
    for name in scenarios.SUMS:
        first, second = (figures(two, name, rank)["events"] for rank in (0, 1))
        assert is_paid_first(first)
        assert not any(kind == "charge" for kind, _ in second)
    assert not is_paid_first(figures(two, "twin-late-charge")["events"])


def assert_close(saved, expected):
    """Compare weights, but those whose gradient is zero: Adam takes its sign."""
    for key, value in saved.items():
        if not key.endswith("c_attn.bias"):  # keys of attention have no gradient there
            torch.testing.assert_close(value, expected[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", scenarios.SUMS)
def test_evaluation_and_saved_weights_are_those_of_one_process(two, alone, name):
    _, told = alone[name]
    for rank in (0, 1):
        assert figures(two, name, rank)["evaluated"] == pytest.approx(
            told["evaluated"], rel=1e-5
        )
    saved = load_file(two / name / "saved" / "model.safetensors")
    assert len(saved) >= len(told["saved"]) - 1  # tied weights are stored once
    assert_close(saved, told["saved"])


@pytest.mark.parametrize("name", ["noise-ddp", "noise-fsdp"])
def test_noise_is_added_once_to_every_entry(two, name):
    first, second = (sums(two, name, rank) for rank in (0, 1))
    assert torch.equal(first, second)
    entries = first.flatten().double()
    low, high = variance_bounds(len(entries), stddev=scenarios.STDDEV)
    assert low < float(entries.square().mean()) < high
    assert len(entries.unique()) > 0.99 * len(entries)


def test_noise_on_every_rank_or_on_none_is_caught(two):
    size = sums(two, "noise-ddp").numel()
    low, high = variance_bounds(size, stddev=scenarios.STDDEV)
    assert high / low < 1.04  # 2 % on either side
    for error in (0.02, -0.02):
        assert (
            variance_escape_probability(size, relative_error=error) < FALSE_ALARM_RATE
        )
    twice = float(sums(two, "twin-noise-twice").double().square().mean())
    none = float(sums(two, "twin-no-noise").double().square().mean())
    assert twice > high
    assert none < low


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("train_dataset", "ConfigError", "all rows in one order"),
        ("privacy", "ConfigError", "same PrivacyArguments"),
        ("args", "ConfigError", "same TrainingArguments"),
        ("model", "ConfigError", "same model"),
        ("output_dir", "ConfigError", "all of them see"),
        ("budget", "BudgetExceededError", "no budget left"),
        ("fsdp", "ConfigError", "FULL_STATE_DICT"),
    ],
)
def test_ranks_that_differ_or_cannot_pay_are_refused_before_a_charge(
    two, name, kind, words
):
    for rank in (0, 1):
        found, message, paid = figures(two, f"refused-{name}", rank)
        assert (found, paid) == (kind, [])
        assert words in message
        assert name in message or kind != "ConfigError"


def test_killed_rank_ends_the_job_and_what_it_drew_is_paid(two):
    for rank in (0, 1):
        told = figures(two, "killed", rank)
        assert told["steps"] == 6
        # to step 5 of the first start, and from the checkpoint at step 3 on
        assert told["paid"] == [2, 2, 2, 2, 1]
    assert figures(two, "killed")["certificate"]["epsilon"] > 0


def test_parts_are_stored_whole_for_any_number_of_ranks(two, tmp_path, monkeypatch):
    told = figures(two, "resumed")
    assert (told["steps"], told["paid"]) == (6, [4, 2, 3])
    shutil.copytree(two / "left", tmp_path / "left")
    scenarios.silent(monkeypatch)
    trainer = scenarios.make(
        tmp_path / "left",
        processes=1,
        privacy=asked(**scenarios.KNOWN),
        optim="adamw_torch",
    )
    trainer.train(resume_from_checkpoint=True)
    saved = load_file(two / "resumed" / "model.safetensors")
    assert_close(saved, trainer.model.state_dict())


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("WriteWeights", "weights must be moved by released gradients alone"),
        ("WriteGradients", "must act once on each released gradient"),
    ],
)
def test_callbacks_that_write_to_a_ranks_part_are_refused(two, name, words, layout):
    for rank in (0, 1):
        assert words in figures(two, f"{name}-{layout}", rank)


@pytest.mark.slow
def test_script_is_started_by_accelerate_too(tmp_path):
    launch = (
        "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 "
        "--mixed_precision no --dynamo_backend no -m tests.script_ranks"
    )
    done = subprocess.run(
        [sys.executable, *launch.split(), str(tmp_path), "_noise"],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for name in ("noise-ddp", "noise-fsdp"):
        first, second = (sums(tmp_path, name, rank) for rank in (0, 1))
        assert torch.equal(first, second)
        assert figures(tmp_path, name)["paid"] == [2]
