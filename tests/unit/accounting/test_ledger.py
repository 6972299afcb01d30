"""What each kind of stage costs for each notion, and that nothing mixes them."""

import json
import math
from enum import StrEnum

import dp_accounting as dpa
import pytest
from pydantic import ValidationError

from dptune.accounting.accountants import Accountant, epsilon
from dptune.accounting.assumptions import (
    EXPLANATIONS,
    REDACTED_VIEW_ASSUMPTIONS,
    Assumption,
)
from dptune.accounting.certificates import Certificate, check_relation
from dptune.accounting.events import merge_events
from dptune.accounting.ledger import (
    DataView,
    LedgerEntry,
    NotionEvent,
    PrivacyLedger,
)
from dptune.errors import PrivacyError
from dptune.privacy import (
    CertificateStatus,
    NeighboringRelation,
    Notion,
    PrivacyUnit,
)
from tests.support.events import poisson_gaussian_event

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
RECORD, SELECTIVE, LOCAL = Notion.RECORD, Notion.SELECTIVE, Notion.LOCAL
NOISY = poisson_gaussian_event(sample_rate=0.05, noise_multiplier=1.1, num_steps=80)
DELTA = 1e-5


def entry(view="original", dp_event=NOISY, num_steps=80, **changes):
    values = {
        "stage": "phase_2",
        "recipe": "jft",
        "data_fingerprint": "abc",
        "privacy_unit": PrivacyUnit.RECORD,
        "view": view,
        "dp_event": dp_event,
        "num_steps": num_steps,
        **changes,
    }
    return LedgerEntry(**values)


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("max_grad_norm", (None, 1e-9), (0.0,)),
        ("num_bands", (1,), (0,)),
        ("num_steps", (0,), (-1,)),
    ],
)
def test_entry_takes_the_ends_of_a_range_and_nothing_beyond(name, allowed, refused):
    for value in allowed:
        assert getattr(entry(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(ValueError, match=name):
            entry(**{name: value})


def test_entry_of_everybody_in_every_step_has_rate_one_and_no_larger():
    whole = poisson_gaussian_event(sample_rate=1.0, noise_multiplier=1.1, num_steps=80)
    assert entry(dp_event=whole, sample_rate=1.0).sample_rate == 1.0
    with pytest.raises(ValueError, match="less than or equal to 1"):
        entry(dp_event=whole, sample_rate=1.001)


def raw(**changes):
    return entry(dp_event=dpa.NonPrivateDpEvent(), **changes)


def redacted(**changes):
    values = {"view": "redacted", "assumptions": REDACTED_VIEW_ASSUMPTIONS, **changes}
    return raw(**values)


def public():
    return entry(view="public", dp_event=None)


def ledger(*entries):
    result = PrivacyLedger()
    for one in entries:
        result = result.append(one)
    return result


def claims(*entries):
    return {
        (c.notion, c.relation): c for c in ledger(*entries).certificates(delta=DELTA)
    }


def test_certificates_noisy_stage_on_the_original_is_certified_for_both_notions():
    found = claims(entry())
    assert set(found) == {(RECORD, ADD), (RECORD, REPLACE), (SELECTIVE, REPLACE)}
    for (_, relation), certificate in found.items():
        assert certificate.status is CertificateStatus.CERTIFIED
        assert certificate.delta == DELTA
        assert certificate.epsilon == epsilon(NOISY, delta=DELTA, relation=relation)
    assert found[SELECTIVE, REPLACE].epsilon == found[RECORD, REPLACE].epsilon


def test_certificates_stage_without_noise_on_the_original_claims_nothing():
    for certificate in claims(entry(), raw()).values():
        assert certificate.epsilon == math.inf
        assert certificate.status is CertificateStatus.NONE
        assert "No guarantee" in certificate.explanation


def test_certificates_redacted_stage_voids_record_only():
    found = claims(redacted())
    assert found[RECORD, ADD].epsilon == math.inf
    assert found[RECORD, REPLACE].status is CertificateStatus.NONE
    selective = found[SELECTIVE, REPLACE]
    assert (selective.epsilon, selective.delta) == (0.0, 0.0)
    assert selective.status is CertificateStatus.CONDITIONAL
    assert selective.assumptions == REDACTED_VIEW_ASSUMPTIONS


def test_certificates_jft_is_selective_and_conditional():
    found = claims(redacted(stage="phase_1"), entry())
    assert found[RECORD, ADD].epsilon == math.inf
    selective = found[SELECTIVE, REPLACE]
    assert selective.epsilon == epsilon(NOISY, delta=DELTA, relation=REPLACE)
    assert selective.status is CertificateStatus.CONDITIONAL
    assert "If its assumptions hold" in selective.explanation


@pytest.mark.parametrize("missing", REDACTED_VIEW_ASSUMPTIONS)
def test_certificates_redacted_stage_without_its_assumptions_claims_nothing(missing):
    named = tuple(a for a in REDACTED_VIEW_ASSUMPTIONS if a is not missing)
    selective = claims(redacted(assumptions=named))[SELECTIVE, REPLACE]
    assert selective.status is CertificateStatus.NONE


def test_certificates_noisy_redacted_stage_costs_record_but_not_selective():
    found = claims(redacted_noisily())
    assert found[RECORD, ADD].epsilon == epsilon(NOISY, delta=DELTA, relation=ADD)
    assert found[RECORD, ADD].status is CertificateStatus.CERTIFIED
    assert found[RECORD, ADD].assumptions == ()
    assert found[SELECTIVE, REPLACE].epsilon == 0.0
    assert found[SELECTIVE, REPLACE].status is CertificateStatus.CONDITIONAL


def redacted_noisily():
    return entry(view="redacted", assumptions=REDACTED_VIEW_ASSUMPTIONS)


def test_certificates_detector_assumptions_on_the_original_view_weaken_nothing():
    found = claims(entry(assumptions=REDACTED_VIEW_ASSUMPTIONS))
    assert found[SELECTIVE, REPLACE].status is CertificateStatus.CERTIFIED
    assert found[SELECTIVE, REPLACE].epsilon > 0


def test_certificates_public_stage_costs_nothing():
    for certificate in claims(public()).values():
        assert (certificate.epsilon, certificate.delta) == (0.0, 0.0)
        assert certificate.status is CertificateStatus.CERTIFIED
    assert claims(public(), entry()) == claims(entry())


def test_certificate_selective_as_add_or_remove_is_refused():
    """The broken twin: JFT's replace relation accounted as add/remove is too small."""
    history = ledger(entry())
    with pytest.raises(PrivacyError, match="replace_one"):
        history.certificate(SELECTIVE, delta=DELTA, relation=ADD)
    twin = epsilon(history.event(SELECTIVE), delta=DELTA, relation=ADD)
    assert twin < 0.8 * history.certificate(SELECTIVE, delta=DELTA).epsilon


def test_certificate_blocks_of_a_stage_compose_to_the_stage():
    block = entry(
        dp_event=poisson_gaussian_event(
            sample_rate=0.05, noise_multiplier=1.1, num_steps=20
        ),
        num_steps=20,
    )
    blocks = ledger(block, block, block, block)
    assert blocks.event(RECORD) == NOISY
    whole = ledger(entry()).certificate(RECORD, delta=DELTA)
    assert blocks.certificate(RECORD, delta=DELTA).epsilon == whole.epsilon
    dropped = ledger(block, block, block).certificate(RECORD, delta=DELTA)
    assert dropped.epsilon < 0.95 * whole.epsilon
    again = ledger(block, block, block, block, block)
    assert again.certificate(RECORD, delta=DELTA).epsilon > whole.epsilon


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_certificate_is_tight_against_an_independent_accountant(relation):
    second = entry(
        dp_event=poisson_gaussian_event(
            sample_rate=0.1, noise_multiplier=2.5, num_steps=40
        ),
        num_steps=40,
    )
    history = ledger(entry(), second)
    realised = merge_events([NOISY, second.dp_event])
    exact = epsilon(
        realised, delta=DELTA, relation=relation, accountant=Accountant.QUADRATURE
    )
    certificate = history.certificate(RECORD, delta=DELTA, relation=relation)
    assert exact * (1 - 1e-4) <= certificate.epsilon <= exact * 1.01


def test_certificate_has_a_second_opinion_and_the_accountant_of_record():
    found = claims(entry())
    assert found[RECORD, ADD].second_opinion_method == "rdp"
    assert found[RECORD, ADD].second_opinion > found[RECORD, ADD].epsilon
    assert found[RECORD, REPLACE].second_opinion_method == "quadrature"
    assert found[RECORD, ADD].accountant.startswith("pld (dp_accounting 0.")
    assert "factor of" in found[RECORD, ADD].explanation
    assert found[RECORD, REPLACE].label == "record (replace one record)"


def test_certificate_fixed_seed_voids_noise_but_not_redaction():
    found = claims(redacted(fixed_seed=True), entry(fixed_seed=True))
    selective = found[SELECTIVE, REPLACE]
    assert selective.epsilon == math.inf
    assert selective.status is CertificateStatus.NONE
    assert Assumption.FIXED_SEED_RANDOMNESS in selective.assumptions
    assert selective.accounted_epsilon == epsilon(NOISY, delta=DELTA, relation=REPLACE)
    assert "fixed seed" in selective.explanation
    only_redacted = claims(redacted(fixed_seed=True))[SELECTIVE, REPLACE]
    assert only_redacted.status is CertificateStatus.CONDITIONAL
    assert only_redacted.epsilon == 0.0


def test_certificate_local_needs_an_event_of_its_own():
    release = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(8.0), 3)
    forward = entry(notion_events=(NotionEvent(notion=LOCAL, dp_event=release),))
    local = claims(forward)[LOCAL, REPLACE]
    assert local.epsilon == epsilon(release, delta=DELTA, relation=REPLACE)
    assert claims(forward, entry())[LOCAL, REPLACE].epsilon == math.inf
    assert ledger(entry()).certificate(LOCAL, delta=DELTA).epsilon == math.inf


def test_certificate_selective_event_of_its_own_keeps_its_assumptions():
    tiers = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(20.0), 80)
    sound = raw(
        notion_events=(NotionEvent(notion=SELECTIVE, dp_event=tiers),),
        assumptions=REDACTED_VIEW_ASSUMPTIONS,
    )
    found = claims(sound)
    assert found[RECORD, ADD].epsilon == math.inf
    assert found[SELECTIVE, REPLACE].status is CertificateStatus.CONDITIONAL
    assert found[SELECTIVE, REPLACE].epsilon == epsilon(
        tiers, delta=DELTA, relation=REPLACE
    )


def test_certificate_nominal_is_a_column_of_its_own():
    block = entry(nominal_epsilon=0.26, nominal_reference="JFT, section 4")
    other = entry(stage="phase_1", nominal_epsilon=1.0, nominal_reference="ATDP")
    certificate = ledger(block, block, other).certificate(RECORD, delta=DELTA)
    assert certificate.nominal_epsilon == pytest.approx(1.26)
    assert certificate.nominal_reference == "JFT, section 4; ATDP"
    assert certificate.epsilon > certificate.nominal_epsilon
    assert ledger(entry()).certificate(RECORD, delta=DELTA).nominal_epsilon is None


def test_certificate_of_an_empty_ledger_is_zero():
    certificate = PrivacyLedger().certificate(RECORD, delta=DELTA)
    assert certificate.epsilon == 0.0
    assert certificate.privacy_unit is PrivacyUnit.RECORD


def test_certificate_finite_epsilon_without_status_is_refused():
    good = ledger(entry()).certificate(RECORD, delta=DELTA)
    for changes in (
        {"status": CertificateStatus.NONE},
        {"epsilon": math.inf},
        {"notion": SELECTIVE, "relation": ADD},
    ):
        with pytest.raises(ValidationError):
            Certificate.model_validate({**good.model_dump(), **changes})


def test_certificate_round_trips_through_json():
    for certificate in (*claims(entry()).values(), *claims(raw()).values()):
        assert Certificate.model_validate_json(certificate.model_dump_json()) == (
            certificate
        )


def test_check_relation_default_is_the_usual_one():
    assert check_relation(RECORD, None) is ADD
    assert check_relation(SELECTIVE, None) is REPLACE
    assert check_relation(LOCAL, REPLACE) is REPLACE


def test_ledger_append_leaves_the_old_one_alone():
    old = ledger(entry())
    new = old.append(raw())
    assert len(old.entries) == 1
    assert new.entries == (*old.entries, raw())
    with pytest.raises(ValidationError):
        old.entries = ()


def test_ledger_round_trips_through_json():
    old = ledger(
        public(),
        redacted(stage="phase_1"),
        entry(
            sample_rate=0.05,
            noise_multiplier=1.1,
            max_grad_norm=0.1,
            nominal_epsilon=math.inf,
            notion_events=(
                NotionEvent(notion=LOCAL, dp_event=dpa.GaussianDpEvent(1.0)),
            ),
        ),
    )
    assert PrivacyLedger.model_validate_json(old.model_dump_json()) == old
    assert PrivacyLedger.model_validate(json.loads(old.model_dump_json())) == old
    assert PrivacyLedger.model_json_schema()["type"] == "object"


def test_ledger_units_are_never_mixed():
    with pytest.raises(PrivacyError, match="privacy_unit"):
        ledger(entry(), entry(privacy_unit=PrivacyUnit.USER))
    with pytest.raises(ValidationError, match="privacy_unit"):
        PrivacyLedger(entries=(entry(), entry(privacy_unit=PrivacyUnit.USER)))
    users = entry(privacy_unit=PrivacyUnit.USER)
    assert ledger(public(), users).privacy_unit is PrivacyUnit.USER


@pytest.mark.parametrize(
    "changes",
    [
        {"dp_event": None},
        {"view": "public"},
        {"num_steps": 81},
        {"dp_event": dpa.NoOpDpEvent()},
        {"dp_event": dpa.ZCDpEvent(0.1)},
        {"dp_event": "gaussian"},
        {"sample_rate": 0.04},
        {"noise_multiplier": 2.2},
        {"assumptions": ("trust_me",)},
        {"view": "scrubbed"},
        {"surprise": 1},
    ],
)
def test_entry_that_contradicts_itself_is_refused(changes):
    with pytest.raises(ValidationError):
        entry(**changes)


def test_entry_accepts_its_event_as_data_and_views_of_other_enums():
    class View(StrEnum):
        REDACTED = "redacted"

    written = entry().model_dump(mode="json")
    assert LedgerEntry.model_validate(written) == entry()
    assert entry(view=View.REDACTED).view is DataView.REDACTED


def test_assumptions_all_have_a_sentence():
    assert set(EXPLANATIONS) == set(Assumption)
    assert all(found.sentence.endswith(".") for found in EXPLANATIONS.values())


def turns(count=20, rate=0.2, noise=1.1):
    return poisson_gaussian_event(
        sample_rate=rate, noise_multiplier=noise, num_steps=count
    )


BANDED = {"num_bands": 4, "sample_rate": 0.05, "noise_multiplier": 1.1}


def test_entry_with_bands_pays_once_in_as_many_steps():
    one = entry(dp_event=turns(), **BANDED)
    assert one.num_steps == 80
    assert entry(dp_event=turns(), num_steps=77, **BANDED).num_bands == 4
    assert one.event(RECORD) == one.dp_event
    assert LedgerEntry.model_validate_json(one.model_dump_json()) == one
    assert entry().num_bands == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"num_steps": 81},
        {"dp_event": turns(count=19)},
        {"dp_event": turns(rate=0.05)},
        {"sample_rate": 0.2},
        {"sample_rate": None},
        {"num_bands": 5},
        {"num_bands": 0},
        {"dp_event": dpa.ComposedDpEvent([turns(10), turns(10, noise=2.0)])},
        {"dp_event": dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.1), 20)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_entry_with_bands_that_pays_too_little_is_refused(changes):
    """The rate of plain sampling among them: a turn is four times as likely."""
    with pytest.raises(ValidationError):
        entry(**{"dp_event": turns()} | BANDED | changes)


def test_entry_with_bands_may_draw_everybody_in_turn():
    everybody = entry(
        dp_event=turns(rate=1.0), **BANDED | {"sample_rate": 0.25}, num_steps=80
    )
    assert everybody.sample_rate == 0.25
