"""The table of promises in docs/GUARANTEES.md is what ledgers of planned runs claim."""

import re

import pytest
import yaml

from dptune.accounting.assumptions import (
    ABOUT_REDACTION,
    EXPLANATIONS,
    Assumption,
)
from dptune.planning import plan_run
from dptune.privacy import CertificateStatus, NeighboringRelation, Notion, UnitsFrom
from dptune.recipes import Recipe
from dptune.workflow.charging import planned_ledger
from tests.infra.test_docs import REPOSITORY, table_rows
from tests.unit.reports.samples import corpus_report

RECIPES = REPOSITORY / "configs" / "recipes"
ROWS = table_rows((REPOSITORY / "docs" / "GUARANTEES.md").read_text(encoding="utf-8"))
ADD, REPLACE = NeighboringRelation
COLUMNS = [(Notion.RECORD, ADD), (Notion.RECORD, REPLACE), (Notion.SELECTIVE, REPLACE)]
LETTERS = {
    letter: Assumption(name.strip("`"))
    for letter, name, *_ in (row for row in ROWS if re.fullmatch(r"A\d", row[0]))
}


def promises():
    """Cells of the table by recipe."""
    return {
        name: cells[1:]
        for cells in ROWS
        for name in re.findall(r"\]\(\.\./configs/recipes/(\w+)\.yaml\)", cells[0])
    }


def said(cell):
    """Status in a cell, and the letters of what about redaction it rests on."""
    plain = re.sub(r"and on A5 where .*, else on|; `privacy.mode.*", "", cell)
    status = next(s for s in CertificateStatus if s in plain)
    return status, {LETTERS[letter] for letter in re.findall(r"A\d", plain)}


def claimed(recipe):
    """Status of each claim of a run that declares its units, and what it rests on."""
    local = any(stage.local for stage in recipe.stages)
    plan = plan_run(
        recipe,
        num_units=4000,
        units_from=UnitsFrom.DECLARED,
        notion=Notion.LOCAL if local else Notion.SELECTIVE,
        relation=REPLACE,
        target_epsilon=8.0,
        target_delta=1e-5,
    )
    corpus = corpus_report(deduplicated=False)
    ledger = planned_ledger(plan, corpus, redaction="mask", fixed_seed=False)
    for notion, relation in COLUMNS:
        claim = ledger.certificate(notion, delta=1e-5, relation=relation)
        yield claim.status, set(claim.assumptions) & ABOUT_REDACTION


@pytest.mark.parametrize("name", sorted(promises()))
def test_table_says_what_the_ledger_claims(name):
    values = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    recipe = Recipe.model_validate(values)
    assert [said(cell) for cell in promises()[name]] == list(claimed(recipe))


def test_promises_are_told_apart():
    found = {(status, frozenset(names)) for status, names in map(said, (
        "none",
        "ε, certified",
        "(0, 0), conditional on A1 A2 A3",
        "ε, conditional on A2 A3 and on A5 where `x` names a reader, else on A1",
        "ε of all tiers, conditional on A1 A2 A3 A4; `privacy.mode: paper`: none",
    ))}  # fmt: skip
    assert len(found) == 4


EVERY = {(notion, relation) for notion in Notion for relation in NeighboringRelation}
EFFECTS = {
    "makes every claim conditional": EVERY,
    "makes selective conditional": {(Notion.SELECTIVE, REPLACE)},
    "takes the place of A1": {(Notion.SELECTIVE, REPLACE)},
    "makes claims under replacement conditional": {(n, REPLACE) for n in Notion},
    "makes record, add or remove, conditional": {(Notion.RECORD, ADD)},
    "taken ": set(),
    "labels are outside": set(),
    "voids ": set(),
}


def effects():
    """What the table says that each assumption makes conditional."""
    rows = (row for row in ROWS if row[1][1:-1] in {*Assumption})
    for _, name, effect, *_ in rows:
        known = [
            claims for words, claims in EFFECTS.items() if effect.startswith(words)
        ]
        yield Assumption(name[1:-1]), known


def test_table_of_assumptions_says_what_each_makes_conditional():
    said = dict(effects())
    assert said.keys() == {*Assumption}
    assert said == {one: [{*EXPLANATIONS[one].weakens}] for one in Assumption}
