"""Pages of what attacks found: exposure, membership, extraction."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from dptune.reports.blocks import (
    Block,
    Facts,
    Notice,
    Page,
    Plot,
    Table,
    Tone,
    facts,
    page,
    section,
    table,
    table_of,
)
from dptune.reports.card.statements import against_chance, exposure_means
from dptune.reports.figures.attacks import discoverable_plot, exposure_plot, roc_plot
from dptune.reports.formatting import (
    between,
    count,
    interval,
    number,
    p_value,
    percent,
    short_digest,
    words,
)
from dptune.results import (
    CanaryExposure,
    CanarySampling,
    ExposureReport,
    ExtractionReport,
    Interval,
    MembershipReport,
    MembershipSignal,
    PersonalDataShare,
    SamplesReport,
)

SAMPLES_NOTE = (
    "Beginnings of held-out records, and how models go on. What the detector marks, "
    "here or anywhere in the corpus, and secrets of canaries are masked. What it does "
    "not know is shown, and may be training text. Nothing here is covered by epsilon: "
    "share it as you would share the data."
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
    "Both axes are logarithmic, because harm is at the left: few false positives. On "
    "the dotted line an attack does no better than chance. The blind attack sees no "
    "model; if it beats chance, members and non-members differ in themselves and the "
    "test is invalid."
)

_DISCOVERABLE_CAPTION = (
    "A text is (n, p)-discoverable if n trials under the decoding above generate it at "
    "least once with chance p (here p = 50 %). Bars are 95 % intervals. Controls were "
    "never trained on: what they show is what any model of such text would say."
)
_SETTINGS = {
    "as_detected": "as detected: the detector decided whether a canary was masked",
    "missed": "missed: the canaries' spans were taken away, as if the detector had "
    "overlooked them",
    "not_missed": "not missed: the canaries' spans were forced, as if the detector "
    "had found them all",
    "partly_missed": "partly missed: the spans of some canaries were forced, those "
    "of the others taken away, as if the detector had overlooked them",
}


def exposure_page(report: ExposureReport) -> Page:
    """Describe canary exposures beside both controls."""
    label = "Attack: canary exposure"
    if report.not_measurable:
        return page(title="Not measured", label=label, subtitle=report.not_measurable)
    means = exposure_means(report)
    groups = (
        ("Planted, this model", means.num_planted, means.planted),
        ("Held out, this model", len(report.held_out()), means.held_out),
        ("Planted, base model", len(report.base_planted()), means.base),
    )
    found, expected = count(report.planted_found), count(report.planted_expected)
    base = {c.canary_id: c.exposure for c in report.base_canaries}
    ordered = sorted(
        report.canaries, key=lambda c: (not c.planted, c.rank, c.canary_id)
    )
    return page(
        section(
            "Exposure",
            Notice(
                tone=Tone.INVALID,
                title="Planted canaries do not match the plan.",
                text=f"{found} insertions were found in the corpus, {expected} were "
                "planned. Exposure of a canary that was never trained on says nothing.",
            )
            if found != expected
            else None,
            table_of(
                groups,
                ("Group", lambda g: g[0]),
                ("Canaries", lambda g: count(g[1])),
                ("Mean exposure (bits)", lambda g: number(g[2])),
                numeric=(1, 2),
                caption=f"Planted canaries against chance: {p_value(means.p_value)} "
                "(Fisher over canaries, assumes that they are independent)."
                if report.drawn
                else "Planted secrets were not drawn at random: nobody knows how "
                "early they come by chance.",
            ),
            Plot(svg=exposure_plot(report), caption=EXPOSURE_CAPTION),
        ),
        section("Test", _exposure_facts(report)),
        section(
            "Every canary",
            table_of(
                ordered,
                ("Canary", lambda c: c.canary_id),
                ("Kind", lambda c: "planted" if c.planted else "held out"),
                ("Insertions", lambda c: count(c.insertions)),
                ("Rank", lambda c: _rank(report, c)),
                ("Exposure (bits)", _bits),
                ("Base (bits)", lambda c: number(base.get(c.canary_id))),
                numeric=(2, 3, 4, 5),
                caption="Secrets are never shown.",
            ),
        ),
        label=label,
        title="Does the model know the planted secrets?",
        subtitle=OUTSIDE_EPSILON,
    )


def membership_page(report: MembershipReport) -> Page:
    """Describe all membership attacks and the blind baseline."""
    best, shadows = report.strongest(), report.shadows
    signals = sorted(report.signals, key=lambda s: (-s.tpr_at_low_fpr, -s.auc, s.name))
    named = [(words(s.name), s) for s in signals]
    named.append((f"{words(report.blind.name)} (blind)", report.blind))
    return page(
        section(
            "Attacks",
            table_of(
                named,
                ("Attack", lambda s: s[0]),
                ("AUC", lambda s: number(s[1].auc)),
                ("AUC interval", lambda s: interval(s[1].auc_interval)),
                (
                    f"TPR at {percent(best.low_fpr)} FPR",
                    lambda s: percent(s[1].tpr_at_low_fpr),
                ),
                (
                    "TPR interval",
                    lambda s: interval(s[1].tpr_at_low_fpr_interval, as_percent=True),
                ),
                numeric=(1, 3),
                caption="Strongest first. AUC 0.5 is chance.",
            ),
            _more_rates(signals),
            Plot(svg=roc_plot(report), caption=ROC_CAPTION),
        ),
        section(
            "Test",
            facts(
                ("Members", count(report.num_members)),
                ("Non-members", count(report.num_non_members)),
                ("Model", short_digest(report.model_digest)),
                ("Base model", short_digest(report.base_model_digest)),
                (
                    "Shadow models (outside epsilon)",
                    (
                        f"{count(shadows.num_models)}, {count(shadows.num_records)} "
                        "records each"
                    ),
                )
                if shadows
                else None,
            ),
        ),
        label="Attack: membership inference",
        title="Can a member of the training data be told apart?",
        subtitle=OUTSIDE_EPSILON,
    )


def extraction_page(report: ExtractionReport) -> Page:
    """Describe what trials generated, in counts."""
    models = {
        "This model": report.personal_data or (),
        "Base model": report.base_personal_data or (),
    }
    return page(
        section("Canaries by sampling", *_sampling(report)),
        section("Discoverable by so many trials", *_discoverable(report)),
        section(
            "Personal data",
            table_of(
                [(name, found) for name, all_ in models.items() for found in all_],
                ("Attack", lambda row: words(row[1].attack)),
                ("Model", lambda row: row[0]),
                ("Training data", lambda row: _answers(row[1], members=True)),
                ("Controls", lambda row: _answers(row[1], members=False)),
                (
                    "By guessing",
                    lambda row: (
                        percent(row[1].chance)
                        if row[1].chance is not None
                        else "unknown"
                    ),
                ),
                caption="Values that the project's own detector marks. Extraction "
                "counts distinct values in generated texts, reconstruction gives the "
                "text before a value, inference offers the right one among others.",
            )
            if report.personal_data is not None
            else None,
        ),
        section(
            "Test",
            facts(
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
            ),
        ),
        label="Attack: extraction",
        title="Can secrets be extracted from the model?",
        subtitle=OUTSIDE_EPSILON,
    )


def samples_page(report: SamplesReport) -> Page:
    """Show completions by the model beside those of its base."""
    tables = samples_tables({"This model": report})
    if not tables:
        text = "No completion was asked for, or the model writes no text."
        return page(title="No samples", label="Samples", subtitle=text)
    return page(
        section("", *tables),
        section(
            "Test",
            facts(
                ("Decoding", report.decoding),
                ("Model", short_digest(report.model_digest)),
                ("Base model", short_digest(report.base_model_digest)),
            ),
        ),
        label="Samples",
        title="What does the model say?",
        subtitle=SAMPLES_NOTE,
    )


def samples_tables(reports: Mapping[str, SamplesReport]) -> tuple[Table, ...]:
    """Put completions of the same prompts side by side: base first, then each model.

    Args:
        reports: by the name of the model; prompts that are not in all are left out.
    """
    if not reports:
        return ()
    first = next(iter(reports.values()))
    found = {
        name: {one.prompt: one.model for one in report.completions}
        for name, report in reports.items()
    }
    return tuple(
        table(
            ("Model", "Completion"),
            (
                ("Prompt", one.prompt),
                ("Base model", one.base or "(nothing)"),
                *((n, said[one.prompt] or "(nothing)") for n, said in found.items()),
            ),
        )
        for one in first.completions
        if all(one.prompt in said for said in found.values())
    )


def setting_words(setting: str) -> str:
    """Say what was done to the canaries' spans."""
    return _SETTINGS.get(setting, words(setting))


def _exposure_facts(report: ExposureReport) -> Facts:
    """Return how exposure was measured."""
    insertions = sorted({c.insertions for c in report.planted()})
    return facts(
        (
            "Candidates",
            count(report.space_size),
            f"at most {number(math.log2(report.space_size))} bits",
        ),
        ("Rank", _how_ranked(report)),
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


def _how_ranked(report: ExposureReport) -> str:
    """Say how ranks were found."""
    if not report.doubt:
        return "exact" if report.exact else "estimated"
    num = sum(canary.method == "interval" for canary in report.canaries)
    return (
        f"an interval for {count(num)} of {count(len(report.canaries))} canaries, of "
        "which figures take the near end; all of them hold, under model and base, with "
        f"confidence {percent(1 - report.doubt, digits=5)}"
    )


def _rank(report: ExposureReport, canary: CanaryExposure) -> str:
    """Write a rank, or both ends of its interval."""
    ends = dict.fromkeys((canary.rank, report.farthest_rank(canary)))
    return " to ".join(map(count, ends))


def _bits(canary: CanaryExposure) -> str:
    """Write an exposure, or both ends of its interval."""
    if canary.method != "interval" or not canary.exposure_interval:
        return number(canary.exposure)
    bounds = canary.exposure_interval.model_copy(update={"high": canary.exposure})
    return between(bounds)


def _by_mark(report: ExposureReport) -> Iterator[tuple[str, str, str]]:
    """Tell marked canaries from missed ones, where there are both."""
    groups = [
        [c for c in report.planted() if c.marked is mark] for mark in (True, False)
    ]
    if not all(groups):
        return
    for name, found in zip(("marked", "missed"), groups, strict=True):
        mean = sum(c.exposure for c in found) / len(found)
        p = against_chance(report, found)
        yield (
            f"Mean exposure, {name} canaries",
            f"{number(mean)} bits",
            f"{count(len(found))} planted, against chance {p_value(p)}",
        )


def _more_rates(signals: Sequence[MembershipSignal]) -> Table | None:
    """Return true positives at further rates, and say where they are not resolvable."""
    rates = signals[0].rates if signals else ()
    if not rates:
        return None
    unresolved = " ".join(
        f"{percent(r.fpr)} takes {count(r.needed)} non-members."
        for r in rates
        if not r.resolvable
    )
    return table(
        ("Attack", *(f"TPR at {percent(r.fpr)} FPR" for r in rates)),
        (
            (
                words(s.name),
                *(
                    _with_interval(r.tpr, r.interval, missing="not resolvable")
                    for r in s.rates
                ),
            )
            for s in signals
        ),
        caption=f"Not resolvable is no zero: {unresolved}" if unresolved else "",
    )


def _with_interval(
    value: float | None, bounds: Interval | None, *, missing: str
) -> str:
    """Return a fraction with its interval."""
    if value is None:
        return missing
    return f"{percent(value)}, {interval(bounds, as_percent=True)}"


def _sampling(report: ExtractionReport) -> Iterator[Block]:
    """Return hits and n-gram similarities to canaries, base beside them."""
    if report.sampling is None:
        text = "There was no canary, or no trial was asked for."
        yield Notice(title="Not tried.", text=text)
        return
    both = (("This model", report.sampling), ("Base model", report.base_sampling))
    models = [(name, found) for name, found in both if found]
    similar = [(name, s) for name, found in models for s in found.similarities]
    yield _hits(models, report)
    if similar:
        yield table_of(
            similar,
            ("Model", lambda row: row[0]),
            ("n", lambda row: count(row[1].size)),
            ("Planted", lambda row: number(row[1].planted)),
            ("Controls", lambda row: number(row[1].held_out)),
            ("Difference", lambda row: number(row[1].difference)),
            ("Interval", lambda row: interval(row[1].difference_interval)),
            numeric=(1, 2, 3, 4),
            caption="Mean Jaccard similarity of character n-grams (RLDP). Random "
            "strings are alike too: only the difference says something.",
        )


def _hits(
    models: Sequence[tuple[str, CanarySampling]], report: ExtractionReport
) -> Table:
    """Return how often trials generated a canary."""
    planted, held_out = count(report.num_planted), count(report.num_held_out)
    return table_of(
        models,
        ("Model", lambda row: row[0]),
        ("Trials", lambda row: count(row[1].num_trials)),
        ("Valid", lambda row: count(row[1].num_valid)),
        (
            "Planted secrets found",
            lambda row: f"{count(row[1].planted_found)} of {planted}",
        ),
        ("Controls found", lambda row: f"{count(row[1].held_out_found)} of {held_out}"),
        ("Trials with a planted one", lambda row: count(row[1].planted_hits)),
        numeric=(1, 2, 3, 4, 5),
        caption="A trial is valid if it is nothing but symbols of a secret. What was "
        "generated is counted and dropped.",
    )


def _discoverable(report: ExtractionReport) -> Iterator[Block]:
    """Return the figure and the table of (n, p)-discoverable fractions."""
    groups = (("canaries", report.canaries), ("endings of records", report.records))
    rows = [(name, found) for name, all_ in groups for found in all_]
    if not rows:
        return
    shown = partial(_with_interval, missing="none")
    yield Plot(svg=discoverable_plot(report), caption=_DISCOVERABLE_CAPTION)
    yield table_of(
        rows,
        ("Texts", lambda row: row[0]),
        ("Trials n", lambda row: count(row[1].trials)),
        ("Chance p", lambda row: percent(row[1].chance)),
        ("Trained on", lambda row: shown(row[1].members, row[1].members_interval)),
        ("Controls", lambda row: shown(row[1].controls, row[1].controls_interval)),
        numeric=(1, 2),
        caption="Fractions with their intervals.",
    )


def _answers(found: PersonalDataShare, *, members: bool) -> str:
    """Return right answers of attempts, with the interval."""
    right, tried, bounds = (
        (found.members, found.num_members, found.members_interval)
        if members
        else (found.controls, found.num_controls, found.controls_interval)
    )
    return f"{count(right)} of {count(tried)}, {interval(bounds, as_percent=True)}"
