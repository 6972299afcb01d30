import functools
import math
import re
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest

from dptune.errors import ConfigError
from dptune.reports.figures.attacks import discoverable_plot, exposure_plot, roc_plot
from dptune.reports.figures.canvas import NULL_HIGH, NULL_LOW, NULL_MEAN
from dptune.reports.figures.runs import epsilon_plot, loss_plot
from dptune.results import LedgerCurve

from .samples import (
    exposure_report,
    extraction_report,
    membership_report,
    signal,
    stage_report,
)

HOSTILE = "<script>alert('x')</script> & $\\frac{1}{0}$"


def parse(svg):
    return ET.fromstring(svg)  # noqa: S314 - our own markup, no foreign input


def texts(svg):
    return " | ".join(
        "".join(t.itertext()) for t in parse(svg).iter() if t.tag.endswith("text")
    )


def curve(stage, *epsilon):
    return LedgerCurve(
        stage=stage,
        notion="record",
        relation="add_or_remove_one",
        delta=1e-5,
        steps=(1, 2),
        epsilon=epsilon,
    )


FIGURES = {
    "exposure": lambda: exposure_plot(exposure_report(), title=HOSTILE),
    "discoverable": lambda: discoverable_plot(extraction_report()),
    "roc": lambda: roc_plot(membership_report(signal(HOSTILE, auc=0.7, tpr=0.1))),
    "epsilon": lambda: epsilon_plot([curve(HOSTILE, 1, 2)]),
    "loss": lambda: loss_plot(stage_report(stage=HOSTILE)),
}


@functools.cache
def every_figure():
    return {name: draw() for name, draw in FIGURES.items()}


def test_null_constants_are_the_law_of_unseen_canaries():
    law = (NULL_MEAN, 2**-NULL_LOW, 2**-NULL_HIGH)
    assert law == pytest.approx((1.4427, 0.975, 0.025), abs=1e-4)


@pytest.mark.parametrize("name", ["exposure", "roc", "epsilon", "loss"])
def test_figure_is_inline_well_formed_and_deterministic(name):
    first, second = every_figure()[name], FIGURES[name]()

    assert first == second
    root = parse(first)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"]
    assert "<script" not in first
    outside = re.findall(r'(?:href|src)="(?!#)[^"]*"', first)
    assert outside == []
    assert "metadata" not in first


def test_two_figures_share_no_id():
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in every_figure().values()]
    assert sum(map(len, ids)) == len(set().union(*ids))


def test_every_reference_inside_a_figure_has_a_target():
    for svg in every_figure().values():
        targets = set(re.findall(r' id="([^"]+)"', svg))
        used = set(re.findall(r'href="#([^"]+)"', svg))
        used |= set(re.findall(r"url\(#([^)]+)\)", svg))
        assert used <= targets


def test_figures_leave_matplotlib_as_it_was():
    before = dict(mpl.rcParams)
    FIGURES["roc"]()
    assert dict(mpl.rcParams) == before


def test_exposure_plot_names_groups_null_and_unit():
    shown = texts(exposure_plot(exposure_report(leaked=True)))
    for word in ("Planted, this model", "Held out, this model", "Planted, base model"):
        assert word in shown
    assert "95 % of never-seen canaries" in shown
    assert "1.44" in shown
    assert "exposure (bits)" in shown


def test_exposure_plot_without_base_still_draws():
    assert "none" in texts(exposure_plot(exposure_report(base_canaries=())))


def test_roc_plot_shows_blind_and_chance():
    shown = texts(roc_plot(membership_report()))
    assert "chance" in shown
    assert "bag_of_words (blind, no model), AUC 0.5" in shown
    assert "loss_minus_base (strongest), AUC 0.888" in shown


def test_roc_plot_without_curves_shows_points():
    report = membership_report(
        signal("loss", curve=False), blind=signal("blind", curve=False)
    )
    assert "loss (strongest)" in texts(roc_plot(report))


def test_epsilon_plot_infinite_is_said_in_words():
    endless = curve("all", math.inf, math.inf)
    assert "no guarantee" in texts(epsilon_plot([endless]))


def test_plot_of_no_curve_is_refused():
    with pytest.raises(ConfigError, match="at least one"):
        epsilon_plot([])
