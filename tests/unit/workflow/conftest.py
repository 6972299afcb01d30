"""A corpus of a few dozen records, a tiny model on disk, and plans for it."""

import pytest

from dptune.accounting.accountants import epsilon
from dptune.accounting.store.allowances import Grant
from dptune.accounting.store.reservations import UnitSet
from dptune.accounting.store.store import BudgetStore, Request
from dptune.accounting.store.summaries import history
from dptune.accounting.store.tables import IdKind
from dptune.accounting.store.verify import verify
from dptune.config import PerformanceSettings
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.source import SyntheticSource
from dptune.models.loading import load_model, model_digest, save_model
from dptune.models.source import ArchitectureSource, ModelBundle
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import Recipe
from dptune.results import BudgetReservation
from dptune.workflow.budget import budget_cost, planned_costs
from dptune.workflow.charging import stage_entry
from dptune.workflow.inputs import StageInputs, load_job
from dptune.workflow.job import TrainingJob
from dptune.workflow.shared_job import SharedJob

KEY = b"k" * 32
PERFORMANCE = PerformanceSettings(physical_batch_size=8, block_size=2, device="cpu")


@pytest.fixture(scope="package")
def corpus():
    return build_corpus(
        SyntheticSource(num_records=40, seed=2),
        privacy_unit=PrivacyUnit.RECORD,
        duplicates=Duplicates.KEEP,
    )


@pytest.fixture(scope="package")
def bundle(tmp_path_factory):
    source = ArchitectureSource(
        kind="architecture",
        num_layers=1,
        num_heads=2,
        hidden_size=16,
        max_tokens=32,
        vocab_size=258,
        tokenizer={"kind": "trained"},
    )
    loaded = load_model(source)
    folder = tmp_path_factory.mktemp("base") / "model"
    save_model(loaded.model, loaded.tokenizer, folder)
    return ModelBundle(path=folder, digest=model_digest(folder))


def stage(**changes):
    """A noisy stage of five steps on the corpus of this folder."""
    return {
        "name": "private",
        "view": "original",
        "epochs": 1.25,
        "expected_batch_size": 8,
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "clipping": {"max_grad_norm": 0.5},
        "noise": {"noise_multiplier": 1.0},
    } | changes


def run_plan(*stages, num_units):
    recipe = Recipe.model_validate({"name": "r", "title": "R", "stages": stages})
    return plan_run(
        recipe,
        num_units=num_units,
        notion=Notion.RECORD,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        target_epsilon=None,
        target_delta=1e-3,
    )


@pytest.fixture(scope="package")
def make_inputs(corpus, bundle):
    """Inputs of one stage; `units` other than the corpus has are a mistake."""

    all_records = corpus

    def make(units=None, seed=None, max_tokens=24, corpus=all_records, **changes):
        count = units or corpus.report.num_units["train"]
        plan = run_plan(stage(**changes), num_units=count)
        return StageInputs(
            model=bundle,
            corpus=corpus,
            plan=plan.stages[0],
            recipe="r",
            max_tokens=max_tokens,
            max_sequences_per_unit=8,
            seed=seed,
        )

    return make


@pytest.fixture
def shared(make_inputs, tmp_path):
    """A job for ranks, and its data."""

    def make(performance=PERFORMANCE, reservation=None, **changes):
        inputs = make_inputs(**changes)
        job = TrainingJob(
            model=inputs.model.path,
            plan=inputs.plan,
            max_tokens=24,
            seed=inputs.seed,
            checkpoint_dir=tmp_path / "stage" / "checkpoint",
            performance=performance,
        )
        job.checkpoint_dir.parent.mkdir(exist_ok=True)
        _, data = load_job(job, inputs)
        told = SharedJob(
            job=job,
            corpus=inputs.corpus.report,
            recipe="r",
            device="cpu",
            reservation=reservation,
        )
        return told, data

    return make


@pytest.fixture
def url(sqlite_budget):
    return sqlite_budget()


@pytest.fixture
def store(url):
    made = BudgetStore.open(url)
    yield made
    assert verify(made).success
    made.engine.dispose()


@pytest.fixture
def hold(store, corpus):
    """Reserve for the stage of some inputs; `steps` may be granted in all."""

    def reserve(inputs, steps=None):
        plan = run_plan(stage(), num_units=inputs.plan.num_units)
        whole, spare = costs(plan, corpus.report)
        if steps is not None:
            one = stage_entry(
                corpus.report, inputs.plan, recipe="r", first_step=0, num_steps=steps,
                fixed_seed=False,
            )  # fmt: skip
            store.grant(grant(budget_cost(one)))
        held = store.reserve(
            Request(
                units=UnitSet.of(corpus.source_units, key=KEY, data_set="people"),
                privacy_unit=PrivacyUnit.RECORD,
                id_kind=IdKind.SOURCE,
                run_key="run",
                recipe="r",
                planned=whole,
                spare=spare,
            )
        )
        return BudgetReservation(
            id=held.id,
            data_set="people",
            num_units=1,
            head_sequence=0,
            head_hash="",
            found_open=held.found_open,
        )

    return reserve


def costs(plan, report):
    return planned_costs(
        plan, report, redaction="mask", block_size=PERFORMANCE.block_size, seeded=False
    )


def grant(cost):
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    spent = epsilon(cost.event(Notion.RECORD), delta=1e-3, relation=relation)
    return Grant(
        data_set="people",
        notion=Notion.RECORD,
        relation=relation,
        epsilon=spent * 1.0001,
        delta=1e-3,
    )


def spent_steps(store):
    return sum(r.spent.count(Notion.RECORD) for r in history(store))
