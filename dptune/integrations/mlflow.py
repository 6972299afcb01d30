"""Certificates in MLflow, for scripts: the names are those of `dptune train`.

```python
with mlflow.start_run():
    trainer = DPTrainer(..., callbacks=[CertificateCallback()])
    trainer.train()
    info = mlflow.transformers.log_model(...)
    log_certificate(trainer.certificate, model_id=info.model_id)
```

`search_logged_models("metrics.epsilon_record_add_or_remove_one < 3")` finds models of
both kinds.
"""

import math
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from dptune.accounting.certificates import Certificate
from dptune.errors import ConfigError, Problem
from dptune.integrations.script_run import certificate_of
from dptune.reports.card.statements import epsilon_words


def log_certificate(
    certificate: Certificate,
    *,
    run_id: str | None = None,
    model_id: str | None = None,
    model_version: tuple[str, str] | None = None,
) -> None:
    """Log a claim as metrics to search by, tags to read, and a file to check.

    The run gets all three. A logged model gets the metrics, a registered version the
    tags, as versions of `dptune train` have them. No record text is in any of it, and
    no training loss.

    Args:
        certificate: such as `trainer.certificate` or `loop.certificate()`.
        run_id: of MLflow; the active run by default.
        model_id: of a model that was logged, as `log_model` returns it.
        model_version: name and version of a registered model.

    Raises:
        ConfigError: there is no run to log to.

    >>> import tempfile
    >>> from dptune.api.claims import account
    >>> claim = account(noise_multiplier=1.0, sample_rate=0.1, num_steps=9, delta=1e-3)
    >>> with tempfile.TemporaryDirectory() as home:
    ...     mlflow.set_tracking_uri(f"sqlite:///{home}/mlflow.db")
    ...     experiment = mlflow.create_experiment("doc", artifact_location=home)
    ...     with mlflow.start_run(experiment_id=experiment) as run:
    ...         log_certificate(claim)
    ...     logged = mlflow.get_run(run.info.run_id).data
    >>> round(logged.metrics["epsilon_record_add_or_remove_one"], 2)
    1.5
    """
    active = mlflow.active_run()
    run = run_id or (active.info.run_id if active else None)
    if run is None:
        raise ConfigError([_no_run("run_id")])
    client = MlflowClient()
    numbers, tags = claim_metrics(certificate), _tags(certificate)
    for key, value in numbers.items():
        client.log_metric(run, key, value)
        if model_id is not None:
            mlflow.log_metrics({key: value}, model_id=model_id)
    for key, text in tags.items():
        client.set_tag(run, key, text)
        if model_version is not None:
            client.set_model_version_tag(*model_version, key, text)
    client.log_text(
        run, certificate.model_dump_json(indent=1), "privacy/certificate.json"
    )


def claim_metrics(certificate: Certificate) -> dict[str, float]:
    """Name the finite numbers of a claim, as a registry search asks for them."""
    found = {certificate.metric: certificate.epsilon, "delta": certificate.delta}
    return {key: value for key, value in found.items() if math.isfinite(value)}


def _tags(certificate: Certificate) -> dict[str, str]:
    """Say a claim in words, an infinite epsilon too."""
    terms = f"{certificate.notion}.{certificate.relation}"
    return {
        f"dptune.epsilon.{terms}": epsilon_words(certificate),
        "dptune.privacy_unit": certificate.privacy_unit.value,
    }


def _no_run(path: str) -> Problem:
    """Say that there is nowhere to log to."""
    message = "must name a run of MLflow, and none is active."
    return Problem(path=path, message=message, next_step="Call mlflow.start_run().")


class CertificateCallback(TrainerCallback):
    """Logs epsilon so far while a `DPTrainer` trains, and its certificate at the end.

    The curve is computed from what is paid in `output_dir/privacy`, whole blocks of
    steps, and is never below what was spent. Of several ranks the first one logs.

    Args:
        run_id: of MLflow; the active run by default.

    Raises:
        ConfigError: training begins while no run is active.
    """

    def __init__(self, *, run_id: str | None = None) -> None:
        self._run = run_id or ""
        self._paid = 0

    def on_train_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002 - of the interface
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,  # noqa: ANN401
    ) -> None:
        """Find the run, before a step is paid."""
        if not state.is_world_process_zero:
            return
        active = mlflow.active_run()
        self._run = self._run or (active.info.run_id if active else "")
        if not self._run:
            raise ConfigError([_no_run("callbacks")])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,  # noqa: ANN401
    ) -> None:
        """Log what is paid, if that is more than the last time."""
        if not state.is_world_process_zero:
            return
        folder = _folder(args)
        paid = sum(1 for _ in (folder / "ledger.jsonl").open("rb"))
        if paid <= self._paid:
            return
        self._paid = paid
        for key, value in claim_metrics(certificate_of(folder)).items():
            MlflowClient().log_metric(self._run, key, value, step=state.global_step)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,  # noqa: ANN401
    ) -> None:
        """Log the certificate of all that was paid."""
        if not state.is_world_process_zero:
            return
        log_certificate(certificate_of(_folder(args)), run_id=self._run)


def _folder(args: TrainingArguments) -> Path:
    """Where a private training keeps what it pays."""
    return Path(args.output_dir or "trainer_output") / "privacy"
