"""A stage with RLDP's controller: charged once, resumed exactly, kept whole."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from dp_accounting import NonPrivateDpEvent
from safetensors.torch import load_file

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.configfile import load_train_config
from dptune.data.source import SyntheticSource
from dptune.errors import ConfigError
from dptune.mechanisms.rldp_controller import RldpController
from dptune.models.source import ModelBundle
from dptune.workflow.controller import read_controllers
from dptune.workflow.forward import PublicText
from dptune.workflow.preflight import check_run
from dptune.workflow.train_stage import run_stage

from .conftest import PERFORMANCE


class Killed(BaseException):
    pass


@pytest.fixture
def steered(make_inputs):
    def make(seed=None, **control):
        return make_inputs(
            seed=seed,
            trains="lora",
            lora={"rank": 2, "alpha": 4},
            epochs=6.0,
            optimizer={"name": "adamw", "learning_rate": 0.01},
            clipping={"kind": "per_lora_pair", "max_grad_norm": 0.5},
            controller={"interval": 1, **control},
            nominal={"formula": "gdp", "reference": "RLDP"},
        )

    return make


def run(inputs, folder, **changes):
    performance = PERFORMANCE.model_copy(update={"block_size": 8})
    return run_stage(
        inputs, PrivacyLedger(), folder=folder, performance=performance, **changes
    )


def test_stage_is_charged_for_its_deck_and_keeps_its_policy(steered, tmp_path):
    inputs, spent = steered(), []
    done = run(inputs, tmp_path, spend=spent.append)
    (entry,) = done.ledger.entries
    assert spent == [entry]
    assert entry.dp_event == inputs.plan.dp_event()
    assert entry.nominal_epsilon == inputs.plan.nominal_epsilon
    made = done.report.controller
    assert made.num_actions == inputs.plan.num_actions >= 20
    assert made.rewards_from == "released"
    assert len(made.pairs) == len(made.trace[0].clip_norms) > 1
    assert not any("lora" in name for name in made.pairs)
    granted = sorted(point.noise_multiplier for point in made.trace)
    cards = inputs.plan.training_plan().adaptive.cards
    assert granted == sorted(c.noise_multiplier for c, n in cards for _ in range(n))
    assert read_controllers(done.bundle.path) == (made,)
    policy = load_file(done.bundle.path / "controller_private.safetensors")
    assert policy["mean.weight"].shape[0] == len(made.pairs) + 1
    again = run(inputs, tmp_path, spend=spent.append)
    assert again.report.controller == made
    assert len(spent) == 1


def test_killed_stage_goes_on_with_the_controller_of_its_block(
    steered, tmp_path, monkeypatch
):
    inputs, restored = steered(), []
    restore = RldpController.restore

    def watched(self, state):
        restore(self, state)
        restored.append((len(self.trace), self.state()))

    monkeypatch.setattr(RldpController, "restore", watched)

    def kill(progress):
        if progress.step == 19:
            raise Killed

    with pytest.raises(Killed):
        run(inputs, tmp_path, on_step=kill)
    stored = tmp_path / inputs.key() / "checkpoint"
    (file,) = stored.glob("step-*/*.safetensors")
    kept = {
        name.removeprefix("controller."): value
        for name, value in load_file(file).items()
        if name.startswith("controller.")
    }
    done = run(inputs, tmp_path)
    ((num_steps, state),) = restored
    assert num_steps == 16
    assert kept
    assert state.keys() == kept.keys()
    assert all(state[name].equal(kept[name]) for name in kept)
    num_steps = inputs.plan.num_steps - 3  # three cards went with the killed block
    assert done.report.num_steps == num_steps
    trace = done.report.controller.trace
    assert [point.step for point in trace] == list(range(num_steps))
    journal = LedgerJournal(tmp_path / inputs.key() / "ledger.jsonl")
    assert len(journal.read().entries) == 1


def test_public_text_rewards_and_earlier_controllers_stay(steered, tmp_path):
    source = SyntheticSource(num_records=8, private=False, seed=9)
    inputs = replace(
        steered(), public_text=PublicText(source=source, data_root=tmp_path)
    )
    assert inputs.key() != steered().key()
    first = run(inputs, tmp_path)
    assert first.report.controller.rewards_from == "public_text"
    settings = inputs.plan.settings.model_copy(update={"name": "again"})
    second = replace(
        inputs,
        model=ModelBundle(path=first.bundle.path, digest=first.bundle.digest),
        plan=inputs.plan.model_copy(update={"settings": settings}),
    )
    done = run(second, tmp_path)
    stages = [made.stage for made in read_controllers(done.bundle.path)]
    assert stages == ["again", "private"]


def test_raw_stage_has_no_epsilon(steered, tmp_path):
    inputs = steered(count_share=0.0, clip_span=None)
    assert inputs.plan.dp_event() == NonPrivateDpEvent()
    assert inputs.plan.nominal_epsilon > 0
    done = run(inputs, tmp_path)
    assert done.ledger.entries[0].dp_event == NonPrivateDpEvent()
    assert done.report.controller.rewards_from == "private_batch"
    assert json.loads(inputs.plan.model_dump_json())["nominal_epsilon"] > 0


def test_controller_in_several_processes_is_refused_before_anything_is_made():
    repository = Path(__file__).resolve().parents[3]
    config = load_train_config(
        repository / "tests" / "configs" / "tiny.yaml",
        configs=repository / "configs",
        overrides=(
            "recipe=rldp",
            "performance.num_processes=2",
            "performance.device=cpu",
            "stages.rldp.private_finetune.epochs=6",
            "stages.rldp.private_finetune.expected_batch_size=32",
        ),
    )
    with pytest.raises(ConfigError, match="must be 1 for stage private_finetune"):
        check_run(config, data_root=repository)
