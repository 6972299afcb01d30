"""Runs side by side in plain rows, for the terminal's table and the comparison page."""

import math
from collections.abc import Sequence
from typing import Self

from dptune.accounting.certificates import Certificate
from dptune.gates.decision import GateDecision
from dptune.reports.card_page import epsilon_text
from dptune.reports.evidence import exposure_means
from dptune.reports.formatting import (
    MISSING,
    epsilon,
    interval,
    number,
    p_value,
    sentence_case,
    share,
)
from dptune.reports.formatting import words as as_words
from dptune.reports.statements import PrivacyCard
from dptune.results import ExposureReport, MembershipReport, Report

UNDECIDED = "NOT DECIDED"


class RunSummary(Report):
    """One run of a comparison.

    Args:
        title: short name, unique among the runs that are compared.
        model_version: as registered.
        recipe: title of the recipe.
        perplexity: on the test split; None where it was not measured.
        base_perplexity: of the model before fine-tuning.
        accuracy: of a classifier on the test split.
        base_accuracy: of the classifier before fine-tuning.
        exposure, membership: attack reports, if the attacks ran.
        decision: what the gate said, if it did.
        card: has the certificates; without it no epsilon is shown.
    """

    title: str
    model_version: str
    recipe: str
    perplexity: float | None = None
    base_perplexity: float | None = None
    accuracy: float | None = None
    base_accuracy: float | None = None
    exposure: ExposureReport | None = None
    membership: MembershipReport | None = None
    decision: GateDecision | None = None
    card: PrivacyCard | None = None

    @property
    def outcome(self: Self) -> str:
        """The gate's outcome, `NOT DECIDED` where there is none."""
        return self.decision.outcome.value if self.decision else UNDECIDED

    @property
    def certificates(self: Self) -> tuple[Certificate, ...]:
        """The claims on the card."""
        return self.card.certificates if self.card else ()

    @property
    def epsilon_texts(self: Self) -> tuple[tuple[str, str], ...]:
        """Label and text of every claim, such as `ε = 8 at δ = 10⁻⁵, certified`."""
        return tuple((c.label, epsilon_text(c)) for c in self.certificates)


class SummaryRow(Report):
    """One measure over all runs.

    Args:
        group: heading that it stands under.
        metric: name, with its unit.
        values: one text for each run, in order.
    """

    group: str
    metric: str
    values: tuple[str, ...]


def summary_rows(runs: Sequence[RunSummary]) -> list[SummaryRow]:
    """Return every measure over all runs; a dash where a run has none.

    Rows that no run has are left out.
    """
    rows = [
        *_row("Gate", {"Outcome": [run.outcome for run in runs]}),
        *_row("Utility", _utility(runs)),
        *_row("Canary exposure (bits)", _exposure(runs)),
        *_row("Membership inference", _membership(runs)),
        *_row("Certified epsilon", _certified(runs)),
        *_row("Nominal epsilon: the paper's formula, no guarantee", _nominal(runs)),
    ]
    return [row for row in rows if set(row.values) != {MISSING}]


def _row(group: str, metrics: dict[str, list[str]]) -> list[SummaryRow]:
    """Return the rows of one group."""
    return [
        SummaryRow(group=group, metric=metric, values=tuple(values))
        for metric, values in metrics.items()
    ]


def _utility(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return perplexities, and accuracies of classifiers."""
    return {
        "Test accuracy": [share(run.accuracy) for run in runs],
        "Accuracy of the base model": [share(run.base_accuracy) for run in runs],
        "Test perplexity": [number(run.perplexity) for run in runs],
        "Base model": [number(run.base_perplexity) for run in runs],
    }


def _exposure(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return means of the three groups, and what canaries were."""
    means = [exposure_means(run.exposure) if run.exposure else None for run in runs]
    return {
        "Mean, planted": [number(m.planted) if m else MISSING for m in means],
        "Mean, held out": [number(m.held_out) if m else MISSING for m in means],
        "Mean, base model": [number(m.base) if m else MISSING for m in means],
        "Planted against chance": [p_value(m.p_value) if m else MISSING for m in means],
        "Canaries": [_canaries(run.exposure) for run in runs],
    }


def _canaries(report: ExposureReport | None) -> str:
    """Return number, copies and setting of the planted canaries."""
    if report is None:
        return MISSING
    planted = report.planted()
    copies = max((c.insertions for c in planted), default=0)
    return f"{len(planted)} × {copies} copies, {as_words(report.setting)}"


def _membership(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return the strongest attack beside the blind one."""
    found = [run.membership for run in runs]
    best = [report.strongest() if report else None for report in found]
    rates = {signal.low_fpr for signal in best if signal}
    at = share(min(rates)) if len(rates) == 1 else "a low"
    return {
        f"TPR at {at} FPR": [share(s.tpr_at_low_fpr) if s else MISSING for s in best],
        "TPR interval": [
            interval(s.tpr_at_low_fpr_interval, as_share=True) if s else MISSING
            for s in best
        ],
        f"Blind TPR at {at} FPR": [
            share(r.blind.tpr_at_low_fpr) if r else MISSING for r in found
        ],
        "Strongest attack": [as_words(s.name) if s else MISSING for s in best],
        "AUC": [number(s.auc) if s else MISSING for s in best],
        "Blind AUC": [number(r.blind.auc) if r else MISSING for r in found],
    }


def _certified(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return one row for each claim that some run has."""
    labels = dict.fromkeys(c.label for run in runs for c in run.certificates)
    return {
        sentence_case(label): [
            dict(run.epsilon_texts).get(label, MISSING) for run in runs
        ]
        for label in labels
    }


def _nominal(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return what the papers would have claimed."""
    found = [
        [c.nominal_epsilon for c in run.certificates if c.nominal_epsilon is not None]
        for run in runs
    ]
    return {"Nominal ε": [epsilon(max(n)) if n else MISSING for n in found]}


def shared_claim(runs: Sequence[RunSummary]) -> str | None:
    """Return the label of the claim that is finite in most runs, None if none is."""
    labels = [
        certificate.label
        for run in runs
        for certificate in run.certificates
        if math.isfinite(certificate.epsilon)
    ]
    return max(dict.fromkeys(labels), key=labels.count, default=None)
