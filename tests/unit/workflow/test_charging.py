"""No entry takes for granted what is not so; it then costs what it would unmasked."""

import math
from functools import partial

import pytest

from dptune.accounting.assumptions import REDACTED_VIEW_ASSUMPTIONS, Assumption
from dptune.accounting.events import mechanism_counts
from dptune.accounting.ledger import PrivacyLedger
from dptune.privacy import Notion, UnitsFrom
from dptune.recipes import View
from dptune.workflow.charging import assumptions_of, release_entry, stage_entry

from .conftest import run_plan, stage

PLAIN = {"clipping": None, "noise": None}


@pytest.fixture
def report(corpus):
    """A corpus of which everything holds that a selective claim needs."""
    return corpus.report.model_copy(
        update={
            "deduplicated": False,
            "ids_are_content_hashes": False,
            "redaction": "mask",
        }
    )


def entry(report, *, units_from=UnitsFrom.EXACT, **changes):
    plan = run_plan(stage(**changes), num_units=32).stages[0]
    plan = plan.model_copy(update={"units_from": units_from})
    return stage_entry(
        report, plan, recipe="r", first_step=0, num_steps=5, fixed_seed=False
    )


declared = partial(entry, units_from=UnitsFrom.DECLARED)


def selective(*entries):
    ledger = PrivacyLedger(entries=entries)
    return ledger.certificate(Notion.SELECTIVE, delta=1e-3)


def test_redacted_stage_costs_no_selective_epsilon(report):
    certificate = selective(entry(report, view="redacted", **PLAIN), entry(report))
    assert math.isfinite(certificate.epsilon)
    assert certificate.status == "conditional"
    assert set(REDACTED_VIEW_ASSUMPTIONS) <= set(certificate.assumptions)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"deduplicated": True},
        {"ids_are_content_hashes": True},
        {"redaction": "numbered"},
        {"redaction": "typed"},
        {"redaction": "delete+mask"},
        {"redaction": "keep+mask"},
        {"redaction": "partial"},
        {"redaction": "hash"},
        {"redaction": "encrypt"},
        {"redaction": "shift_dates"},
        {"redaction": ""},
    ],
    ids=str,
)
def test_anything_that_reads_secrets_makes_the_redacted_stage_cost_everything(
    report, spoiled
):
    bad = report.model_copy(update=spoiled)
    certificate = selective(entry(bad, view="redacted", **PLAIN), entry(bad))
    assert certificate.epsilon == math.inf
    assert certificate.status == "none"


def test_deduplicated_corpus_is_named_and_never_assumed_away(report):
    bad = report.model_copy(update={"deduplicated": True, "duplicates_are_free": False})
    found = assumptions_of(bad, View.REDACTED)
    assert Assumption.DEDUPLICATED_CORPUS in found
    assert Assumption.DEDUPLICATION_SAW_REDACTED_TEXT_ONLY not in found


def status(entry, notion=Notion.RECORD):
    return PrivacyLedger(entries=(entry,)).certificate(notion, delta=1e-3).status


def test_duplicates_across_units_make_every_claim_conditional(report):
    """The twin is the rule of before: it named the assumption and weakened nothing."""
    free = report.model_copy(update={"deduplicated": True, "duplicates_are_free": True})
    assert Assumption.DEDUPLICATED_CORPUS not in declared(free).assumptions
    bad = free.model_copy(update={"duplicates_are_free": False})
    for notion in (Notion.RECORD, Notion.SELECTIVE):
        assert status(declared(bad), notion) == "conditional"


@pytest.mark.parametrize(
    "changes",
    [
        {"deduplicated": True, "duplicates_are_free": True},
        {"units_are_content_hashes": True},
    ],
)
def test_replacement_that_moves_the_number_of_units_is_named(report, changes):
    """Rates and steps follow from the number, which may not be the same then."""
    named = Assumption.REPLACEMENT_KEEPS_NUM_UNITS
    moved = report.model_copy(update=changes)
    assert named not in entry(report).assumptions
    assert named not in declared(moved).assumptions
    assert named in entry(moved).assumptions
    assert status(entry(moved), Notion.SELECTIVE) == "conditional"
    assert status(entry(report), Notion.SELECTIVE) == "certified"


def test_values_invented_per_unit_tell_copies_apart(report):
    """The lemma of deduplication needs texts that do not show whose copy stayed."""
    free = {"deduplicated": True, "duplicates_are_free": True}
    invented = report.model_copy(update={**free, "redaction": "pseudonym"})
    by_type = report.model_copy(update={**free, "redaction": "hash+mask"})
    masked = report.model_copy(update=free)
    named = Assumption.DEDUPLICATED_CORPUS
    assert named in declared(invented, view="redacted").assumptions
    assert named in declared(by_type, view="redacted").assumptions
    assert named not in declared(invented).assumptions
    assert named not in declared(masked, view="redacted").assumptions


def test_sampled_corpus_is_named(report):
    assert Assumption.SAMPLED_CORPUS not in assumptions_of(report, View.ORIGINAL)
    drawn = report.model_copy(update={"sampled": True})
    assert Assumption.SAMPLED_CORPUS in declared(drawn).assumptions
    assert status(declared(drawn)) == "conditional"


MARKS = ("private_review_lists", "private_known_values", "marks_follow_one_text")


@pytest.mark.parametrize("name", MARKS)
@pytest.mark.parametrize(
    ("changes", "sees"),
    [
        ({}, False),
        ({"view": "redacted"}, True),
        ({"token_weights": {"sensitive_share": 0.1}}, True),
        ({"mask_token": True}, False),
    ],
    ids=str,
)
def test_stages_that_see_marks_rest_on_what_marks_rest_on(report, name, changes, sees):
    marked = report.model_copy(update={"marks_assume": (name,)})
    one = declared(marked, **changes)
    assert (Assumption(name) in one.assumptions) is sees
    for notion in (Notion.RECORD, Notion.SELECTIVE):
        assert (status(one, notion) == "conditional") is sees


def test_released_counts_rest_on_what_marks_rest_on(report):
    marked = report.model_copy(update={"marks_assume": MARKS[:1]})
    release = release_entry(marked, recipe="r", noise_multiplier=2.0, fixed_seed=False)
    assert Assumption.PRIVATE_REVIEW_LISTS in release.assumptions


def test_lists_that_were_declared_public_are_printed_and_weaken_nothing(report):
    marked = report.model_copy(update={"marks_assume": ("public_review_lists",)})
    one = declared(marked, view="redacted")
    assert Assumption.PUBLIC_REVIEW_LISTS in one.assumptions
    assert status(one) == "certified"


@pytest.mark.parametrize("name", ["positions_name_records", "canary_hosts_are_fixed"])
def test_what_the_corpus_rests_on_is_named_by_every_stage(report, name):
    found = declared(report.model_copy(update={"assumes": (name,)}))
    assert Assumption(name) in found.assumptions
    assert status(found) == "conditional"


def test_weights_of_tokens_take_word_list_and_share_as_public(report):
    weighed = entry(report, token_weights={"sensitive_share": 0.1})
    assert Assumption.PUBLIC_WORD_LIST in weighed.assumptions
    assert Assumption.PUBLIC_WORD_LIST not in entry(report).assumptions


def test_original_view_assumes_nothing_of_the_detector(report):
    assert not set(assumptions_of(report, View.ORIGINAL)) & {*REDACTED_VIEW_ASSUMPTIONS}


@pytest.mark.parametrize("view", list(View))
def test_what_is_always_public_is_always_named(report, view):
    always = {
        Assumption.PUBLIC_HYPERPARAMETERS,
        Assumption.BASE_MODEL_IS_PUBLIC,
    }
    assert always <= set(assumptions_of(report, view))


def test_plain_stage_on_original_text_costs_everything_under_every_notion(report):
    ledger = PrivacyLedger(entries=(entry(report, **PLAIN),))
    assert all(c.epsilon == math.inf for c in ledger.certificates(1e-3))


def test_noise_of_a_plain_stage_is_not_invented(report):
    plain = entry(report, **PLAIN)
    assert (plain.noise_multiplier, plain.sample_rate) == (None, None)
    assert not plain.fixed_seed


def test_banded_entry_pays_for_turns_and_shows_its_bands(report):
    noise = {"noise_multiplier": 1.0, "correlation": "banded", "num_bands": 3}
    found = entry(report, noise=noise)
    assert (found.num_bands, found.num_steps) == (3, 5)
    assert found.sample_rate == 0.25
    ((mechanism, count),) = mechanism_counts(found.dp_event)
    assert (mechanism.sampling_probability, count) == (0.75, 2)


def test_truncated_entry_pays_for_the_truncated_event(report):
    cap = {"kind": "truncated_poisson", "max_batch_size": 10}
    ((mechanism, count),) = mechanism_counts(entry(report, sampling=cap).dp_event)
    assert (mechanism.truncated_batch_size, mechanism.dataset_size) == (10, 32)
    assert count == 5


def test_entry_pays_for_its_block_only(report):
    plan = run_plan(stage(), num_units=32).stages[0]
    parts = [
        stage_entry(
            report, plan, recipe="r", first_step=0, num_steps=n, fixed_seed=False
        )
        for n in (2, 3)
    ]
    (whole, *_) = PrivacyLedger(entries=(entry(report),)).certificates(1e-3)
    (split, *_) = PrivacyLedger(entries=tuple(parts)).certificates(1e-3)
    assert split.epsilon == pytest.approx(whole.epsilon, rel=1e-9)


def test_noisy_redacted_stage_trusts_no_detector_and_costs_its_noise(report):
    light = entry(report, view="redacted")
    both, alone = selective(light, entry(report)), selective(entry(report))
    assert not set(REDACTED_VIEW_ASSUMPTIONS) & set(both.assumptions)
    assert both.status == "certified"
    assert math.isfinite(both.epsilon)
    assert both.epsilon > alone.epsilon


RISING = {
    "noise_multiplier": 1.0,
    "schedule": "rise_reset",
    "rise_reset": {"growth": 2.0, "ceiling": 3.0},
}


def block(report, plan, first, count):
    return stage_entry(
        report, plan, recipe="r", first_step=first, num_steps=count, fixed_seed=False
    )


def noise_of(event):
    """Multipliers of the mechanisms of an event, in order of size."""
    return sorted(m.event.noise_multiplier for m, n in mechanism_counts(event))


@pytest.mark.parametrize("first", [0, 4, 8])
def test_block_is_charged_for_the_noise_of_its_own_steps(report, first):
    plan = run_plan(stage(epochs=3, noise=RISING), num_units=32).stages[0]
    ((drawn, _),) = plan.noise_runs(first, 4)
    entry = block(report, plan, first, 4)
    assert noise_of(entry.dp_event) == [drawn]
    assert entry.noise_multiplier == drawn
    assert len({noise for noise, _ in plan.noise_runs(0, 12)}) == 3


@pytest.mark.parametrize("first", [0, 4, 8])
def test_block_of_tiers_is_charged_for_the_noise_of_its_own_steps(report, first):
    tiers = {"tiers": {"noise_ratio": 1.5}}
    plan = run_plan(stage(epochs=3, noise=RISING, **tiers), num_units=32).stages[0]
    training = plan.training_plan()
    whole, *parts = block(report, plan, first, 4).notion_events
    assert whole.dp_event == training.dp_event(4, first_step=first)
    least = training.noise_shares(first)[0]
    for kind, part in enumerate(parts):
        share = training.part_shares[kind]
        assert noise_of(part.dp_event) == pytest.approx([least / share])
