"""What is left, what tuning took, and how a run spent, for people who read pages."""

import math

import pytest

from dptune.reports.figures.runs import budget_plot
from dptune.reports.html import render_fragment

from .checks import check_page, outline
from .samples import blocks_ledger, budget_report, jft_ledger


def text_of(report):
    page = render_fragment(report)
    check_page(page)
    return outline(page).text


def test_budget_page_shows_tuning_and_what_is_left():
    text = text_of(budget_report())
    for word in ("people", "1.75", "4.25", "2.5", "rates: 2", "not granted", "1 open"):
        assert word in text, word
    assert "∞ (no guarantee)" in text


def test_budget_page_draws_the_course_of_the_run():
    page = render_fragment(budget_report())
    for name in ("private_recovery (selective)", "redacted_finetune (record)"):
        assert name in page, name
    assert page.count('<svg class="plot"') == 2
    assert render_fragment(budget_report(curves=())).count('<svg class="plot"') == 1


@pytest.mark.parametrize("ledger", [blocks_ledger(), jft_ledger()])
def test_ledger_page_draws_epsilon_by_stage_and_notion(ledger):
    page = render_fragment(ledger)
    assert page.count('<svg class="plot"') == 1
    for word in (
        "Epsilon so far",
        "private_recovery (selective)",
        "redacted_finetune (selective)",
        "∞, no guarantee",
        "At δ = 10⁻⁵",
    ):
        assert word in page, word


def test_budget_plot_of_nothing_finite_is_nothing():
    (line, endless) = budget_report().lines
    assert budget_plot([endless]) == ""
    assert math.isinf(endless.spent)
    assert "tuning 1.75" in budget_plot([line, endless])
