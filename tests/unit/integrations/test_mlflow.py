"""Certificates of scripts in MLflow."""

import json
import math
import shutil
from pathlib import Path

import mlflow
import pytest
from transformers import (
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import dptune
from dptune.accounting.assumptions import Assumption
from dptune.accounting.certificates import Certificate
from dptune.errors import ConfigError
from dptune.integrations.mlflow import (
    CertificateCallback,
    claim_metrics,
    log_certificate,
)
from dptune.reports.card.statements import epsilon_words
from dptune.testing import tiny_model, tiny_tokenizer
from tests.support.scripts import encoded, trained_script

pytestmark = pytest.mark.filterwarnings("ignore")
METRIC = "epsilon_record_add_or_remove_one"


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """The file of an empty store, whose tables take seconds to make."""
    file = tmp_path_factory.mktemp("mlflow") / "empty.db"
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{file}")
    mlflow.search_experiments()
    mlflow.set_tracking_uri(before)
    return file


@pytest.fixture
def tracked(tmp_path, empty_store, monkeypatch):
    """An empty store of MLflow, for one test; the process forgets its experiment."""
    before = mlflow.get_tracking_uri()
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", None)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "")
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment(
        experiment_id=mlflow.create_experiment(
            "scripts", artifact_location=str(tmp_path / "artifacts")
        )
    )
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(before)


def claim(noise=1.0):
    return dptune.account(
        noise_multiplier=noise, sample_rate=0.1, num_steps=10, delta=1e-5
    )


def test_claim_is_a_metric_a_tag_and_a_file(tracked):
    with mlflow.start_run() as run:
        log_certificate(claim())
    logged = tracked.get_run(run.info.run_id).data
    assert logged.metrics[METRIC] == claim().epsilon
    assert logged.metrics["delta"] == 1e-5
    assert logged.tags["dptune.epsilon.record.add_or_remove_one"].endswith("certified")
    file = mlflow.artifacts.load_text(
        f"runs:/{run.info.run_id}/privacy/certificate.json"
    )
    assert json.loads(file)["epsilon"] == claim().epsilon


def test_no_guarantee_is_said_in_words(tracked):
    with mlflow.start_run() as run:
        log_certificate(claim(noise=0.0))
    logged = tracked.get_run(run.info.run_id).data
    assert METRIC not in logged.metrics
    assert "none" in logged.tags["dptune.epsilon.record.add_or_remove_one"]


def test_models_and_versions_are_searched_by_the_claim(tracked):
    with mlflow.start_run():
        model = mlflow.initialize_logged_model(name="model")
        mlflow.finalize_logged_model(model.model_id, "READY")
        tracked.create_registered_model("notes")
        version = tracked.create_model_version("notes", f"models:/{model.model_id}")
        log_certificate(
            claim(), model_id=model.model_id, model_version=("notes", version.version)
        )
    found = mlflow.search_logged_models(
        filter_string=f"metrics.{METRIC} < 100", output_format="list"
    )
    assert [one.model_id for one in found] == [model.model_id]
    tags = tracked.get_model_version("notes", version.version).tags
    assert "dptune.epsilon.record.add_or_remove_one" in tags


@pytest.mark.parametrize("noises", [(1.0, 9.0), (9.0, 1.0), (0.0, 1.0)], ids=str)
def test_model_of_several_claims_says_the_least_guarantee(tracked, noises):
    """A model that learnt twice has what both trainings cost."""
    least = min(noises)
    with mlflow.start_run():
        model = mlflow.initialize_logged_model(name="model")
        mlflow.finalize_logged_model(model.model_id, "READY")
        tracked.create_registered_model("notes")
        version = tracked.create_model_version("notes", f"models:/{model.model_id}")
        place = ("notes", version.version)
        for one in map(claim, noises):
            log_certificate(one, model_id=model.model_id, model_version=place)
    logged = tracked.get_logged_model(model.model_id)
    says = {m.key: m.value for m in logged.metrics}.get(METRIC, math.inf)
    assert says == (claim(least).epsilon if least else math.inf)
    for tags in (logged.tags, tracked.get_model_version(*place).tags):
        words = tags["dptune.epsilon.record.add_or_remove_one"]
        assert epsilon_words(claim(least)) in words


def test_nowhere_to_log_is_an_error(tracked):
    with pytest.raises(ConfigError, match=r"start_run"):
        log_certificate(claim())


def test_epsilon_so_far_grows_to_the_certificate(tracked, tmp_path):
    with mlflow.start_run() as run:
        script = trained_script(tmp_path / "out", callbacks=[CertificateCallback()])
    history = tracked.get_metric_history(run.info.run_id, METRIC)
    values = [point.value for point in history]
    assert values == sorted(values)
    assert values[-1] == script.trainer.certificate.epsilon
    logged = tracked.get_run(run.info.run_id).data
    assert not {"loss", "train_loss"} & set(logged.metrics)


class EndAtOnce(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = True


def test_certificate_of_a_training_that_was_cut_short_says_so(tracked, tmp_path):
    with mlflow.start_run() as run:
        callbacks = [EndAtOnce(), CertificateCallback()]
        script = trained_script(tmp_path / "out", callbacks=callbacks)
    place = f"runs:/{run.info.run_id}/privacy/certificate.json"
    logged = Certificate.model_validate_json(mlflow.artifacts.load_text(place))
    assert logged == script.trainer.certificate
    assert Assumption.END_IS_PUBLIC in logged.assumptions


def test_training_without_a_run_ends_before_it_pays(tracked, tmp_path):
    with pytest.raises(ConfigError, match=r"start_run"):
        trained_script(tmp_path / "out", callbacks=[CertificateCallback()])
    assert not Path(tmp_path, "out", "privacy", "ledger.jsonl").exists()


def test_training_of_a_plain_trainer_has_no_claim_of_an_earlier_one(tracked, tmp_path):
    trained_script(tmp_path / "out")
    for folder in ("out", "other"):
        plain = Trainer(
            model=tiny_model(),
            args=TrainingArguments(
                output_dir=str(tmp_path / folder),
                max_steps=1,
                report_to="none",
                use_cpu=True,
                save_strategy="no",
            ),
            train_dataset=encoded(["a note"]),
            data_collator=DataCollatorForLanguageModeling(tiny_tokenizer(), mlm=False),
            callbacks=[CertificateCallback()],
        )
        with (
            mlflow.start_run() as run,
            pytest.raises(ConfigError, match="DPTrainer"),
        ):
            plain.train()
        assert tracked.get_run(run.info.run_id).data.metrics == {}


@pytest.mark.parametrize(
    "noises", [(1.0, 9.0), (9.0, 1.0), (1.0, 0.0), (0.0, 1.0)], ids=str
)
def test_run_of_several_trainings_says_the_least_guarantee(tracked, noises):
    claims = [claim(noise) for noise in noises]
    least = max(claims, key=lambda one: one.epsilon)
    with mlflow.start_run() as run:
        for one in claims:
            log_certificate(one)
    logged = tracked.get_run(run.info.run_id).data
    if 0.0 in noises:
        assert logged.metrics.get(METRIC, math.inf) > 1e300
    else:
        assert logged.metrics[METRIC] == least.epsilon
    assert least.status.value in logged.tags["dptune.epsilon.record.add_or_remove_one"]


@pytest.mark.parametrize("first", [0, 1])
def test_run_of_claims_that_differ_says_what_holds_for_each(tracked, first):
    """An epsilon at another claim's delta or unit would hold for neither."""
    given = {"sample_rate": 0.01, "num_steps": 1000}
    claims = [
        dptune.account(noise_multiplier=0.8, delta=1e-9, privacy_unit="user", **given),
        dptune.account(noise_multiplier=0.65, delta=1e-2, **given),
    ]
    assert claims[0].epsilon > claims[1].epsilon
    with mlflow.start_run() as run:
        log_certificate(claims[first])
        log_certificate(claims[1 - first])
        log_certificate(claims[first])
    logged = tracked.get_run(run.info.run_id).data
    assert logged.metrics[METRIC] == claims[0].epsilon
    assert logged.metrics["delta"] == 1e-2
    assert logged.tags["dptune.privacy_unit"] == "record"
    words = logged.tags["dptune.epsilon.record.add_or_remove_one"]
    assert words.count("beside") == 1
    assert words.count("certified") == 2


def test_what_is_no_certificate_is_not_logged(tracked):
    with pytest.raises(ConfigError) as caught:
        log_certificate(None, run_id="none", model_id="no", model_version=("a", "1"))
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigError, match="must be a Certificate"):
        claim_metrics({"epsilon": 1})


def test_ranks_behind_the_first_one_log_nothing(tracked, tmp_path):
    callback = CertificateCallback()
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    other = TrainerState(is_world_process_zero=False)
    for event in ("on_train_begin", "on_log", "on_train_end"):
        getattr(callback, event)(args, other, TrainerControl())
    with pytest.raises(ConfigError):  # the first one looks for a run
        callback.on_train_begin(args, TrainerState(), TrainerControl())
