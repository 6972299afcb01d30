from typing import ClassVar

import pytest
from pydantic import Field

from dptune.detection.scoring import JudgeReport
from dptune.errors import ArtifactError
from dptune.privacy import Mode
from dptune.reports.html import render_fragment
from dptune.reports.pages.training import PRIVATE_HEADING
from dptune.results import DetectionReport, Expectation, Report, TracePoint

from .checks import check_page, outline
from .samples import (
    SPACE,
    corpus_report,
    detection_report,
    every_report,
    exposure_report,
    gate_decision,
    jft_ledger,
    ledger_entry,
    membership_report,
    private_ledger,
    redaction_report,
    run_plan,
    sensitivity_table,
    signal,
    stage_report,
    utility_report,
    validation,
)

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)> & \"'{{ 7*7 }}"


@pytest.mark.parametrize("index", range(len(every_report())))
def test_render_fragment_every_report_is_self_contained(index):
    report = every_report()[index]
    page = render_fragment(report)

    check_page(page)
    assert page == render_fragment(report)


@pytest.mark.parametrize(
    "report",
    [
        corpus_report(source=HOSTILE, privacy_unit=HOSTILE),
        corpus_report(num_records={HOSTILE: 1}, validation=validation(view=HOSTILE)),
        detection_report(tier=HOSTILE, recognizers=(HOSTILE,), num_spans={HOSTILE: 1}),
        stage_report(stage=HOSTILE, recipe=HOSTILE),
        membership_report(signal(HOSTILE), blind=signal(HOSTILE)),
        utility_report(split=HOSTILE, corpus_fingerprint=HOSTILE),
        gate_decision(policy_name=HOSTILE, policy_digest=HOSTILE),
        Expectation(name=HOSTILE, success=True, detail=HOSTILE),
    ],
    ids=lambda report: type(report).__name__,
)
def test_render_fragment_hostile_names_are_text(report):
    page = render_fragment(report)

    found = check_page(page)
    assert "<script>alert(1)" in found.text
    assert "{{ 7*7 }}" in found.text


def test_fragment_of_stage_puts_losses_under_private_heading():
    page = render_fragment(stage_report())
    before, _, after = page.partition(PRIVATE_HEADING)

    assert "training loss" not in before
    assert "training loss" in after
    assert "Not covered by epsilon" in after


def test_fragment_of_stage_without_curve_has_no_plot_of_losses():
    assert "Loss of the training batches" in render_fragment(stage_report())
    assert "Loss of the training batches" not in render_fragment(stage_report(curve=()))


def test_stage_reports_from_before_may_have_an_epsilon():
    report = stage_report()
    values = report.model_dump()
    for point in values["curve"]:
        point["epsilon"] = None
    assert type(report).model_validate(values) == report


def test_fragment_of_stage_shows_its_checkpoints_for_both_kinds_of_token():
    points = [
        TracePoint(
            stage="atdp",
            step=step,
            perplexity=6.5 + step,
            sensitive_perplexity=34.5 + step,
            ordinary_perplexity=3.5 + step,
            exposure=5.25 - step,
            held_out_exposure=1.5,
        )
        for step in (0, 2)
    ]
    page = render_fragment(stage_report(trace=tuple(points)))
    found = check_page(page).text
    assert "Exposure against perplexity: sensitive tokens" in found
    assert "Exposure against perplexity: other tokens" in found
    assert all(figure in found for figure in ("34.5", "36.5", "5.25", "3.25"))
    assert "not covered by epsilon" in found
    classifier = (TracePoint(stage="atdp", step=2, accuracy=0.75),)
    found = check_page(render_fragment(stage_report(trace=classifier))).text
    assert "75 %" in found
    assert "Exposure" not in found
    assert "While it trained" not in render_fragment(stage_report())


def test_fragment_of_utility_shows_no_record_values():
    text = outline(render_fragment(utility_report())).text
    assert "17.1" not in text
    assert "6.36" in text


def test_fragment_of_exposure_has_both_controls_and_p_value():
    text = outline(render_fragment(exposure_report(leaked=True))).text
    assert "Held out, this model" in text
    assert "Planted, base model" in text
    assert "p < 10⁻⁹" in text


def test_fragment_of_exposure_says_when_planted_count_is_off():
    page = render_fragment(exposure_report(planted_found=3))
    assert "do not match the plan" in page
    assert "do not match the plan" not in render_fragment(exposure_report())


def test_fragment_of_exposure_tells_missed_canaries_from_marked_ones():
    def partly(missed_rank):
        report = exposure_report(setting="partly_missed")
        told = [
            c.model_copy(
                update={
                    "marked": c.planted and number < 2,
                    "rank": missed_rank if c.planted and number >= 2 else c.rank,
                }
            )
            for number, c in enumerate(report.canaries)
        ]
        return report.model_copy(update={"canaries": tuple(told)})

    leak = check_page(render_fragment(partly(1))).text
    assert "2 planted, against chance" in leak
    assert "4 planted, against chance p < 10⁻⁹" in leak
    assert "Mean exposure, missed canaries" in leak
    clean = check_page(render_fragment(partly(SPACE // 2))).text
    assert "4 planted, against chance p = " in clean
    assert "missed canaries" not in render_fragment(exposure_report(leaked=True))


def test_fragment_of_detection_says_when_recall_is_unknown():
    unknown = detection_report(missing_rate=None, missing_rate_interval=None)
    assert "missing rate is not known" in render_fragment(unknown)
    assert "missing rate is not known" not in render_fragment(detection_report())


def test_fragments_count_what_was_not_read_and_what_was_left_empty():
    corpus = corpus_report(unread={"name": 1200, "others": 3})
    text = outline(render_fragment(corpus)).text
    assert "Not read: name 1,200" in text
    empty = redaction_report().model_copy(update={"num_emptied_turns": 4321})
    assert "4,321" in outline(render_fragment(empty)).text


def test_fragment_of_redaction_lists_failures_first():
    text = outline(render_fragment(redaction_report())).text
    assert text.index("text is not null") < text.index("ids are unique")


def test_fragment_of_sensitivity_warns_of_private_counts():
    assert "without noise" in render_fragment(sensitivity_table(public=False))
    assert "without noise" not in render_fragment(sensitivity_table())


def test_fragment_of_sensitivity_says_whom_it_asked_and_who_did_not_answer():
    judge = JudgeReport(
        model="judge-7b",
        may_lower=False,
        num_asked=50,
        num_answered=48,
        failures={"status 500": 2},
    )
    plain = sensitivity_table()
    rows = (plain.rows[0].model_copy(update={"judged": "held"}), *plain.rows[1:])
    asked = plain.model_copy(update={"judge": judge, "rows": rows})
    text = outline(render_fragment(asked)).text
    for words in (
        "judge-7b",
        "48 of 50",
        "2 types keep the built-in value",
        "status 500 (2)",
        "would lower, may not",
    ):
        assert words in text
    assert "Judge" not in outline(render_fragment(plain)).text


def test_fragment_of_plan_names_notion_relation_and_noise():
    text = outline(render_fragment(run_plan())).text
    for word in ("record: the presence", "add or remove one", "10⁻⁵", "10 %"):
        assert word in text


def test_fragment_of_plan_says_what_released_counts_add_to_the_papers_figure():
    made = run_plan()
    stage = made.stages[0].model_copy(update={"nominal_epsilon": 2.0})
    shown = made.model_copy(
        update={
            "stages": (stage,),
            "mode": Mode.PAPER,
            "counts_noise_multiplier": 10.0,
            "counts_nominal_epsilon": 0.5,
        }
    )
    text = outline(render_fragment(shown)).text
    for words in ("Nominal epsilon 2.5", "0.5 for the release", "target is for this"):
        assert words in text
    assert "of which no paper speaks" not in outline(render_fragment(made)).text


def test_fragment_of_ledger_keeps_notions_apart():
    text = outline(render_fragment(jft_ledger())).text
    assert "∞ (no guarantee)" in text
    assert "finite: 50 noisy steps" in text
    assert "The detector found every sensitive token" in text


def test_fragment_of_ledger_fixed_seed_is_no_guarantee():
    seeded = private_ledger().append(ledger_entry(fixed_seed=True))
    text = outline(render_fragment(seeded)).text
    assert "∞ (no guarantee): fixed seed" in text
    assert "finite" not in text


def test_fragment_of_gate_is_not_by_color_alone():
    page = render_fragment(gate_decision("INCONCLUSIVE"))
    text = outline(page).text
    assert "chip-inconclusive" in page
    assert "INCONCLUSIVE" in text
    assert "This is not a pass" in text
    assert "Memorization: Train with more noise." in text
    assert text.index("memorization") < text.index("evidence identity")


class _Notes(Report):
    """A report with a field that must not be shown, also inside others."""

    title: str
    secret: str = Field(repr=False)
    inner: tuple["_Notes", ...] = ()
    flags: dict[str, bool] = Field(default_factory=dict)


class _Restricted(Report):
    """A report that must have no page."""

    restricted: ClassVar[bool] = True


def test_generic_page_hides_fields_that_repr_hides():
    inner = _Notes(title="inner", secret="s3cr3t-b")
    report = _Notes(
        title="outer", secret="s3cr3t-a", inner=(inner,), flags={"seen": True}
    )
    found = check_page(render_fragment(report))
    assert "s3cr3t" not in render_fragment(report)
    assert "outer" in found.text
    assert "inner" in found.text
    assert "seen" in found.text


def test_generic_page_cuts_long_sequences():
    class Long(Report):
        values: tuple[float, ...]

    page = render_fragment(Long(values=tuple(range(1000))))
    assert "First 200 of 1,000." in page


def test_restricted_report_is_refused():
    with pytest.raises(ArtifactError, match="must not be restricted"):
        render_fragment(_Restricted())


def test_subclass_of_known_report_gets_generic_page():
    class Mine(DetectionReport):
        """A type that is not on the table."""

    values = detection_report().model_dump()
    assert "Mine" in render_fragment(Mine.model_validate(values))
