"""The `register` command: a model that a script trained and measured."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from pydantic import ValidationError

from cli.account import STARTED
from cli.printing import say_next, speaker
from cli.registry import print_decision
from cli.runs import CONFIGS, cause_of, finished, open_workspace
from cli.training import next_steps
from dptune.accounting.store.store import BudgetStore
from dptune.configfile import load_policy
from dptune.errors import ConfigError, GateFailedError, Problem
from dptune.gates.decision import GateOutcome
from dptune.gates.manifest import Manifest, difference, read_manifest
from dptune.gates.policy import GatePolicy
from dptune.integrations.evidence import disowned
from dptune.settings import RegistrySettings
from dptune.workflow.assess import contradictions
from dptune.workflow.dossier import Dossier
from infra.workspace import current_workspace


def register_measured_model(
    folder: Path, *, evidence: Path, model_name: str, policy_name: str
) -> None:
    """Take a model and its evidence into the registries, and decide on it.

    Args:
        folder: that `dptune.integrations.evidence.measure` wrote.
        evidence: its dossier, as JSON.
        model_name: as it is registered.
        policy_name: or path.

    Raises:
        ConfigError: the evidence is not of this folder, contradicts itself, was not
            paid from this project's budget store or measured for another policy, or the
            name is none; all at once.
        GateFailedError: the outcome is not PASS.
        ArtifactError: nothing could be logged, or another MLflow has the model.
    """
    policy = load_policy(policy_name, configs=CONFIGS, key="--policy")
    dossier = _read(evidence)
    problems = [
        *_asked(dossier, policy, model_name),
        *_about(dossier, folder),
        *_paid(dossier),
    ]
    if problems:
        raise ConfigError(problems)
    open_workspace()
    from pipelines.register import register_pipeline
    from pipelines.train import failures
    from steps._deleted import refuse_deleted_experiment
    from steps._noting import refuse_foreign_models
    from steps._tracking import connect

    refuse_deleted_experiment(connect(), register_pipeline.name)
    refuse_foreign_models(model_name)
    failures.clear()
    try:
        response = finished(
            register_pipeline(
                dossier=dossier,
                folder=str(folder.resolve()),
                model_name=model_name,
                policy=policy,
            )
        )
    except Exception as error:  # noqa: BLE001 - it is raised again below
        cause = cause_of(error)
        cause.add_note(STARTED)
    else:
        version = response.steps["register_measured"].outputs["version"][0].load()
        decision = response.steps["promote"].outputs["decision"][0].load()
        print_decision(decision, title=f"{model_name} version {version.version}")
        status, again = next_steps(model_name)[0], f"dptune gate {model_name}"
        say_next(speaker(), status, f"{again} --policy {policy_name}  (decide again)")
        if decision.outcome is not GateOutcome.PASS:
            raise GateFailedError(
                f"version {version.version} of {model_name}: {decision.outcome}. The "
                "champion stays."
            )
        return
    raise cause  # outside of the handler, so that it keeps what it was raised from


def _read(evidence: Path) -> Dossier:
    """Read a dossier.

    Raises:
        ConfigError: it cannot be read; says where, never what it holds.
    """
    try:
        return Dossier.model_validate_json(evidence.read_text(encoding="utf-8"))
    except ValidationError as error:
        places = [".".join(map(str, fault["loc"])) for fault in error.errors()][:3]
        why = f"cannot be read at {', '.join(places) or 'the whole file'}"
    except (OSError, ValueError):
        why = f"cannot be read, got {evidence.name}"
    message = f"must be a dossier that `measure` made, but {why}."
    raise ConfigError.at("--evidence", message)


def _asked(dossier: Dossier, policy: GatePolicy, model_name: str) -> Iterator[Problem]:
    """Say where nothing could be registered, or promoted, under what was asked for."""
    try:
        RegistrySettings(model_name=model_name)
    except ValidationError:
        message = (
            "must begin with a letter or digit of ASCII, and go on with at most 80 of "
            f"them, or '_', '.' and '-', got {model_name[:90]!a}."
        )
        yield Problem(path="--as", message=message)
    planned = dossier.planned_for
    if planned is None or planned.digest != policy.digest:
        yield Problem(
            path="--policy",
            message="must be the policy that the model was measured for, "
            f"{planned.title if planned else 'which nothing names'}, got "
            f"{policy.reference.title}.",
            next_step="Name that one, or measure for this one. Once it is registered, "
            "`dptune gate` decides under any other.",
        )


def _about(dossier: Dossier, folder: Path) -> list[Problem]:
    """Say where a dossier is not about a folder, or not about one training."""
    if not folder.is_dir():
        message = f"must be a directory, got {folder.name}."
        return [Problem(path="FOLDER", message=message)]
    differs = difference(dossier.manifest or Manifest(), read_manifest(folder))
    problems = []
    if differs:
        message = f"must hold the files that were measured, byte for byte ({differs})."
        problems.append(Problem(path="FOLDER", message=message))
    return [
        *problems,
        *(Problem(path="--evidence", message=one) for one in contradictions(dossier)),
    ]


def _paid(dossier: Dossier) -> list[Problem]:
    """Say where this project's budget store did not pay for the training."""
    url = current_workspace().budget_url
    store = BudgetStore.find(url)
    with store or nullcontext():
        faults = disowned(dossier, store)
    way = (
        "Train with budget=ScriptBudget(url=...) of this project's store: see "
        "docs/SCRIPTS.md."
    )
    return [Problem(path="--evidence", message=f, next_step=way) for f in faults]
