"""The comparison page: runs side by side in one file that needs nothing else."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dptune.errors import ConfigError
from dptune.reports.attack_pages import EXPOSURE_CAPTION, OUTSIDE_EPSILON, ROC_CAPTION
from dptune.reports.blocks import (
    Block,
    Bullets,
    Chip,
    Page,
    Plot,
    Plots,
    Prose,
    Section,
    Table,
    verdict_chip,
)
from dptune.reports.card_page import card_page
from dptune.reports.comparison import (
    RunSummary,
    SummaryRow,
    shared_claim,
    summary_rows,
)
from dptune.reports.evidence import exposure_means
from dptune.reports.formatting import number, p_value, sentence_case, share
from dptune.reports.gate_page import (
    change_bullets,
    criteria_table,
    headline_reason,
)
from dptune.reports.plots import (
    ComparisonPoint,
    comparison_plot,
    exposure_plot,
    roc_plot,
)
from dptune.reports.render import environment

__all__ = ["RunSummary", "SummaryRow", "comparison_page", "summary_rows"]


@dataclass(frozen=True, kw_only=True)
class _Figure:
    """One figure of a headline: a label, a value and a remark."""

    label: str
    value: str
    note: str = ""
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class _Headline:
    """What a run comes to, at the top of the page."""

    title: str
    subtitle: str
    chip: Chip
    reason: str
    figures: tuple[_Figure, ...]


def comparison_page(
    title: str, runs: Sequence[RunSummary], *, intro: str, next_steps: Sequence[str]
) -> str:
    """Return one self-contained HTML document that puts runs side by side.

    Privacy: shows attack and utility figures, which are outside epsilon, and no
    training losses, record text or secrets.

    Args:
        title: heading of the page.
        runs: at least one, with unique titles.
        intro: one or two sentences: what was compared, on which data.
        next_steps: one sentence in the imperative each; may be empty.

    Raises:
        ConfigError: there are no runs, or two have one title.
    """
    titles = [run.title for run in runs]
    if not titles or len(set(titles)) < len(titles):
        raise ConfigError(
            f"runs must be at least one, with unique titles, got {len(titles)} runs "
            f"and {len(set(titles))} titles. Give each run a title of its own."
        )
    template = environment().get_template("comparison.html.j2")
    return template.render(
        title=title,
        intro=intro,
        headlines=[_headline(run) for run in runs],
        comparison=_comparison_table(runs),
        sections=[s for s in _sections(runs) if s.blocks],
        gates=[_gate_fold(run) for run in runs if run.decision],
        cards=[_card_fold(run) for run in runs if run.card],
        next_steps=Bullets(items=tuple(next_steps), ordered=True),
    )


def _headline(run: RunSummary) -> _Headline:
    """Return what one run comes to."""
    return _Headline(
        title=run.title,
        subtitle=f"{run.recipe} · version {run.model_version}",
        chip=verdict_chip(run.outcome),
        reason=headline_reason(run.decision)
        if run.decision
        else "The gate has not decided on this version.",
        figures=_figures(run),
    )


def _figures(run: RunSummary) -> tuple[_Figure, ...]:
    """Return perplexity, exposure, membership and every claim of one run."""
    figures = []
    if run.perplexity is not None:
        note = f"base model {number(run.base_perplexity)}"
        figures.append(
            _Figure(
                label="Test perplexity",
                value=number(run.perplexity),
                note=note if run.base_perplexity is not None else "",
            )
        )
    if run.accuracy is not None:
        figures.append(
            _Figure(
                label="Test accuracy",
                value=share(run.accuracy),
                note=f"base model {share(run.base_accuracy)}",
            )
        )
    if run.exposure:
        means = exposure_means(run.exposure)
        figures.append(
            _Figure(
                label="Mean exposure",
                value=f"{number(means.planted)} bits",
                note=f"held out {number(means.held_out)}\n{p_value(means.p_value)}",
            )
        )
    if run.membership:
        best = run.membership.strongest()
        figures.append(
            _Figure(
                label=f"Members found at {share(best.low_fpr)} false alarms",
                value=share(best.tpr_at_low_fpr),
                note=f"blind {share(run.membership.blind.tpr_at_low_fpr)}",
            )
        )
    figures += [
        _Figure(label=sentence_case(label), value=text, wide=True)
        for label, text in run.epsilon_texts
    ]
    return tuple(figures)


def _comparison_table(runs: Sequence[RunSummary]) -> Table:
    """Return all measures as one table with groups."""
    rows = summary_rows(runs)
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row.group] = sizes.get(row.group, 0) + 1
    return Table(
        columns=("Measure", *(run.title for run in runs)),
        rows=tuple(
            (
                row.metric,
                *(verdict_chip(v) if row.group == "Gate" else v for v in row.values),
            )
            for row in rows
        ),
        groups=tuple(sizes.items()),
        caption="Epsilons of different claims must not be compared with each other. "
        f"Utility and attacks: {OUTSIDE_EPSILON[0].lower()}{OUTSIDE_EPSILON[1:]}",
    )


def _sections(runs: Sequence[RunSummary]) -> tuple[Section, ...]:
    """Return all sections with figures; those without any are dropped."""
    exposures = [(run.title, run.exposure) for run in runs if run.exposure]
    memberships = [(run.title, run.membership) for run in runs if run.membership]
    return (
        Section(title="What privacy costs", blocks=_trade_off(runs)),
        Section(
            title="Does the model know the planted secrets?",
            blocks=_plots(
                [Plot(svg=exposure_plot(r, title=t), title=t) for t, r in exposures],
                EXPOSURE_CAPTION,
            ),
        ),
        Section(
            title="Can a member of the training data be told apart?",
            blocks=_plots(
                [Plot(svg=roc_plot(r, title=t), title=t) for t, r in memberships],
                ROC_CAPTION,
            ),
        ),
    )


def _plots(items: list[Plot], caption: str) -> tuple[Block, ...]:
    """Return figures side by side above one caption; nothing for no figures."""
    if not items:
        return ()
    return (Prose(paragraphs=(caption,)), Plots(items=tuple(items)))


def _trade_off(runs: Sequence[RunSummary]) -> tuple[Block, ...]:
    """Return perplexity against exposure, and against the first finite claim."""
    measured = [r for r in runs if math.isfinite(r.perplexity or math.nan)]
    base = next((r.base_perplexity for r in measured if r.base_perplexity), None)
    plots = []
    exposed = [_exposure_point(run) for run in measured if run.exposure]
    if exposed:
        plots.append(
            Plot(
                svg=comparison_plot(exposed, base_perplexity=base),
                title="What each run leaks",
                caption="Lower left is better. Filled marks passed the gate. In the "
                "grey band exposure is what chance gives.",
            )
        )
    label = shared_claim(measured)
    claimed = [p for run in measured for p in _claim_points(run, label)]
    if label and claimed:
        plots.append(
            Plot(
                svg=comparison_plot(
                    claimed,
                    x_label=f"certified ε, {label}",
                    base_perplexity=base,
                    null_band=False,
                ),
                title="What each run promises",
                caption=f"{sentence_case(label)}. Runs past the dotted line have no "
                "guarantee of this kind. Delta and status are in the table.",
            )
        )
    return (Plots(items=tuple(plots)),) if plots else ()


def _exposure_point(run: RunSummary) -> ComparisonPoint:
    """Place a run by the mean exposure of its planted canaries."""
    mean = exposure_means(run.exposure).planted if run.exposure else None
    return ComparisonPoint(
        label=run.title,
        x=mean or 0.0,
        perplexity=run.perplexity or math.nan,
        passed=run.outcome == "PASS",
    )


def _claim_points(run: RunSummary, label: str | None) -> list[ComparisonPoint]:
    """Place a run by its epsilon of one claim, if it makes that claim."""
    return [
        ComparisonPoint(
            label=run.title,
            x=certificate.epsilon,
            perplexity=run.perplexity or math.nan,
            passed=run.outcome == "PASS",
        )
        for certificate in run.certificates
        if certificate.label == label
    ]


def _gate_fold(run: RunSummary) -> Page:
    """Return one run's criteria, to be folded."""
    if run.decision is None:
        return Page(title=run.title)
    blocks: tuple[Block, ...] = (criteria_table(run.decision),)
    steps = change_bullets(run.decision)
    extra = [Section(title="What would change it", blocks=steps)] if steps else []
    total = len(run.decision.criteria)
    return Page(
        title=run.title,
        kicker=f"{len(run.decision.failed())} of {total} criteria not met",
        chip=verdict_chip(run.outcome),
        sections=(Section(title="Criteria", blocks=blocks), *extra),
    )


def _card_fold(run: RunSummary) -> Page:
    """Return one run's privacy card, to be folded."""
    if run.card is None:
        return Page(title=run.title)
    page = card_page(run.card)
    return replace(page, title=f"{run.title}: {page.title}", kicker="")
