"""What the gate compared, as the page and the terminal write it."""

import numpy as np
import pytest

from dptune.gates.criterion import Criterion, Verdict
from dptune.reports.pages.decisions import compared


def criterion(name, measured, threshold):
    return Criterion(
        name=name,
        verdict=Verdict.BLOCK,
        measured=measured,
        threshold=threshold,
        reason="It is so.",
    )


@pytest.mark.parametrize(
    ("name", "measured", "threshold", "texts"),
    [
        ("budget", 8.0001, 8.0, ("8.01", "8")),
        ("budget", 7.9996, 8.0, ("7.9996", "8")),
        ("budget", 8.0, 8.0, ("8", "8")),
        ("budget", float("inf"), 8.0, ("∞ (no guarantee)", "8")),
        ("budget", None, None, ("–", "–")),
        ("assurance", 2.0527340261657407, 2.5, ("2.06", "2.5")),
        ("utility", float("inf"), 1.0, ("∞", "1")),
        ("utility", 0.019802627296, 0.01980262729617973, None),
        ("controls", 0.00050001, 0.0005, ("0.000501", "0.0005")),
        ("planted_count", 59.0, 60.0, ("59", "60")),
        ("membership", 1234.0, 1240.0, ("1,234", "1,240")),
        ("budget", 0.1 + 0.2, 8.0, ("0.3", "8")),
    ],
)
def test_a_figure_is_told_from_its_threshold(name, measured, threshold, texts):
    found = compared(criterion(name, measured, threshold))
    assert found == texts if texts else found[0] != found[1]


def test_figures_are_in_the_order_in_which_they_are():
    rng = np.random.default_rng(7)
    for _ in range(2000):
        limit = round(float(rng.uniform(0.1, 20)), int(rng.integers(7)))
        step = rng.choice([-1, 0, 1]) * 10 ** rng.uniform(-7, 0)
        measured = float(limit + step)
        if measured < 0.001:
            continue
        name = str(rng.choice(["budget", "controls", "membership"]))
        shown, beside = map(float, compared(criterion(name, measured, limit)))
        assert (shown > beside) is (measured > limit)
        assert (shown == beside) is (measured == limit)
        assert name == "membership" or shown >= measured
