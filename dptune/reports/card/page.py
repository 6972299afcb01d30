"""A privacy card as a page, in words for people who know no privacy theory.

What was measured stands beside what chance gives.
"""

import math
from collections.abc import Iterator

from dptune.accounting.certificates import Certificate
from dptune.privacy import CertificateStatus, Notion
from dptune.reports.blocks import (
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
    page,
    section,
    table,
    table_of,
    verdict_chip,
)
from dptune.reports.card.statements import (
    BudgetStatement,
    DetectionStatement,
    ExposureStatement,
    GateStatement,
    MembershipStatement,
    PrivacyCard,
    UtilityStatement,
)
from dptune.reports.formatting import (
    between,
    count,
    epsilon,
    interval,
    lower,
    number,
    p_value,
    percent,
    sentence_case,
    upper,
    words,
)
from dptune.reports.pages.attacks import setting_words
from dptune.reports.pages.spending import assumption_table, budget_table
from dptune.reports.pages.training import controller_section, fixed_seed_notice
from dptune.reports.render import page_html, page_markdown
from dptune.rounding import at_least

STATUS_TONES = {
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
_DUPLICATES = (
    "Record claims hold for the deduplicated corpus: whether two records were "
    "duplicates of each other is not protected."
)


def render_html(card: PrivacyCard) -> str:
    """Return the card as one self-contained HTML document."""
    return page_html(card_page(card))


def render_markdown(card: PrivacyCard) -> str:
    """Return the card as Markdown, for a registry's description field."""
    return page_markdown(card_page(card))


def card_page(card: PrivacyCard) -> Page:
    """Lay a card out: claims first, then what they rest on and leave out."""
    named = dict.fromkeys(a for c in card.certificates for a in c.assumptions)
    outside = (*card.outside_guarantee, *((_DUPLICATES,) if card.deduplicated else ()))
    packages = sorted(card.dependency_versions.items())
    return page(
        section(
            "What is guaranteed",
            fixed_seed_notice() if card.fixed_seed else None,
            _sampling_warning(card),
            _claim_table(card),
            Bullets(
                items=tuple(
                    f"{sentence_case(c.label)}: {c.explanation}"
                    for c in card.certificates
                )
            ),
        ),
        section("Against whom", Prose(paragraphs=tuple(_threat_model(card)))),
        section(
            "What the claims take for granted",
            assumption_table(tuple(named)) if named else None,
        ),
        section("Outside the guarantee", Bullets(items=outside)),
        section("What was run", _run_facts(card)),
        *(controller_section(made, outside=True) for made in card.controllers),
        _budget(card.budget, unit=card.privacy_unit) if card.budget else None,
        _detection(card.detection) if card.detection else None,
        _exposure(card.exposure) if card.exposure else None,
        _membership(card.membership) if card.membership else None,
        section("Measured: audits", *_audits(card)),
        section("Measured: utility", _utility(card.utility) if card.utility else None),
        _gate(card.gate, override=card.override),
        section(
            "Software", table(("Package", "Version"), packages) if packages else None
        ),
        label="Privacy card",
        title=f"{card.model_name}, version {card.model_version}",
        chip=verdict_chip(card.gate.outcome) if card.gate else None,
        subtitle=headline(card),
    )


def headline(card: PrivacyCard) -> str:
    """Say in one sentence what the card comes to.

    Never an epsilon without notion, unit and delta.
    """
    finite = [c for c in card.certificates if math.isfinite(c.epsilon)]
    if not finite:
        return "No privacy guarantee of any kind: treat this model like its data."
    claims = "; ".join(f"{c.label}: {epsilon_text(c)}" for c in finite)
    return f"{sentence_case(claims)}."


def epsilon_text(certificate: Certificate) -> str:
    """Return epsilon, delta and status.

    A finite one reads `ε = 8 at δ = 10⁻⁵, certified`, an infinite one `∞ (no
    guarantee)`.
    """
    if math.isinf(certificate.epsilon):
        text = epsilon(certificate.epsilon)
        if math.isfinite(certificate.accounted_epsilon):
            secret = epsilon(certificate.accounted_epsilon)
            text += f"; ε = {secret} had the seed been secret"
        return text
    return (
        f"ε = {epsilon(certificate.epsilon)} at δ = {upper(certificate.delta)}, "
        f"{certificate.status}"
    )


def _claim_table(card: PrivacyCard) -> Table:
    """Return one row for each certificate."""
    claims = card.certificates
    statuses = dict.fromkeys(c.status for c in claims)
    meanings = "; ".join(f"{s}: {_STATUSES[s]}" for s in statuses)
    references = filter(None, dict.fromkeys(c.nominal_reference for c in claims))
    nominal = (("Nominal ε", lambda c: epsilon(c.nominal_epsilon)),)
    seeded = (("ε had the seed been secret", lambda c: epsilon(c.accounted_epsilon)),)
    is_nominal = any(c.nominal_epsilon is not None for c in claims)
    is_seeded = any(c.accounted_epsilon != c.epsilon for c in claims)
    caption = (
        " Nominal ε is what the paper's formula yields "
        f"({'; '.join(references) or 'no reference given'}); it is no guarantee."
    )
    return table_of(
        claims,
        ("Claim", lambda c: c.label),
        ("ε", lambda c: epsilon(c.epsilon)),
        ("δ", lambda c: upper(c.delta)),
        ("Status", lambda c: Chip(text=c.status, tone=STATUS_TONES[c.status])),
        ("Second opinion", _second_opinion),
        ("Accountant", lambda c: c.accountant),
        *(nominal if is_nominal else ()),
        *(seeded if is_seeded else ()),
        numeric=(1, 2, 6, 7),
        caption=f"{meanings}.{caption if is_nominal else ''}",
    )


def _second_opinion(claim: Certificate) -> str:
    """Return what another method says of a claim."""
    method = claim.second_opinion_method
    if claim.second_opinion is None:
        return method or "–"
    return f"{upper(claim.second_opinion)} ({method})"


def _sampling_warning(card: PrivacyCard) -> Notice | None:
    """Warn where the accountant assumed what did not run."""
    if card.sampling_assumed == card.sampling_actual:
        return None
    return Notice(
        tone=Tone.BLOCK,
        title="Sampling that ran is not what was accounted.",
        text=f"Accounted: {card.sampling_assumed}. Ran: {card.sampling_actual}. "
        "An epsilon holds only for the sampling that it was computed for.",
    )


def _threat_model(card: PrivacyCard) -> Iterator[str]:
    """Say who is defended against, in plain words, and who is not."""
    unit = card.privacy_unit
    finite = {c.notion for c in card.certificates if math.isfinite(c.epsilon)}
    if finite & {Notion.RECORD, Notion.SELECTIVE}:
        yield (
            "Defended against: anyone who holds the weights or may query the model as "
            "often as they like, knows this code and every setting, and even knows all "
            f"training data but the one {unit} they ask about. They do not know the "
            "random numbers that noise and sampling were made of."
        )
    if Notion.LOCAL in finite:
        yield (
            "Defended against: a server that receives the noised hidden states, keeps "
            "all of them, and knows this code and every setting."
        )
    if not finite:
        yield (
            "Defended against: nobody. Whoever holds the weights or may query the "
            "model could learn what it was trained on."
        )
    yield (
        "Not defended against: people with access to the raw data, to the training "
        "machine while it runs, or to the private diagnostics of the trusted "
        "dashboard; timing and other side channels; facts about a person that follow "
        f"from many other people's data; and what one {unit} cannot hide because other "
        f"{unit}s repeat it."
    )


def _run_facts(card: PrivacyCard) -> Facts:
    """Return what was trained, on what, and how units were sampled."""
    noisy = any(0 < c.epsilon < math.inf for c in card.certificates)
    randomness = "secret, from the operating system" if noisy else ""
    if card.fixed_seed:
        randomness = "fixed seed, for tests only"
    return facts(
        ("Recipe", card.recipe_title, card.recipe_reference),
        ("Base model", card.base_model),
        ("Privacy unit", f"one {card.privacy_unit}", "what one neighbor changes"),
        ("Sampling accounted for", card.sampling_assumed),
        ("Sampling that ran", card.sampling_actual),
        ("Losses divided by", card.loss_normalizer) if card.loss_normalizer else None,
        ("Randomness", randomness) if randomness else None,
        ("Model digest", card.model_digest),
    )


def _budget(found: BudgetStatement, *, unit: str) -> Section | None:
    """Say what all runs on the data have cost its units, tuning included."""
    trials = f"{count(found.num_trials)} recorded trial{_plural(found.num_trials)}"
    sweeps = f"{count(found.num_sweeps)} sweep{_plural(found.num_sweeps)}"
    text = (
        f"{trials} of {sweeps} drew on the same data, and the choice of this model's "
        "settings may rest on them: who knows that choice has seen all of them, and "
        "the epsilon of all runs is the one that covers it, unless rate, noise or "
        "steps of a run were chosen for what earlier runs had shown: that is covered "
        "by a budget that was granted as adaptive, and by no other."
        if found.num_trials
        else "No trial of a sweep is recorded on this data. Runs that nobody marked "
        "as trials count among all runs."
    )
    return section(
        "What all runs on this data have cost",
        Prose(paragraphs=(text,)),
        budget_table(found.lines, unit=unit, num_trials=found.num_trials),
    )


def _plural(number_: int) -> str:
    """Return the ending of a counted noun."""
    return "" if number_ == 1 else "s"


def _detection(found: DetectionStatement) -> Section | None:
    """Say what found personal data, and how much it misses."""
    rate: Cell = Chip(text="not measured", tone=Tone.INCONCLUSIVE)
    if found.missing_rate is not None:
        rate = percent(found.missing_rate)
    bounds, source = found.missing_rate_interval, found.missing_rate_source
    notes = [interval(bounds, as_percent=True)] if bounds else []
    notes += [f"by {source}"] if source else []
    return section(
        "Detection of personal data",
        facts(
            (
                "Tier",
                words(found.tier),
                "; ".join(
                    f"turns of role {role}: {words(tier)} only"
                    for role, tier in sorted(found.role_tiers.items())
                ),
            ),
            ("Recognizers", ", ".join(found.recognizers)),
            ("Left unmarked where found", "; ".join(found.taken_back))
            if found.taken_back
            else None,
            (
                "False-negative rate (missing rate)",
                rate,
                "; ".join(notes),
            ),
        ),
    )


def _exposure(found: ExposureStatement) -> Section | None:
    """Return canary exposure beside both controls."""
    group, bounds = "", found.planted_mean_interval
    if found.insertions > 1:
        group = (
            "each copy in a unit of its own, so the guarantee for a canary is that of "
            f"a group of {found.insertions}, which is weaker than that of one unit"
        )
        if found.group_epsilon is not None:
            group += f": ε = {epsilon(found.group_epsilon)}"
    return section(
        "Measured: canaries",
        facts(
            (
                "Mean exposure, planted",
                _bits(found.planted_mean),
                f"{count(found.num_planted)} canaries, {p_value(found.p_value)} "
                "against chance; never-seen canaries have 1.44 bits on average"
                if found.num_planted
                else "no canary was planted",
            ),
            (
                "Interval of that mean",
                f"{between(bounds)} bits",
                "ranks are intervals, and other figures are of their near ends",
            )
            if bounds
            else None,
            (
                "Mean exposure, held-out controls",
                _bits(found.held_out_mean),
                f"{count(found.num_held_out)} canaries that were never planted",
            ),
            ("Mean exposure, base model", _bits(found.base_mean)),
            (
                "Candidates",
                count(found.space_size),
                f"a memorized canary has {number(math.log2(found.space_size))} bits",
            ),
            ("Setting", setting_words(found.setting)),
            ("Insertions of each canary", count(found.insertions), group)
            if found.num_planted
            else None,
        ),
    )


def _bits(mean: float | None) -> str:
    """Return a mean exposure, if there were canaries to measure."""
    return "not measured" if mean is None else f"{number(mean)} bits"


def _membership(found: MembershipStatement) -> Section | None:
    """Return the strongest membership attack beside the blind one."""
    return section(
        "Measured: membership",
        facts(
            (
                "Strongest attack",
                words(found.attack),
                (
                    f"{count(found.num_members)} members, "
                    f"{count(found.num_non_members)} non-members"
                ),
            ),
            (
                f"TPR at {percent(found.low_fpr)} FPR",
                percent(found.tpr),
                (
                    f"{interval(found.tpr_interval, as_percent=True)}; chance is "
                    f"{percent(found.low_fpr)}"
                ),
            ),
            (
                "AUC",
                number(found.auc),
                f"{interval(found.auc_interval)}; chance is 0.5",
            ),
            (
                "Blind attack (no model)",
                f"AUC {number(found.blind_auc)}",
                (
                    f"{percent(found.blind_tpr)} true positives; above chance it "
                    "would say that the test is unfair"
                ),
            ),
            (
                "Shadow models",
                count(found.num_shadows),
                (
                    "trained without protection on halves of the attacked records, for "
                    "the attack alone; outside every epsilon, never stored and never "
                    "released"
                ),
            )
            if found.num_shadows
            else None,
        ),
    )


def _audits(card: PrivacyCard) -> Iterator[Table | Facts]:
    """Return lower bounds of epsilon with what they could have shown, and steps."""
    assumes = ""
    if any(a.assumes_independent_canaries for a in card.audits):
        assumes = " Some bounds hold only if canaries are independent."
    if card.audits:
        yield table_of(
            card.audits,
            ("Audit", lambda a: words(a.method)),
            ("Notion", lambda a: f"{a.notion} ({words(a.relation)})"),
            ("ε at least", lambda a: lower(a.epsilon_lower_bound)),
            ("δ", lambda a: upper(a.delta)),
            ("Confidence", lambda a: percent(at_least(a.confidence))),
            ("Could show", lambda a: lower(a.capacity)),
            ("m", lambda a: count(a.num_canaries)),
            numeric=range(2, 7),
            caption="A lower bound above the certified ε proves a fault. `Could "
            "show` is the largest bound that so many canaries (m) can give."
            + (
                " Some bounds hold only if canaries are independent." if assumes else ""
            ),
        )
    recorded = "recorded while it trained, and run again after"
    if card.step_audits:
        yield facts(
            *(
                (
                    f"Steps of {words(audit.stage)}",
                    "not audited"
                    if not audit.num_checks
                    else f"failed: {', '.join(map(words, audit.failed))}"
                    if audit.failed
                    else f"{count(audit.num_checks)} checks passed",
                    audit.unrecorded or recorded,
                )
                for audit in card.step_audits
            )
        )


def _utility(found: UtilityStatement) -> Facts:
    """Return perplexity, or a classifier's accuracy, before and after."""
    where = f"{found.split} split, {count(found.num_records)} records"
    if found.accuracy is not None:
        bounds = interval(found.accuracy_interval, as_percent=True)
        return facts(
            ("Accuracy", percent(found.accuracy), f"{bounds}; {where}"),
            ("Accuracy of the base model", percent(found.base_accuracy)),
            ("Always the most frequent class", percent(found.majority_accuracy)),
        )
    token, base = found.token_accuracy, found.base_token_accuracy
    known = token is not None and base is not None
    return facts(
        ("Perplexity", number(found.perplexity), where),
        ("Perplexity of the base model", number(found.base_perplexity)),
        ("Next-token accuracy", percent(token)) if known else None,
        ("Next-token accuracy of the base", percent(base)) if known else None,
    )


def _gate(found: GateStatement | None, *, override: str) -> Section | None:
    """Return what the gate said, or that it had not spoken."""
    if found is None:
        return section(
            "Gate",
            Notice(
                text="The gate had not decided when this card was written. Until "
                "it has, this version must not be promoted."
            ),
        )
    past = f"Promoted past the gate by hand. Reason given: {override}"
    return section(
        "Gate",
        Notice(text=past) if override else None,
        facts(
            ("Outcome", verdict_chip(found.outcome)),
            ("Policy", found.policy),
            ("Decision hash", found.decision_hash),
            ("Files", found.manifest_digest or "not listed"),
            ("Attempts", found.attempts) if found.attempts else None,
        ),
    )
