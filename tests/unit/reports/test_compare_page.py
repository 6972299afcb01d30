"""A comparison's arithmetic, its page, its figures and its CSV tables."""

import csv
import io
import math
import statistics

import pytest

from dptune.reports.comparison import (
    CellResult,
    ComparisonReport,
    StageUsage,
    comparison_rows,
    paired_rows,
    spread,
)
from dptune.reports.html import render_fragment
from dptune.reports.pages.comparison import compare_page
from dptune.reports.render import page_html
from dptune.reports.tables import cells_csv, nominal_cell, rows_csv, trace_csv
from dptune.results import Interval, TracePoint

from .checks import check_page
from .samples import (
    SPACE,
    canary,
    card,
    exposure_report,
    membership_report,
    utility_report,
)

HOSTILE = "<script>alert(1)</script> $x_{1}$"
FAILED = "the corpus must have a test split, got none."


def cell(label="jft", budget=8.0, seed=0, *, nll=1.85, **changes):
    tokens = (10, 10, 10)
    utility = utility_report(
        nll_per_token=nll,
        perplexity=math.exp(nll),
        record_nll=tuple(n * nll + d for n, d in zip(tokens, (-1, 0, 1), strict=True)),
        record_tokens=tokens,
    )
    values = {
        "label": label,
        "recipe": "jft" if budget else "no_dp",
        "target_epsilon": budget,
        "seed": seed,
        "notion": "selective",
        "relation": "replace_one",
        "utility": utility,
        "exposure": exposure_report(leaked=budget is None),
        "membership": membership_report(),
        "card": card("jft" if budget else "none"),
        "stages": (StageUsage(stage="s", num_steps=10, seconds=4.0),),
    }
    return CellResult(**(values | changes))


def failed(label="jft", budget=8.0, seed=0):
    return CellResult(
        label=label, recipe="jft", target_epsilon=budget, seed=seed, failure=FAILED
    )


def report(*cells, **changes):
    values = {
        "name": "quick",
        "title": "Side by side",
        "baseline": "no_dp",
        "reference": "dp_adam",
        "cells": cells,
    }
    return ComparisonReport(**(values | changes))


def plain(seed=0, **changes):
    return cell("no_dp", None, seed, nll=1.0, **changes)


def peak(num_bytes, seconds=4.0):
    usage = StageUsage(
        stage="s", num_steps=10, seconds=seconds, peak_memory_bytes=num_bytes
    )
    return (usage,)


# arithmetic


def test_spread_is_mean_and_sample_deviation_of_what_was_measured():
    found = spread([1.0, None, 2.0, 6.0])
    assert (found.mean, found.count) == (3.0, 3)
    assert found.std == pytest.approx(statistics.stdev([1.0, 2.0, 6.0]))


def test_spread_of_one_seed_has_no_deviation_and_of_none_is_nothing():
    assert spread([2.0]).std is None
    assert spread([None]) is None


def test_spread_of_a_diverged_seed_says_so():
    assert math.isinf(spread([2.0, math.inf]).mean)
    assert math.isnan(spread([2.0, math.nan]).mean)


def test_rows_sum_the_seeds_of_each_recipe_and_budget_up():
    rows = comparison_rows(
        report(plain(), cell(seed=0), cell(seed=1, nll=1.95), cell(budget=3.0))
    )
    assert [(r.label, r.target_epsilon) for r in rows] == [
        ("no_dp", None),
        ("jft", 3.0),
        ("jft", 8.0),
    ]
    assert rows[2].perplexity.mean == pytest.approx(
        (math.exp(1.85) + math.exp(1.95)) / 2
    )
    assert rows[2].perplexity.count == 2
    assert rows[2].exposure.std == 0


def test_rows_name_the_claim_of_the_budget_with_its_largest_epsilon():
    (row,) = comparison_rows(report(cell()))
    assert row.certificate.notion == "selective"
    assert row.nominal_epsilon is not None


def test_time_and_memory_are_relative_to_the_mean_of_the_baseline():
    base = [plain(0, stages=peak(100, 2.0)), plain(1, stages=peak(300, 6.0))]
    row = comparison_rows(report(*base, cell(stages=peak(400, 12.0))))[1]
    assert (row.relative_time, row.relative_memory) == (3.0, 2.0)


def test_without_a_baseline_or_a_measurement_nothing_is_relative():
    (alone,) = comparison_rows(report(cell(stages=peak(400))))
    assert (alone.relative_time, alone.relative_memory) == (None, None)
    row = comparison_rows(report(plain(stages=peak(100)), cell()))[1]
    assert row.relative_memory is None


def test_failed_cells_count_and_do_not_enter_means():
    (row,) = comparison_rows(report(cell(seed=0), failed(seed=1)))
    assert (row.num_failed, row.perplexity.count) == (1, 1)


def test_paired_difference_is_per_seed_and_signed():
    pairs = [
        cell("dp_adam", seed=0, nll=2.0),
        cell("dp_adam", seed=1, nll=2.1),
        cell(seed=0, nll=1.8),
        cell(seed=1, nll=1.7),
    ]
    (row,) = paired_rows(report(*pairs))
    assert row.change.mean == pytest.approx(-0.3)
    assert row.change.std == pytest.approx(statistics.stdev([-0.2, -0.4]))
    assert row.interval.low == pytest.approx(-0.3)
    assert row.interval.high == pytest.approx(-0.3)
    assert row.beyond_spread is True


def test_paired_difference_within_the_spread_says_so():
    pairs = [
        cell("dp_adam", seed=0, nll=2.0),
        cell("dp_adam", seed=1, nll=1.0),
        cell(seed=0, nll=1.9),
        cell(seed=1, nll=1.0),
    ]
    (row,) = paired_rows(report(*pairs))
    assert row.beyond_spread is False


def test_paired_difference_needs_a_shared_seed_and_budget_and_the_same_records():
    other = cell("dp_adam", seed=1)
    assert paired_rows(report(cell(seed=0), other)) == ()
    assert paired_rows(report(cell(budget=3.0, seed=1), other)) == ()
    records = utility_report(record_tokens=(5, 5, 20))
    assert paired_rows(report(cell(seed=1, utility=records), other)) == ()


def test_recipes_whose_budgets_speak_of_different_claims_are_not_paired():
    other = cell("dp_adam", notion="record", relation="add_or_remove_one")
    assert paired_rows(report(other, cell())) == ()


def test_paired_difference_of_one_seed_claims_no_spread():
    (row,) = paired_rows(report(cell("dp_adam", nll=2.0), cell()))
    assert row.beyond_spread is None


# page


def whole():
    trace = tuple(
        TracePoint(
            stage="s",
            step=step,
            perplexity=50.0 / step,
            sensitive_perplexity=60.0 / step,
            ordinary_perplexity=40.0 / step,
            exposure=1.4 + step / 10,
        )
        for step in (5, 10)
    )
    return report(
        *(plain(seed, trace=trace) for seed in (0, 1)),
        *(cell("dp_adam", seed=seed, nll=2.0 + seed / 50) for seed in (0, 1)),
        *(cell(seed=seed, trace=trace) for seed in (0, 1)),
        failed("geoclip"),
        private_epsilon=12.5,
    )


def test_page_is_self_contained_and_deterministic():
    page = render_fragment(whole())
    check_page(page)
    assert page == render_fragment(whole())
    assert "mathdefault" not in page


def test_page_shows_claims_leaks_pairs_curves_spending_and_failures():
    text = check_page(render_fragment(whole())).text
    for words in (
        "No fine-tuning",
        "conditional",
        "no guarantee",
        "Nats per token more than dp_adam",
        "Steps to utility",
        "Exposure against perplexity: sensitive tokens",
        "12.5",
        FAILED,
        "1 FAILED",
        "Privacy cards",
    ):
        assert words in text


def test_page_escapes_labels_and_reasons():
    page = render_fragment(report(cell(HOSTILE), title=HOSTILE))
    assert "<script>" not in page
    check_page(page)


def test_page_holds_no_loss_of_a_record():
    given = cell(nll=1.8567)
    assert "17.567" in str(given.utility.record_nll)
    text = check_page(render_fragment(report(given))).text
    assert not any(loss in text for loss in ("17.567", "17.57", "17.6"))


def test_page_of_failures_alone_still_renders():
    check_page(render_fragment(report(failed())))


def test_page_of_one_cell_shows_its_card():
    assert "What is guaranteed" in check_page(render_fragment(cell())).text


def test_page_of_classifiers_shows_accuracies():
    utility = utility_report(accuracy=0.9, base_accuracy=0.5)
    text = check_page(page_html(compare_page(report(cell(utility=utility))))).text
    assert "90 %" in text
    assert "Test perplexity" not in text


def figures(*cells):
    page = render_fragment(report(*cells))
    check_page(page)
    return page


def test_figure_ranks_recipes_best_first_with_their_claims():
    page = figures(plain(), cell("dp_adam", nll=2.5), cell("jft", nll=2.0))
    assert "best first: no_dp 2.72; jft 7.39; dp_adam 12.2" in page
    assert ">ε 7.19 selective, conditional</text>" in page
    assert ">no guarantee</text>" in page


def test_page_tells_the_spread_over_seeds_from_a_single_seed():
    one = check_page(figures(plain(), cell())).text
    assert "One seed, which says nothing of the spread." in one
    assert "Bars:" not in one
    two = check_page(figures(plain(), cell(), cell(seed=1, nll=2.0))).text
    assert "Mean ± standard deviation over 2 seeds." in two
    assert "Bars: standard deviation over seeds." in two


def test_figure_ranks_classifiers_by_their_highest_accuracy():
    cells = [
        cell(label, utility=utility_report(accuracy=accuracy, base_accuracy=0.5))
        for label, accuracy in (("low", 0.6), ("high", 0.9))
    ]
    assert "best first: high 0.9; low 0.6" in figures(*cells)


def test_utility_is_drawn_against_epsilon_where_there_are_several_budgets():
    assert "What each promises" not in figures(plain(), cell())
    assert "What each promises" in figures(plain(), cell(), cell(budget=3.0))


def test_figure_tells_epsilons_rounded_up_to_who_cannot_see_it():
    made = card("jft")
    claims = [
        one.model_copy(update={"epsilon": 7.1812}) if one.epsilon < math.inf else one
        for one in made.certificates
    ]
    known = made.model_copy(update={"certificates": tuple(claims)})
    page = figures(plain(), cell(card=known), cell(budget=3.0, card=known))
    assert "at 7.19" in page
    assert "at 7.18" not in page


def test_perplexities_far_apart_are_drawn_on_a_log_scale():
    assert "lower is better (log)" in figures(plain(), cell("jft", nll=5.0))
    assert "(log)" not in figures(cell("a", nll=2.0), cell("b", nll=2.1))


def test_model_before_fine_tuning_is_drawn_unless_it_dwarfs_the_others():
    assert ">no fine-tuning</text>" in figures(plain(), cell())
    far = utility_report(base_perplexity=900.0)
    assert ">no fine-tuning</text>" not in figures(plain(utility=far), cell())


def test_recipe_without_a_claim_of_the_budgets_notion_says_so():
    local = {"notion": "local", "relation": "replace_one"}
    page = figures(plain(**local), cell(**local), cell(budget=3.0, **local))
    assert "none of this notion" in check_page(page).text
    assert "no_dp 2.72 at ∞" in page


def test_page_of_classifiers_tells_what_the_most_frequent_class_gets():
    utility = utility_report(accuracy=0.9, base_accuracy=0.5, majority_accuracy=0.6)
    text = check_page(figures(cell(utility=utility))).text
    assert "Always naming the most frequent class: 60 % right." in text


def test_nominal_figure_shows_both_ends_of_the_missing_rate():
    ends = Interval(low=2.5, high=4.5, confidence=0.95)
    (row,) = comparison_rows(report(cell(nominal_interval=ends)))
    assert nominal_cell(row).endswith("(2.5 to 4.5)")


# tables


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_rows_csv_has_means_spreads_and_claims():
    lines = table(rows_csv(whole()))
    assert [line["label"] for line in lines] == ["no_dp", "dp_adam", "jft", "geoclip"]
    assert lines[0]["certified_epsilon"] == "inf"
    assert float(lines[1]["perplexity_std"]) > 0
    assert lines[2]["status"] == "conditional"
    assert lines[3]["num_failed"] == "1"


def test_cells_csv_has_every_training_and_the_reason_of_a_failure():
    lines = table(cells_csv(whole()))
    assert len(lines) == 7
    assert lines[-1]["failure"] == FAILED
    assert lines[-1]["perplexity"] == ""


def test_report_survives_the_trip_through_json():
    assert ComparisonReport.model_validate_json(whole().model_dump_json()) == whole()


def test_trace_csv_has_every_checkpoint_of_every_training():
    lines = table(trace_csv(whole()))
    assert len(lines) == 8
    first = lines[0]
    assert (first["label"], first["seed"], first["step"]) == ("no_dp", "0", "5")
    assert float(first["sensitive_perplexity"]) == pytest.approx(12.0)
    assert first["accuracy"] == ""
    assert table(trace_csv(report(cell()))) == []


def test_p_value_of_a_row_pays_for_the_choice_among_its_seeds():
    early = [canary(f"planted-{i}", planted=True, rank=SPACE // 8) for i in range(6)]
    held_out = exposure_report().held_out()
    exposure = exposure_report(canaries=(*early, *held_out))
    cells = [cell(seed=seed, exposure=exposure) for seed in range(3)]
    (one,), (three,) = (comparison_rows(report(*some)) for some in (cells[:1], cells))
    assert 0 < one.exposure_p_value < 1 / 3
    assert three.exposure_p_value == pytest.approx(3 * one.exposure_p_value)
