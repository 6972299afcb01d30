"""The epsilon that training shows is that of all noise it paid for."""

from types import SimpleNamespace

import pytest

from dptune.privacy import NeighboringRelation, Notion
from steps import _training_progress
from steps._training_progress import TrainingProgress

from .test_schedules import RISING
from .test_training import Killed, kill_at, run

DELTA = 1e-3
RUN = SimpleNamespace(
    target_delta=DELTA, relation=NeighboringRelation.ADD_OR_REMOVE_ONE
)
BANDED = {"noise_multiplier": 1.0, "correlation": "banded", "num_bands": 2}


@pytest.mark.parametrize(
    "changes",
    [{}, {"noise": RISING, "epochs": 3}, {"noise": BANDED, "epochs": 2}],
    ids=["constant", "rising", "banded"],
)
@pytest.mark.parametrize("step", [None, 1, 3])
def test_epsilon_that_is_shown_counts_the_block_that_a_kill_lost(
    make_inputs, tmp_path, monkeypatch, step, changes
):
    inputs, figures, said = make_inputs(**changes), {}, []
    monkeypatch.setattr(_training_progress, "say", said.append)

    def train(*more):
        with TrainingProgress(
            "stage private",
            plan=inputs.plan,
            run=RUN,
            journal=tmp_path / inputs.key() / "ledger.jsonl",
            record=lambda found, _: figures.update(found),
        ) as tell:
            return run(
                inputs, tmp_path, on_step=lambda now: [f(now) for f in (tell, *more)]
            )

    if step is not None:
        with pytest.raises(Killed):
            train(kill_at(step))
    claim = train().ledger.certificate(Notion.RECORD, delta=DELTA)
    assert figures["progress/epsilon"] == pytest.approx(claim.epsilon, rel=1e-3)
    assert len(said) == (step is not None)
    assert all("that were cut off are paid for again" in line for line in said)
