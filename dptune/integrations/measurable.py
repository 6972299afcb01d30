"""Which trainings of a script can be measured, on what, and beside what."""

from collections.abc import Iterable
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dptune.attacks.canaries import CanarySet
from dptune.errors import ConfigError, DataError, Problem, of_other_kinds
from dptune.gates.policy import GatePolicy
from dptune.integrations.private_training import PrivateTraining
from dptune.integrations.script_run import ScriptRun
from dptune.models.digest import weights_digest
from dptune.models.merging import base_digest


def measurable(
    trainer: PrivateTraining,
    base_model: PreTrainedModel,
    *,
    policy: GatePolicy,
    canaries: CanarySet | None,
    champion: Path | None,
) -> tuple[ScriptRun, PreTrainedTokenizerFast]:
    """Return the run and the tokenizer of a training that can be measured.

    Args:
        trainer: that has trained a causal language model.
        base_model: which must have the weights that training began with: a worse one
            would lower the bar of utility, and the trained one would be beside itself.
        policy: that it is measured for.
        canaries: that were drawn for it.
        champion: folder of the version in production, which is read last of all.

    Raises:
        ConfigError: it cannot be measured; all at once.
    """
    run = getattr(trainer, "script_run", None)
    tokenizer = getattr(trainer, "processing_class", None)
    problems = list(
        of_other_kinds(
            {
                "base_model": (base_model, PreTrainedModel),
                "policy": (policy, GatePolicy),
                "canaries": (canaries, CanarySet | None),
                "champion": (champion, Path | None),
            }
        )
    )
    if isinstance(champion, Path) and not champion.is_dir():
        message = f"must be the folder of a model, got {champion.name}."
        problems.append(Problem(path="champion", message=message))
    if isinstance(trainer, PrivateTraining) and not trainer.ranks.is_alone:
        message = (
            "must be measured in one process: start the script again without a "
            "launcher, with all units of a step in its arguments, and resume."
        )
        problems.append(Problem(path="trainer", message=message))
    elif run is None or not run.has_ended:
        message = "must have trained to the end: call train() first, or resume."
        problems.append(Problem(path="trainer", message=message))
    elif run.rows.data.labels is not None:
        message = (
            "must have trained a causal language model: a classifier's labels are "
            "measured by `dptune train`."
        )
        problems.append(Problem(path="trainer", message=message))
    elif run.weights != weights_digest(trainer.model):
        message = (
            "must hold the weights that the training ended with, but they were "
            "changed since: the certificate is not about these. Measure right after "
            "train()."
        )
        problems.append(Problem(path="trainer.model", message=message))
    elif not problems and run.began_with != base_digest(base_model):
        message = (
            "must be the model that training began with, loaded again in the same "
            "dtype: these weights are others. Training changes the model that it is "
            "given."
        )
        problems.append(Problem(path="base_model", message=message))
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        message = "must be a fast tokenizer: the canaries are spelt with it."
        problems.append(Problem(path="trainer.processing_class", message=message))
        raise ConfigError(problems)
    if problems or run is None:
        raise ConfigError(problems)
    return run, tokenizer


def refuse_trained_controls(texts: Iterable[str], drawn: CanarySet) -> None:
    """Refuse held-out canaries that were trained on: they control nothing.

    Raises:
        DataError: says how many.
    """
    controls = {drawn.spec.record(secret) for secret in drawn.held_out}
    if found := len(controls.intersection(texts)):
        raise DataError(
            f"held-out canaries must not be trained on, got {found} of them among the "
            "rows. Plant drawn.planted alone, and train again."
        )
