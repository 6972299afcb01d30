"""Two ranks against one: equal sums, one draw, one charge, noise once.

The ranks are two processes on the CPU, started once for all tests, see tests/ranks.py.
"""

import itertools
import json
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dptune.dpsgd import distributed
from dptune.dpsgd.distributed import ALONE, Ranks
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.sharding import shard_model
from dptune.errors import BudgetExceededError, ConfigError, DptuneError
from tests import ranks as scenarios
from tests.support import oracles
from tests.support.statistics import (
    FALSE_ALARM_RATE,
    variance_bounds,
    variance_escape_probability,
)

LAYOUTS = ("ddp", "fsdp")
STDDEV = 0.3 / 3.0  # noise multiplier 1, C 0.3, divided by the expected batch size 3
ENTRIES = 165_632


@dataclass(frozen=True, kw_only=True)
class Left:
    """What ranks left."""

    folder: Path

    def tensors(self, name, rank=0):
        return load_file(self.folder / f"{name}.{rank}.safetensors")

    def figures(self, name, rank=0):
        path = self.folder / f"{name}.{rank}.json"
        return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    for sharding in ("none", "fsdp"):
        begin_alone(folder / f"begun-by-one-{sharding}")
    scenarios.run_scenarios(folder, {2: scenarios.SCENARIOS})
    return Left(folder=folder)


def begin_alone(checkpoint_dir):
    with pytest.raises(BudgetExceededError):
        scenarios.trained(
            plan=scenarios.QUIET,
            checkpoint_dir=checkpoint_dir,
            charge=scenarios.stop_at(4),
        )


def relative(found, expected):
    """Distance over the norm of what is expected; 0 where both are zero."""
    assert found.keys() == expected.keys()
    distance = oracles.distance(found, expected)
    return distance / max(oracles.norm(expected), 1e-30)


def alone(kind, drawn, **options):
    return scenarios.sum_before_noise(
        kind, drawn, ranks=ALONE, sharded=False, **options
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("drawn", scenarios.DRAWN)
@pytest.mark.parametrize("kind", scenarios.MODELS)
def test_sum_before_noise_is_that_of_one_rank(two, kind, drawn, layout):
    expected, totals = alone(kind, drawn)
    assert (oracles.norm(expected) > 0) == (drawn != "nobody")
    for rank in (0, 1):
        name = f"sum-{kind}-{drawn}-{layout}"
        assert relative(two.tensors(name, rank), expected) <= 1e-6
        figures = [totals.num_tokens, totals.nll, totals.weight]
        assert two.figures(name, rank) == pytest.approx(figures, rel=1e-6)


@pytest.mark.parametrize("twin", ["twin-whole-batch", "twin-mean"])
def test_units_taken_by_two_ranks_or_averaged_are_caught(two, twin):
    expected, _ = alone("tied", "uneven")
    assert relative(two.tensors(twin), expected) > 0.1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unit_with_nan_gradient_contributes_zero_on_any_rank(two, layout):
    expected, totals = alone("tied", "uneven", loss=scenarios.NanWhereLong)
    whole, _ = alone("tied", "uneven")
    assert relative(expected, whole) > 0.1
    for rank in (0, 1):
        assert relative(two.tensors(f"nan-{layout}", rank), expected) <= 1e-6
        assert two.figures(f"nan-{layout}", rank) == pytest.approx(totals.nll)


def shares(indices, *, size, share=None):
    """Units that each rank computes, by their rows; every row is checked."""
    feed = Feed(
        data=scenarios.DATA,
        record_loss=CausalLoss(loss_normalizer=8.0),
        physical_batch_size=3,
        pad_token_id=0,
        device=scenarios.CPU,
        autocast=False,
    )
    found = []
    for rank in range(size):
        mine = replace(feed, ranks=Ranks(rank=rank, size=size))
        units = (share or Feed._share)(mine, np.asarray(indices, np.int64))
        rows = sum(
            int((batch.rows_of_unit >= 0).sum())
            for batch in scenarios.DATA.physical_batches(
                units, physical_batch_size=3, pad_token_id=0
            )
        )
        assert rows == sum(len(scenarios.DATA.units[unit]) for unit in units)
        found.append(sorted(units.tolist()))
    return found


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("drawn", scenarios.DRAWN.values())
def test_every_unit_is_on_exactly_one_rank_with_all_its_rows(size, drawn):
    units = [unit for share in shares(drawn, size=size) for unit in share]
    assert sorted(units) == sorted(drawn)


def is_right_noise(found):
    """Whether pooled entries have the variance of one draw of the mechanism.

    With 165,632 entries a mean square outside of 2 % has probability below 2e-8 (5.7
    standard deviations). Noise drawn twice (variance 2), or on one of two shards
    (variance 1/2), passes with a probability below 1e-300.
    """
    entries = torch.cat([value.flatten() for value in found.values()]).double()
    assert len(entries) == ENTRIES
    return abs(float(entries.square().mean()) / STDDEV**2 - 1) <= 0.02


def correlation_of_shards(found):
    """Correlation of the two ranks' entries at equal places of their shards."""
    halves = [v.chunk(2) for v in found.values() if len(v) % 2 == 0]
    first = torch.cat([half[0].flatten() for half in halves])
    second = torch.cat([half[1].flatten() for half in halves])
    return float(torch.corrcoef(torch.stack([first, second]))[0, 1]), len(first)


def test_two_percent_of_variance_is_a_sharp_law():
    low, high = variance_bounds(ENTRIES, stddev=1.0, false_alarm_rate=2e-8)
    assert 0.98 < low < high < 1.02
    escape = variance_escape_probability(ENTRIES, relative_error=0.05)
    assert escape < FALSE_ALARM_RATE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_total_noise_has_the_variance_of_one_draw(two, layout):
    first, second = (two.tensors(f"noise-{layout}", rank) for rank in (0, 1))
    assert is_right_noise(first)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("twin", ["twin-per-rank", "twin-one-shard"])
def test_noise_on_every_rank_or_on_one_shard_only_is_caught(two, twin):
    assert not is_right_noise(two.tensors(twin))


def test_noise_of_two_shards_is_independent(two):
    correlation, count = correlation_of_shards(two.tensors("noise-fsdp"))
    assert abs(correlation) < 5 / math.sqrt(count)  # false alarm below 1e-6


def test_shards_that_share_their_noise_are_caught(two):
    correlation, _ = correlation_of_shards(two.tensors("twin-shared-stream"))
    assert correlation > 0.9


def test_noise_without_a_seed_is_fresh(two):
    first, second = (two.tensors(f"secret-{attempt}") for attempt in (0, 1))
    assert not any(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", scenarios.RUNS)
def test_training_is_that_of_one_rank(two, name):
    changes = {k: v for k, v in scenarios.RUNS[name].items() if k != "sharding"}
    expected, figures = scenarios.trained(**changes)
    for rank in (0, 1):
        assert relative(two.tensors(f"train-{name}", rank), expected) <= 1e-5
        found = two.figures(f"train-{name}", rank)
        assert found["num_tokens"] == figures["num_tokens"]  # hence the same draw
        assert found["curve"] == pytest.approx(figures["curve"], rel=1e-4, nan_ok=True)


@pytest.mark.parametrize("name", scenarios.RUNS)
def test_blocks_are_charged_once_by_the_first_rank(two, name):
    blocks = [[0, 6]] if name == "granted" else [[0, 2], [2, 2], [4, 2]]
    assert two.figures(f"train-{name}", 0)["charges"] == blocks
    assert two.figures(f"train-{name}", 1)["charges"] == []


@pytest.mark.parametrize("name", ["moving", "moving-fsdp"])
def test_clip_norm_moves_alike_on_all_ranks(two, name):
    """C is decided once: the ranks hold the same bits, and those of one process."""
    changes = {k: v for k, v in scenarios.RUNS[name].items() if k != "sharding"}
    _, alone = scenarios.trained(**changes)
    first, second = (two.figures(f"train-{name}", rank) for rank in (0, 1))
    assert first["clip_norms"] == second["clip_norms"]
    assert len(set(first["clip_norms"])) > 1
    assert first["clip_norms"] == pytest.approx(alone["clip_norms"], rel=1e-6)


def test_decision_of_the_first_rank_arrives_in_all_bits(two):
    expected = [float(value).hex() for value in scenarios.VALUES]
    for rank in (0, 1):
        assert two.figures("told", rank)[0] == expected


def test_results_and_errors_of_each_rank_reach_all(two):
    for rank in (0, 1):
        _, acted, error = two.figures("told", rank)
        assert acted == [{"rank": 0}, {"rank": 1}]
        assert error == ["BudgetExceededError", "no budget left"]
    assert ALONE.each(lambda: 3) == [3]


@pytest.mark.slow
def test_every_plan_in_every_mode_is_that_of_one_rank(tmp_path):
    """Some 200 runs; bfloat16 rounds otherwise where pieces are cut otherwise."""
    scenarios.run_scenarios(tmp_path, {2: (scenarios.every_mode,)})
    two, count = Left(folder=tmp_path), 0
    for plan, mode, sharding in itertools.product(
        scenarios.CROSSED_PLANS, scenarios.CROSSED_MODES, ("none", "fsdp")
    ):
        changes = scenarios.crossed(plan, mode, sharding)
        if changes is None:
            continue
        alone = {**changes, "sharding": "none"}
        expected, figures = scenarios.trained_unchecked(**alone)
        tolerance = 2e-2 if "bfloat16" in mode else 2e-5
        name, count = f"cross-{plan}-{mode}-{sharding}", count + 1
        for rank in (0, 1):
            found = two.figures(name, rank)
            assert relative(two.tensors(name, rank), expected) <= tolerance, name
            assert found["num_tokens"] == figures["num_tokens"], name
            assert found["clip_norms"] == two.figures(name, 0)["clip_norms"], name
            norms = pytest.approx(figures["clip_norms"], rel=tolerance)
            assert found["clip_norms"] == norms, name
    assert count == 2 * len(scenarios.CROSSED_PLANS) * len(scenarios.CROSSED_MODES) - 8


def test_progress_is_reported_once_with_the_tokens_of_all(two):
    seen = []
    scenarios.trained(
        plan=scenarios.PLAIN, on_step=lambda now: seen.append([now.step, now.tokens])
    )
    assert two.figures("progress", 0) == seen
    assert two.figures("progress", 1) == []


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_refused_charge_stops_all_ranks_with_one_error(two, sharding):
    for rank in (0, 1):
        error = ["BudgetExceededError", "no budget left"]
        assert two.figures(f"stopped-{sharding}", rank) == error


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_run_goes_on_with_another_number_of_ranks(two, tmp_path, sharding):
    shutil.copytree(two.folder / f"begun-by-two-{sharding}", tmp_path / "two")
    begin_alone(tmp_path / "one")
    expected, figures = scenarios.trained(
        plan=scenarios.QUIET, checkpoint_dir=tmp_path / "one"
    )
    of_two, _ = scenarios.trained(plan=scenarios.QUIET, checkpoint_dir=tmp_path / "two")
    assert relative(of_two, expected) <= 1e-5
    for rank in (0, 1):
        found = two.figures(f"resumed-{sharding}", rank)
        assert relative(two.tensors(f"resumed-{sharding}", rank), expected) <= 1e-5
        assert found["resumed_from_step"] == figures["resumed_from_step"] == 4
        assert found["num_tokens"] == figures["num_tokens"]


@pytest.mark.parametrize("what", ["data", "blocks", "checkpoints"])
def test_ranks_that_would_do_different_things_are_refused(two, what):
    for rank in (0, 1):
        kind, message = two.figures(f"different-{what}", rank)
        assert kind == "ConfigError"
        assert "all ranks must train the same model" in message


def test_weights_that_start_elsewhere_are_those_of_the_first_rank(two):
    expected, _ = scenarios.trained(model=scenarios.lora)
    for rank in (0, 1):
        found = two.tensors("different-start", rank)
        assert relative(found, expected) <= 1e-5


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_unsound_loss_stops_all_ranks_before_a_charge(two, sharding):
    for rank in (0, 1):
        (kind, message), charges = two.figures(f"unsound-{sharding}", rank)
        assert (kind, charges) == ("ModelError", [])
        assert "must not depend" in message


def test_sharding_alone_is_refused():
    with pytest.raises(ConfigError, match="single process"):
        shard_model(torch.nn.Linear(1, 1), ranks=ALONE, device=scenarios.CPU)


def test_group_without_cpu_tensors_gets_a_second_one_for_messages(monkeypatch):
    made = []
    answers = {
        "is_initialized": lambda: True,
        "get_rank": lambda: 1,
        "get_world_size": lambda: 2,
        "new_group": lambda backend: made.append(backend) or "messages",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(distributed.dist, name, answer)
    for backends, group in (("cuda:nccl", "messages"), ("cpu:gloo,cuda:nccl", None)):
        monkeypatch.setattr(
            distributed.dist,
            "get_backend_config",
            lambda found=backends: found,
            raising=False,
        )
        assert Ranks.current() == Ranks(rank=1, size=2)
        assert Ranks.current().messages == group
    assert set(made) == {"gloo"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BudgetExceededError("no budget left"), BudgetExceededError),
        (ConfigError("wrong"), ConfigError),
        (ValueError("text"), DptuneError),
    ],
)
def test_errors_of_other_processes_keep_their_kind(error, kind):
    revived = distributed.revive_error(distributed.describe_error(error), who="rank 1")
    assert type(revived) is kind
    assert str(error) in str(revived)
