"""Every threshold of the policy, just inside and just outside, field by field."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from dptune.gates.decision import decide
from dptune.gates.policy import GatePolicy
from dptune.results import Interval, LanguageShare
from dptune.statistics import hit_rate_interval

SELECTIVE = {"notion": "selective", "accepted_statuses": ("certified", "conditional")}
LEAKING = [1 + 9000 * i for i in range(60)]
SKEWED = [max(1, round(1e6 * (i / 60) ** 1.5)) for i in range(1, 61)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Two values of one field, and what one criterion says under each.

    Args:
        inside, outside: values; `MEASURED` stands for what the criterion measures, and
            `BESIDE` for the number next to it, on the side named by `towards`.
        criterion: that reads the field.
        says: under the inner value, and under the outer one.
        evidence: from the builders.
        policy: of both.
    """

    inside: Any
    outside: Any
    criterion: str
    says: tuple[str, str]
    evidence: Any = lambda _: {}
    policy: dict[str, Any] = field(default_factory=dict)


MEASURED, BELOW, ABOVE = object(), object(), object()
FOUND = hit_rate_interval(
    (10,) * 40,
    num_members=1000,
    num_non_members=1000,
    fpr=0.01,
    confidence=0.95,
)[1]
"""Upper bound of what the membership attacks of the builders find."""


def conditional(make, **changes):
    return (
        make.claim(
            notion="selective",
            relation="replace_one",
            status="conditional",
            missing_rate=0.001,
            missing_rate_upper=0.002,
            **changes,
        ),
    )


def selective(make, **changes):
    return {
        "claims": conditional(make),
        "dataset_budget": make.budget(notion="selective"),
        "detection": make.detection(**changes),
    }


def several_languages(make):
    """German in nine records of ten; in Turkish the bound is wide, and much masked."""
    shares = tuple(
        LanguageShare(
            language=code,
            num_records=number,
            masked_character_share=masked,
            missing_rate=0.001,
            missing_rate_interval=Interval(low=0.0, high=upper, confidence=0.95),
            missing_rate_texts=number,
        )
        for code, number, masked, upper in (
            ("de", 900, 0.1, 0.004),
            ("tr", 100, 0.4, 0.03),
        )
    )
    return {"detection": make.detection(languages=shares)}


def planned(make, **changes):
    return {"planned_for": make.policy(name="plan", **changes).reference}


def varied(make):
    """A champion whose records got better and worse."""
    champion = make.utility(model_digest="old")
    losses = tuple(v + 0.3 * (i % 5 - 2) for i, v in enumerate(champion.record_nll))
    return {
        "utility": make.utility(
            record_nll=losses, nll_per_token=sum(losses) / champion.num_tokens
        ),
        "champion_digest": "old",
        "champion_utility": champion,
    }


def shifted(make):
    return varied(make) | {"utility": make.utility(shift=0.015)}


def unmeasurable(make):
    none = {"canaries": (), "base_canaries": (), "not_measurable": "A classifier."}
    return {"exposure": make.exposure(planted_found=0, planted_expected=0, **none)}


def under_base(make):
    report = make.exposure()
    base = make.canaries(SKEWED, planted=True)
    rest = tuple(c for c in report.base_canaries if not c.planted)
    return {"exposure": report.model_copy(update={"base_canaries": base + rest})}


def one_known(make):
    ranks = make.even_ranks(60)
    ranks[5] = 4
    return {"exposure": make.exposure(planted=ranks)}


def a_little(make):
    ranks = [max(1, rank // 3) for rank in make.even_ranks(60)]
    return {"exposure": make.exposure(planted=ranks), "claims": (make.claim(),)}


def contradicting(make):
    report = make.exposure(planted=LEAKING)
    return {"exposure": report, "claims": (make.claim(epsilon=0.85),)}


def assured(level):
    """A bound that is met at this level, and at no smaller one."""
    from dptune.gates.null_law import largest_mean_exposure  # noqa: PLC0415

    from .conftest import exposure  # noqa: PLC0415

    shown = [c.exposure for c in exposure().planted()]
    most_bits = math.log2(exposure().space_size)
    return float(largest_mean_exposure(shown, most_bits=most_bits, level=level))


def steady(confidence):
    """An increase that is allowed at this confidence, and at no larger one."""
    from dptune.gates.utility import paired_bootstrap_upper  # noqa: PLC0415

    from .conftest import Make  # noqa: PLC0415

    found = varied(Make)
    new, old = found["utility"], found["champion_utility"]
    return paired_bootstrap_upper(
        old.record_nll, new.record_nll, new.record_tokens, confidence=confidence
    )


PASS, BLOCK, UNSURE, BAD, NONE = (
    "PASS",
    "BLOCK",
    "INCONCLUSIVE",
    "INVALID",
    "NOT_APPLICABLE",
)
ROWS: dict[str, Row] = {
    "schema_version": Row(
        inside=1, outside=2, criterion="", says=(PASS, "refused when it is read")
    ),
    "name": Row(
        inside="other",
        outside="plan",
        criterion="evidence_identity",
        says=(PASS, BAD),
        evidence=lambda make: planned(make, version=7),
    ),
    "version": Row(
        inside=7,
        outside=8,
        criterion="evidence_identity",
        says=(PASS, BAD),
        evidence=lambda make: planned(make, version=7),
        policy={"name": "plan"},
    ),
    "notion": Row(
        inside="record", outside="local", criterion="budget", says=(PASS, UNSURE)
    ),
    "max_epsilon": Row(
        inside=MEASURED, outside=BELOW, criterion="budget", says=(PASS, BLOCK)
    ),
    "max_delta": Row(
        inside=1e-6,
        outside=math.nextafter(1e-6, 0),
        criterion="budget",
        says=(PASS, BLOCK),
    ),
    "privacy_unit": Row(
        inside="record", outside="document", criterion="budget", says=(PASS, UNSURE)
    ),
    "relation": Row(
        inside="add_or_remove_one",
        outside="replace_one",
        criterion="budget",
        says=(PASS, UNSURE),
    ),
    "accepted_statuses": Row(
        inside=("certified", "conditional"),
        outside=("certified",),
        criterion="claim_status",
        says=(PASS, BLOCK),
        evidence=selective,
        policy={"notion": "selective"},
    ),
    "max_missing_rate": Row(
        inside=MEASURED,
        outside=BELOW,
        criterion="claim_status",
        says=(PASS, UNSURE),
        evidence=selective,
        policy=SELECTIVE,
    ),
    "accept_declared_missing_rate": Row(
        inside=True,
        outside=False,
        criterion="claim_status",
        says=(PASS, UNSURE),
        evidence=lambda make: selective(make, missing_rate_origin="declared"),
        policy=SELECTIVE,
    ),
    "max_language_missing_rate": Row(
        inside=MEASURED,
        outside=BELOW,
        criterion="language_missing_rate",
        says=(PASS, UNSURE),
        evidence=several_languages,
        policy={"max_language_missing_rate": 0.5},
    ),
    "max_language_masked_share": Row(
        inside=MEASURED,
        outside=BELOW,
        criterion="language_masked_share",
        says=(PASS, BLOCK),
        evidence=several_languages,
        policy={"max_language_masked_share": 0.5},
    ),
    "min_language_share": Row(
        inside=0.1 + 1e-9,
        outside=0.1,
        criterion="language_missing_rate",
        says=(PASS, UNSURE),
        evidence=several_languages,
        policy={"max_language_missing_rate": 0.01},
    ),
    "accepted_assumptions": Row(
        inside=("num_units_is_public",),
        outside=(),
        criterion="claim_status",
        says=(PASS, BLOCK),
        evidence=lambda make: {
            "claims": (
                make.claim(status="conditional", assumptions=("num_units_is_public",)),
            )
        },
        policy={"accepted_statuses": ("certified", "conditional")},
    ),
    "require_dataset_budget": Row(
        inside=False,
        outside=True,
        criterion="dataset_budget",
        says=(NONE, UNSURE),
        evidence=lambda _: {"dataset_budget": None},
    ),
    "require_canaries": Row(
        inside=False,
        outside=True,
        criterion="memorization",
        says=(NONE, UNSURE),
        evidence=unmeasurable,
    ),
    "min_canaries": Row(
        inside=60, outside=61, criterion="memorization", says=(PASS, UNSURE)
    ),
    "min_held_out": Row(
        inside=60, outside=61, criterion="assurance", says=(PASS, UNSURE)
    ),
    "min_space_size": Row(
        inside=10**6, outside=10**6 + 1, criterion="assurance", says=(PASS, UNSURE)
    ),
    "memorization_level": Row(
        inside=math.nextafter(2 * (60 * 4 / 10**6), 0),
        outside=2 * (60 * 4 / 10**6),
        criterion="memorization",
        says=(PASS, BLOCK),
        evidence=one_known,
        policy={"effect_size_bits": 9.0},
    ),
    "effect_size_bits": Row(
        inside=ABOVE,
        outside=MEASURED,
        criterion="memorization",
        says=(PASS, BLOCK),
        evidence=a_little,
    ),
    "single_canary_share": Row(
        inside=math.nextafter(4e-6, 0),
        outside=4e-6,
        criterion="memorization",
        says=(PASS, BLOCK),
        evidence=one_known,
    ),
    "assurance_bound_bits": Row(
        inside=MEASURED, outside=BELOW, criterion="assurance", says=(PASS, UNSURE)
    ),
    "assurance_level": Row(
        inside=0.01,
        outside=0.0099,
        criterion="assurance",
        says=(PASS, UNSURE),
        policy={"assurance_bound_bits": assured(0.01)},
    ),
    "control_level": Row(
        inside=BELOW,
        outside=MEASURED,
        criterion="controls",
        says=(PASS, BAD),
        evidence=lambda make: {"exposure": make.exposure(held_out=SKEWED)},
    ),
    "base_level": Row(
        inside=BELOW,
        outside=MEASURED,
        criterion="base_model",
        says=(PASS, BAD),
        evidence=under_base,
    ),
    "contradiction_level": Row(
        inside=BELOW,
        outside=MEASURED,
        criterion="claim_contradiction",
        says=(PASS, BLOCK),
        evidence=contradicting,
    ),
    "min_audit_capacity": Row(
        inside=MEASURED, outside=ABOVE, criterion="audit", says=(PASS, UNSURE)
    ),
    "require_step_audit": Row(
        inside=False,
        outside=True,
        criterion="step_audit",
        says=(NONE, UNSURE),
        evidence=lambda _: {"step_audits": ()},
    ),
    "max_evidence_age_days": Row(
        inside=MEASURED, outside=BELOW, criterion="evidence_age", says=(PASS, UNSURE)
    ),
    "max_evaluations": Row(
        inside=4,
        outside=3,
        criterion="attempts",
        says=(PASS, BLOCK),
        evidence=lambda make: {"attempts": make.attempts(4)},
    ),
    "max_membership_tpr": Row(
        inside=FOUND,
        outside=math.nextafter(FOUND, 0),
        criterion="membership",
        says=(PASS, BLOCK),
    ),
    "membership_level": Row(
        inside=0.05,
        outside=0.049,
        criterion="membership",
        says=(PASS, BLOCK),
        policy={"max_membership_tpr": FOUND},
    ),
    "min_shadow_models": Row(
        inside=4, outside=5, criterion="membership", says=(PASS, UNSURE)
    ),
    "min_membership_records": Row(
        inside=1000, outside=1001, criterion="membership", says=(PASS, UNSURE)
    ),
    "blind_level": Row(
        inside=0.1249,
        outside=0.125,
        criterion="blind_membership",
        says=(PASS, BAD),
        evidence=lambda make: {
            "membership": make.membership(blind=make.blind(p_value=0.125))
        },
    ),
    "max_nll_increase": Row(
        inside=MEASURED,
        outside=BELOW,
        criterion="utility",
        says=(PASS, BLOCK),
        evidence=shifted,
    ),
    "utility_confidence": Row(
        inside=0.95,
        outside=0.99,
        criterion="utility",
        says=(PASS, BLOCK),
        evidence=varied,
        policy={"max_nll_increase": steady(0.95)},
    ),
}


def said(evidence, policy, name):
    return next(c for c in decide(evidence, policy).criteria if c.name == name)


def test_every_field_of_the_policy_has_a_row():
    assert set(ROWS) == set(GatePolicy.model_fields)


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.criterion])
def test_field_just_inside_and_just_outside_decides_as_written(name, make):
    row = ROWS[name]
    evidence = make.evidence(**row.evidence(make))
    measured = said(evidence, make.policy(**row.policy), row.criterion).measured
    stands_for = {
        MEASURED: measured,
        BELOW: measured and math.nextafter(measured, -math.inf),
        ABOVE: measured and math.nextafter(measured, math.inf),
    }
    for value, verdict in zip((row.inside, row.outside), row.says, strict=True):
        known = value is MEASURED or value is BELOW or value is ABOVE
        chosen = {**row.policy, name: stands_for[value] if known else value}
        policy = make.policy(**chosen)
        found = said(evidence, policy, row.criterion)
        assert found.verdict == verdict, (value, found)
