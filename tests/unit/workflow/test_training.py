"""A stage is charged before its noise, once per noise, and never for an answer."""

from dataclasses import replace

import pytest

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.dpsgd import step as dpsgd_step
from dptune.errors import ConfigError, PrivacyError
from dptune.models.adapters import merge_adapter
from dptune.models.loading import load_model, model_digest
from dptune.models.source import Base
from dptune.workflow import job, train_stage
from dptune.workflow.inputs import load_stage
from dptune.workflow.train_stage import run_stage

from .conftest import PERFORMANCE

EMPTY = PrivacyLedger()


def run(inputs, folder, **changes):
    settings = {"folder": folder, "performance": PERFORMANCE} | changes
    return run_stage(inputs, EMPTY, **settings)


def paid(outcome):
    return sum(entry.num_steps for entry in outcome.ledger.entries)


def charged(folder):
    """Steps that every journal of a project folder paid for."""
    ledgers = [LedgerJournal(f).read() for f in folder.glob("*/ledger.jsonl")]
    return [sum(e.num_steps for e in ledger.entries) for ledger in ledgers]


def test_stage_leaves_model_ledger_and_report(make_inputs, bundle, tmp_path):
    inputs = make_inputs()
    outcome = run(inputs, tmp_path)
    assert inputs.plan.num_steps == 5
    assert [e.num_steps for e in outcome.ledger.entries] == [2, 2, 1]
    assert outcome.bundle.digest == model_digest(outcome.bundle.path) != bundle.digest
    assert outcome.report.num_steps == 5
    assert outcome.report.resumed_from_step is None


def test_entries_are_those_of_the_plan(make_inputs, tmp_path):
    inputs = make_inputs()
    for entry in run(inputs, tmp_path).ledger.entries:
        assert entry.noise_multiplier == inputs.plan.noise_multiplier
        assert entry.sample_rate == inputs.plan.sample_rate
        assert entry.max_grad_norm == 0.5
        assert entry.data_fingerprint == inputs.corpus.fingerprint
        assert not entry.fixed_seed


def test_canary_that_the_model_cannot_read_is_refused_before_a_charge(
    make_inputs, tmp_path
):
    spec = CanarySpec(
        template="and so on " * 50 + "{secret}", num_planted=2, num_held_out=2
    )
    with pytest.raises(ConfigError, match="positions of the model"):
        run(make_inputs(), tmp_path, canaries=draw_canaries(spec, seed=0))
    assert not any(charged(tmp_path))


def charged_before_noise(make_inputs, tmp_path, monkeypatch):
    """Steps that the journal on disk paid for, when each noisy gradient was made."""
    inputs = make_inputs()
    journal = tmp_path / inputs.key() / "ledger.jsonl"
    seen = []
    source = dpsgd_step.PrivateGradients.compute

    def watch(self, *arguments, **keywords):
        entries = LedgerJournal(journal).read().entries
        seen.append(sum(entry.num_steps for entry in entries))
        return source(self, *arguments, **keywords)

    monkeypatch.setattr(dpsgd_step.PrivateGradients, "compute", watch)
    run(inputs, tmp_path)
    return seen


def test_journal_on_disk_pays_before_every_noise(make_inputs, tmp_path, monkeypatch):
    seen = charged_before_noise(make_inputs, tmp_path, monkeypatch)
    assert len(seen) == 5
    assert all(paid_for > step for step, paid_for in enumerate(seen))


def test_journal_that_is_written_late_is_caught(make_inputs, tmp_path, monkeypatch):
    late = []
    charge = LedgerJournal.charge

    def twin(self, entry):
        if late:
            charge(self, late.pop())
        late.append(entry)

    monkeypatch.setattr(LedgerJournal, "charge", twin)
    seen = charged_before_noise(make_inputs, tmp_path, monkeypatch)
    assert not all(paid_for > step for step, paid_for in enumerate(seen))


def test_finished_stage_is_answered_without_a_charge(make_inputs, tmp_path):
    first = run(make_inputs(), tmp_path)
    steps = []
    second = run(make_inputs(), tmp_path, on_step=steps.append)
    assert steps == []
    assert second.ledger == first.ledger
    assert second.bundle == first.bundle


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 3},
        {"max_tokens": 20},
        {"epochs": 1.5},
        {"noise": {"noise_multiplier": 1.1}},
        {"clipping": {"max_grad_norm": 0.6}},
        {"optimizer": {"name": "sgd", "learning_rate": 0.2}},
    ],
)
def test_anything_that_changes_the_result_is_another_stage(make_inputs, change):
    assert make_inputs(**change).key() != make_inputs().key()


@pytest.mark.parametrize(
    "change", [{"quantization": 4}, {"dtype": "float32"}, {"merged": "stored"}]
)
def test_another_base_is_another_stage_where_adapters_train(make_inputs, change):
    lora = {"trains": "lora", "lora": {"rank": 2, "alpha": 4}}
    for trains, is_other in ((lora, True), ({}, False)):
        one, other = make_inputs(**trains), make_inputs(**trains)
        object.__setattr__(other, "base", Base(**change))
        assert (one.key() != other.key()) is is_other


def test_one_changed_text_is_another_stage(make_inputs, corpus):
    inputs = make_inputs()
    rows = corpus.dataset.to_list()
    index = next(i for i, row in enumerate(rows) if row["split"] == "train")
    rows[index]["text"] += "."
    features = corpus.dataset.features
    changed = type(corpus.dataset).from_list(rows, features=features)
    other = make_inputs()
    object.__setattr__(other, "corpus", corpus.with_dataset(changed))
    assert other.key() != inputs.key()


@pytest.mark.parametrize(
    ("changes", "weighs", "is_other"),
    [
        ({"assumes": ("canary_hosts_are_fixed",)}, False, True),
        ({"marks_assume": ("private_review_lists",)}, False, False),
        ({"marks_assume": ("private_review_lists",)}, True, True),
    ],
)
def test_finished_stage_is_not_taken_over_by_one_that_rests_on_more(
    make_inputs, corpus, changes, weighs, is_other
):
    """The entry of the finished stage would not name it, and stay certified."""
    weights = {"token_weights": {"sensitive_share": 0.1}} if weighs else {}
    rows = corpus.dataset.add_column("spans", [[] for _ in corpus.dataset])
    marked = replace(corpus, dataset=rows)
    report = corpus.report.model_copy(update=changes)
    resting = replace(marked, report=report)
    one, other = (make_inputs(corpus=c, **weights) for c in (marked, resting))
    assert (one.key() != other.key()) is is_other


def test_speed_settings_are_the_same_stage(make_inputs, tmp_path):
    first = run(make_inputs(), tmp_path)
    other = PERFORMANCE.model_copy(update={"physical_batch_size": 16, "block_size": 9})
    second = run(make_inputs(), tmp_path, performance=other)
    assert second.bundle == first.bundle
    assert second.ledger == first.ledger


def test_retraining_claims_its_own_cost_and_the_first_charge_stays_spent(
    make_inputs, tmp_path
):
    first = run(make_inputs(), tmp_path)
    second = run(make_inputs(), tmp_path, retrain=True)
    assert second.bundle.digest != first.bundle.digest
    assert (paid(first), paid(second)) == (5, 5)
    assert charged(tmp_path) == [5, 5]


def test_killed_retraining_never_answers_with_the_first_model(make_inputs, tmp_path):
    first = run(make_inputs(), tmp_path)
    with pytest.raises(Killed):
        run(make_inputs(), tmp_path, retrain=True, on_step=kill_at(1))
    second = run(make_inputs(), tmp_path)
    assert second.bundle.digest != first.bundle.digest
    assert sorted(charged(tmp_path)) == [5, 7]


class Killed(BaseException):
    """Stands for a kill: nothing of ours catches it."""


def kill_at(step):
    def on_step(now):
        if now.step == step:
            raise Killed

    return on_step


def test_killed_retraining_that_is_started_again_resumes_its_own(make_inputs, tmp_path):
    inputs = make_inputs()
    first = run(inputs, tmp_path)
    with pytest.raises(Killed):
        run(inputs, tmp_path, retrain=True, run="a", on_step=kill_at(3))
    second = run(inputs, tmp_path, retrain=True, run="a")
    assert second.report.resumed_from_step == 2
    assert second.bundle.digest != first.bundle.digest
    assert sorted(charged(tmp_path)) == [5, 7]
    assert run(inputs, tmp_path, retrain=True, run="a").ledger == second.ledger
    assert paid(run(inputs, tmp_path, retrain=True, run="b")) == 5
    assert sorted(charged(tmp_path)) == [5, 5, 7]


def test_twin_that_knows_no_run_pays_for_everything_again(make_inputs, tmp_path):
    with pytest.raises(Killed):
        run(make_inputs(), tmp_path, retrain=True, on_step=kill_at(3))
    run(make_inputs(), tmp_path, retrain=True)
    assert sorted(charged(tmp_path)) == [4, 5]


@pytest.mark.parametrize(
    ("step", "resumed", "total"), [(1, None, 7), (2, None, 7), (3, 2, 7), (5, 4, 6)]
)
def test_killed_stage_resumes_and_pays_for_the_block_again(
    make_inputs, tmp_path, step, resumed, total
):
    with pytest.raises(Killed):
        run(make_inputs(), tmp_path, on_step=kill_at(step))
    outcome = run(make_inputs(), tmp_path)
    assert outcome.report.resumed_from_step == resumed
    assert paid(outcome) == total


def test_stage_killed_while_it_stores_the_model_costs_nothing_more(
    make_inputs, tmp_path, monkeypatch
):
    save = train_stage.save_model

    def half(model, tokenizer, target, **options):
        save(model, tokenizer, target, **options)
        raise Killed

    monkeypatch.setattr(train_stage, "save_model", half)
    with pytest.raises(Killed):
        run(make_inputs(), tmp_path)
    monkeypatch.setattr(train_stage, "save_model", save)
    outcome = run(make_inputs(), tmp_path)
    assert paid(outcome) == 5
    assert outcome.report.resumed_from_step == 5


def test_plan_for_other_units_is_refused_before_any_charge(make_inputs, tmp_path):
    inputs = make_inputs(units=30)
    with pytest.raises(PrivacyError, match="planned 30"):
        run(inputs, tmp_path)
    assert not (tmp_path / inputs.key() / "ledger.jsonl").exists()


def test_plain_stage_costs_everything(make_inputs, tmp_path):
    outcome = run(make_inputs(clipping=None, noise=None), tmp_path)
    (record, *_) = outcome.ledger.certificates(1e-3)
    assert record.epsilon == float("inf")


def test_fixed_seed_repeats_the_run_and_is_told(make_inputs, tmp_path):
    first = run(make_inputs(seed=4), tmp_path / "a")
    second = run(make_inputs(seed=4), tmp_path / "b")
    assert first.bundle.digest == second.bundle.digest
    assert all(entry.fixed_seed for entry in first.ledger.entries)
    (record, *_) = first.ledger.certificates(1e-3)
    assert record.status == "none"


def test_noise_is_fresh_without_a_seed(make_inputs, tmp_path):
    first = run(make_inputs(), tmp_path / "a")
    second = run(make_inputs(), tmp_path / "b")
    assert first.bundle.digest != second.bundle.digest


def test_lora_stage_leaves_a_whole_model_without_adapters(
    make_inputs, bundle, tmp_path
):
    inputs = make_inputs(trains="lora", lora={"rank": 2, "alpha": 4})
    outcome = run(inputs, tmp_path)
    before = load_model(bundle.path).model.state_dict()
    after = load_model(outcome.bundle.path).model.state_dict()
    assert before.keys() == after.keys()
    changed = {n for n in before if not before[n].equal(after[n])}
    assert changed
    assert not any("wte" in name or "ln_" in name for name in changed)
    kept = tmp_path / inputs.key() / "adapter"
    merged = merge_adapter(bundle.path, kept, tmp_path / "merged")
    assert merged == outcome.bundle.digest


def test_files_of_a_stage_hold_no_text(make_inputs, corpus, tmp_path):
    run(make_inputs(), tmp_path)
    texts = [text.encode()[:30] for text in corpus.dataset["text"]]
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        data = file.read_bytes()
        assert not any(text in data for text in texts), file.name


@pytest.mark.parametrize("mask_token", [False, True])
def test_original_text_gets_a_mask_token_only_where_asked(
    mask_token, make_inputs, bundle
):
    loaded, data = load_stage(make_inputs(mask_token=mask_token), PERFORMANCE)
    rows = load_model(bundle.path).model.get_input_embeddings().weight.shape[0]
    assert loaded.model.get_input_embeddings().weight.shape[0] == rows + mask_token
    assert (loaded.tokenizer.mask_token_id is not None) is mask_token
    assert max(int(s.max()) for s in data.sequences) < rows


def test_training_that_is_under_way_is_not_put_aside(
    make_inputs, tmp_path, monkeypatch
):
    """Its folder was renamed, and both went on in one folder and one journal."""
    monkeypatch.setattr(job, "_MOMENT", 0)
    inputs = make_inputs()

    def meanwhile(now):
        if now.step == 2:
            with pytest.raises(PrivacyError, match="one run at a time"):
                run(inputs, tmp_path, retrain=True, run="other")

    done = run(inputs, tmp_path, on_step=meanwhile)
    assert paid(done) == 5
    assert [path.name for path in tmp_path.iterdir()] == [inputs.key()]
