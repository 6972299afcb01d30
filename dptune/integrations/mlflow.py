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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from dptune.accounting.certificates import Certificate
from dptune.errors import ConfigError, Problem, of_other_kinds
from dptune.integrations.claims import PayingRun, paying_here
from dptune.privacy import PrivacyUnit
from dptune.reports.card.statements import epsilon_words

_BESIDE: Final = "; beside "


def log_certificate(
    certificate: Certificate,
    *,
    run_id: str | None = None,
    model_id: str | None = None,
    model_version: tuple[str, str] | None = None,
) -> None:
    """Log a claim as metrics to search by, tags to read, and a file to check.

    The run gets all three, a logged model metrics and tags, a registered version the
    tags, as versions of `dptune train` have them. What was given a claim of the same
    name before says what holds for both: the larger epsilon, the larger delta, the
    finer unit, and the words of each if they differ in more than epsilon (a version,
    which has no numbers, those of each); the file is that of the larger epsilon. MLflow
    finds logged models by any number that they were ever given: the tag says what
    holds. No record text is in any of it, and no training loss.

    Args:
        certificate: such as `trainer.certificate` or `loop.certificate()`.
        run_id: of MLflow; the active run by default.
        model_id: of a model that was logged, as `log_model` returns it.
        model_version: name and version of a registered model.

    Raises:
        ConfigError: it is no certificate, or there is no such run, model or version;
            all at once, and nothing is logged.

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
    active, client = mlflow.active_run(), MlflowClient()
    run = run_id or (active.info.run_id if active else None)
    problems = [_no_run("run_id")] if run is None else []
    problems += of_other_kinds({"certificate": (certificate, Certificate)})
    places: dict[str, tuple[object, Callable[[], object]]] = {
        "run_id": (run, lambda: client.get_run(run or "")),
        "model_id": (model_id, lambda: client.get_logged_model(model_id or "")),
        "model_version": (
            model_version,
            lambda: client.get_model_version(*model_version or ()),
        ),
    }
    for name, (given, look) in places.items():
        if given is not None and not _is_there(look):
            problems.append(Problem(path=name, message=f"must exist, got {given!r}."))
    if problems or run is None:
        raise ConfigError(problems)
    if model_id is not None:  # which says it on the run too
        said = _Said.of_model(client, model_id, certificate)
        numbers = said.numbers(certificate)
        mlflow.log_metrics(numbers, model_id=model_id, run_id=run)
        client.set_logged_model_tags(model_id, said.tags(certificate))
    if model_version is not None:
        name, version = model_version
        tags = client.get_model_version(name, version).tags
        for key, text in _Said.in_tags(tags, certificate).tags(certificate).items():
            client.set_model_version_tag(name, version, key, text)
    said = _Said.of_run(client, run, certificate)
    said.log_numbers(client, run, certificate)
    for key, text in said.tags(certificate).items():
        client.set_tag(run, key, text)
    if said.epsilon <= certificate.epsilon:
        text = certificate.model_dump_json(indent=1)
        client.log_text(run, text, "privacy/certificate.json")


def _is_there(look: Callable[[], object]) -> bool:
    """Whether a registry finds what was named."""
    try:
        look()
    except (MlflowException, TypeError):
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What a run, a model or a version says of claims that it was given before.

    They are of one notion and relation.

    Args:
        epsilon: the largest; an infinite one has a tag and no number by itself.
        has_number: whether a number was logged for it.
        delta: the largest; 0 where there are no numbers.
        unit: the finest; empty where no claim was told to its end.
        words: of all claims; empty likewise.
        last_step: of the epsilon so far; a search finds what was logged there.
    """

    epsilon: float
    has_number: bool
    delta: float
    unit: str
    words: str
    last_step: int

    @classmethod
    def of_run(cls, client: MlflowClient, run: str, claim: Certificate) -> Self:
        """Read what a run says."""
        points = client.get_metric_history(run, claim.metric)
        return cls.in_tags(
            client.get_run(run).data.tags,
            claim,
            epsilons=[point.value for point in points],
            deltas=[point.value for point in client.get_metric_history(run, "delta")],
            last_step=max((point.step for point in points), default=0),
        )

    @classmethod
    def of_model(cls, client: MlflowClient, model_id: str, claim: Certificate) -> Self:
        """Read what a logged model says."""
        model = client.get_logged_model(model_id)
        values: dict[str, list[float]] = {claim.metric: [], "delta": []}
        for metric in model.metrics or []:
            values.setdefault(metric.key, []).append(metric.value)
        return cls.in_tags(
            model.tags,
            claim,
            epsilons=values[claim.metric],
            deltas=values["delta"],
        )

    @classmethod
    def in_tags(
        cls,
        tags: Mapping[str, str],
        claim: Certificate,
        *,
        epsilons: Sequence[float] = (),
        deltas: Sequence[float] = (),
        last_step: int = 0,
    ) -> Self:
        """Read tags, beside the numbers that were logged."""
        words = tags.get(f"dptune.epsilon.{_terms(claim)}", "")
        return cls(
            epsilon=max(epsilons, default=math.inf if words else 0.0),
            has_number=bool(epsilons),
            delta=max(deltas, default=0.0),
            unit=tags.get("dptune.privacy_unit", ""),
            words=words,
            last_step=last_step,
        )

    def numbers(self, claim: Certificate) -> dict[str, float]:
        """Return numbers that hold for a claim and for all before it."""
        epsilon = max(self.epsilon, claim.epsilon)
        found = {"delta": max(self.delta, claim.delta)}
        if math.isfinite(epsilon) or self.has_number:
            found[claim.metric] = epsilon
        return found

    def log_numbers(
        self, client: MlflowClient, run: str, claim: Certificate, *, step: int = 0
    ) -> None:
        """Log them on a run."""
        steps = {claim.metric: max(step, self.last_step)}
        for name, value in self.numbers(claim).items():
            client.log_metric(run, name, value, step=steps.get(name, step))

    def tags(self, claim: Certificate) -> dict[str, str]:
        """Say in words what holds for a claim and for all before it."""
        new, unit = _tags(claim), claim.privacy_unit.value
        if not self.words:
            return new
        key = f"dptune.epsilon.{_terms(claim)}"
        alike = (self.delta, self.unit) == (claim.delta, unit)
        if alike and self.epsilon <= claim.epsilon:
            words = new[key]
        elif new[key] in self.words or (alike and _BESIDE not in self.words):
            words = self.words
        else:
            words = f"{self.words}{_BESIDE}{new[key]} for one {unit}"
        units = map(PrivacyUnit, (self.unit, unit))
        finest = min(units, key=lambda one: one.coarseness).value
        return {key: words, "dptune.privacy_unit": finest}


def claim_metrics(certificate: Certificate) -> dict[str, float]:
    """Name the finite numbers of a claim, as a registry search asks for them.

    Raises:
        ConfigError: it is no certificate.
    """
    if problems := list(of_other_kinds({"certificate": (certificate, Certificate)})):
        raise ConfigError(problems)
    found = {certificate.metric: certificate.epsilon, "delta": certificate.delta}
    return {key: value for key, value in found.items() if math.isfinite(value)}


def _tags(certificate: Certificate) -> dict[str, str]:
    """Say a claim in words, an infinite epsilon too."""
    return {
        f"dptune.epsilon.{_terms(certificate)}": epsilon_words(certificate),
        "dptune.privacy_unit": certificate.privacy_unit.value,
    }


def _terms(certificate: Certificate) -> str:
    """Name notion and relation in a tag."""
    return f"{certificate.notion}.{certificate.relation}"


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
        ConfigError: training begins while no run is active, or without a `DPTrainer`:
            whatever lies in its folder, this training has no claim.
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
        _training()

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,  # noqa: ANN401
    ) -> None:
        """Log what is paid, if that is more than the last time."""
        if not state.is_world_process_zero:
            return
        training = paying_here()  # an evaluation by itself is logged too
        paid = len(training.journal.read().entries) if training else 0
        if training is None or paid <= self._paid:
            return
        self._paid, claim, client = paid, training.certificate(), MlflowClient()
        said = _Said.of_run(client, self._run, claim)
        if said.epsilon <= claim.epsilon:
            said.log_numbers(client, self._run, claim, step=state.global_step)

    def on_train_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,  # noqa: ANN401
    ) -> None:
        """Log the certificate of all that was paid."""
        if state.is_world_process_zero:
            claim = _training().certificate(steps=state.global_step)
            log_certificate(claim, run_id=self._run)


def _training() -> PayingRun:
    """Return the private training that is under way.

    Raises:
        ConfigError: there is none.
    """
    if (found := paying_here()) is None:
        message = "must be those of a DPTrainer or DPSFTTrainer to have a claim to log."
        raise ConfigError([Problem(path="callbacks", message=message)])
    return found
