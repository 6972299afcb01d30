import pytest
import torch
from torch import nn

from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.errors import ConfigError


def rates(**options):
    settings = OptimizerSettings(learning_rate=1.0, **options)
    return [settings.learning_rate_at(step, num_steps=6) for step in range(6)]


def test_schedules_warm_up_and_fall():
    assert rates() == [1.0] * 6
    assert rates(warmup_steps=2) == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert rates(warmup_steps=2, schedule="linear") == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    cosine = rates(schedule="cosine")
    assert cosine[0] == 1.0
    assert cosine[3] == pytest.approx(0.5)
    assert cosine == sorted(cosine, reverse=True)


def test_warm_up_longer_than_the_run_never_divides_by_zero():
    assert rates(warmup_steps=12, schedule="linear")[-1] == 0.5


def test_build_passes_the_settings_on():
    parameters = [nn.Parameter(torch.ones(2))]
    adamw = OptimizerSettings(name="adamw", betas=(0.8, 0.9)).build(parameters)
    assert isinstance(adamw, torch.optim.AdamW)
    assert adamw.defaults["betas"] == (0.8, 0.9)
    sgd = OptimizerSettings(name="sgd", momentum=0.7).build(parameters)
    assert isinstance(sgd, torch.optim.SGD)
    assert sgd.defaults["momentum"] == 0.7


def test_faults_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        OptimizerSettings(
            name="adam",
            learning_rate=0,
            weight_decay=-1,
            betas=(1.0, 0.9),
            momentum=1.0,
            warmup_steps=-1,
            schedule="step",
        )
    assert len(caught.value.problems) == 7
