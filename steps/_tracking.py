"""MLflow's registry: model versions and what is stored with each.

Who is champion is in `_champions`; no other module talks to the registry.

What a version claims is stored four times, for four kinds of reader: as metrics of the
logged model (`search_logged_models("metrics.epsilon_selective < 3")`), as tags of the
model version, as `evidence.json` from which the gate decides again, and as the card.
Record text, canaries and private curves never come here; per-record losses on held-out
records lie in `evidence.json`, inside the trust boundary of the tracking server.
"""

import hashlib
import io
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from zenml.client import Client

from dptune.errors import ArtifactError
from dptune.gates.decision import GateDecision
from dptune.results import RegisteredVersion
from infra.locks import half_made_told, made_whole
from steps._champions import LONGEST, none_if_absent
from steps._deleted import keeping_run

_DIGEST, _OUTCOME, _HASH = "dptune.digest", "dptune.gate", "dptune.decision_hash"
_POLICY, _FILES = "dptune.policy", "dptune.files"
_OVERRIDE, _EPSILON = "dptune.override", "dptune.epsilon."
_BESIDE = "dptune.decided_beside_version"
_SIGNER = "dptune.decision_signed_by"
_EVIDENCE, _PAID = "dptune.evidence", "dptune.budget_head"
EVIDENCE, SIGNED_EVIDENCE = "evidence.json", "evidence.signed.json"
_RUN, _RUN_URL = "zenml.run", "zenml.run_url"
_FILLED = frozenset({"alembic_version", "experiments", "workspaces"})
_NAMELESS = "dptune:model"
"""Stands for a folder of this machine, which answers would name; it is no hub's id."""
_REQUIREMENTS = ["torch==2.13.0", "transformers==5.23.0", "safetensors==0.8.0"]


def connect() -> MlflowClient:
    """Return a client of the active stack's MLflow.

    Raises:
        ArtifactError: the active stack has no experiment tracker.
    """
    tracker = Client().active_stack.experiment_tracker
    if tracker is None:
        raise ArtifactError(
            "the active ZenML stack must have an MLflow experiment tracker. Run "
            "`dptune status`, which mends the local stack."
        )
    tracker.configure_mlflow()  # type: ignore[attr-defined]
    scheme, _, file = str(mlflow.get_tracking_uri()).partition(":///")
    if scheme != "sqlite":
        return MlflowClient()
    with made_whole(Path(file)), half_made_told(Path(file), filled=_FILLED):
        client = MlflowClient()  # makes the tables
        client.search_registered_models(max_results=1)
    return client


def end_runs() -> None:
    """End what a failed step left open: the next one of this process could not start.

    ZenML calls nobody where an input could not be loaded.
    """
    while mlflow.active_run() is not None:
        mlflow.end_run("FAILED")


def register_model(
    folder: Path,
    *,
    model_name: str,
    digest: str,
    recipe: str,
    params: Mapping[str, str],
    metrics: Mapping[str, float],
) -> RegisteredVersion:
    """Log a model with its weights and register it, or find the version it already is.

    Args:
        folder: Hugging Face directory, safetensors only.
        model_name: as registered.
        digest: of the folder; a version with the same digest is used again.
        recipe: name of the recipe.
        params: of the logged model.
        metrics: finite numbers to search by.
    """
    client = connect()
    found = find_version(model_name, digest=digest)
    if found is None:
        found = _log_and_register(folder, model_name, params, digest, recipe)
    tags = client.get_model_version(model_name, found.version)
    model_id = str(tags.source).removeprefix("models:/")
    mlflow.log_metrics(
        {k: v for k, v in metrics.items() if math.isfinite(v)}, model_id=model_id
    )
    run_id = keeping_run(found).info.run_id
    for part in sorted(folder.glob("local_*")):  # the user's and the server's
        client.log_artifact(run_id, str(part), "local")
    for part in sorted(folder.glob("controller_*")):  # its policy and its trace
        client.log_artifact(run_id, str(part), "controller")
    return RegisteredVersion(
        model_name=model_name,
        version=str(found.version),
        model_digest=digest,
        model_uri=str(found.source),
        recipe=recipe,
    )


def record_files(version: RegisteredVersion, manifest_digest: str) -> None:
    """Keep on a version which files were registered: the store need not be believed."""
    _tag(version, {_FILES: manifest_digest})


def _tag(version: RegisteredVersion, tags: Mapping[str, str]) -> None:
    """Set tags of a version, one after another."""
    client = MlflowClient()
    for key, value in tags.items():
        client.set_model_version_tag(version.model_name, version.version, key, value)


def files_of(version: ModelVersion) -> str:
    """Return the digest of the files that were registered; empty if it is not known."""
    return str(version.tags.get(_FILES, ""))


def keep_evidence(
    version: RegisteredVersion, evidence: str, *, signed: str, digest: str, paid: str
) -> None:
    """Keep with a version what the gate decides on, and what speaks for it.

    Args:
        version: that it is about.
        evidence: JSON from which the gate can decide again.
        signed: envelope around a statement about it.
        digest: SHA-256 of the evidence.
        paid: end of the budget store's log when its run was settled.
    """
    _keep_files(version, {EVIDENCE: evidence, SIGNED_EVIDENCE: signed})
    _tag(version, {_EVIDENCE: digest, _PAID: paid})


def digest_of(text: str) -> str:
    """SHA-256 of evidence as it is stored."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def evidence_digest_of(version: ModelVersion) -> str:
    """Return the digest that a version's evidence had when it was registered."""
    return str(version.tags.get(_EVIDENCE, ""))


def heads_paid() -> dict[str, str]:
    """Return where the budget store's log ended for every version, by its name."""
    return {
        f"version {version.version} of {name}": version.tags[_PAID]
        for name in model_names()
        for version in versions(name)
        if version.tags.get(_PAID)
    }


def _log_and_register(
    folder: Path, model_name: str, params: Mapping[str, str], digest: str, recipe: str
) -> ModelVersion:
    """Copy the weights into MLflow and make a version of them."""
    tags = {_DIGEST: digest, "dptune.recipe": recipe}
    with redirect_stderr(io.StringIO()):  # MLflow narrates; what fails is raised
        info = mlflow.transformers.log_model(
            **_flavor(folder),
            name=model_name,
            params=dict(params),
            tags=tags,
        )
        # With its digest in one transaction: no kill leaves a version without.
        return mlflow.register_model(info.model_uri, model_name, tags=tags)


def _flavor(folder: Path) -> dict[str, Any]:
    """Say how MLflow keeps a model directory."""
    from dptune.models.chat import ChatFormat, answers_chats
    from dptune.models.loading import load_saved

    loaded = load_saved(folder, dtype=None)  # the very weights that were measured
    loaded.model.name_or_path = loaded.tokenizer.name_or_path = _NAMELESS
    flavor: dict[str, Any] = {
        "transformers_model": {"model": loaded.model, "tokenizer": loaded.tokenizer},
        "task": "text-classification" if loaded.class_names else "text-generation",
        "pip_requirements": _REQUIREMENTS,
    }
    if answers_chats(loaded.tokenizer) and not loaded.class_names:
        # Messages in, completion out. The template writes BOS, which MLflow would add,
        # and ends answers by a token that need not be the model's own.
        stops = list(ChatFormat.of(loaded.tokenizer).stops)
        settings = {"add_special_tokens": False, "eos_token_id": stops}
        flavor |= {"task": "llm/v1/chat", "model_config": settings}
    return flavor


@contextmanager
def written_anew(folder: Path) -> Iterator[Path]:
    """Hold the files that MLflow writes of a model directory, then drop them."""
    with TemporaryDirectory(prefix="dptune-version-") as home:
        place = Path(home, "version")
        with redirect_stderr(io.StringIO()):
            mlflow.transformers.save_model(path=str(place), **_flavor(folder))
        yield place


def server() -> str | None:
    """Return the URL of the tracking server; None where there is none."""
    uri = str(mlflow.get_tracking_uri())
    return uri if uri.startswith(("http://", "https://")) else None


def record_run(version: RegisteredVersion, *, name: str, url: str | None) -> None:
    """Keep on a version which run of ZenML made it, and where that is shown."""
    _tag(version, {_RUN: name, **({_RUN_URL: url} if url else {})})


def find_version(model_name: str, *, digest: str) -> ModelVersion | None:
    """Return the version with these weights, if there is one."""
    return next(
        (v for v in versions(model_name) if v.tags.get(_DIGEST) == digest), None
    )


def versions(model_name: str) -> list[ModelVersion]:
    """List a model's versions, newest first."""
    mark = '"' if "'" in model_name else "'"
    found = MlflowClient().search_model_versions(f"name={mark}{model_name}{mark}")
    return sorted(found, key=lambda v: int(v.version), reverse=True)


def model_names() -> list[str]:
    """List the registered models."""
    client, names = MlflowClient(), list[str]()
    token: str | None = ""
    while token is not None:  # a page holds a hundred
        page = client.search_registered_models(page_token=token or None)
        names += [model.name for model in page]
        token = page.token or None
    return sorted(names)


def read_evidence(model_name: str, version: str) -> str:
    """Return the evidence of a version as JSON.

    Raises:
        ArtifactError: there is no such version, or no evidence was stored with it.
    """
    text = read_file(model_name, version, EVIDENCE)
    if text is None:
        raise ArtifactError(
            f"version {version} of {model_name} must have {EVIDENCE}, but has none. "
            "Run the audit on it, or train it with this project."
        )
    return text


def get_version(model_name: str, version: str) -> ModelVersion:
    """Return one version.

    Raises:
        ArtifactError: there is no such model or version.
    """
    client, found = MlflowClient(), None
    if len(version) < 19:  # no database holds longer numbers
        found = none_if_absent(lambda: client.get_model_version(model_name, version))
    if found and str(found.version) == version:  # MLflow takes 01 for 1; no log does
        return found
    others = none_if_absent(lambda: versions(model_name)) or []
    known = ", ".join(str(v.version) for v in others) or "none"
    raise ArtifactError(
        f"version must be a registered version of {model_name} ({known}), got "
        f"{version!a}. `dptune status` lists them."
    )


def record_decision(
    version: RegisteredVersion,
    *,
    decision: GateDecision,
    reasons: str,
    signer: str,
    epsilons: Mapping[str, str],
    summary: str,
    beside: str | None,
    files: Mapping[str, str],
) -> None:
    """Keep a gate decision on the version, and its files with the run.

    Args:
        version: that was decided on.
        decision: of the gate.
        reasons: why, in one line.
        signer: of the decision.
        epsilons: in words, by notion and relation.
        summary: the version at a glance, in Markdown.
        beside: the version that was the champion then.
        files: text by name.
    """
    _keep_files(version, files)  # first: without them tags are no decision
    tags = {
        _OUTCOME: decision.outcome.value,
        _HASH: decision.decision_hash,
        _POLICY: decision.policy,
        _SIGNER: signer,
        _BESIDE: beside or "",
        "dptune.reason": reasons[:4900],
        **{f"{_EPSILON}{terms}": words for terms, words in epsilons.items()},
    }
    known = get_version(version.model_name, version.version).tags
    for gone in [k for k in known if k.startswith(_EPSILON) and k not in tags]:
        MlflowClient().delete_model_version_tag(
            version.model_name, version.version, gone
        )
    _tag(version, tags)
    _describe(version, summary)


def _keep_files(version: RegisteredVersion, files: Mapping[str, str]) -> None:
    """Keep texts with the run that made a version, whatever run is active."""
    kept = get_version(version.model_name, version.version)
    run_id = keeping_run(kept).info.run_id
    for name, text in files.items():
        MlflowClient().log_text(run_id, text, name)


def _describe(version: RegisteredVersion, summary: str) -> None:
    """Write what MLflow shows above a version, with the way to the run that made it."""
    tags = get_version(version.model_name, version.version).tags
    name, url = tags.get(_RUN), tags.get(_RUN_URL)
    run = f"[{name}]({url})" if url else name
    way = f"**ZenML run**: {run}" if name else ""
    text = f"{summary[: LONGEST - len(way)]}{way}"
    MlflowClient().update_model_version(version.model_name, version.version, text)


def record_override(
    version: RegisteredVersion, *, reason: str, summary: str, files: Mapping[str, str]
) -> None:
    """Keep on the version why it was promoted past the gate, and its new card."""
    _describe(version, summary)
    _tag(version, {_OVERRIDE: reason[:4900]})
    _keep_files(version, files)


def override_of(version: ModelVersion) -> str:
    """Return why a version was promoted past the gate; empty if it was not."""
    return str(version.tags.get(_OVERRIDE, ""))


def read_file(model_name: str, version: str, name: str) -> str | None:
    """Return a text file stored with a version, byte for byte; None if there is none.

    MLflow's own reading makes one line break of another. Bytes that are no text are
    there all the same: they read as nothing.

    Raises:
        ArtifactError: the run that keeps it was deleted.
        OSError, MlflowException: it is there and cannot be read, as on a full disk.
    """
    run = keeping_run(get_version(model_name, version))
    store = get_artifact_repository(run.info.artifact_uri)  # each `runs:/` asks anew
    folder = str(PurePosixPath(name).parent)
    beside = store.list_artifacts(None if folder == "." else folder)
    if not any(entry.path == name and not entry.is_dir for entry in beside):
        return None
    with TemporaryDirectory(prefix="dptune-version-") as home:
        with redirect_stderr(io.StringIO()):  # a bar of progress
            place = store.download_artifacts(name, dst_path=home)  # type: ignore[no-untyped-call]
        body = Path(place).read_bytes()
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return ""


def decided_beside(version: ModelVersion) -> str | None:
    """Return the champion that the newest decision compared with; None for none."""
    return version.tags.get(_BESIDE) or None


def decision_hash_of(version: ModelVersion) -> str:
    """Return the hash of the newest decision, as the registry keeps it."""
    return str(version.tags.get(_HASH, "none"))


def outcome_of(version: ModelVersion) -> str:
    """Return the gate outcome on a version, or `pending`."""
    return str(version.tags.get(_OUTCOME, "pending"))


def reason_of(version: ModelVersion) -> str:
    """Return the reason that the gate gave."""
    return str(version.tags.get("dptune.reason", ""))


def recipe_of(version: ModelVersion) -> str:
    """Return the recipe that made a version."""
    return str(version.tags.get("dptune.recipe", "unknown"))


@contextmanager
def version_folder(model_name: str, version: str) -> Iterator[Path]:
    """Hold the files of a version: where they lie on this machine, else a copy.

    Raises:
        ArtifactError: there is no such version.
    """
    store = _store_of(model_name, version)
    if isinstance(store, LocalArtifactRepository):
        yield Path(store.artifact_dir)
        return
    with TemporaryDirectory(prefix="dptune-version-") as home:
        with redirect_stderr(io.StringIO()):  # a bar of progress
            copied = store.download_artifacts("", dst_path=home)  # type: ignore[no-untyped-call]
        yield Path(copied)


def version_sizes(model_name: str, version: str) -> dict[str, int]:
    """List the files of a version with their sizes in bytes, and read none.

    Raises:
        ArtifactError: there is no such version.
    """
    store = _store_of(model_name, version)
    sizes, folders = {}, [""]
    while folders:
        for entry in store.list_artifacts(folders.pop() or None):
            if entry.is_dir:
                folders.append(str(entry.path))
            else:
                sizes[str(entry.path)] = int(entry.file_size or 0)
    return sizes


def _store_of(model_name: str, version: str) -> ArtifactRepository:
    """Find the store that a version's name leads to, and its source as well.

    Raises:
        ArtifactError: they lead to two places, so that who loads it by its name gets
            other files than were registered.
    """
    uris = (
        f"models:/{model_name}/{version}",
        str(get_version(model_name, version).source),
    )
    places = none_if_absent(lambda: [*map(get_artifact_repository, uris)])
    if places is None:
        raise ArtifactError(
            f"version {version} of {model_name} must have its files in MLflow, but its "
            "logged model was deleted there. Restore MLflow's database."
        )
    by_name, by_source = (getattr(place, "repo", place) for place in places)
    if str(by_name.artifact_uri).rstrip("/") != str(by_source.artifact_uri).rstrip("/"):
        raise ArtifactError(
            f"version {version} of {model_name} must have its files in one place, but "
            "its name leads to another than its source. Somebody edited MLflow's "
            "database: restore it."
        )
    return by_source


def describe(model_name: str, version: str) -> RegisteredVersion:
    """Return a registered version as the rest of the project knows it."""
    found = get_version(model_name, version)
    return RegisteredVersion(
        model_name=model_name,
        version=str(found.version),
        model_digest=str(found.tags.get(_DIGEST, "")),
        model_uri=str(found.source),
        recipe=recipe_of(found),
    )
