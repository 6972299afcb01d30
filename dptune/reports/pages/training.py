"""Pages of training and testing: a stage, its controller, its checkpoints, utility."""

from collections.abc import Mapping, Sequence

from dptune.reports.blocks import (
    Facts,
    Notice,
    Page,
    Plot,
    Section,
    Tone,
    facts,
    page,
    section,
    side_by_side,
    table,
)
from dptune.reports.figures.attacks import exposure_curves
from dptune.reports.figures.runs import clip_plot, loss_plot, sigma_plot
from dptune.reports.formatting import (
    count,
    duration,
    interval,
    number,
    percent,
    sentence_case,
    short_digest,
    words,
)
from dptune.reports.pages.attacks import OUTSIDE_EPSILON
from dptune.results import (
    ControllerReport,
    CutTurns,
    StageReport,
    TracePoint,
    UtilityReport,
)

PRIVATE_HEADING = "Private diagnostics: trusted dashboard only"
_REWARDS = {
    "public_text": "the loss on public text",
    "released": "a median of losses that was released under the noise",
    "private_batch": "the loss of private batches, as it was",
}
_TOKENS = (
    ("Sensitive tokens", "sensitive_perplexity"),
    ("Other tokens", "ordinary_perplexity"),
)
"""Titles of the two figures of checkpoints, and what of a point they draw."""
_CHECKPOINT = (
    ("Accuracy", "accuracy"),
    ("Perplexity", "perplexity"),
    *_TOKENS,
    ("Exposure, planted", "exposure"),
    ("held out", "held_out_exposure"),
)


def stage_page(report: StageReport) -> Page:
    """Describe one training stage; what is private has a heading of its own."""
    resumed, again = report.resumed_from_step, "steps run again were charged again"
    losses = Plot(svg=loss_plot(report), caption="Loss of the training batches.")
    return page(
        section(
            "How it went",
            facts(
                ("Recipe", report.recipe),
                ("Steps", count(report.num_steps)),
                None
                if resumed is None
                else ("Resumed from step", count(resumed), again),
            ),
            fixed_seed_notice() if report.fixed_seed else None,
        ),
        controller_section(report.controller) if report.controller else None,
        _checkpoints(report.trace) if report.trace else None,
        section(
            PRIVATE_HEADING,
            Notice(
                tone=Tone.INCONCLUSIVE,
                title="Not covered by epsilon.",
                text="Losses, tokens and times come from private batches without "
                "noise. They stay inside the trust boundary and are on no card, tag or "
                "registry entry.",
            ),
            facts(
                ("Tokens", count(report.num_tokens)),
                ("Time", duration(report.seconds)),
                ("Speed", f"{number(report.tokens_per_second)} tokens per second"),
                *(_cut(turns) for turns in report.cut),
            ),
            losses if report.curve else None,
        ),
        label="Training stage",
        title=sentence_case(words(report.stage)),
    )


def _cut(turns: CutTurns) -> tuple[str, str, str]:
    """Say what the longest sequence left of a role's turns."""
    left = "" if turns.num_cut else "all whole"
    lost = f"{count(turns.num_cut)} cut at model.max_tokens, of which "
    return (
        f"Turns of {turns.role}",
        count(turns.num_turns),
        left or f"{lost}{count(turns.num_lost)} lost as a whole",
    )


def fixed_seed_notice() -> Notice:
    """Return the warning about a known seed."""
    return Notice(
        tone=Tone.BLOCK,
        title="Fixed seed.",
        text="Noise and sampling came from a known seed, so anyone can subtract the "
        "noise. No epsilon on this page holds against a reader who knows the seed. "
        "Use runs like this for tests only.",
    )


def controller_section(
    report: ControllerReport, *, outside: bool = False
) -> Section | None:
    """Describe a controller; its traces are released values, unless it read raw ones.

    Args:
        report: of one stage.
        outside: for readers outside the trust boundary: no traces of a raw run.
    """
    is_raw = report.rewards_from == "private_batch"
    raw = Notice(
        tone=Tone.BLOCK,
        title="No guarantee.",
        text="The controller read private batches without noise, as its paper has it. "
        "Clip norms and noise follow from them.",
    )
    shown = bool(report.trace) and not (outside and is_raw)
    return section(
        f"Controller of stage {report.stage}",
        facts(
            ("Actions after the warm-up", count(report.num_actions)),
            ("Warm-up", f"{count(report.warmup_steps)} steps"),
            ("Between two actions", f"{count(report.interval)} steps"),
            ("Clip norms", f"{count(len(report.pairs))}, one for each LoRA pair"),
            ("Rewards come from", _REWARDS[report.rewards_from]),
            ("Noise it started at", number(report.start_noise), "stddev over C"),
        ),
        raw if is_raw else None,
        Plot(svg=clip_plot(report), caption="Clip norms that the controller named.")
        if shown
        else None,
        Plot(
            svg=sigma_plot(report),
            caption="Noise that was granted and spent. A fixed schedule was charged "
            "whole before the first step: its order costs nothing.",
        )
        if shown
        else None,
    )


def exposure_plots(traces: Mapping[str, Sequence[TracePoint]]) -> tuple[Plot, ...]:
    """Draw exposure against the perplexity of either kind of token.

    Args:
        traces: points of each training, by its name.
    """
    plots = []
    for title, key in _TOKENS:
        curves = {
            name: [
                (getattr(point, key), point.exposure)
                for point in points
                if getattr(point, key) is not None and point.exposure is not None
            ]
            for name, points in traces.items()
        }
        known = {name: curve for name, curve in curves.items() if curve}
        if known:
            plots.append(
                Plot(
                    svg=exposure_curves(known, title=title),
                    title=f"Exposure against perplexity: {title.lower()}",
                    caption="One mark per checkpoint, the last one larger. Lower left "
                    "is better. ATDP (figure 2) draws the perplexities alone.",
                )
            )
    return tuple(plots)


def utility_page(report: UtilityReport) -> Page:
    """Describe held-out loss in totals; per-record values stay in the artifact.

    A classifier's accuracy stands beside what takes no training to reach.
    """
    classifies = report.accuracy is not None
    measure, heading = (
        ("Accuracy", "Held-out records")
        if classifies
        else ("Perplexity", "Held-out loss")
    )
    return page(
        section(heading, _utility_facts(report, classifies=classifies)),
        label="Utility",
        title=f"{measure} on the {report.split} split",
        subtitle=OUTSIDE_EPSILON,
    )


def _utility_facts(report: UtilityReport, *, classifies: bool) -> Facts:
    """Return what was measured, beside the base model."""
    change = report.perplexity / report.base_perplexity - 1
    sign = "+" if change > 0 else ""
    kept = (
        (
            (
                "Accuracy",
                percent(report.accuracy),
                interval(report.accuracy_interval, as_percent=True),
            ),
            ("Accuracy of the base model", percent(report.base_accuracy)),
            (
                "Always the most frequent training class",
                percent(report.majority_accuracy),
            ),
        )
        if classifies
        else (
            ("Perplexity", number(report.perplexity)),
            (
                "Perplexity of the base model",
                number(report.base_perplexity),
                f"{sign}{percent(change)} against the base model",
            ),
        )
    )
    unit = "record" if classifies else "token"
    return facts(
        *kept,
        ("Loss", f"{number(report.nll_per_token)} nats per {unit}"),
        ("Records", count(report.num_records)),
        None if classifies else ("Tokens", count(report.num_tokens)),
        ("Model", short_digest(report.model_digest)),
        ("Corpus", short_digest(report.corpus_fingerprint)),
    )


def _checkpoints(trace: Sequence[TracePoint]) -> Section | None:
    """Show the checkpoints of one stage, sensitive and other tokens apart.

    References:
        Yu et al. (ATDP), figure 2, which draws the perplexities alone.
    """
    shown = [
        (head, key, percent if key == "accuracy" else number)
        for head, key in _CHECKPOINT
        if any(getattr(point, key) is not None for point in trace)
    ]
    return section(
        "While it trained",
        table(
            ("Step", *(head for head, _, _ in shown)),
            (
                (
                    count(point.step),
                    *(form(getattr(point, key)) for _, key, form in shown),
                )
                for point in trace
            ),
            caption=f"On some held-out records; exposure in bits. {OUTSIDE_EPSILON}",
        ),
        *side_by_side(*exposure_plots({trace[0].stage: trace})),
    )
