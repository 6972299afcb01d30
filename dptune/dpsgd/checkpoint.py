"""Checkpoints: one folder, replaced atomically, that a resumed run starts from.

```
checkpoint_dir/
├── attempts/0 1 2 ...     one empty file per process start, made before any noise
└── step-00000040/         the last block boundary; renamed into place when complete
    ├── state.json         step, attempt, digest of plan and model, curve
    ├── weights.safetensors
    ├── controller.safetensors   where a controller steers the run
    ├── transform.safetensors    where gradients are transformed
    └── optimizer.safetensors
```

Where several ranks train, the first one writes for all. Tensors are stored whole, so
that any number of ranks may go on from them. A run resumes only from a checkpoint of
its own `run_fingerprint`.

**Privacy**: weights and optimizer state are released values, but the curve and the
token count are private. A checkpoint stays inside the trust boundary.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import ALONE, Ranks, gathered, held, part_like
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.errors import ArtifactError

_FORMAT = 2
_STATE = "state.json"
_WEIGHTS = "weights.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_CONTROLLER = "controller.safetensors"
_TRANSFORM = "transform.safetensors"
_PREFIX = "step-"

CurvePoint = tuple[int, float]


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Where a run stands, besides weights.

    Args:
        step: steps done.
        attempt: number of the process start that wrote it.
        digest: of plan, settings, model and data.
        num_tokens: tokens seen so far. Private.
        seconds: spent so far.
        curve: (step, mean loss per token). Private.
        max_grad_norm: C of the next step where it moves; a released value.
        transform: what a gradient transform has learned; released values.
    """

    step: int
    attempt: int
    digest: str
    num_tokens: int = field(default=0, repr=False)
    seconds: float = 0.0
    curve: tuple[CurvePoint, ...] = field(default=(), repr=False)
    max_grad_norm: float | None = None
    transform: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


def claim_attempt(checkpoint_dir: Path) -> int:
    """Return a number that no other process start on this folder has had or will have.

    The number is on disk before this returns, so that a run that is killed before its
    first checkpoint has used it up as well.
    """
    folder = checkpoint_dir / "attempts"
    folder.mkdir(parents=True, exist_ok=True)
    attempt = len(list(folder.iterdir()))
    while True:
        try:
            (folder / str(attempt)).touch(exist_ok=False)
        except FileExistsError:
            attempt += 1
        else:
            _sync_folder(folder)
            return attempt


def save_checkpoint(
    checkpoint_dir: Path,
    state: TrainingState,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    *,
    ranks: Ranks = ALONE,
    controller: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint, rename it into place, drop the one before.

    With several ranks, all must call this; it returns when the files are there.
    """
    weights = {name: value.detach() for name, value in parameters.items()}
    files = {
        _WEIGHTS: _whole(weights, ranks),
        _OPTIMIZER: _whole(_flat_state(optimizer), ranks),
    }
    if controller is not None:
        files[_CONTROLLER] = dict(controller)
    if state.transform:
        files[_TRANSFORM] = _whole(state.transform, ranks)
    ranks.once(lambda: _write_checkpoint(checkpoint_dir, state, files))


def _write_checkpoint(
    checkpoint_dir: Path,
    state: TrainingState,
    files: Mapping[str, Mapping[str, Tensor]],
) -> None:
    """Write on the first rank."""
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=checkpoint_dir))
    for name, tensors in files.items():
        _save_tensors(temporary / name, tensors)
    _write(temporary / _STATE, _to_json(state))
    _sync_folder(temporary)
    final = checkpoint_dir / f"{_PREFIX}{state.step:08d}"
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    _sync_folder(checkpoint_dir)
    for other in checkpoint_dir.iterdir():
        stale = other.name.startswith((_PREFIX, ".writing-")) and other != final
        if stale:
            shutil.rmtree(other, ignore_errors=True)


def load_checkpoint(
    checkpoint_dir: Path,
    *,
    digest: str,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    ranks: Ranks = ALONE,
) -> TrainingState | None:
    """Put the last checkpoint's weights and optimizer state in place.

    Args:
        checkpoint_dir: may be absent.
        digest: what the checkpoint must belong to.
        parameters: trainable parameters; overwritten.
        optimizer: over the same parameters, in the same order.
        ranks: all of them must call this, and find the same.

    Returns:
        Where the run stands, or None if there is no checkpoint.

    Raises:
        ArtifactError: the checkpoint is damaged, or belongs to another run.
        ConfigError: ranks find different checkpoints.
    """
    folders = sorted(checkpoint_dir.glob(f"{_PREFIX}*"))
    ranks.check_same(folders[-1].name if folders else "no checkpoint")
    if not folders:
        return None
    folder = folders[-1]
    try:
        state = _from_json(folder / _STATE)
        if state.digest != digest:
            raise ArtifactError(
                f"the checkpoint {folder.name} must belong to this plan, model and "
                "data, but was made by another. Choose another checkpoint_dir."
            )
        weights = load_file(folder / _WEIGHTS)
        moments = load_file(folder / _OPTIMIZER)
        if (folder / _TRANSFORM).is_file():
            state = replace(state, transform=load_file(folder / _TRANSFORM))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ArtifactError(
            f"the checkpoint {folder.name} cannot be read ({type(error).__name__}). "
            "Delete it to start over; its steps stay charged."
        ) from error
    _restore_weights(parameters, weights, name=folder.name)
    _restore_optimizer(optimizer, moments)
    return state


def steps_taken(checkpoint_dir: Path) -> int:
    """Return the step of the last checkpoint; 0 where there is none."""
    names = [folder.name for folder in checkpoint_dir.glob(f"{_PREFIX}*")]
    steps = [name.removeprefix(_PREFIX) for name in names]
    return max((int(step) for step in steps if step.isdigit()), default=0)


def load_controller(checkpoint_dir: Path) -> dict[str, Tensor]:
    """Return the state of the controller in the last checkpoint.

    Raises:
        ArtifactError: it cannot be read.
    """
    folder = max(checkpoint_dir.glob(f"{_PREFIX}*"))
    try:
        return load_file(folder / _CONTROLLER)
    except (OSError, ValueError, SafetensorError) as error:
        raise ArtifactError(
            f"the controller in checkpoint {folder.name} cannot be read "
            f"({type(error).__name__}). Delete the checkpoint to start over; what was "
            "charged stays charged."
        ) from error


def _restore_weights(
    parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor], *, name: str
) -> None:
    """Copy weights after checking names and shapes."""
    found = {key: tuple(value.shape) for key, value in weights.items()}
    wanted = {key: tuple(value.shape) for key, value in parameters.items()}
    if found != wanted:
        raise ArtifactError(
            f"the checkpoint {name} must hold {len(wanted)} trainable weights of this "
            f"model, got {len(found)} that do not match. Delete it to start over."
        )
    with torch.no_grad():
        for key, value in parameters.items():
            held(value).copy_(held(part_like(weights[key], value)))


def _flat_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Name every state tensor `<index of parameter>.<key>`."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {
        f"{index}.{key}": value
        for index, entries in state.items()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }


def _restore_optimizer(
    optimizer: torch.optim.Optimizer, flat: Mapping[str, Tensor]
) -> None:
    """Rebuild the nested state that torch expects, sharded as the parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in flat.items():
        index, key = name.split(".", 1)
        like = parameters[int(index)]
        is_entrywise = value.shape == like.shape
        part = part_like(value, like) if is_entrywise else value
        state.setdefault(int(index), {})[key] = part
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _whole(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Gather shards, one tensor at a time; only the first rank keeps them."""
    whole = {}
    for name, value in tensors.items():
        full = gathered(value)
        if ranks.is_first:
            whole[name] = full.cpu().contiguous()
    return whole


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write and sync a safetensors file."""
    save_file(dict(tensors), path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write(path: Path, text: str) -> None:
    """Write and sync a text file."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_json(state: TrainingState) -> str:
    """Write JSON without NaN, which JSON does not have."""
    content = {
        "format": _FORMAT,
        "step": state.step,
        "attempt": state.attempt,
        "digest": state.digest,
        "num_tokens": state.num_tokens,
        "seconds": state.seconds,
        "max_grad_norm": state.max_grad_norm,
        "curve": [[step, repr(loss)] for step, loss in state.curve],
    }
    return json.dumps(content, allow_nan=False)


def _from_json(path: Path) -> TrainingState:
    """Read what `_to_json` wrote; refuse other formats."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["format"] != _FORMAT:
        raise ArtifactError(
            f"checkpoint format must be {_FORMAT}, got {content['format']}. "
            "Finish the run with the version that started it."
        )
    return TrainingState(
        step=int(content["step"]),
        attempt=int(content["attempt"]),
        digest=str(content["digest"]),
        num_tokens=int(content["num_tokens"]),
        seconds=float(content["seconds"]),
        curve=tuple((int(step), float(loss)) for step, loss in content["curve"]),
        max_grad_norm=content["max_grad_norm"],
    )


def run_fingerprint(
    model: nn.Module,
    data: UnitDataset,
    *,
    plan: GradientPlan | PlainPlan,
    optimizer: OptimizerSettings,
    settings: tuple[int | str | None, ...],
) -> str:
    """Hash everything that a checkpoint must agree with. Private: covers the data.

    Trained weights enter by name and shape, frozen ones by value: a run that resumes is
    given the starting model again, whose adapters may have been initialised anew.
    """
    digest = hashlib.sha256()
    header = [
        type(plan).__name__,
        asdict(plan),
        asdict(optimizer),
        list(settings),
        data.digest(),
    ]
    digest.update(json.dumps(header, sort_keys=True).encode())
    for name, value in model.named_parameters():
        digest.update(f"{name} {tuple(value.shape)} {value.requires_grad}".encode())
        if not value.requires_grad:
            digest.update(_bytes(value))
    return digest.hexdigest()


def _bytes(value: Tensor) -> bytes:
    """Return the raw memory of a tensor."""
    flat = value.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes()
