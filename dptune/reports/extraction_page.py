"""Blocks for what sampling draws out of a model, and its figure."""

from collections.abc import Sequence

from dptune.reports.attack_pages import OUTSIDE_EPSILON
from dptune.reports.blocks import Block, Notice, Page, Plot, Section, Tone, facts, table
from dptune.reports.formatting import (
    count,
    interval,
    number,
    share,
    short_digest,
    words,
)
from dptune.reports.plots import discoverable_plot
from dptune.results import (
    CanarySampling,
    DiscoverableShare,
    ExtractionReport,
    PersonalDataShare,
)

DISCOVERABLE_CAPTION = (
    "A text is (n, p)-discoverable if n trials under the decoding above draw it at "
    "least once with chance p (here p = 50 %). Bars are 95 % intervals. Controls were "
    "never trained on: what they show is what any model of such text would say."
)


def extraction_page(report: ExtractionReport) -> Page:
    """Describe what trials drew, in counts."""
    sections = [
        Section(title="Canaries by sampling", blocks=_sampling_blocks(report)),
        Section(title="Discoverable by so many trials", blocks=_discoverable(report)),
    ]
    if report.personal_data is not None:
        sections.append(Section(title="Personal data", blocks=_personal_data(report)))
    sections.append(Section(title="Test", blocks=(_facts(report),)))
    return Page(
        kicker="Attack: extraction",
        title="Can secrets be drawn out of the model?",
        lede=OUTSIDE_EPSILON,
        sections=tuple(sections),
    )


def _sampling_blocks(report: ExtractionReport) -> tuple[Block, ...]:
    """Return hits and similarities, base beside them."""
    if report.sampling is None:
        return (
            Notice(
                tone=Tone.NEUTRAL,
                title="Not tried.",
                text="There was no canary, or no trial was asked for.",
            ),
        )
    models = [("This model", report.sampling)]
    if report.base_sampling:
        models.append(("Base model", report.base_sampling))
    hits = table(
        (
            "Model",
            "Trials",
            "Valid",
            "Planted secrets found",
            "Controls found",
            "Trials with a planted one",
        ),
        (
            (
                name,
                count(s.num_trials),
                count(s.num_valid),
                f"{count(s.planted_found)} of {count(report.num_planted)}",
                f"{count(s.held_out_found)} of {count(report.num_held_out)}",
                count(s.planted_hits),
            )
            for name, s in models
        ),
        numeric=(1, 2, 3, 4, 5),
        caption="A trial is valid if it is nothing but symbols of a secret. What was "
        "drawn is counted and dropped.",
    )
    return (hits, *_similarities(models))


def _similarities(models: Sequence[tuple[str, CanarySampling]]) -> tuple[Block, ...]:
    """Return n-gram similarities to planted canaries and to controls."""
    rows = [
        (
            name,
            count(s.size),
            number(s.planted),
            number(s.held_out),
            number(s.difference),
            interval(s.difference_interval),
        )
        for name, sampling in models
        for s in sampling.similarities
    ]
    if not rows:
        return ()
    return (
        table(
            ("Model", "n", "Planted", "Controls", "Difference", "Interval"),
            rows,
            numeric=(1, 2, 3, 4),
            caption="Mean Jaccard similarity of character n-grams (RLDP). Random "
            "strings are alike too: only the difference says something.",
        ),
    )


def _discoverable(report: ExtractionReport) -> tuple[Block, ...]:
    """Return the figure and the table of (n, p)-discoverable shares."""
    groups = (("canaries", report.canaries), ("endings of records", report.records))
    rows = [
        (
            words(name),
            count(s.trials),
            share(s.chance),
            _share_cell(s.members, s),
            _control_cell(s.controls, s),
        )
        for name, shares in groups
        for s in shares
    ]
    if not rows:
        return ()
    return (
        Plot(svg=discoverable_plot(report), caption=DISCOVERABLE_CAPTION),
        table(
            ("Texts", "Trials n", "Chance p", "Trained on", "Controls"),
            rows,
            numeric=(1, 2),
            caption="Shares with their intervals.",
        ),
    )


def _share_cell(value: float | None, shares: DiscoverableShare) -> str:
    """Return the share of texts that were trained on."""
    if value is None:
        return "none"
    return f"{share(value)}, {interval(shares.members_interval, as_share=True)}"


def _control_cell(value: float | None, shares: DiscoverableShare) -> str:
    """Return the share of controls."""
    if value is None:
        return "none"
    return f"{share(value)}, {interval(shares.controls_interval, as_share=True)}"


def _personal_data(report: ExtractionReport) -> tuple[Block, ...]:
    """Return right answers on training values and on controls."""
    models = (
        ("This model", report.personal_data or ()),
        ("Base model", report.base_personal_data or ()),
    )
    return (
        table(
            ("Attack", "Model", "Training data", "Controls", "By guessing"),
            (
                (
                    words(s.attack),
                    name,
                    _answers(s, members=True),
                    _answers(s, members=False),
                    share(s.chance) if s.chance is not None else "unknown",
                )
                for name, shares in models
                for s in shares
            ),
            caption="Values that the project's own detector marks. Extraction counts "
            "distinct values in drawn texts, reconstruction gives the text before a "
            "value, inference offers the right one among others.",
        ),
    )


def _answers(found: PersonalDataShare, *, members: bool) -> str:
    """Return right answers of attempts, with the interval."""
    if members:
        right, tried, bounds = found.members, found.num_members, found.members_interval
    else:
        right, tried = found.controls, found.num_controls
        bounds = found.controls_interval
    return f"{count(right)} of {count(tried)}, {interval(bounds, as_share=True)}"


def _facts(report: ExtractionReport) -> Block:
    """Return how texts were drawn."""
    return facts(
        (
            "Decoding",
            f"temperature {number(report.temperature)}",
            f"top-p {number(report.top_p)}, top-k {report.top_k or 'off'}",
        ),
        ("Planted canaries", count(report.num_planted)),
        ("Held-out canaries", count(report.num_held_out)),
        ("Training records", count(report.num_members)),
        ("Held-out records", count(report.num_non_members)),
        ("Model", short_digest(report.model_digest)),
        ("Base model", short_digest(report.base_model_digest)),
    )
