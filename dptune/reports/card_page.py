"""Blocks for a privacy card, in words for people who know no privacy theory."""

import math

from dptune.accounting.certificates import Certificate
from dptune.privacy import CertificateStatus, Notion
from dptune.reports.blocks import (
    Block,
    Bullets,
    Cell,
    Chip,
    Facts,
    Notice,
    Page,
    Prose,
    Section,
    Table,
    Tone,
    facts,
    table,
    verdict_chip,
)
from dptune.reports.budget_page import budget_table
from dptune.reports.card_measurements import (
    audit_section,
    detection_section,
    exposure_section,
    membership_section,
    utility_section,
)
from dptune.reports.controller_page import controller_section
from dptune.reports.formatting import count, epsilon, number, sentence_case
from dptune.reports.ledger_page import assumption_table
from dptune.reports.model_pages import fixed_seed_notice
from dptune.reports.statements import PrivacyCard

_STATUS_TONES = {
    CertificateStatus.CERTIFIED: Tone.PASS,
    CertificateStatus.CONDITIONAL: Tone.INCONCLUSIVE,
    CertificateStatus.EMPIRICAL: Tone.NEUTRAL,
    CertificateStatus.NONE: Tone.BLOCK,
}
_STATUSES = {
    CertificateStatus.CERTIFIED: "a theorem whose conditions the code enforces",
    CertificateStatus.CONDITIONAL: "a theorem under the assumptions named below",
    CertificateStatus.EMPIRICAL: "measured, not proven",
    CertificateStatus.NONE: "no guarantee",
}


def card_page(card: PrivacyCard) -> Page:
    """Lay a card out: claims first, then what they rest on and leave out."""
    found = (
        Section(title="What is guaranteed", blocks=_claims(card)),
        Section(title="Against whom", blocks=_threat_model(card)),
        _assumptions(card),
        Section(
            title="Outside the guarantee",
            blocks=(Bullets(items=_outside(card)),),
        ),
        Section(title="What was run", blocks=(_run_facts(card),)),
        *(controller_section(made, outside=True) for made in card.controllers),
        _budget(card),
        detection_section(card.detection),
        exposure_section(card.exposure),
        membership_section(card.membership),
        audit_section(card),
        utility_section(card),
        _gate(card),
        _versions(card),
    )
    return Page(
        kicker="Privacy card",
        title=f"{card.model_name}, version {card.model_version}",
        chip=verdict_chip(card.gate.outcome) if card.gate else None,
        lede=headline(card),
        sections=tuple(section for section in found if section is not None),
    )


def headline(card: PrivacyCard) -> str:
    """Say in one sentence what the card comes to."""
    finite = [c for c in card.certificates if math.isfinite(c.epsilon)]
    if not finite:
        return "No privacy guarantee of any kind: treat this model like its data."
    return sentence_case("; ".join(claim_text(c) for c in finite)) + "."


def claim_text(certificate: Certificate) -> str:
    """Return a claim in one line: never an epsilon without notion, unit and delta."""
    return f"{certificate.label}: {epsilon_text(certificate)}"


def epsilon_text(certificate: Certificate) -> str:
    """Return epsilon, delta and status.

    A finite one reads `ε = 8 at δ = 10⁻⁵, certified`, an infinite one `∞ (no
    guarantee)`.
    """
    if math.isinf(certificate.epsilon):
        text = epsilon(certificate.epsilon)
        if math.isfinite(certificate.accounted_epsilon):
            secret = number(certificate.accounted_epsilon)
            text += f"; ε = {secret} had the seed been secret"
        return text
    return (
        f"ε = {number(certificate.epsilon)} at δ = {number(certificate.delta)}, "
        f"{certificate.status}"
    )


def _claims(card: PrivacyCard) -> tuple[Block, ...]:
    """Return warnings, the table of claims, and each claim in plain words."""
    seed = (fixed_seed_notice(),) if card.fixed_seed else ()
    return (
        *seed,
        *_sampling_warning(card),
        _claim_table(card),
        Bullets(
            items=tuple(
                f"{sentence_case(c.label)}: {c.explanation}" for c in card.certificates
            )
        ),
    )


def _claim_table(card: PrivacyCard) -> Table:
    """Return one row for each certificate."""
    statuses = dict.fromkeys(c.status for c in card.certificates)
    meanings = "; ".join(f"{s}: {_STATUSES[s]}" for s in statuses)
    seeded = any(c.accounted_epsilon != c.epsilon for c in card.certificates)
    nominal = any(c.nominal_epsilon is not None for c in card.certificates)
    columns = ["Claim", "ε", "δ", "Status", "Second opinion", "Accountant"]
    columns += ["Nominal ε"] if nominal else []
    columns += ["ε had the seed been secret"] if seeded else []
    references = dict.fromkeys(c.nominal_reference for c in card.certificates)
    return table(
        columns,
        (_claim_row(c, nominal=nominal, seeded=seeded) for c in card.certificates),
        numeric=(1, 2, *range(6, len(columns))),
        caption=f"{meanings}. "
        + (
            "Nominal ε is what the paper's formula yields "
            f"({'; '.join(r for r in references if r) or 'no reference given'}); it is "
            "no guarantee."
            if nominal
            else ""
        ),
    )


def _claim_row(
    certificate: Certificate, *, nominal: bool, seeded: bool
) -> tuple[Cell, ...]:
    """Return one certificate's row."""
    second = certificate.second_opinion
    method = certificate.second_opinion_method
    return (
        certificate.label,
        epsilon(certificate.epsilon),
        number(certificate.delta),
        Chip(text=certificate.status, tone=_STATUS_TONES[certificate.status]),
        f"{number(second)} ({method})" if second is not None else method or "–",
        certificate.accountant,
        *((epsilon(certificate.nominal_epsilon),) if nominal else ()),
        *((epsilon(certificate.accounted_epsilon),) if seeded else ()),
    )


def _sampling_warning(card: PrivacyCard) -> tuple[Notice, ...]:
    """Warn where the accountant assumed what did not run."""
    if card.sampling_assumed == card.sampling_actual:
        return ()
    return (
        Notice(
            tone=Tone.BLOCK,
            title="Sampling that ran is not what was accounted.",
            text=f"Accounted: {card.sampling_assumed}. Ran: {card.sampling_actual}. "
            "An epsilon holds only for the sampling that it was computed for.",
        ),
    )


def _threat_model(card: PrivacyCard) -> tuple[Block, ...]:
    """Say who is defended against, in plain words, and who is not."""
    unit = card.privacy_unit
    finite = {c.notion for c in card.certificates if math.isfinite(c.epsilon)}
    paragraphs = []
    if finite & {Notion.RECORD, Notion.SELECTIVE}:
        paragraphs.append(
            "Defended against: anyone who holds the weights or may query the model as "
            "often as they like, knows this code and every setting, and even knows all "
            f"training data but the one {unit} they ask about. They do not know the "
            "random numbers that noise and sampling were made of."
        )
    if Notion.LOCAL in finite:
        paragraphs.append(
            "Defended against: a server that receives the noised hidden states, keeps "
            "all of them, and knows this code and every setting."
        )
    if not finite:
        paragraphs.append(
            "Defended against: nobody. Whoever holds the weights or may query the "
            "model could learn what it was trained on."
        )
    paragraphs.append(
        "Not defended against: people with access to the raw data, to the training "
        "machine while it runs, or to the private diagnostics of the trusted "
        "dashboard; timing and other side channels; facts about a person that follow "
        f"from many other people's data; and what one {unit} cannot hide because other "
        f"{unit}s repeat it."
    )
    return (Prose(paragraphs=tuple(paragraphs)),)


def _assumptions(card: PrivacyCard) -> Section | None:
    """Explain every assumption that some claim rests on."""
    named = dict.fromkeys(a for c in card.certificates for a in c.assumptions)
    if not named:
        return None
    return Section(
        title="What the claims take for granted",
        blocks=(assumption_table(tuple(named)),),
    )


def _outside(card: PrivacyCard) -> tuple[str, ...]:
    """List what no epsilon covers."""
    duplicates = (
        (
            "Record claims hold for the deduplicated corpus: whether two records were "
            "duplicates of each other is not protected."
        ),
    )
    return (*card.outside_guarantee, *(duplicates if card.deduplicated else ()))


def _budget(card: PrivacyCard) -> Section | None:
    """Say what all runs on the data have cost its units, tuning included."""
    found = card.budget
    if found is None:
        return None
    trials = count(found.num_trials)
    sweeps = f"{count(found.num_sweeps)} sweep{'' if found.num_sweeps == 1 else 's'}"
    text = (
        f"{trials} recorded trial{'' if found.num_trials == 1 else 's'} of {sweeps} "
        "drew on the same data, and the choice of this model's settings may rest on "
        "them: who knows that choice has seen all of them, and the epsilon of all "
        "runs is the one that covers it."
        if found.num_trials
        else "No trial of a sweep is recorded on this data. Runs that nobody marked "
        "as trials count among all runs."
    )
    return Section(
        title="What all runs on this data have cost",
        blocks=(
            Prose(paragraphs=(text,)),
            budget_table(
                found.lines, unit=card.privacy_unit, num_trials=found.num_trials
            ),
        ),
    )


def _run_facts(card: PrivacyCard) -> Facts:
    """Return what was trained, on what, and how units were drawn."""
    return facts(
        ("Recipe", card.recipe_title, card.recipe_reference),
        ("Base model", card.base_model),
        ("Privacy unit", f"one {card.privacy_unit}", "what one neighbor changes"),
        ("Sampling accounted for", card.sampling_assumed),
        ("Sampling that ran", card.sampling_actual),
        _randomness(card),
        ("Model digest", card.model_digest),
    )


def _randomness(card: PrivacyCard) -> tuple[str, str] | None:
    """Say where noise came from; nothing where no claim rests on noise."""
    if card.fixed_seed:
        return ("Randomness", "fixed seed, for tests only")
    if any(0 < c.epsilon < math.inf for c in card.certificates):
        return ("Randomness", "secret, from the operating system")
    return None


def _gate(card: PrivacyCard) -> Section:
    """Return what the gate said, or that it had not spoken."""
    if card.gate is None:
        return Section(
            title="Gate",
            blocks=(
                Notice(
                    text="The gate had not decided when this card was written. Until "
                    "it has, this version must not be promoted."
                ),
            ),
        )
    return Section(
        title="Gate",
        blocks=(
            *_override(card),
            facts(
                ("Outcome", verdict_chip(card.gate.outcome)),
                ("Policy", card.gate.policy),
                ("Decision hash", card.gate.decision_hash),
                ("Files", card.gate.manifest_digest or "not listed"),
                ("Attempts", card.gate.attempts) if card.gate.attempts else None,
            ),
        ),
    )


def _override(card: PrivacyCard) -> tuple[Notice, ...]:
    """Say that somebody promoted the version past the gate, and why."""
    if not card.override:
        return ()
    text = f"Promoted past the gate by hand. Reason given: {card.override}"
    return (Notice(text=text),)


def _versions(card: PrivacyCard) -> Section | None:
    """Return the versions of everything that the claim rests on."""
    if not card.dependency_versions:
        return None
    return Section(
        title="Software",
        blocks=(
            table(("Package", "Version"), sorted(card.dependency_versions.items())),
        ),
    )
