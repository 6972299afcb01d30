"""The calibration page: both relations, the plan marked, nothing from outside."""

import math
import re

import pytest

from dptune.reports.blocks import Chip, Notice, Plots, Table
from dptune.reports.figures.runs import calibration_png
from dptune.reports.pages.calibration import PLAN, calibration_page
from dptune.reports.render import page_html
from dptune.results import (
    BatchChoice,
    Calibration,
    EpsilonGrid,
    NoiseCost,
    Promise,
    StageCost,
    TargetChoice,
    WhatIf,
)

from .checks import check_page

NOISE = NoiseCost(
    noise_multiplier=1.5,
    num_bands=1,
    step_noise=0.015,
    run_noise=0.015,
    signal_to_noise=365.0,
)
GRID = EpsilonGrid(
    rows=(50.0, 100.0),
    epochs=(1.0, 2.0),
    num_steps=((20, 40), (10, 20)),
    epsilon=((1.0, 1.6), (2.0, math.inf)),
    planned=(1, 0),
)
WHAT_IF = WhatIf(
    stage="private_finetune",
    targets=(
        TargetChoice(
            target_epsilon=0.5, is_planned=False, add_or_remove=NOISE, replace=None
        ),
        TargetChoice(
            target_epsilon=2.0, is_planned=True, add_or_remove=NOISE, replace=NOISE
        ),
    ),
    batches=(
        BatchChoice(expected_batch_size=50, num_steps=20, is_planned=False, noise=None),
        BatchChoice(
            expected_batch_size=100, num_steps=10, is_planned=True, noise=NOISE
        ),
    ),
    by_batch=GRID,
    by_noise=GRID.model_copy(update={"rows": (0.75, 1.5)}),
    hint="A hint.",
)


def made(what_if=WHAT_IF):
    stage = {
        "view": "original",
        "epochs": 1.0,
        "num_steps": 10,
        "expected_batch_size": 100,
        "max_batch_size": None,
        "sample_rate": 0.1,
    }
    promises = [
        ("record", "add_or_remove_one", 2.0, 2.0, "certified"),
        ("record", "replace_one", 3.9, math.inf, "none"),
        ("selective", "replace_one", 3.9, 3.9, "conditional"),
    ]
    names = ("notion", "relation", "noisy_epsilon", "epsilon", "status")
    return Calibration.model_validate(
        {
            "config": "mine",
            "recipe": "r",
            "notion": "record",
            "relation": "add_or_remove_one",
            "target_epsilon": 2.0,
            "target_delta": 1e-4,
            "epsilon": 2.0,
            "num_units": 1000,
            "stages": (
                StageCost(
                    stage="plain",
                    sampling="shuffled",
                    max_grad_norm=None,
                    noise=None,
                    **stage,
                ),
                StageCost(
                    stage="private_finetune",
                    sampling="poisson",
                    max_grad_norm=0.1,
                    noise=NOISE,
                    **stage,
                ),
            ),
            "promises": tuple(
                Promise.model_validate(
                    dict(zip(names, p, strict=True)) | {"is_target": i == 0}
                )
                for i, p in enumerate(promises)
            ),
            "what_if": what_if,
        }
    )


def tables(page):
    return {
        section.title: block
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Table)
    }


def test_page_puts_every_relation_and_choice_in_a_table():
    page = calibration_page(made())
    found = tables(page)
    promises = found["What the plan promises"].rows
    assert [row[3] for row in promises] == ["2", "∞ (no guarantee)", "3.9"]
    assert promises[0][0].endswith(PLAN)
    assert len(found) == 6
    assert any(isinstance(b, Notice) for s in page.sections for b in s.blocks)


def test_planned_choices_are_marked_once():
    found = tables(calibration_page(made()))
    for title, table in found.items():
        cells = [c for row in table.rows for c in row]
        marked = [c for c in cells if isinstance(c, Chip) or PLAN in c]
        assert len(marked) == (title != "Stages"), title


def test_impossible_targets_are_said_and_infinite_cells_are_drawn_as_such():
    found = tables(calibration_page(made()))
    assert "impossible" in found["What if the target were"].rows[0]
    assert "impossible" in found["Same target, another batch size"].rows[0]
    grid = found["What epsilon would be: batch size and epochs"].rows
    assert grid[1][2] == "∞ @ 20"


def test_page_of_a_plan_without_noise_has_no_choices():
    page = calibration_page(made(what_if=None))
    assert len(page.sections) == 2
    assert not any(isinstance(b, Plots) for s in page.sections for b in s.blocks)


def test_page_needs_nothing_from_outside_and_is_the_same_every_time():
    html = page_html(calibration_page(made()))
    check_page(html)
    assert html.count('<svg class="plot"') == 3
    assert html == page_html(calibration_page(made()))


def test_picture_is_a_png_of_three_figures():
    picture = calibration_png(made(), WHAT_IF)
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[i : i + 4], "big") for i in (16, 20))
    assert width > 4 * height


@pytest.mark.parametrize("value", ["2.0", "Infinity"])
def test_json_holds_every_figure_and_comes_back(value):
    text = made().model_dump_json()
    assert re.search(rf'"?epsilon"?:"?{value}', text)
    assert Calibration.model_validate_json(text) == made()
