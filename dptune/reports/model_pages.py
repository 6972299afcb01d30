"""Blocks for how a stage went and what attacks and tests found."""

from dptune.reports.attack_pages import OUTSIDE_EPSILON
from dptune.reports.blocks import (
    Notice,
    Page,
    Plot,
    Section,
    Tone,
    facts,
)
from dptune.reports.controller_page import controller_section
from dptune.reports.formatting import (
    count,
    duration,
    epsilon,
    interval,
    number,
    sentence_case,
    share,
    short_digest,
    words,
)
from dptune.reports.plots import (
    epsilon_plot,
    epsilon_series,
    loss_plot,
)
from dptune.reports.trace_page import trace_section
from dptune.results import (
    RegisteredVersion,
    StageReport,
    UtilityReport,
)

PRIVATE_HEADING = "Private diagnostics: trusted dashboard only"


def stage_page(report: StageReport) -> Page:
    """Describe one training stage; what is private has a heading of its own."""
    sections = [
        Section(
            title="How it went",
            blocks=(
                facts(
                    ("Recipe", report.recipe),
                    ("Steps", count(report.num_steps)),
                    _resumed(report),
                    _last_epsilon(report),
                ),
                *_fixed_seed(report),
            ),
        )
    ]
    series = epsilon_series([report], notion="the run's notion")
    if series:
        plot = Plot(
            svg=epsilon_plot(series),
            caption="Spent by this stage alone, up to each step.",
        )
        sections.append(Section(title="Epsilon so far", blocks=(plot,)))
    if report.controller is not None:
        sections.append(controller_section(report.controller))
    if report.trace:
        sections.append(trace_section(report.trace))
    sections.append(_private(report))
    return Page(
        kicker="Training stage",
        title=sentence_case(words(report.stage)),
        sections=tuple(sections),
    )


def utility_page(report: UtilityReport) -> Page:
    """Describe held-out loss in totals; per-record values stay in the artifact."""
    if report.accuracy is not None:
        return _accuracy_page(report)
    change = report.perplexity / report.base_perplexity - 1
    return Page(
        kicker="Utility",
        title=f"Perplexity on the {report.split} split",
        lede=OUTSIDE_EPSILON,
        sections=(
            Section(
                title="Held-out loss",
                blocks=(
                    facts(
                        ("Perplexity", number(report.perplexity)),
                        (
                            "Perplexity of the base model",
                            number(report.base_perplexity),
                            f"{_signed_share(change)} against the base model",
                        ),
                        ("Loss", f"{number(report.nll_per_token)} nats per token"),
                        ("Records", count(report.num_records)),
                        ("Tokens", count(report.num_tokens)),
                        ("Model", short_digest(report.model_digest)),
                        ("Corpus", short_digest(report.corpus_fingerprint)),
                    ),
                ),
            ),
        ),
    )


def _accuracy_page(report: UtilityReport) -> Page:
    """Describe a classifier's accuracy beside what takes no training to reach."""
    return Page(
        kicker="Utility",
        title=f"Accuracy on the {report.split} split",
        lede=OUTSIDE_EPSILON,
        sections=(
            Section(
                title="Held-out records",
                blocks=(
                    facts(
                        (
                            "Accuracy",
                            share(report.accuracy),
                            interval(report.accuracy_interval, as_share=True),
                        ),
                        ("Accuracy of the base model", share(report.base_accuracy)),
                        (
                            "Always the most frequent training class",
                            share(report.majority_accuracy),
                        ),
                        ("Loss", f"{number(report.nll_per_token)} nats per record"),
                        ("Records", count(report.num_records)),
                        ("Model", short_digest(report.model_digest)),
                        ("Corpus", short_digest(report.corpus_fingerprint)),
                    ),
                ),
            ),
        ),
    )


def version_page(report: RegisteredVersion) -> Page:
    """Describe one registered version."""
    return Page(
        kicker="Registered version",
        title=f"{report.model_name}, version {report.version}",
        sections=(
            Section(
                title="Where it is",
                blocks=(
                    facts(
                        ("Model", report.model_name),
                        ("Version", report.version),
                        ("Recipe", report.recipe),
                        ("Digest", short_digest(report.model_digest)),
                        ("Model URI", report.model_uri),
                    ),
                ),
            ),
        ),
    )


def _resumed(report: StageReport) -> tuple[str, str, str] | None:
    """Return where a killed run went on."""
    if report.resumed_from_step is None:
        return None
    return (
        "Resumed from step",
        count(report.resumed_from_step),
        "steps run again were charged again",
    )


def _last_epsilon(report: StageReport) -> tuple[str, str, str] | None:
    """Return the last epsilon of the curve."""
    spent = [p.epsilon for p in report.curve if p.epsilon is not None]
    if not spent:
        return None
    return (
        "Epsilon at the last point",
        epsilon(spent[-1]),
        "of this stage; the ledger has the certified figures of the run",
    )


def _fixed_seed(report: StageReport) -> tuple[Notice, ...]:
    """Warn where the noise could be drawn again by anyone."""
    return (fixed_seed_notice(),) if report.fixed_seed else ()


def fixed_seed_notice() -> Notice:
    """Return the warning about a known seed."""
    return Notice(
        tone=Tone.BLOCK,
        title="Fixed seed.",
        text="Noise and sampling came from a known seed, so anyone can subtract the "
        "noise. No epsilon on this page holds against a reader who knows the seed. "
        "Use runs like this for tests only.",
    )


def _private(report: StageReport) -> Section:
    """Return what private batches tell, under a heading that says where to show it."""
    return Section(
        title=PRIVATE_HEADING,
        blocks=(
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
            ),
            *_losses(report),
        ),
    )


def _losses(report: StageReport) -> tuple[Plot, ...]:
    """Return the loss curve, if there is one."""
    if not report.curve:
        return ()
    return (Plot(svg=loss_plot([report]), caption="Loss of the training batches."),)


def _signed_share(value: float) -> str:
    """Return a change with its sign."""
    return f"+{share(value)}" if value > 0 else share(value)
