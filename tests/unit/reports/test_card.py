import math

import pytest
from pydantic import ValidationError

from dptune.accounting.ledger import NotionEvent, PrivacyLedger
from dptune.privacy import Notion, PrivacyUnit
from dptune.reports.card.page import render_html, render_markdown
from dptune.reports.card.statements import ExposureStatement, PrivacyCard
from dptune.reports.html import render_fragment

from .checks import check_page, outline
from .samples import (
    GAUSSIAN,
    bare_card,
    card,
    certificates,
    detection_report,
    exposure_report,
    gate_decision,
    ledger_entry,
)


@pytest.mark.parametrize("kind", ["private", "jft", "seeded", "none"])
def test_card_html_is_self_contained_and_round_trips(kind):
    found = card(kind)

    check_page(render_html(found))
    again = PrivacyCard.model_validate_json(found.model_dump_json())
    assert again == found
    assert render_html(again) == render_html(found) == render_fragment(found)


def test_card_says_everything_that_is_required():
    text = outline(render_html(card("jft"))).text
    for word in (
        "support-bot, version 7",
        "Just Fine-tune Twice",
        "one record",
        "replace one record",
        "conditional",
        "The detector found every sensitive token",
        "pld (dp_accounting",
        "quadrature",
        "Nominal ε",
        "2.56",
        "Sampling accounted for",
        "Sampling that ran",
        "2 recorded trials of 1 sweep",
        "Spent on tuning ε",
        "1.75",
        "What all runs on this data have cost",
        "they were computed on private units without noise",
        "validation and test splits",
        "Labels are sent in the clear.",
        "Not defended against",
        "deduplicated corpus",
        "low entity",
        "95 % CI [0.1 %, 1.2 %]; by TAB test split",
        "not missed",
        "group of 4",
        "17.3",
        "held-out controls",
        "57.3 %",
        "Blind attack",
        "6.36",
        "BLOCK",
        gate_decision().decision_hash,
        "dp-accounting",
        "one run",
    ):
        assert word in text, word


def test_card_every_epsilon_stands_beside_notion_delta_and_status():
    for line in render_markdown(card("jft")).splitlines():
        if line.startswith(("| record", "| selective")):
            assert "one record)" in line
            assert "10⁻⁵" in line
            assert "**none**" in line or "**conditional**" in line


def test_card_infinite_epsilon_is_no_guarantee():
    page = render_html(card("none"))
    text = outline(page).text
    assert "∞ (no guarantee)" in text
    assert "No privacy guarantee of any kind" in text
    assert "Defended against: nobody" in text
    assert "secret, from the operating system" not in text


def test_card_jft_record_is_infinite_and_selective_finite():
    by_label = {c.label: c.epsilon for c in card("jft").certificates}
    assert math.isinf(by_label["record (add or remove one record)"])
    assert math.isfinite(by_label["selective (replace one record)"])


def test_card_fixed_seed_warns_and_shows_accounted_epsilon():
    text = outline(render_html(card("seeded"))).text
    assert "Fixed seed." in text
    assert "had the seed been secret" in text
    assert "fixed seed, for tests only" in text


def test_card_fixed_seed_beside_finite_epsilon_is_refused():
    with pytest.raises(ValidationError, match="fixed_seed must not stand beside"):
        bare_card(fixed_seed=True)


def test_card_seeded_certificate_without_flag_is_refused():
    with pytest.raises(ValidationError, match="fixed_seed must be true"):
        bare_card(certificates=certificates("seeded"))


def test_card_certificate_of_another_unit_is_refused():
    with pytest.raises(ValidationError, match="privacy_unit"):
        bare_card(privacy_unit=PrivacyUnit.USER)


def test_card_sampling_mismatch_warns():
    shuffled = bare_card(sampling_actual="shuffled batches")
    assert "is not what was accounted" in render_html(shuffled)
    assert "is not what was accounted" not in render_html(bare_card())


def test_card_leaves_out_what_is_not_known():
    text = outline(render_html(bare_card())).text
    for word in ("uning", "tracked", "Measured", "Detection", "Software"):
        assert word not in text
    assert "The gate had not decided" in text


def test_card_without_deduplication_does_not_claim_it():
    sentence = "Record claims hold for the deduplicated corpus"
    assert sentence in render_html(bare_card())
    assert sentence not in render_html(bare_card(deduplicated=False))


def test_card_holds_no_private_counts_or_single_canaries():
    found = bare_card(
        detection=detection_report(num_spans={"PERSON": 81234}),
        exposure=exposure_report(leaked=True),
    )
    text = found.model_dump_json()
    assert "81234" not in text
    assert "num_spans" not in text
    assert "planted-0" not in text
    assert "nll" not in text


def test_card_markdown_escapes_markup_and_tables():
    hostile = "<b>|x|</b> [a](javascript:alert(1)) `c`\n# top"
    text = render_markdown(card("jft", base_model=hostile))
    (line,) = [x for x in text.splitlines() if x.startswith("| Base model")]
    assert "<b>" not in line
    assert "\\|x\\|" in line
    assert "](" not in line.replace("\\](", "")
    assert "\n# top" not in text


def test_card_html_escapes_names():
    hostile = "<script>alert(1)</script>"
    found = check_page(render_html(card("jft", model_name=hostile, base_model=hostile)))
    assert hostile in found.text


def test_card_markdown_is_deterministic_and_has_every_section():
    first = render_markdown(card("private"))
    assert first == render_markdown(card("private"))
    for heading in (
        "## What is guaranteed",
        "## Against whom",
        "## What the claims take for granted",
        "## Outside the guarantee",
        "## What was run",
        "## Detection of personal data",
        "## Measured: canaries",
        "## Measured: membership",
        "## Measured: audits",
        "## Measured: utility",
        "## Gate",
        "## Software",
    ):
        assert heading in first


def test_card_local_notion_names_the_server():
    local = PrivacyLedger(
        entries=(
            ledger_entry(
                notion_events=(NotionEvent(notion=Notion.LOCAL, dp_event=GAUSSIAN),)
            ),
        )
    )
    found = bare_card(certificates=local.certificates(delta=1e-5))
    text = outline(render_html(found)).text
    assert "a server that receives the noised hidden states" in text
    assert "hidden states" not in outline(render_html(bare_card())).text


def test_card_unmeasured_missing_rate_is_said():
    unknown = detection_report(missing_rate=None, missing_rate_interval=None)
    assert "not measured" in render_html(bare_card(detection=unknown))


def test_card_says_what_stays_unmarked_although_it_is_found():
    found = detection_report(taken_back=("AGE is off", "3 phrases of allow lists"))
    words = "AGE is off; 3 phrases of allow lists"
    assert words in outline(render_html(bare_card(detection=found))).text
    assert words in render_markdown(bare_card(detection=found))
    assert words in outline(render_fragment(found)).text
    assert "Left unmarked" not in render_html(bare_card(detection=detection_report()))


def test_card_group_epsilon_is_left_out_where_unknown():
    unknown = ExposureStatement.of(exposure_report(), group_epsilon=None)
    text = outline(render_html(bare_card(exposure=unknown))).text
    assert "group of 4, which is weaker than that of one unit" in text
    assert "one unit: ε" not in text
