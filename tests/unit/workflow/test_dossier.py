"""A dossier restates its reports for gate and card, and nothing else."""

import pytest
from dp_accounting import GaussianDpEvent
from pydantic import ValidationError

from dptune.accounting.groups import group_epsilon
from dptune.accounting.ledger import PrivacyLedger
from dptune.dpsgd.factorization import band_coefficients
from dptune.errors import ArtifactError
from dptune.gates.decision import decide
from dptune.gates.policy import GatePolicy
from dptune.mechanisms.nominal import gdp_to_epsilon
from dptune.privacy import NeighboringRelation, Notion
from dptune.reports.card.page import render_html, render_markdown
from dptune.results import ChampionReport, Interval
from dptune.workflow.dossier import Dossier, RunResults
from tests.support.events import poisson_gaussian_event
from tests.unit.reports import samples


def reports(**changes):
    values = {
        "plan": samples.run_plan(),
        "ledger": samples.jft_ledger(),
        "corpus": samples.corpus_report(),
        "detection": samples.detection_report(),
        "redaction": samples.redaction_report(),
        "exposure": samples.exposure_report(),
        "membership": samples.membership_report(),
        "utility": samples.utility_report(),
        "champion": ChampionReport(),
    }
    return values | changes


@pytest.fixture
def make_dossier():
    def make(*, model_digest=samples.MODEL, **changes):
        return Dossier.of(
            RunResults.collect(reports(**changes).values()),
            model_digest=model_digest,
            base_model="gpt2",
            recipe=samples.recipe(),
        )

    return make


def test_results_are_told_apart_by_their_types():
    audits = [samples.step_audit(), samples.step_audit()]
    given = reports(budget=samples.budget_report())
    found = RunResults.collect([*audits[:1], *given.values(), *audits[1:]])
    assert {name: getattr(found, name) for name in given} == given
    assert found.step_audits == tuple(audits)
    assert found.extraction is None


@pytest.mark.parametrize("extra", [samples.utility_report(), samples.gate_decision()])
def test_results_of_another_run_or_kind_are_refused(extra):
    with pytest.raises(ArtifactError, match=type(extra).__name__):
        RunResults.collect([*reports().values(), extra])


def test_results_that_lack_a_report_are_refused():
    given = reports()
    del given["detection"]
    with pytest.raises(ValidationError, match="detection"):
        RunResults.collect(given.values())


def test_dossier_comes_back_exactly_from_json(make_dossier):
    dossier = make_dossier()
    text = dossier.model_dump_json()
    back = Dossier.model_validate_json(text)
    assert back.model_dump_json() == text


def test_canaries_that_were_not_drawn_audit_nothing(make_dossier):
    assert make_dossier().evidence(None).audits
    given = samples.exposure_report(drawn=False)
    assert make_dossier(exposure=given).evidence(None).audits == ()


def test_every_certificate_becomes_a_claim(make_dossier):
    dossier = make_dossier()
    claims = dossier.evidence(None).claims
    assert [(c.notion, c.relation, c.epsilon, c.status) for c in claims] == [
        (c.notion, c.relation, c.epsilon, c.status) for c in dossier.certificates
    ]
    assert all(claim.model_digest == samples.MODEL for claim in claims)


def test_missing_rate_reaches_the_gate_by_its_upper_bound(make_dossier):
    interval = Interval(low=0.0, high=0.037, confidence=0.95)
    detection = samples.detection_report(
        missing_rate=0.001, missing_rate_interval=interval
    )
    claims = make_dossier(detection=detection).evidence(None).claims
    assert {(c.missing_rate, c.missing_rate_upper) for c in claims} == {(0.001, 0.037)}


@pytest.mark.parametrize(("upper", "passes"), [(0.009, True), (0.011, False)])
def test_gate_decides_on_the_upper_bound(make_dossier, upper, passes):
    interval = Interval(low=0.0, high=upper, confidence=0.95)
    detection = samples.detection_report(
        missing_rate=0.001, missing_rate_interval=interval
    )
    policy = GatePolicy(
        notion="selective",
        max_epsilon=1000,
        max_delta=0.5,
        accepted_statuses=("certified", "conditional"),
        max_missing_rate=0.01,
        require_dataset_budget=False,
    )
    decision = decide(make_dossier(detection=detection).evidence(None), policy)
    (status,) = (c for c in decision.criteria if c.name == "claim_status")
    assert (status.verdict == "PASS") is passes


def test_certificate_that_is_not_there_is_an_error(make_dossier):
    dossier = make_dossier()
    assert dossier.certificate(Notion.SELECTIVE).notion is Notion.SELECTIVE
    with pytest.raises(ArtifactError, match="local"):
        dossier.certificate(Notion.LOCAL)


def test_card_names_model_claims_and_packages(make_dossier):
    dossier = make_dossier()
    card = dossier.card(samples.registered_version(), samples.gate_decision())
    text = render_markdown(card)
    for word in ("torch", "dp-accounting", dossier.base_model):
        assert word in text
    assert render_html(card).lstrip().startswith("<!")


def test_infinite_epsilon_survives_storage(make_dossier):
    dossier = make_dossier()
    back = Dossier.model_validate_json(dossier.model_dump_json())
    assert back.certificate(Notion.RECORD).epsilon == float("inf")


def beside(dossier, other):
    evidence = dossier.evidence(other)
    return evidence.champion_digest, evidence.champion_utility


def test_champion_is_compared_on_this_runs_records(make_dossier):
    own = samples.utility_report(model_digest=samples.BASE, perplexity=11.0)
    here = samples.utility_report(model_digest=samples.BASE, perplexity=22.0)
    champion = make_dossier(model_digest=samples.BASE, utility=own)
    measured = ChampionReport(model_digest=samples.BASE, utility=here)
    assert beside(make_dossier(champion=measured), champion) == (samples.BASE, here)
    assert beside(make_dossier(), champion) == (samples.BASE, own)
    assert beside(make_dossier(champion=measured), None) == (None, None)
    assert make_dossier().evidence(None, champion_deleted=True).champion_digest == ""


def banded_run(num_bands=4):
    """A plan and the ledger of its run: sample rate .1, so .4 in turn."""
    plan = samples.run_plan()
    bands = band_coefficients(num_bands=num_bands, num_steps=50)
    stages = [
        s.model_copy(update={"noise_coefficients": bands}) if s.noise_multiplier else s
        for s in plan.stages
    ]
    event = poisson_gaussian_event(
        sample_rate=0.1 * num_bands, noise_multiplier=1.0, num_steps=13
    )
    entry = samples.ledger_entry(num_bands=num_bands, dp_event=event)
    return {
        "plan": plan.model_copy(update={"stages": tuple(stages)}),
        "ledger": PrivacyLedger(entries=(entry,)),
    }


def test_card_names_the_sampling_of_a_banded_run(make_dossier):
    card = make_dossier(**banded_run()).card(
        samples.registered_version(), samples.gate_decision()
    )
    assert card.sampling_actual == "cyclic Poisson over privacy units"
    assert card.sampling_assumed == card.sampling_actual
    assert card.loss_normalizer == "a public constant, the longest sequence"


def test_card_tells_banded_accounting_of_a_run_that_was_not_banded(make_dossier):
    ledger = banded_run()["ledger"]
    card = make_dossier(ledger=ledger).card(
        samples.registered_version(), samples.gate_decision()
    )
    assert card.sampling_actual == "Poisson over privacy units"
    assert card.sampling_assumed != card.sampling_actual


def test_copies_of_a_secret_in_other_groups_have_no_mixture_bound(make_dossier):
    """Units of a banded run join different steps: only the general bound holds."""
    run = banded_run()
    copies = max(c.insertions for c in samples.exposure_report().planted())
    assert copies > 1
    group = make_dossier(**run)._canary_group_epsilon()
    mixture = group_epsilon(
        run["ledger"].event(Notion.RECORD),
        group_size=copies,
        delta=1e-5,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    assert group > mixture


def group_of(make_dossier, ledger, *, setting="not_missed", appended=False, **plan):
    """What the card says of a canary in several units."""
    exposure = samples.exposure_report(setting=setting).model_copy(
        update={"appended": appended}
    )
    run = samples.run_plan().model_copy(update=plan)
    return make_dossier(
        ledger=ledger, exposure=exposure, plan=run
    )._canary_group_epsilon()


def test_group_of_a_training_without_a_guarantee_has_none(make_dossier):
    record = {
        "notion": Notion.RECORD,
        "relation": NeighboringRelation.ADD_OR_REMOVE_ONE,
    }
    entry = samples.ledger_entry()
    known = entry.model_copy(update={"fixed_seed": True})
    assert group_of(make_dossier, PrivacyLedger(entries=(entry,)), **record) > 0
    assert group_of(make_dossier, PrivacyLedger(entries=(known,)), **record) is None


def test_group_of_canaries_in_records_of_others_replaces_these(make_dossier):
    """Without its canary a record stays: each moves the sum of a full step by 2C."""
    claim = {
        "notion": Notion.RECORD,
        "relation": NeighboringRelation.ADD_OR_REMOVE_ONE,
    }
    copies = max(c.insertions for c in samples.exposure_report().planted())
    step = samples.ledger_entry().model_copy(
        update={
            "dp_event": GaussianDpEvent(4.0),
            "num_steps": 1,
            "sample_rate": None,
            "noise_multiplier": None,
        }
    )
    ledger = PrivacyLedger(entries=(step,))
    own, others = (
        group_of(make_dossier, ledger, appended=appended, **claim)
        for appended in (False, True)
    )
    exact = {
        moved: gdp_to_epsilon(moved * copies / 4.0, delta=1e-5) for moved in (1, 2)
    }
    assert own == pytest.approx(exact[1], rel=2e-3)
    assert others == pytest.approx(exact[2], rel=2e-3)


@pytest.mark.parametrize("setting", ["missed", "partly_missed", "as_detected"])
def test_group_of_a_canary_that_was_trained_on_as_it_stands_has_none(
    make_dossier, setting
):
    """A stage on the redacted view read the secrets that were not found."""
    ledger = PrivacyLedger(entries=(samples.redacted_entry(),))
    notion = {
        "notion": Notion.SELECTIVE,
        "relation": NeighboringRelation.REPLACE_ONE,
    }
    assert group_of(make_dossier, ledger, **notion) == 0.0
    assert group_of(make_dossier, ledger, setting=setting, **notion) is None


def test_every_conditional_certificate_quotes_the_missing_rate(make_dossier):
    detection = samples.detection_report(missing_rate_source="a reviewed sample")
    dossier = make_dossier(detection=detection)
    conditional = [c for c in dossier.certificates if c.status == "conditional"]
    assert conditional
    for certificate in conditional:
        assert certificate.missing_rate == detection.missing_rate
        assert certificate.missing_rate_upper == detection.missing_rate_interval.high
        assert ", by a reviewed sample" in certificate.explanation
    others = [c for c in dossier.certificates if c.status != "conditional"]
    assert all(c.missing_rate is None for c in others)


def test_conditional_certificate_without_a_measured_rate_says_so(make_dossier):
    unknown = samples.detection_report(missing_rate=None, missing_rate_interval=None)
    texts = [
        c.explanation
        for c in make_dossier(detection=unknown).certificates
        if c.status == "conditional"
    ]
    assert texts
    assert all("misses is not known" in text for text in texts)


def test_refused_rate_is_a_reason_of_the_gate(make_dossier):
    refused = samples.detection_report(
        missing_rate=None,
        missing_rate_interval=None,
        missing_rate_refusal="review 1 is of another detector",
    )
    policy = GatePolicy(
        name="p",
        version=1,
        notion=Notion.SELECTIVE,
        max_epsilon=100.0,
        max_delta=1e-2,
        accepted_statuses=("certified", "conditional"),
    )
    decision = decide(make_dossier(detection=refused).evidence(None), policy)
    (status,) = (c for c in decision.criteria if c.name == "claim_status")
    assert status.verdict == "INCONCLUSIVE"
    assert "review 1 is of another detector" in status.reason
    assert "review export" in status.what_would_change_it
