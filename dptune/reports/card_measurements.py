"""Blocks for what a privacy card says was measured, each beside what chance gives."""

import math

from dptune.reports.attack_pages import setting_words
from dptune.reports.blocks import Block, Chip, Section, Tone, facts, table
from dptune.reports.formatting import (
    count,
    epsilon,
    interval,
    number,
    p_value,
    share,
    words,
)
from dptune.reports.statements import (
    DetectionStatement,
    ExposureStatement,
    MembershipStatement,
    PrivacyCard,
    UtilityStatement,
)


def detection_section(found: DetectionStatement | None) -> Section | None:
    """Say what found personal data, and how much it misses."""
    if found is None:
        return None
    rate = (
        share(found.missing_rate)
        if found.missing_rate is not None
        else Chip(text="not measured", tone=Tone.INCONCLUSIVE)
    )
    note = "; ".join(
        text
        for text in (
            interval(found.missing_rate_interval, as_share=True)
            if found.missing_rate_interval
            else "",
            f"measured on {found.missing_rate_source}"
            if found.missing_rate_source
            else "",
        )
        if text
    )
    return Section(
        title="Detection of personal data",
        blocks=(
            facts(
                ("Tier", words(found.tier)),
                ("Recognizers", ", ".join(found.recognizers)),
                ("Missing rate", rate, note),
            ),
        ),
    )


def exposure_section(found: ExposureStatement | None) -> Section | None:
    """Return canary exposure beside both controls."""
    if found is None:
        return None
    return Section(
        title="Measured: canaries",
        blocks=(
            facts(
                (
                    "Mean exposure, planted",
                    f"{number(found.planted_mean)} bits",
                    (
                        f"{count(found.num_planted)} canaries, "
                        f"{p_value(found.p_value)} against chance; never-seen canaries "
                        "have 1.44 bits on average"
                    ),
                ),
                (
                    "Mean exposure, held-out controls",
                    f"{number(found.held_out_mean)} bits",
                    f"{count(found.num_held_out)} canaries that were never planted",
                ),
                ("Mean exposure, base model", f"{number(found.base_mean)} bits"),
                (
                    "Candidates",
                    count(found.space_size),
                    (
                        f"a memorized canary has {number(math.log2(found.space_size))} "
                        "bits"
                    ),
                ),
                ("Setting", setting_words(found.setting)),
                ("Insertions of each canary", count(found.insertions), _group(found)),
            ),
        ),
    )


def _group(found: ExposureStatement) -> str:
    """Say what guarantee a canary in several units has."""
    if found.insertions <= 1:
        return ""
    text = (
        f"each copy in a unit of its own, so the guarantee for a canary is that of a "
        f"group of {found.insertions}, which is weaker than that of one unit"
    )
    if found.group_epsilon is None:
        return text
    return f"{text}: ε = {epsilon(found.group_epsilon)}"


def _shadows(found: MembershipStatement) -> tuple[tuple[str, str, str], ...]:
    """Say what shadow models are, where there were any."""
    if not found.num_shadows:
        return ()
    note = (
        "trained without protection on halves of the attacked records, for the attack "
        "alone; outside every epsilon, never stored and never released"
    )
    return (("Shadow models", count(found.num_shadows), note),)


def membership_section(found: MembershipStatement | None) -> Section | None:
    """Return the strongest membership attack beside the blind one."""
    if found is None:
        return None
    return Section(
        title="Measured: membership",
        blocks=(
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
                    f"True positives at {share(found.low_fpr)} false positives",
                    share(found.tpr),
                    (
                        f"{interval(found.tpr_interval, as_share=True)}; chance is "
                        f"{share(found.low_fpr)}"
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
                        f"{share(found.blind_tpr)} true positives; above chance it "
                        "would say that the test is unfair"
                    ),
                ),
                *_shadows(found),
            ),
        ),
    )


def audit_section(card: PrivacyCard) -> Section | None:
    """Return lower bounds of epsilon with what they could have shown."""
    if not card.audits and not card.step_audits:
        return None
    return Section(
        title="Measured: audits",
        blocks=(
            *([_lower_bounds(card)] if card.audits else []),
            *([_of_steps(card)] if card.step_audits else []),
        ),
    )


def _of_steps(card: PrivacyCard) -> Block:
    """Say of every stage with noise whether its steps were looked at."""
    return facts(
        *(
            (
                f"Steps of {words(audit.stage)}",
                "not audited"
                if not audit.num_checks
                else f"failed: {', '.join(map(words, audit.failed))}"
                if audit.failed
                else f"{count(audit.num_checks)} checks passed",
                audit.unrecorded or "recorded while it trained, and run again after",
            )
            for audit in card.step_audits
        )
    )


def _lower_bounds(card: PrivacyCard) -> Block:
    """Lower bounds of epsilon from canaries."""
    return table(
        ("Audit", "Notion", "ε at least", "δ", "Confidence", "Could show", "m"),
        (
            (
                words(a.method),
                f"{a.notion} ({words(a.relation)})",
                number(a.epsilon_lower_bound),
                number(a.delta),
                share(a.confidence),
                number(a.capacity),
                count(a.num_canaries),
            )
            for a in card.audits
        ),
        numeric=range(2, 7),
        caption="A lower bound above the certified ε proves a fault. `Could "
        "show` is the largest bound that so many canaries (m) can give."
        + (
            " Some bounds hold only if canaries are independent."
            if any(a.assumes_independent_canaries for a in card.audits)
            else ""
        ),
    )


def utility_section(card: PrivacyCard) -> Section | None:
    """Return perplexity, or a classifier's accuracy, before and after."""
    found = card.utility
    if found is None:
        return None
    if found.accuracy is not None:
        return Section(title="Measured: utility", blocks=(_accuracy(found),))
    return Section(
        title="Measured: utility",
        blocks=(
            facts(
                (
                    "Perplexity",
                    number(found.perplexity),
                    f"{found.split} split, {count(found.num_records)} records",
                ),
                ("Perplexity of the base model", number(found.base_perplexity)),
                *_token_accuracy(found),
            ),
        ),
    )


def _token_accuracy(found: UtilityStatement) -> tuple[tuple[str, str], ...]:
    """Return how often the next token is the model's first choice, if measured."""
    if found.token_accuracy is None or found.base_token_accuracy is None:
        return ()
    return (
        ("Next-token accuracy", share(found.token_accuracy)),
        ("Next-token accuracy of the base", share(found.base_token_accuracy)),
    )


def _accuracy(found: UtilityStatement) -> Block:
    """Return accuracy beside what a constant answer reaches."""
    return facts(
        (
            "Accuracy",
            share(found.accuracy),
            (
                f"{interval(found.accuracy_interval, as_share=True)}; {found.split} "
                f"split, {count(found.num_records)} records"
            ),
        ),
        ("Accuracy of the base model", share(found.base_accuracy)),
        ("Always the most frequent class", share(found.majority_accuracy)),
    )
