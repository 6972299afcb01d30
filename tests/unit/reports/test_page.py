import math

import pytest

from dptune.errors import ConfigError
from dptune.reports.comparison import shared_claim
from dptune.reports.page import RunSummary, comparison_page, summary_rows

from .checks import check_page, outline
from .samples import card, exposure_report, gate_decision, membership_report

HOSTILE = "<script>alert(1)</script> $x_{1}$ 漢字 🎈"


def run(title, kind="private", outcome="PASS", **changes):
    values = {
        "title": title,
        "model_version": "7",
        "recipe": "Just Fine-tune Twice",
        "perplexity": 6.361,
        "base_perplexity": 15.24,
        "exposure": exposure_report(leaked=kind == "none"),
        "membership": membership_report(),
        "decision": gate_decision(outcome),
        "card": card(kind, decision=gate_decision(outcome)),
    }
    return RunSummary(**(values | changes))


def three():
    return [run("No DP", "none", "BLOCK"), run("DP-SGD"), run("JFT", "jft")]


def page(runs, **changes):
    values = {"intro": "Same data.", "next_steps": ("Plant more.",)} | changes
    return comparison_page("Three ways", runs, **values)


def rows(runs):
    return {(r.group, r.metric): r.values for r in summary_rows(runs)}


def test_comparison_page_is_self_contained_and_deterministic():
    found = check_page(page(three()))
    assert page(three()) == page(three())
    for word in ("Three ways", "Same data.", "Plant more.", "No DP", "DP-SGD", "JFT"):
        assert word in found.text
    assert found.tags.count("details") == 6


@pytest.mark.parametrize("outcome", ["PASS", "BLOCK", "INCONCLUSIVE", "INVALID"])
def test_comparison_page_outcome_has_word_color_and_shape(outcome):
    html = page([run("one", outcome=outcome)])
    assert f"chip chip-{outcome.lower()}" in html
    assert f'class="run run-{outcome.lower()}"' in html
    assert outcome in outline(html).text
    assert 'class="mark"' in html


def test_comparison_page_escapes_titles_everywhere():
    html = page([run(HOSTILE), run("other")], intro=HOSTILE, next_steps=(HOSTILE,))
    found = check_page(html)
    assert found.text.count("<script>alert(1)</script>") >= 6


def test_comparison_page_has_no_training_loss():
    assert "training loss" not in page(three())


@pytest.mark.parametrize("runs", [[], [run("same"), run("same")]])
def test_comparison_page_needs_runs_with_unique_titles(runs):
    with pytest.raises(ConfigError, match="unique titles"):
        page(runs)


def test_comparison_page_of_bare_runs_still_renders():
    bare = RunSummary(title="bare", model_version="1", recipe="x")
    html = comparison_page("t", [bare], intro="i", next_steps=())
    found = check_page(html)
    assert "NOT DECIDED" in found.text
    assert "What to do next" not in found.text
    assert "details" not in found.tags


def test_comparison_page_survives_a_diverged_run():
    check_page(page([run("bad", perplexity=math.inf), run("good")]))
    check_page(page([run("worse", perplexity=math.nan)]).replace("not a number", ""))


def test_summary_rows_hold_one_value_per_run():
    assert all(len(row.values) == 3 for row in summary_rows(three()))


def test_summary_rows_show_utility_leakage_and_claims():
    found = rows(three())
    assert found["Gate", "Outcome"] == ("BLOCK", "PASS", "PASS")
    assert found["Utility", "Test perplexity"] == ("6.36",) * 3
    exposures = found["Canary exposure (bits)", "Mean, planted"]
    assert exposures[0] == "19.9"
    chance = found["Canary exposure (bits)", "Planted against chance"]
    assert chance[0] == "p < 10⁻⁹"
    assert found["Membership inference", "TPR at 1 % FPR"] == ("57.3 %",) * 3
    claim = found["Certified epsilon", "Record (add or remove one record)"]
    assert claim[0] == "∞ (no guarantee)"
    assert claim[1].endswith("at δ = 10⁻⁵, certified")
    assert claim[2] == "∞ (no guarantee)"
    selective = found["Certified epsilon", "Selective (replace one record)"]
    assert selective[2].endswith("conditional")


def test_summary_rows_keep_nominal_apart_from_certified():
    found = rows(three())
    (nominal,) = [k for k in found if k[1] == "Nominal ε"]
    assert "no guarantee" in nominal[0]
    assert found[nominal] == ("–", "2.56", "2.56")


def test_summary_rows_drop_what_no_run_has():
    bare = RunSummary(title="bare", model_version="1", recipe="x")
    assert [row.metric for row in summary_rows([bare])] == ["Outcome"]


def test_run_summary_seeded_shows_infinity_first():
    (first, *_) = run("seeded", "seeded").epsilon_texts
    assert first[1].startswith("∞ (no guarantee); ε = ")
    assert first[1].endswith("had the seed been secret")


def test_run_summary_round_trips_as_json():
    summary = run("JFT", "jft")
    assert RunSummary.model_validate_json(summary.model_dump_json()) == summary


def test_shared_claim_is_the_one_most_runs_make():
    assert shared_claim(three()) == "selective (replace one record)"
    assert shared_claim([run("none", "none")]) is None
