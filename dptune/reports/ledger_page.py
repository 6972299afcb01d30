"""Blocks for a ledger: what touched the data, and what follows for every notion."""

from typing import Final

from dptune.accounting.assumptions import EXPLANATIONS, Assumption, weakens
from dptune.accounting.certificates import RELATIONS
from dptune.accounting.events import is_non_private, mechanism_counts
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.accounting.progress import ledger_curves
from dptune.privacy import Notion
from dptune.reports.blocks import (
    Cell,
    Chip,
    Facts,
    Page,
    Section,
    Table,
    Tone,
    facts,
    table,
)
from dptune.reports.budget_page import curve_plots
from dptune.reports.formatting import count, epsilon, number, share, words
from dptune.reports.plan_page import notion_words

PLOTTED_DELTA: Final = 1e-5
"""Of the figure: a ledger has no delta of its own."""


def ledger_page(ledger: PrivacyLedger) -> Page:
    """Describe a ledger; its figure is drawn at a delta that is not the run's own."""
    named = dict.fromkeys(a for e in ledger.entries for a in e.assumptions)
    assumptions = (assumption_table(tuple(named)),) if named else ()
    return Page(
        kicker="Privacy ledger",
        title="What touched the private data",
        lede="Entries are appended before noise is drawn and never removed. The "
        "privacy card states the epsilon of every notion, at the delta of the run; "
        "the run's budget says what is left for others.",
        sections=(
            *_course(ledger),
            Section(title="Entries", blocks=(_totals(ledger), _entry_table(ledger))),
            Section(title="What follows", blocks=(_notion_table(ledger),)),
            *(
                Section(title="What is taken for granted", blocks=(found,))
                for found in assumptions
            ),
        ),
    )


def _course(ledger: PrivacyLedger) -> tuple[Section, ...]:
    """Draw epsilon so far, by stage and notion."""
    blocks = curve_plots(ledger_curves(ledger, delta=PLOTTED_DELTA))
    return (Section(title="Epsilon so far", blocks=blocks),) if blocks else ()


def assumption_table(assumptions: tuple[Assumption, ...]) -> Table:
    """Explain assumptions in plain words, and which claims hang on them."""
    return table(
        ("Assumption", "In plain words", "Makes conditional"),
        (
            (
                words(assumption),
                EXPLANATIONS[assumption].sentence,
                ", ".join(
                    f"{notion} ({words(relation)})"
                    for notion, relations in RELATIONS.items()
                    for relation in relations
                    if weakens(assumption, notion, relation)
                )
                or "–",
            )
            for assumption in assumptions
        ),
    )


def _totals(ledger: PrivacyLedger) -> Facts:
    """Return what all entries have in common."""
    return facts(
        ("Privacy unit", words(ledger.privacy_unit)),
        ("Entries", count(len(ledger.entries))),
    )


def _entry_table(ledger: PrivacyLedger) -> Table:
    """List every entry."""
    return table(
        (
            "Stage",
            "Recipe",
            "Text",
            "Steps",
            "Sample rate",
            "Noise / C",
            "Bands",
            "Clip norm C",
            "Noise",
            "Nominal ε",
        ),
        (_entry_row(entry) for entry in ledger.entries),
        numeric=(3, 4, 5, 6, 7, 9),
        caption="Nominal ε is what the paper's formula yields for the stage. It is no "
        "guarantee. Bands are steps of which one unit can join only one.",
    )


def _entry_row(entry: LedgerEntry) -> tuple[Cell, ...]:
    """Return one entry's row."""
    return (
        words(entry.stage),
        entry.recipe,
        entry.view,
        count(entry.num_steps),
        share(entry.sample_rate),
        number(entry.noise_multiplier),
        count(entry.num_bands),
        number(entry.max_grad_norm),
        _noise(entry),
        epsilon(entry.nominal_epsilon),
    )


def _noise(entry: LedgerEntry) -> Cell:
    """Say whether the entry added noise, and whether its seed is known."""
    if entry.fixed_seed:
        return Chip(text="fixed seed", tone=Tone.BLOCK)
    if entry.dp_event is None:
        return Chip(text="public data")
    if is_non_private(entry.dp_event):
        return Chip(text="none", tone=Tone.BLOCK)
    return Chip(text="secret", tone=Tone.PASS)


def _notion_table(ledger: PrivacyLedger) -> Table:
    """Say for every notion whether anything can be guaranteed at all."""
    return table(
        ("Notion", "What the entries cost together"),
        ((notion_words(n), _cost(ledger, n)) for n in Notion),
    )


def _cost(ledger: PrivacyLedger, notion: Notion) -> Cell:
    """Say what the composed event comes to, without computing an epsilon."""
    event = ledger.event(notion)
    seeded = Assumption.FIXED_SEED_RANDOMNESS
    if any(seeded in entry.claimed(notion) for entry in ledger.entries):
        return Chip(text=f"{epsilon(float('inf'))}: fixed seed", tone=Tone.BLOCK)
    if is_non_private(event):
        return Chip(text=epsilon(float("inf")), tone=Tone.BLOCK)
    mechanisms = mechanism_counts(event)
    if not mechanisms:
        return Chip(text="nothing", tone=Tone.PASS)
    steps = count(sum(n for _, n in mechanisms))
    return f"finite: {steps} noisy steps"
