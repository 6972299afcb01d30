"""Counts of a corpus are charged before their noise, once, and part of the plan."""

import json
import re

import pytest
from datasets import Dataset
from pydantic import ValidationError

from dptune.accounting.accountants import epsilon
from dptune.accounting.ledger import PrivacyLedger
from dptune.config import ScoringSettings
from dptune.data.engine import own_tables
from dptune.detection.endpoint import JudgeSettings, LlmAccess
from dptune.detection.engine import build_engine
from dptune.detection.labelling import detect_dataset
from dptune.detection.recognizer import Tier
from dptune.errors import BudgetExceededError
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion
from dptune.recipes import Recipe
from dptune.workflow import score as scoring
from dptune.workflow.budget import planned_costs
from dptune.workflow.score import counts_by_unit, score_corpus
from tests.llm_server import reply, serving

from .conftest import stage

EMPTY = PrivacyLedger()
RELEASED = ScoringSettings(counts="released", noise_multiplier=4.0)


@pytest.fixture(scope="module")
def labelled(corpus):
    engine = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns",))
    return corpus.with_dataset(detect_dataset(corpus.dataset, engine))


def score(labelled, settings, folder, **changes):
    given = {"recipe": "r", "corpus_is_public": False, "folder": folder, "seed": None}
    return score_corpus(labelled, settings, EMPTY, **(given | changes))


@pytest.mark.parametrize(
    ("counts", "public", "origin"),
    [
        ("table", False, "public"),
        ("corpus", False, "non_private"),
        ("corpus", True, "public"),
    ],
)
def test_score_without_release_charges_nothing(
    labelled, tmp_path, counts, public, origin
):
    settings = ScoringSettings(counts=counts)
    table, ledger = score(labelled, settings, tmp_path, corpus_is_public=public)
    assert (table.counts, ledger) == (origin, EMPTY)
    assert len(table.rows) > 3


def test_score_release_is_charged_once_and_found_again(labelled, tmp_path):
    spent = []
    first, ledger = score(labelled, RELEASED, tmp_path, spend=spent.append)
    again, same = score(labelled, RELEASED, tmp_path, spend=spent.append)
    assert first == again
    assert first.counts == "released"
    assert ledger == same
    assert ledger.entries == tuple(spent)
    assert ledger.event(Notion.RECORD).noise_multiplier == 4.0
    assert ledger.event(Notion.SELECTIVE).noise_multiplier == 4.0


def test_score_release_adds_its_part_to_the_nominal_figure(labelled, tmp_path):
    _, ledger = score(labelled, RELEASED, tmp_path, nominal_epsilon=0.4)
    certificate = ledger.certificate(
        Notion.RECORD,
        delta=1e-3,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    assert certificate.nominal_epsilon == 0.4


def raised(message, _call):
    """A judge that is right about its controls and calls all else sensitive."""
    said = [name != "PUNCTUATION_MARK" for name in re.findall(r"\d\. (\w+):", message)]
    rows = [
        {"number": n, "linkable": yes, "legally_protected": yes}
        for n, yes in enumerate(said, 1)
    ]
    return reply(json.dumps({"verdicts": rows}))


def test_score_with_a_judge_sends_no_count_and_releases_nothing_again(
    labelled, tmp_path
):
    pytest.importorskip("openai", reason="needs the extra llm")
    spent = []
    plain, _ = score(labelled, RELEASED, tmp_path, spend=spent.append)
    access = LlmAccess(cache_file=tmp_path / "answers.db")
    with serving(raised) as (url, seen):
        judge = {"base_url": url, "model": "m", "max_retries": 0}
        settings = RELEASED.model_copy(update={"judge": JudgeSettings(**judge)})
        table, ledger = score(
            labelled, settings, tmp_path, spend=spent.append, access=access
        )
        asked = len(seen)
        public, _ = score(
            labelled,
            ScoringSettings(judge=judge),
            tmp_path,
            corpus_is_public=True,
            access=access,
        )
        assert len(seen) == asked  # kept, whatever the counts
    assert len(spent) == len(ledger.entries) == 1
    assert {r.rarity for r in table.rows} == {r.rarity for r in plain.rows}
    assert table.judge.num_answered == public.judge.num_answered == asked
    assert all(row.linkable and row.legally_protected for row in table.rows)
    numbers = {str(n) for row in labelled.split("train") for n in (row["id"],)}
    assert not any(number in body for number in numbers for body in seen)


def test_score_with_a_judge_that_is_away_is_that_of_the_table(labelled, tmp_path):
    pytest.importorskip("openai", reason="needs the extra llm")
    away = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "max_retries": 0}
    plain, _ = score(labelled, ScoringSettings(), tmp_path)
    table, ledger = score(
        labelled, ScoringSettings(judge=away | {"may_lower": True}), tmp_path
    )
    assert table.rows == plain.rows
    assert table.judge.failures["no connection"] == 3
    assert ledger == EMPTY


def test_score_release_again_on_demand_is_charged_again(labelled, tmp_path):
    spent = []
    for retrain in (False, True):
        score(labelled, RELEASED, tmp_path, spend=spent.append, retrain=retrain)
    assert len(spent) == 2
    for _ in range(2):  # the same run, started again after a kill
        again = {"retrain": True, "run": "a"}
        score(labelled, RELEASED, tmp_path, spend=spent.append, **again)
    assert len(spent) == 3


def test_score_refused_or_killed_release_draws_nothing_unpaid(
    labelled, tmp_path, monkeypatch
):
    def refuse(_entry):
        raise BudgetExceededError("none left")

    drawn = []
    true_release = scoring.release_counts
    monkeypatch.setattr(scoring, "release_counts", lambda *_, **__: drawn.append(1))
    with pytest.raises(BudgetExceededError):
        score(labelled, RELEASED, tmp_path, spend=refuse)
    assert drawn == []

    def killed(*_args, **_kwargs):
        raise KeyboardInterrupt

    spent = []
    monkeypatch.setattr(scoring, "release_counts", killed)
    with pytest.raises(KeyboardInterrupt):
        score(labelled, RELEASED, tmp_path, spend=spent.append)
    monkeypatch.setattr(scoring, "release_counts", true_release)
    _, ledger = score(labelled, RELEASED, tmp_path, spend=spent.append)
    assert len(spent) == len(ledger.entries) == 2  # the killed one stays spent


def plan(**changes):
    noisy = stage(noise={"noise_multiplier": None})
    recipe = Recipe.model_validate({"name": "r", "title": "R", "stages": [noisy]})
    return plan_run(
        recipe,
        num_units=32,
        notion=Notion.RECORD,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        target_epsilon=2.0,
        target_delta=1e-3,
        **changes,
    )


def test_plan_makes_room_for_the_release(corpus):
    alone, shared = plan(), plan(counts_noise_multiplier=4.0)
    assert shared.stages[0].noise_multiplier > alone.stages[0].noise_multiplier
    assert shared.epsilon <= 2.0
    costs, _ = planned_costs(
        shared, corpus.report, redaction="mask", block_size=5, seeded=False
    )
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    held = epsilon(costs.event(Notion.RECORD), delta=1e-3, relation=relation)
    assert held == pytest.approx(shared.epsilon, rel=1e-6)
    twin, _ = planned_costs(  # forgets the release
        shared.model_copy(update={"counts_noise_multiplier": None}),
        corpus.report,
        redaction="mask",
        block_size=5,
        seeded=False,
    )
    missing = epsilon(twin.event(Notion.RECORD), delta=1e-3, relation=relation)
    assert missing < 0.99 * shared.epsilon


def test_scoring_settings_need_noise_exactly_for_a_release():
    with pytest.raises(ValidationError, match="noise_multiplier must be set exactly"):
        ScoringSettings(counts="released")
    with pytest.raises(ValidationError, match="noise_multiplier must be set exactly"):
        ScoringSettings(noise_multiplier=1.0)


def test_counts_by_unit_adds_the_records_of_a_unit():
    kinds = [[], ["PERSON"], ["EMAIL", "PERSON"], ["PERSON"], []]
    spans = [[{"entity_type": kind} for kind in row] for row in kinds]
    rows = Dataset.from_dict({"unit_id": [*"abaac"], "spans": spans})
    with own_tables(None) as engine:
        found = list(counts_by_unit(rows, engine))
    assert found == [{"EMAIL": 1, "PERSON": 2}, {"PERSON": 1}]
