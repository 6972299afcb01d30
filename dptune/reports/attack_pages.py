"""Blocks for what attacks found: exposure, membership, extraction."""

import math
from collections.abc import Iterator, Sequence

from dptune.gates.null_law import fisher_p_value
from dptune.reports.blocks import Block, Notice, Page, Plot, Section, Tone, facts, table
from dptune.reports.evidence import exposure_means
from dptune.reports.formatting import (
    count,
    interval,
    number,
    p_value,
    share,
    short_digest,
    words,
)
from dptune.reports.plots import exposure_plot, roc_plot
from dptune.results import (
    CanaryExposure,
    ExposureReport,
    MembershipReport,
    MembershipSignal,
    RateAtFpr,
)

OUTSIDE_EPSILON = (
    "These figures come from the private model and private records, and are not "
    "covered by epsilon. Share them as you would share the data."
)


EXPOSURE_CAPTION = (
    "Each mark is one canary: a random secret. Exposure is log2 of all candidates "
    "minus log2 of the canary's rank. The grey band [0.04, 5.32] holds 95 % of "
    "canaries that no model ever saw (mean 1.44, dashed); a mark in the band is no "
    "evidence of memory. Held-out canaries and the base model never saw the secrets: "
    "they show what chance looks like here."
)


ROC_CAPTION = (
    "Both axes are logarithmic, because harm is at the left: few false alarms. On the "
    "dotted line an attack does no better than chance. The blind attack sees no model; "
    "if it beats chance, members and non-members differ in themselves and the test is "
    "invalid."
)


def exposure_page(report: ExposureReport) -> Page:
    """Describe canary exposures beside both controls."""
    if report.not_measurable:
        return Page(
            kicker="Attack: canary exposure",
            title="Not measured",
            lede=report.not_measurable,
            sections=(),
        )
    return Page(
        kicker="Attack: canary exposure",
        title="Does the model know the planted secrets?",
        lede=OUTSIDE_EPSILON,
        sections=(
            Section(title="Exposure", blocks=exposure_blocks(report)),
            Section(title="Test", blocks=(_exposure_facts(report),)),
            Section(title="Every canary", blocks=(_canary_table(report),)),
        ),
    )


def exposure_blocks(report: ExposureReport) -> tuple[Block, ...]:
    """Return the verdict in words, the means and the figure."""
    means = exposure_means(report)
    return (
        *_planted_count(report),
        table(
            ("Group", "Canaries", "Mean exposure (bits)"),
            (
                (
                    "Planted, this model",
                    count(means.num_planted),
                    number(means.planted),
                ),
                (
                    "Held out, this model",
                    count(len(report.held_out())),
                    number(means.held_out),
                ),
                (
                    "Planted, base model",
                    count(len(report.base_planted())),
                    number(means.base),
                ),
            ),
            numeric=(1, 2),
            caption=f"Planted canaries against chance: {p_value(means.p_value)} "
            "(Fisher over canaries, assumes that they are independent).",
        ),
        Plot(svg=exposure_plot(report), caption=EXPOSURE_CAPTION),
    )


def membership_page(report: MembershipReport) -> Page:
    """Describe all membership attacks and the blind baseline."""
    return Page(
        kicker="Attack: membership inference",
        title="Can a member of the training data be told apart?",
        lede=OUTSIDE_EPSILON,
        sections=(
            Section(title="Attacks", blocks=membership_blocks(report)),
            Section(
                title="Test",
                blocks=(
                    facts(
                        ("Members", count(report.num_members)),
                        ("Non-members", count(report.num_non_members)),
                        ("Model", short_digest(report.model_digest)),
                        ("Base model", short_digest(report.base_model_digest)),
                        *_shadow_facts(report),
                    ),
                ),
            ),
        ),
    )


def _shadow_facts(report: MembershipReport) -> tuple[tuple[str, str], ...]:
    """Count shadow models, where there were any."""
    if report.shadows is None:
        return ()
    found = report.shadows
    text = f"{count(found.num_models)}, {count(found.num_records)} records each"
    return (("Shadow models (outside epsilon)", text),)


def membership_blocks(report: MembershipReport) -> tuple[Block, ...]:
    """Return the table of attacks and the ROC figure."""
    best = report.strongest()
    signals = sorted(report.signals, key=lambda s: (-s.tpr_at_low_fpr, -s.auc, s.name))
    return (
        table(
            (
                "Attack",
                "AUC",
                "AUC interval",
                f"TPR at {share(best.low_fpr)} FPR",
                "TPR interval",
            ),
            (
                *(_signal_row(s, words(s.name)) for s in signals),
                _signal_row(report.blind, f"{words(report.blind.name)} (blind)"),
            ),
            numeric=(1, 3),
            caption="Strongest first. AUC 0.5 is chance.",
        ),
        *_more_rates(signals),
        Plot(svg=roc_plot(report), caption=ROC_CAPTION),
    )


def setting_words(setting: str) -> str:
    """Say what was done to the canaries' spans."""
    meanings = {
        "as_detected": "as detected: the detector decided whether a canary was masked",
        "missed": "missed: the canaries' spans were taken away, as if the detector had "
        "overlooked them",
        "not_missed": "not missed: the canaries' spans were forced, as if the detector "
        "had found them all",
        "partly_missed": "partly missed: the spans of some canaries were forced, those "
        "of the others taken away, as if the detector had overlooked them",
    }
    return meanings.get(setting, words(setting))


def _planted_count(report: ExposureReport) -> tuple[Notice, ...]:
    """Warn where the canaries in the training data are not those that were planned."""
    if report.planted_found == report.planted_expected:
        return ()
    return (
        Notice(
            tone=Tone.INVALID,
            title="Planted canaries do not match the plan.",
            text=f"{count(report.planted_found)} insertions were found in the corpus, "
            f"{count(report.planted_expected)} were planned. Exposure of a canary that "
            "was never trained on says nothing.",
        ),
    )


def _exposure_facts(report: ExposureReport) -> Block:
    """Return how exposure was measured."""
    insertions = sorted({c.insertions for c in report.planted()})
    return facts(
        (
            "Candidates",
            count(report.space_size),
            f"at most {number(math.log2(report.space_size))} bits",
        ),
        ("Rank", "exact" if report.exact else "estimated"),
        (
            "Scoring",
            f"{report.scoring} of losses",
            report.scored or "tokens that overlap the secret",
        ),
        ("Ties", report.ties or "the canary comes first"),
        ("Setting", setting_words(report.setting)),
        *_by_mark(report),
        ("Insertions of each canary", ", ".join(map(count, insertions)) or "none"),
        (
            "Insertions found in the corpus",
            f"{count(report.planted_found)} of {count(report.planted_expected)}",
        ),
        (
            "Canaries trained on, the whole secret of each copy",
            f"{count(len(report.trained()))} of {count(len(report.planted()))}",
        ),
        ("Token forwards", count(report.num_token_forwards)),
        ("Canary set", short_digest(report.canary_set_digest)),
        ("Model", short_digest(report.model_digest)),
        ("Base model", short_digest(report.base_model_digest)),
    )


def _by_mark(report: ExposureReport) -> Iterator[tuple[str, str, str]]:
    """Tell marked canaries from missed ones, where there are both."""
    groups = [
        [c for c in report.planted() if c.marked is mark] for mark in (True, False)
    ]
    if not all(groups):
        return
    for name, found in zip(("marked", "missed"), groups, strict=True):
        mean = sum(c.exposure for c in found) / len(found)
        p = fisher_p_value([c.rank for c in found], report.space_size)
        yield (
            f"Mean exposure, {name} canaries",
            f"{number(mean)} bits",
            f"{count(len(found))} planted, against chance {p_value(p)}",
        )


def _canary_table(report: ExposureReport) -> Block:
    """List canaries by public name, most exposed first."""
    base = {c.canary_id: c.exposure for c in report.base_canaries}
    ordered: Sequence[CanaryExposure] = sorted(
        report.canaries, key=lambda c: (not c.planted, c.rank, c.canary_id)
    )
    return table(
        ("Canary", "Kind", "Insertions", "Rank", "Exposure (bits)", "Base (bits)"),
        (
            (
                c.canary_id,
                "planted" if c.planted else "held out",
                count(c.insertions),
                count(c.rank),
                number(c.exposure),
                number(base.get(c.canary_id)),
            )
            for c in ordered
        ),
        numeric=(2, 3, 4, 5),
        caption="Secrets are never shown.",
    )


def _more_rates(signals: Sequence[MembershipSignal]) -> tuple[Block, ...]:
    """Return true positives at further rates, and say where they are not resolvable."""
    rates = signals[0].rates if signals else ()
    if not rates:
        return ()
    unresolved = [r for r in rates if not r.resolvable]
    caption = " ".join(
        f"{share(r.fpr)} takes {count(r.needed)} non-members." for r in unresolved
    )
    return (
        table(
            ("Attack", *(f"TPR at {share(r.fpr)} FPR" for r in rates)),
            ((words(s.name), *map(_rate_cell, s.rates)) for s in signals),
            caption=f"Not resolvable is no zero: {caption}" if unresolved else "",
        ),
    )


def _rate_cell(rate: RateAtFpr) -> str:
    """Return a rate with its interval."""
    if rate.tpr is None:
        return "not resolvable"
    return f"{share(rate.tpr)}, {interval(rate.interval, as_share=True)}"


def _signal_row(signal: MembershipSignal, name: str) -> tuple[str, ...]:
    """Return one attack's row."""
    return (
        name,
        number(signal.auc),
        interval(signal.auc_interval),
        share(signal.tpr_at_low_fpr),
        interval(signal.tpr_at_low_fpr_interval, as_share=True),
    )
