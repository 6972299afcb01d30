"""Manual screening: few records, drawn by id, and a claim that says who read them."""

import pytest
from pydantic import ValidationError

from dptune.accounting.assumptions import Assumption
from dptune.accounting.ledger import PrivacyLedger
from dptune.privacy import Notion
from dptune.settings import ScreenedSettings
from dptune.workflow.charging import stage_entry
from dptune.workflow.inputs import load_stage
from dptune.workflow.token_weights import screened_rows, screened_units

from .conftest import PERFORMANCE, run_plan, stage

FEW = {"share": 0.1, "at_least": 3}
PLAIN = {"view": "redacted", "clipping": None, "noise": None}
PLAIN |= {"expected_batch_size": 2}
IDS = [f"unit {i}" for i in range(1000)]


def entry_of(inputs, **report):
    return stage_entry(
        inputs.corpus.report.model_copy(update={"redaction": "mask"} | report),
        inputs.plan,
        recipe="r",
        first_step=0,
        num_steps=1,
        fixed_seed=False,
    )


@pytest.mark.parametrize(
    ("share", "at_least", "expected"),
    [(0.001, 10, 10), (0.05, 10, 50), (0.5, 2000, 1000)],
)
def test_paper_reads_a_thousandth_but_ten_records(share, at_least, expected):
    few = ScreenedSettings(share=share, at_least=at_least)
    assert few.num_units(1000) == expected
    assert len(screened_units(IDS, few, num_drawn=expected)) == expected


def test_draw_looks_at_ids_alone_and_is_public():
    few = ScreenedSettings(share=0.01)
    chosen = screened_units(IDS, few, num_drawn=10)
    assert chosen == screened_units([*reversed(IDS), *IDS], few, num_drawn=10)
    other = few.model_copy(update={"public_seed": 1})
    assert chosen != screened_units(IDS, other, num_drawn=10)


def test_stage_trains_on_what_was_read(make_inputs, corpus):
    inputs = make_inputs(screened=FEW, **PLAIN)
    rows = corpus.split("train")
    few = screened_rows(rows, ScreenedSettings(**FEW), num_drawn=inputs.plan.num_units)
    assert inputs.plan.num_units == len(set(few["unit_id"])) < len(set(rows["unit_id"]))
    _, data = load_stage(inputs, PERFORMANCE)
    assert data.num_units == inputs.plan.num_units


@pytest.mark.parametrize("reader", ["", "A. Reader"])
def test_claim_rests_on_the_detector_until_somebody_has_read(reader, make_inputs):
    inputs = make_inputs(screened=FEW | {"screened_by": reader}, **PLAIN)
    claim = PrivacyLedger(entries=(entry_of(inputs),)).certificate(
        Notion.SELECTIVE, delta=1e-3
    )
    assert (claim.status, claim.epsilon) == ("conditional", 0.0)
    assert (Assumption.SCREENED_BY_HAND in claim.assumptions) is bool(reader)
    assert (Assumption.DETECTOR_RECALL_IS_ONE in claim.assumptions) is not bool(reader)
    record = PrivacyLedger(entries=(entry_of(inputs),)).certificate(
        Notion.RECORD, delta=1e-3
    )
    assert record.status == "none"
    assert Assumption.SCREENED_BY_HAND not in record.assumptions


@pytest.mark.parametrize(
    "report",
    [{"deduplicated": True}, {"ids_are_content_hashes": True}, {"redaction": "typed"}],
)
def test_reading_replaces_recall_and_nothing_else(report, make_inputs):
    inputs = make_inputs(screened=FEW | {"screened_by": "A. Reader"}, **PLAIN)
    claim = PrivacyLedger(entries=(entry_of(inputs, **report),)).certificate(
        Notion.SELECTIVE, delta=1e-3
    )
    assert claim.status == "none"


@pytest.mark.parametrize("changes", [{}, {"view": "redacted"}])
def test_screening_of_original_or_noised_text_is_refused(changes):
    with pytest.raises(ValidationError, match="screened must be null"):
        run_plan(stage(screened=FEW, **changes), num_units=100)


def test_plan_knows_all_units_although_a_stage_sees_few():
    made = run_plan(
        stage(screened=FEW, **PLAIN),
        stage(name="all", noise={"noise_multiplier": 1.0}),
        num_units=100,
    )
    assert [s.num_units for s in made.stages] == [10, 100]
    assert made.num_units == 100
