"""The table of docs/NOTIONS.md is what the formulas say; the formulas are attained."""

import math
from pathlib import Path

import pytest

from dptune.errors import ConfigError
from tests.support.odds import best_true_positive_rate, posterior

NOTIONS = Path(__file__).resolve().parents[3] / "docs" / "NOTIONS.md"
EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0, math.inf)


def percent(value):
    return "over 99.9 %" if 0.9995 <= value < 1 else f"{100 * value:.1f} %"


def row(epsilon):
    name = "infinite" if math.isinf(epsilon) else f"{epsilon:g}"
    cells = [
        name,
        *(percent(posterior(prior=p, epsilon=epsilon)) for p in (0.01, 0.1, 0.5)),
        percent(
            best_true_positive_rate(
                false_positive_rate=0.01, epsilon=epsilon, delta=1e-5
            )
        ),
    ]
    return f"| {' | '.join(cells)} |"


def test_notions_table_is_recomputed():
    text = NOTIONS.read_text(encoding="utf-8")
    table = text.split("<!-- odds:")[1].split("\n\n")[1].splitlines()
    assert table[2:] == [row(epsilon) for epsilon in EPSILONS]


def test_notions_table_twin_with_a_wrong_cell_is_caught():
    assert row(1.0) not in NOTIONS.read_text(encoding="utf-8").replace("2.7 %", "2.6 %")


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_posterior_is_bayes_rule_on_randomized_response(epsilon):
    """The mechanism that attains it: truth with odds exp(epsilon)."""
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    for prior in (0.01, 0.5, 0.9):
        belief = prior * truth / (prior * truth + (1 - prior) * (1 - truth))
        assert posterior(prior=prior, epsilon=epsilon) == pytest.approx(belief)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_best_true_positive_rate_is_attained(epsilon, delta):
    """Neyman-Pearson on the mechanism that dominates all others."""
    truth = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    lie = (1 - delta) / (1 + math.exp(epsilon))
    outcomes = [(delta, 0.0), (truth, lie), (lie, truth), (0.0, delta)]
    for rate in (0.0, 0.01, 0.3, 0.9):
        left, found = rate, 0.0
        for p, q in outcomes:
            share = 1.0 if q <= left else left / q
            found, left = found + share * p, left - share * q
        bound = best_true_positive_rate(
            false_positive_rate=rate, epsilon=epsilon, delta=delta
        )
        assert found == pytest.approx(bound, abs=1e-12)


def test_odds_edge_cases():
    assert posterior(prior=0.0, epsilon=math.inf) == 0.0
    assert posterior(prior=0.3, epsilon=0.0) == pytest.approx(0.3)
    assert posterior(prior=0.3, epsilon=1e6) == 1.0
    assert (
        best_true_positive_rate(false_positive_rate=0.2, epsilon=1e6, delta=0.0) == 1.0
    )
    with pytest.raises(ConfigError, match="probability"):
        posterior(prior=1.1, epsilon=1.0)
    with pytest.raises(ConfigError, match="epsilon"):
        best_true_positive_rate(false_positive_rate=0.1, epsilon=-1.0, delta=0.0)
