"""A run is charged to its data set before its noise, block by block, and never less."""

import re

import pytest

from dptune.accounting.accountants import epsilon
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.accounting.store.allowances import NON_PRIVATE, Cost, tally_event
from dptune.accounting.store.reservations import UnitSet
from dptune.accounting.store.summaries import history
from dptune.configfile import load_train_config
from dptune.data.building import build_corpus
from dptune.data.source import JsonlSource
from dptune.dpsgd import step as dpsgd_step
from dptune.errors import BudgetExceededError, PrivacyError
from dptune.privacy import Notion, PrivacyUnit
from dptune.workflow import job as training_job
from dptune.workflow.budget import (
    budget_cost,
    check_budget,
    planned_costs,
    release_held,
    spender,
)
from dptune.workflow.charging import stage_entry
from dptune.workflow.planned_units import units_for
from dptune.workflow.preflight import plan_for
from dptune.workflow.train_stage import run_stage
from infra.workspace import REPOSITORY
from tests.budgets import ADD, grant

from .conftest import KEY, PERFORMANCE, costs, run_plan, spent_steps, stage

EMPTY = PrivacyLedger()


class Killed(BaseException):
    """Stands for a kill: nothing of ours catches it."""


def run(inputs, folder, spend, **changes):
    return run_stage(
        inputs, EMPTY, folder=folder, performance=PERFORMANCE, spend=spend, **changes
    )


def kill_at(number):
    def on_step(now):
        if now.step == number:
            raise Killed

    return on_step


def test_whole_plan_is_the_sum_of_its_blocks_and_one_block_is_spare(corpus):
    plan = run_plan(stage(), num_units=32)
    whole, spare = costs(plan, corpus.report)
    assert (whole.count(Notion.RECORD), spare.count(Notion.RECORD)) == (5, 2)
    assert whole == Cost.of({n: plan.stages[0].dp_event() for n in NOISY}).plus(LOCAL)


NOISY = (Notion.RECORD, Notion.SELECTIVE)
LOCAL = Cost(tallies={Notion.LOCAL: {NON_PRIVATE: 1}})


GRANTED = re.compile(r"budget grant \S+(?: set>)? --epsilon (\S+) --delta ([\w.-]+\w)")


@pytest.mark.parametrize("place", ["docs/BUDGET.md", "cli/budget.py"])
def test_grant_that_is_printed_pays_for_the_configuration_to_copy(place, corpus):
    text = (REPOSITORY / place).read_text(encoding="utf-8")
    granted, delta = map(float, GRANTED.search(text).groups())
    asked = asked_by_own_text(corpus, delta=delta)
    assert 8 < asked <= granted
    assert f"asks for {asked:.1f}:" in (REPOSITORY / "docs" / "BUDGET.md").read_text()


def asked_by_own_text(corpus, *, delta):
    """What the first run of own_text.yaml asks of a grant at this delta."""
    configs = REPOSITORY / "configs"
    config = load_train_config(configs / "train" / "own_text.yaml", configs=configs)
    units = units_for(config.data, config.canaries, corpus.report)
    planned, spare = planned_costs(
        plan_for(config.recipe, config.privacy, units=units),
        corpus.report,
        redaction=config.redaction.name,
        block_size=config.performance.block_size,
        seeded=False,
    )
    event = tally_event(planned.plus(spare).tally(Notion.RECORD))
    return epsilon(event, delta=delta, relation=config.privacy.relation)


def test_stage_without_noise_is_infinite_once(corpus):
    plan = run_plan(stage(clipping=None, noise=None), num_units=32)
    whole, _ = costs(plan, corpus.report)
    assert whole.tally(Notion.RECORD) == {NON_PRIVATE: 1}


def test_known_seed_costs_everything(corpus):
    plan = run_plan(stage(), num_units=32).stages[0]
    entry = stage_entry(
        corpus.report, plan, recipe="r", first_step=0, num_steps=2, fixed_seed=True
    )
    assert budget_cost(entry).tally(Notion.RECORD) == {NON_PRIVATE: 1}


def paid_before_noise(make_inputs, tmp_path, monkeypatch, hold, store, url, wrap):
    """Steps that the store was paid for, when each noisy gradient was made."""
    inputs = make_inputs()
    seen = []
    source = dpsgd_step.PrivateGradients.compute

    def watch(self, *arguments, **keywords):
        seen.append(spent_steps(store))
        return source(self, *arguments, **keywords)

    monkeypatch.setattr(dpsgd_step.PrivateGradients, "compute", watch)
    run(inputs, tmp_path, wrap(spender(url, hold(inputs))))
    return seen


def test_store_is_paid_before_every_noise(
    make_inputs, tmp_path, monkeypatch, hold, store, url
):
    seen = paid_before_noise(
        make_inputs, tmp_path, monkeypatch, hold, store, url, lambda spend: spend
    )
    assert seen == [2, 2, 4, 4, 5]


def test_store_that_is_paid_one_block_late_is_caught(
    make_inputs, tmp_path, monkeypatch, hold, store, url
):
    def late(spend):
        waiting = []

        def twin(entry):
            if waiting:
                spend(waiting.pop())
            waiting.append(entry)

        return twin

    seen = paid_before_noise(make_inputs, tmp_path, monkeypatch, hold, store, url, late)
    assert not all(paid > step for step, paid in enumerate(seen))


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_killed_stage_resumes_within_its_reservation(
    make_inputs, tmp_path, hold, store, url, number
):
    inputs = make_inputs()
    reservation = hold(inputs, steps=7)  # five steps and the spare block
    with pytest.raises(Killed):
        run(inputs, tmp_path, spender(url, reservation), on_step=kill_at(number))
    assert hold(inputs).id == reservation.id
    outcome = run(inputs, tmp_path, spender(url, reservation))
    paid = sum(entry.num_steps for entry in outcome.ledger.entries)
    assert spent_steps(store) == paid <= 7


def test_stage_killed_between_store_and_journal_is_counted_by_the_store(
    make_inputs, tmp_path, hold, store, url, monkeypatch
):
    inputs = make_inputs()
    spend = spender(url, hold(inputs))

    def killed(self, entry):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LedgerJournal, "charge", killed)
        with pytest.raises(Killed):
            run(inputs, tmp_path, spend)
    assert spent_steps(store) == 2
    run(inputs, tmp_path, spend)
    assert spent_steps(store) == 7


def test_second_kill_beyond_the_spare_block_is_refused_before_any_noise(
    make_inputs, tmp_path, hold, store, url
):
    inputs = make_inputs()
    reservation = hold(inputs, steps=7)
    for _ in range(2):
        with pytest.raises(Killed):
            run(inputs, tmp_path, spender(url, reservation), on_step=kill_at(1))
    with pytest.raises(BudgetExceededError):
        run(inputs, tmp_path, spender(url, reservation))
    journal = tmp_path / inputs.key() / "ledger.jsonl"
    charged = sum(e.num_steps for e in LedgerJournal(journal).read().entries)
    assert spent_steps(store) == charged


def test_stage_that_was_finished_elsewhere_is_refused_before_it_pays(
    make_inputs, tmp_path, hold, store, url
):
    """It paid block by block until the grant ended, and had nothing to show for it."""
    inputs = make_inputs()
    plan = run_plan(stage(), num_units=inputs.plan.num_units)
    allowed = costs(plan, inputs.corpus.report)[0]
    event = tally_event(allowed.times(2).tally(Notion.RECORD))
    limit = epsilon(event, delta=1e-5, relation=ADD) * 0.99
    store.grant(grant(limit, data_set=hold(inputs).data_set))
    run(inputs, tmp_path / "there", spender(url, hold(inputs)))
    store.settle(hold(inputs).id)
    with pytest.raises(BudgetExceededError, match="would bring"):
        run(inputs, tmp_path / "here", spender(url, hold(inputs)))
    assert spent_steps(store) == 5
    store.grant(grant(limit * 1.02, data_set=hold(inputs).data_set))
    run(inputs, tmp_path / "here", spender(url, hold(inputs)))
    assert spent_steps(store) == 10


def test_finished_stage_spends_nothing(make_inputs, tmp_path, hold, store, url):
    inputs = make_inputs()
    spend = spender(url, hold(inputs))
    run(inputs, tmp_path, spend)
    run(inputs, tmp_path, spend)
    assert spent_steps(store) == 5


def test_stage_that_fails_gives_back_the_rest(make_inputs, hold, store, url):
    reservation = hold(make_inputs())
    with pytest.raises(RuntimeError), release_held(url, reservation):
        raise RuntimeError
    assert not history(store)[0].is_open


def test_second_of_equal_runs_that_is_refused_leaves_what_the_first_holds(
    make_inputs, tmp_path, hold, store, url, monkeypatch
):
    """It gave back what both held, and the first had to ask for more."""
    monkeypatch.setattr(training_job, "_MOMENT", 0)
    inputs = make_inputs()
    first, second = hold(inputs), hold(inputs)
    assert (first.id, first.found_open) == (second.id, False)
    seen = []

    def meanwhile(now):
        if now.step == 2:
            refused = pytest.raises(PrivacyError, match="one run at a time")
            with refused, release_held(url, second):
                run(inputs, tmp_path, spender(url, second))
            seen.append(history(store)[0].is_open)

    run(inputs, tmp_path, spender(url, first), on_step=meanwhile)
    assert seen == [True]
    assert spent_steps(store) == 5
    with pytest.raises(RuntimeError), release_held(url, first):
        raise RuntimeError
    assert not hold(inputs).found_open  # opened anew, or finished


def test_stage_that_is_killed_keeps_its_reservation(make_inputs, hold, store, url):
    reservation = hold(make_inputs())
    with pytest.raises(Killed), release_held(url, reservation):
        raise Killed
    assert history(store)[0].is_open


def read(tmp_path, rows, **settings):
    lines = "".join(f'{{"id": "{i}", "text": "{text}"}}\n' for i, text in rows)
    (tmp_path / "rows.jsonl").write_text(lines)
    source = JsonlSource(path="rows.jsonl", id_column="id")
    return build_corpus(
        source, privacy_unit=PrivacyUnit.RECORD, data_root=tmp_path, **settings
    )


ROWS = [(f"id-{n}", f"text number {n}, and more of it") for n in range(40)]


def test_units_that_deduplication_dropped_are_charged(tmp_path):
    copies = [(f"copy-{n}", text) for n, (_, text) in enumerate(ROWS[:5])]
    corpus = read(tmp_path, ROWS + copies)
    assert len(corpus.dropped_units) == 5
    assert {*corpus.source_units} == {name for name, _ in ROWS + copies}


@pytest.mark.parametrize(
    "names", [["id-3 "], ["id-\u200b3"], ["\u00fa", "u\u0301"]], ids=ascii
)
def test_ids_that_look_alike_are_refused_before_there_is_a_store(tmp_path, names):
    """A run would read, detect and redact before it is told."""
    configs = REPOSITORY / "configs"
    config = load_train_config(configs / "train" / "own_text.yaml", configs=configs)

    def ask(rows):
        url = f"sqlite:///{tmp_path}/absent.db"
        check_budget(config, read(tmp_path, rows), plan=None, url=url, key=None)

    ask(ROWS)
    with pytest.raises(PrivacyError, match="ids must"):
        ask([*ROWS, *((name, f"more {i}") for i, name in enumerate(names))])
    assert not (tmp_path / "absent.db").exists()


def test_names_survive_order_and_edits_but_not_other_ids(tmp_path):
    def names(rows):
        units = read(tmp_path, rows).source_units
        return UnitSet.of(units, key=KEY, data_set="people").digest

    first = names(ROWS)
    assert names(ROWS[::-1]) == first
    assert names([(name, text + " edited") for name, text in ROWS]) == first
    assert names([(name + "x", text) for name, text in ROWS]) != first


def test_content_hashes_as_units_are_told(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"text": "{text}"}}\n' for _, text in ROWS)
    )
    corpus = build_corpus(
        JsonlSource(path="rows.jsonl"),
        privacy_unit=PrivacyUnit.RECORD,
        data_root=tmp_path,
        allow_content_hash_ids=True,
    )
    assert corpus.report.units_are_content_hashes
    assert not read(tmp_path, ROWS).report.units_are_content_hashes
