"""Traces of a controller on a stage's page, and on the card unless they are raw."""

import pytest

from dptune.reports.pages.training import controller_section
from dptune.results import ControllerReport, ControllerStep


def report(**changes):
    values = {
        "stage": "private",
        "pairs": ("h.0.attn", "h.1.attn"),
        "warmup_steps": 3,
        "interval": 2,
        "num_actions": 20,
        "start_noise": 1.1,
        "rewards_from": "released",
        "trace": tuple(
            ControllerStep(
                step=k, noise_multiplier=1.0 + 0.01 * k, clip_norms=(0.1, 0.2)
            )
            for k in range(9)
        ),
    }
    return ControllerReport.model_validate(values | changes)


def plots(section):
    return [block for block in section.blocks if block.kind == "plot"]


@pytest.mark.parametrize("outside", [False, True])
def test_released_traces_are_drawn_everywhere(outside):
    clips, noise = plots(controller_section(report(), outside=outside))
    assert "Clip norms of 2 LoRA pairs" in clips.svg
    assert "from 1 to 1.08" in noise.svg
    assert noise.svg == plots(controller_section(report()))[1].svg


def test_raw_traces_stay_inside_and_say_that_nothing_is_certified():
    raw = report(rewards_from="private_batch")
    assert len(plots(controller_section(raw))) == 2
    outside = controller_section(raw, outside=True)
    assert plots(outside) == []
    (notice,) = (block for block in outside.blocks if block.kind == "notice")
    assert notice.title == "No guarantee."


def test_stage_without_steps_has_facts_only():
    assert plots(controller_section(report(trace=()))) == []
