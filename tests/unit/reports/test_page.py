"""A few trainings side by side: headlines, one table, figures and folds of each."""

import math

import pytest
from pydantic import ValidationError

from dptune.reports.card.statements import at_a_glance, exposure_means
from dptune.reports.comparison import CellResult, ComparisonReport, comparison_rows
from dptune.reports.pages.attacks import exposure_page
from dptune.reports.pages.comparison import compare_page
from dptune.reports.render import page_html, page_markdown
from dptune.reports.tables import comparison_tables

from .checks import check_page, outline
from .samples import (
    card,
    exposure_report,
    gate_decision,
    membership_report,
    utility_report,
)

HOSTILE = "<script>alert(1)</script> $x_{1}$ 漢字 🎈"


def run(title, kind="private", outcome="PASS", **changes):
    values = {
        "label": title,
        "version": "7",
        "recipe": "jft",
        "target_epsilon": None if kind == "none" else 8.0,
        "seed": 0,
        "notion": "selective",
        "relation": "replace_one",
        "utility": utility_report(perplexity=6.361, base_perplexity=15.24),
        "exposure": exposure_report(leaked=kind == "none"),
        "membership": membership_report(),
        "decision": gate_decision(outcome),
        "card": card(kind, gate=gate_decision(outcome)),
    }
    return CellResult(**(values | changes))


def bare(**changes):
    values = {"label": "bare", "recipe": "x", "target_epsilon": None, "seed": 0}
    return CellResult(**(values | changes))


def three():
    return [run("No DP", "none", "BLOCK"), run("DP-SGD"), run("JFT", "jft")]


def report(runs, **changes):
    values = {"name": "three", "title": "Three ways", "intro": "Same data."}
    return ComparisonReport(cells=tuple(runs), **(values | changes))


def page(runs, *, next_steps=("Plant more.",), **changes):
    return page_html(compare_page(report(runs, **changes), next_steps=next_steps))


def rows(runs):
    made = report(runs)
    (table,) = comparison_tables(made, comparison_rows(made))
    return {
        (group, row[0]): tuple(c if isinstance(c, str) else c.text for c in row[1:])
        for group, of in table.parts()
        for row in of
    }


def test_comparison_page_is_self_contained_and_deterministic():
    found = check_page(page(three()))
    assert page(three()) == page(three())
    for word in ("Three ways", "Same data.", "Plant more.", "No DP", "DP-SGD", "JFT"):
        assert word in found.text
    assert found.tags.count("details") == 6
    assert found.tags.count("article") == 3


@pytest.mark.parametrize("outcome", ["PASS", "BLOCK", "INCONCLUSIVE", "INVALID"])
def test_comparison_page_outcome_has_word_color_and_shape(outcome):
    html = page([run("one", outcome=outcome)])
    assert f"chip chip-{outcome.lower()}" in html
    assert f'class="run run-{outcome.lower()}"' in html
    assert outcome in outline(html).text
    assert 'class="mark"' in html


def test_decisions_that_did_not_pass_are_open_at_once():
    html = page([run("good"), run("bad", outcome="BLOCK")])
    assert html.count("<details open>") == 1


def test_comparison_page_escapes_titles_everywhere():
    html = page([run(HOSTILE), run("other")], intro=HOSTILE, next_steps=(HOSTILE,))
    found = check_page(html)
    assert found.text.count("<script>alert(1)</script>") >= 6


def test_what_is_unseen_or_turns_a_line_around_is_escaped_everywhere():
    """U+202E in a name wrote what followed from right to left, the verdict too."""
    name = "a\u202eb\u2066c\u200bd\u2028e\x1bf"
    seen = r"a\u202eb\u2066c\u200bd\u2028e\x1bf"
    html = page([run(name), run("other")], intro=name, next_steps=(name,))
    assert check_page(html).text.count(seen) >= 6
    assert html.count(seen) > check_page(html).text.count(seen)  # attributes
    made = report([run(name), run("other")], intro=name)
    markdown = page_markdown(compare_page(made, next_steps=(name,)))
    assert seen.replace("\\", "\\\\") in markdown
    assert not set(html + markdown).intersection("\u202e\u2066\u200b\u2028\x1b")


def test_letters_of_every_direction_stay():
    name = "\u0645\u06cc\u200c\u062e \u05d0\u200f! e\u0301 \U0001f468\u200d\U0001f469"
    assert name in page([run(name)])


def test_training_without_canaries_shows_no_figures_of_any():
    """`0 × 0 copies`, `– bits` and an empty figure stood there."""
    none = exposure_report().model_copy(update={"canaries": (), "base_canaries": ()})
    made = run("none", exposure=none, card=card("private", exposure=none))
    html = page([made])
    for words in ("– bits", "0 × 0", "Insertions of each", "Exposure of canaries"):
        assert words not in html
    assert "no canary was planted" in html
    assert rows([made])["Canary exposure (bits)", "Canaries"][0] == "none"
    assert "exposure" not in at_a_glance(made.card, made.decision)


def test_comparison_page_has_no_training_loss():
    assert "training loss" not in page(three())


def test_comparison_page_has_both_attacks_of_every_training():
    html = page(three())
    assert html.count("Membership ROC. Strongest attack") == 3
    assert html.count("Exposure of canaries.") == 3
    many = page([run("DP-SGD", seed=seed) for seed in range(5)])
    assert "Membership ROC" not in many
    assert "article" not in outline(many).tags


def test_secrets_that_nobody_drew_have_no_chance_to_be_held_against():
    """They follow no uniform law: JFT's 341752 comes early under any model."""
    given = exposure_report(leaked=True, drawn=False)
    assert exposure_means(exposure_report(leaked=True)).p_value < 1e-9
    assert exposure_means(given).p_value is None
    told = page_html(exposure_page(given))
    assert "not drawn at random" in told
    assert "10⁻⁹" not in told


def test_filled_marks_passed_the_gate():
    assert "Filled marks passed the gate." in page(three())
    passed, refused = page([run("a")]), page([run("a", outcome="BLOCK")])
    figure = "mean exposure of planted canaries (bits)"
    drawn = [html.partition(f"against {figure}")[2] for html in (passed, refused)]
    hollow = ["fill: #ffffff; stroke" in svg.partition("</svg>")[0] for svg in drawn]
    assert hollow == [False, True]


def test_comparison_needs_runs_that_differ():
    with pytest.raises(ValidationError):
        report([])
    with pytest.raises(ValidationError, match="differ in label, budget or seed"):
        report([run("same"), run("same")])


def test_comparison_page_of_bare_runs_still_renders():
    html = page([bare()], next_steps=())
    found = check_page(html)
    assert "NOT DECIDED" in found.text
    assert "What to do next" not in found.text
    assert "details" not in found.tags


def test_comparison_page_survives_a_diverged_run():
    bad = run("bad", utility=utility_report(perplexity=math.inf))
    check_page(page([bad, run("good")]))
    worse = run("worse", utility=utility_report(perplexity=math.nan))
    check_page(page([worse]).replace("not a number", ""))


def test_table_holds_one_value_per_run_and_one_without_fine_tuning():
    assert all(len(values) == 4 for values in rows(three()).values())


def test_table_shows_utility_leakage_and_claims():
    found = rows(three())
    assert found["What the gate says", "Gate"] == ("BLOCK", "PASS", "PASS", "–")
    assert found["Utility", "Test perplexity"] == ("6.36", "6.36", "6.36", "15.2")
    exposures = found["Canary exposure (bits)", "Exposure, planted"]
    assert exposures[0] == "19.9"
    assert exposures[3] == "1"
    chance = found["Canary exposure (bits)", "against chance"]
    assert chance[0] == "p < 10⁻⁹"
    canaries = found["Canary exposure (bits)", "Canaries"]
    assert canaries[0] == "6 × 4 copies, not missed"
    tells = {name: v for (group, name), v in found.items() if "Member" in group}
    assert tells["TPR at\u00a01\u00a0%\u00a0FPR"][:3] == ("57.3\u00a0%",) * 3
    assert tells["TPR interval"][0] == "95 % CI [56.3 %, 58.3 %]"
    assert tells["Strongest attack"][0] == "loss minus base"
    assert (tells["AUC"][0], tells["Blind AUC"][0]) == ("0.888", "0.5")
    claim = found["Every claim", "Record (add or remove one record)"]
    assert claim[0] == "∞ (no guarantee)"
    assert claim[1].endswith("at δ = 10⁻⁵, certified")
    assert claim[2] == "∞ (no guarantee)"
    selective = found["Every claim", "Selective (replace one record)"]
    assert selective[2].endswith("conditional")


def test_table_keeps_nominal_apart_from_certified():
    found = rows(three())
    (nominal,) = [k for k in found if k[1] == "Nominal\u00a0ε"]
    assert "no guarantee" in nominal[0]
    assert found[nominal] == ("–", "2.56", "2.56", "–")


def test_table_drops_what_no_run_has():
    assert rows([bare()]) == {}


def test_claim_of_a_seeded_run_shows_infinity_first():
    found = rows([run("seeded", "seeded")])
    claim, _ = found["Every claim", "Record (add or remove one record)"]
    assert claim.startswith("∞ (no guarantee); ε = ")
    assert claim.endswith("had the seed been secret")


def test_training_round_trips_as_json():
    training = run("JFT", "jft")
    assert CellResult.model_validate_json(training.model_dump_json()) == training
