"""A comparison is checked as a whole, before its first cell; measured as it trains."""

import math
from dataclasses import replace

import pytest
import yaml

from dptune.accounting.ledger import PrivacyLedger
from dptune.accounting.store.allowances import Grant
from dptune.accounting.store.store import BudgetStore
from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.settings import AttackSettings
from dptune.config import PerformanceSettings
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.source import SyntheticSource
from dptune.errors import BudgetExceededError, ConfigError
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import Recipe
from dptune.results import Interval
from dptune.workflow import compare
from dptune.workflow.assess import nominal_interval
from dptune.workflow.compare import check_comparison
from dptune.workflow.device import peak_memory, remembered_peak
from dptune.workflow.preflight import BudgetPlace
from dptune.workflow.tracing import Tracer
from dptune.workflow.train_stage import run_stage
from tests.unit.reports.samples import detection_report
from tests.unit.test_comparing import CONFIGS, TINY, load_comparison

from .conftest import PERFORMANCE, stage


@pytest.fixture
def cells(tmp_path):
    def make(**changes):
        values = {
            "name": "small",
            "title": "Small",
            "base": TINY,
            "recipes": ["no_dp", "jft"],
            "budgets": [2.0, 8.0],
            "seeds": [0, 1],
        }
        file = tmp_path / "small.yaml"
        file.write_text(yaml.safe_dump(values | changes))
        found = load_comparison(file, configs=CONFIGS).cells
        return {cell.name: cell.config for cell in found}

    return make


@pytest.fixture
def reads(monkeypatch):
    """Count reads of the corpus, and read it without Great Expectations."""
    count = []

    def read(data, *, data_root, folder):
        count.append(data)
        return build_corpus(
            SyntheticSource(num_records=120, seed=2, private=True),
            privacy_unit=PrivacyUnit.RECORD,
            duplicates=Duplicates.KEEP,
        )

    monkeypatch.setattr(compare, "read_corpus", read)
    return count


def check(cells, tmp_path, url=None):
    place = BudgetPlace(url=url or f"sqlite:///{tmp_path}/none.db", key=b"k" * 32)
    return check_comparison(cells, data_root=tmp_path, budget=place)


def test_whole_comparison_is_planned_and_its_corpus_read_once(cells, reads, tmp_path):
    checked = check(cells(), tmp_path)
    assert len(checked.cells) == 6
    assert len(reads) == 1
    assert checked.cells["jft, ε 2, seed 1"].plan.epsilon <= 2.0
    assert math.isinf(checked.total_epsilon)
    assert 8.0 < checked.private_epsilon < 20.0


def test_cells_that_fit_alone_but_not_together_are_refused(
    cells, reads, tmp_path, sqlite_budget
):
    url = sqlite_budget()
    store = BudgetStore.open(url)
    store.grant(
        Grant(
            data_set="default",
            notion=Notion.SELECTIVE,
            relation=NeighboringRelation.REPLACE_ONE,
            epsilon=14.0,
            delta=1e-4,
        )
    )
    store.engine.dispose()
    one = cells(recipes=["jft"], budgets=[8.0], seeds=[0])
    assert check(one, tmp_path, url).private_epsilon < 8.0
    with pytest.raises(BudgetExceededError):
        check(cells(recipes=["jft"], budgets=[8.0], seeds=[0, 1, 2, 3]), tmp_path, url)


def test_impossible_cells_are_all_named(cells, reads, tmp_path):
    huge = {"stages": {"jft": {"private_finetune": {"expected_batch_size": 9999}}}}
    with pytest.raises(ConfigError) as error:
        check(cells(recipes=["no_dp", {"recipe": "jft", "set": huge}]), tmp_path)
    (problem,) = error.value.problems
    assert "expected_batch_size" in problem.path
    assert "jft, ε 2, seed 0; jft, ε 8, seed 0 and 2 more" in problem.path


# both ends of the missing rate


def light(rate_factor):
    nominal = {"formula": "rdp", "reference": "JFT", "rate_factor": rate_factor}
    recipe = {"name": "r", "title": "R", "notion": "selective"}
    stages = [
        stage(name="light", view="redacted", nominal=nominal),
        stage(name="own", nominal={"formula": "rdp", "reference": "JFT"}),
    ]
    return plan_run(
        Recipe.model_validate(recipe | {"stages": stages}),
        num_units=40,
        notion=Notion.SELECTIVE,
        relation=NeighboringRelation.REPLACE_ONE,
        target_epsilon=None,
        target_delta=1e-3,
    )


def rates(low, high):
    found = Interval(low=low, high=high, confidence=0.95)
    return detection_report(missing_rate=high, missing_rate_interval=found)


def test_nominal_figure_is_found_at_both_ends_of_the_missing_rate():
    found = nominal_interval(light(0.01), rates(0.01, 0.5))
    assert found.low == pytest.approx(light(0.01).nominal_epsilon)
    assert found.high == pytest.approx(light(0.5).nominal_epsilon)
    assert found.low < found.high


def test_nothing_missed_costs_the_light_stage_nothing():
    plan = light(0.01)
    found = nominal_interval(plan, rates(0.0, 0.01))
    assert found.low == pytest.approx(plan.stages[1].nominal_epsilon)


def test_no_interval_without_a_measured_rate_or_a_stage_that_counts_on_it():
    unknown = detection_report(missing_rate=None, missing_rate_interval=None)
    assert nominal_interval(light(0.01), unknown) is None
    assert nominal_interval(light(1.0), rates(0.0, 0.1)) is None


# while it trains


@pytest.fixture
def tracer(corpus, tmp_path):
    def make(inputs, count, enter=int):
        spec = CanarySpec(num_planted=0, num_held_out=0)
        rows = corpus.dataset.add_column("spans", [[]] * len(corpus.dataset))
        return Tracer(
            plan=inputs.plan,
            corpus=corpus.with_dataset(rows),
            canaries=draw_canaries(spec, seed=1),
            attacks=AttackSettings(num_checkpoints=count),
            max_tokens=24,
            performance=PERFORMANCE,
            file=tmp_path / inputs.key() / "trace.jsonl",
            cache=tmp_path,
            enter=enter,
        )

    return make


def test_stage_is_measured_on_the_way_and_trains_the_same(
    make_inputs, tracer, tmp_path
):
    inputs = make_inputs(seed=3)
    traced = tracer(inputs, 2)
    assert traced.steps == {3, 5}
    settings = {"folder": tmp_path, "performance": PERFORMANCE}
    seen = run_stage(inputs, PrivacyLedger(), watch=traced.watch, **settings)
    points = traced.points()
    assert [(p.stage, p.step) for p in points] == [("private", 3), ("private", 5)]
    assert points[0].perplexity != points[1].perplexity
    assert points[0].perplexity == points[0].ordinary_perplexity
    assert points[0].sensitive_perplexity is None
    other = run_stage(
        inputs, PrivacyLedger(), folder=tmp_path / "b", performance=PERFORMANCE
    )
    assert seen.bundle.digest == other.bundle.digest


def test_measurement_is_entered_before_anybody_can_see_it(
    make_inputs, tracer, tmp_path
):
    """A run that is killed behind its first figures was seen all the same."""
    inputs, seen = make_inputs(seed=3), []

    def dies_the_second_time():
        seen.append(len(traced.points()))
        if len(seen) == 2:
            raise KeyboardInterrupt

    traced = tracer(inputs, 2, dies_the_second_time)
    with pytest.raises(KeyboardInterrupt):
        run_stage(
            inputs,
            PrivacyLedger(),
            watch=traced.watch,
            folder=tmp_path,
            performance=PERFORMANCE,
        )
    assert seen == [0, 1]
    assert len(traced.points()) == 1


def test_nothing_is_measured_unless_asked(make_inputs, tracer):
    traced = tracer(make_inputs(), 0)
    assert traced.steps == frozenset()
    assert traced.points() == ()


def test_scrub_is_measured_before_it_and_on_the_way_unless_told_otherwise(
    make_inputs, tracer, corpus, tmp_path
):
    rows = corpus.dataset.add_column("spans", [[]] * len(corpus.dataset))
    weighed = {"token_weights": {"sensitive_share": 0.2}}
    inputs = make_inputs(seed=3, corpus=corpus.with_dataset(rows), **weighed)
    traced = tracer(inputs, None)
    assert traced.steps == {0, 2, 4, 5}
    settings = {"folder": tmp_path, "performance": PERFORMANCE}
    run_stage(inputs, PrivacyLedger(), watch=traced.watch, **settings)
    points = traced.points()
    assert [p.step for p in points] == [0, 2, 4, 5]
    assert points[0].perplexity != points[1].perplexity
    run_stage(inputs, PrivacyLedger(), watch=traced.watch, **settings)
    assert traced.points() == points  # a finished stage is not measured again
    assert tracer(inputs, 0).steps == tracer(make_inputs(), None).steps == frozenset()


def test_peak_memory_sees_what_was_held():
    with peak_memory("cpu") as found:
        held = bytearray(b"x") * 200_000_000
        del held
    assert found.num_bytes is None or found.num_bytes > 150_000_000


def test_peak_of_a_resumed_stage_is_the_largest_of_its_starts(tmp_path):
    file, alone = tmp_path / "peak", PerformanceSettings(device="cpu")
    file.write_text(str(10**15))
    with remembered_peak(file, alone) as found:
        pass
    assert found.num_bytes == 10**15
    with remembered_peak(file, PerformanceSettings(num_processes=2)) as several:
        pass
    assert several.num_bytes is None


def test_repetitions_are_computations_of_their_own(make_inputs):
    inputs = make_inputs()
    assert replace(inputs, repetition=1).key() != inputs.key()
    assert replace(inputs, repetition=0).key() == inputs.key()
