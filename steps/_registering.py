"""Write one dossier to MLflow and ZenML."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from zenml import log_metadata
from zenml.metadata.metadata_types import MetadataType

from dptune.config import TrainConfig
from dptune.errors import ArtifactError, MalformedEvidenceError
from dptune.gates.manifest import Manifest
from dptune.models.source import ModelBundle
from dptune.reports.card.statements import claim_words
from dptune.results import RegisteredVersion
from dptune.rounding import at_least, at_most, nearest
from dptune.workflow.controller import read_controllers
from dptune.workflow.dossier import Dossier, RunResults
from steps import _registry, _tracking
from steps._deciding import parse_dossier
from steps._evidence import is_noted, keep_evidence
from steps._files import register_files
from steps._lineage import refuse_other_training
from steps._registry import link_run


def dossier_of_run(
    model: ModelBundle, results: RunResults, config: TrainConfig
) -> Dossier:
    """Put together what a run of a configuration made of a model.

    Args:
        model: the weights, with the controllers that trained them.
        results: of the run.
        config: of the run.
    """
    return Dossier.of(
        results,
        model_digest=model.digest,
        base_model=config.model.describe(),
        recipe=config.recipe,
        planned_for=config.gate.reference,
        controllers=read_controllers(model.path),
    )


def register_dossier(
    dossier: Dossier, folder: Path, *, model_name: str
) -> RegisteredVersion:
    """Register weights with their claims as searchable metrics and tags.

    Raises:
        ArtifactError: the store holds other files than those that were registered, or
            another training made the same weights.
    """
    with _registry.registering(model_name, dossier.model_digest):
        refuse_other_training(dossier, model_name)
        version = _tracking.register_model(
            folder,
            model_name=model_name,
            digest=dossier.model_digest,
            recipe=dossier.recipe.name,
            params=version_parameters(dossier),
            metrics=measured_numbers(dossier),
        )
        files = register_files(version, folder, known=_registered_before(version))
        dossier = dossier.model_copy(update={"manifest": files})
        _tracking.record_files(version, files.digest)
        keep_evidence(dossier, version)
    metadata = dashboard_metadata(dossier, version)
    _registry.ensure_zenml_version(model_name, version.version, metadata=metadata)
    link_run(version)
    log_metadata(dict(metadata))
    return version


def _registered_before(version: RegisteredVersion) -> Manifest | None:
    """Read the files of a version from its evidence, if that is what was noted."""
    try:
        text = _tracking.read_evidence(version.model_name, version.version)
        dossier = parse_dossier(text, version.version)
    except (ArtifactError, MalformedEvidenceError):
        return None
    return dossier.manifest if is_noted(dossier, text, version) else None


def version_parameters(dossier: Dossier) -> dict[str, str]:
    """Say in words what a registry search may ask for; nothing that tells neighbors."""
    numbers = measured_numbers(dossier).items()
    return {
        "recipe": dossier.recipe.name,
        "privacy_unit": dossier.corpus.privacy_unit,
        **{name: str(value) for name, value in numbers if not math.isfinite(value)},
    }


def measured_numbers(dossier: Dossier) -> dict[str, float]:
    """Name every number that a registry search may ask for."""
    numbers = {c.metric: c.epsilon for c in dossier.certificates}
    for line in dossier.budget.lines if dossier.budget else ():
        terms = f"{line.notion}_{line.relation}"
        numbers[f"epsilon_all_runs_{terms}"] = line.spent
        numbers[f"epsilon_tuning_{terms}"] = line.tuning
        if line.left is not None:
            numbers[f"budget_left_{terms}"] = line.left
    planted = [c.exposure for c in dossier.exposure.planted()]
    strongest = dossier.membership.strongest()
    if dossier.utility.accuracy is not None:
        numbers["accuracy"] = dossier.utility.accuracy
    if dossier.utility.token_accuracy is not None:
        numbers["token_accuracy"] = dossier.utility.token_accuracy
    checks = [check for audit in dossier.step_audits for check in audit.checks]
    if checks:
        numbers["step_checks_failed"] = float(sum(not c.passed for c in checks))
    return numbers | {
        "delta": dossier.plan.target_delta,
        "perplexity": dossier.utility.perplexity,
        "base_perplexity": dossier.utility.base_perplexity,
        **({"exposure_mean_bits": sum(planted) / len(planted)} if planted else {}),
        "membership_tpr_at_1_percent_fpr": strongest.tpr_at_low_fpr,
        "membership_auc": strongest.auc,
    }


def written(numbers: Mapping[str, float]) -> dict[str, str]:
    """Write numbers for a dashboard: no cost is smaller, and nothing left larger."""
    return {
        name: f"{_way(name)(value, digits=4):.12g}" for name, value in numbers.items()
    }


def _way(name: str) -> Callable[..., float]:
    """Return how the number of a name is rounded."""
    if name.startswith(("epsilon", "delta")):
        return at_most
    return at_least if name.startswith("budget_left") else nearest


def dashboard_metadata(
    dossier: Dossier, version: RegisteredVersion
) -> dict[str, MetadataType]:
    """Say on the run what an engineer wants to see without opening a file."""
    rest = written(measured_numbers(dossier))
    return {
        "model": f"{version.model_name} version {version.version}",
        "recipe": dossier.recipe.title,
        **claim_words(dossier.certificates),
        **{k: v for k, v in rest.items() if not k.startswith("epsilon_")},
    }
