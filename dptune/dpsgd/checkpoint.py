"""Checkpoints: one folder, replaced atomically, that a resumed run starts from.

```
checkpoint_dir/
├── attempts/0 1 2 ...     one empty file per process start, made before any noise
└── step-00000040/         the last block boundary; renamed into place when complete
    ├── state.json         step, attempt, digest of plan and model, curve, shards
    └── shard-00001-model-00001-of-00001.safetensors ...
```

Torch's distributed checkpoints hold the tensors: weights, moments, and what a transform
or a controller has learned. Every rank writes what it holds of a model, and reads what
it will hold, so that nobody ever holds all of it, and any number of ranks may go on.
Where all hold the same the first one writes. Shards are safetensors that say where they
belong; ranks plan what they write by themselves, since torch's plans would travel
between them as pickles.

The first rank commits when all have written: a run that is killed before finds the
checkpoint before. One with a shard that is missing, exchanged or altered is refused by
the digests in `state.json`, and so is one of another `run_fingerprint`.

**Privacy**: weights and optimizer state are released values, but the curve and the
token count are private. A checkpoint stays inside the trust boundary.

References:
    https://docs.pytorch.org/docs/2.13/distributed.checkpoint.html,
    `HuggingFaceStorageWriter`.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.planner import SavePlan

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import ALONE, Ranks
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.sharding import held, is_owned
from dptune.errors import ArtifactError

_FORMAT: Final = 3
_STATE: Final = "state.json"
_PREFIX, _HALF = "step-", ".writing-"
_WEIGHTS, _OPTIMIZER = "weights", "optimizer"
_CONTROLLER, _TRANSFORM = "controller", "transform"
_FILE_BYTES: Final = 2**26
"""Torch copies a file's tensors before it writes them: this much at a time, or one."""

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
        controller: what a controller that steers clip norms has learned; likewise.
    """

    step: int
    attempt: int
    digest: str
    num_tokens: int = field(default=0, repr=False)
    seconds: float = 0.0
    curve: tuple[CurvePoint, ...] = field(default=(), repr=False)
    max_grad_norm: float | None = None
    transform: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    controller: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


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
) -> None:
    """Write a checkpoint, rename it into place, drop the one before.

    With several ranks, all must call this; it returns when the files are there. A step
    that is there already stays as it is: no noise has been drawn since.

    Raises:
        Exception: of any rank, on all of them; the checkpoint before is left alone.
    """
    tensors = _flat(
        {
            _WEIGHTS: {name: value.detach() for name, value in parameters.items()},
            _OPTIMIZER: _state_of(optimizer),
            _TRANSFORM: state.transform,
            _CONTROLLER: state.controller,
        }
    )
    mine = {n: v.contiguous() for n, v in tensors.items() if is_owned(v, ranks)}
    half = checkpoint_dir / f"{_HALF}{state.step:08d}-{state.attempt}"
    ranks.once(partial(_make_empty, half))
    digests = ranks.each(partial(_write_shard, half, mine, number=ranks.rank + 1))
    files = {name: digest for found in digests for name, digest in found.items()}
    ranks.once(partial(_commit, half, state, files))


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
    ranks.each(partial(_verify, folder, digest=digest, ranks=ranks))
    with _readable(folder):
        state, _ = _from_json(folder / _STATE)
        tensors = _read_shards(folder, parameters, optimizer)
    return replace(
        state,
        transform=_part(tensors, _TRANSFORM),
        controller=_part(tensors, _CONTROLLER),
    )


def steps_taken(checkpoint_dir: Path) -> int:
    """Return the step of the last checkpoint; 0 where there is none."""
    names = [folder.name for folder in checkpoint_dir.glob(f"{_PREFIX}*")]
    steps = [name.removeprefix(_PREFIX) for name in names]
    return max((int(step) for step in steps if step.isdigit()), default=0)


class _ShardWriter(HuggingFaceStorageWriter):
    """Writes the shards of one rank, which knows of no others."""

    def __init__(self, folder: Path, files: dict[str, int], *, number: int) -> None:
        super().__init__(str(folder), files, save_distributed=True)
        self._number = number

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give files names that no other rank's have."""
        number = {"shard_index": self._number}
        return [
            replace(plan, storage_data=plan.storage_data | number)
            for plan in super().prepare_global_plan(plans)
        ]


@contextmanager
def _by_itself() -> Iterator[None]:
    """Let torch plan for one rank, which it warns of; its error is no Exception."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*assuming the intent is to (save|load)")
        try:
            yield
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from None


def _make_empty(folder: Path) -> None:
    """Make a folder that only its owner may enter."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)


def _write_shard(
    folder: Path, tensors: Mapping[str, Tensor], *, number: int
) -> dict[str, str]:
    """Write and sync what this rank holds; return digests by name of file."""
    files, size = {}, 0
    for name, value in tensors.items():
        files[name] = 1 + size // _FILE_BYTES
        size += held(value).nbytes
    if not files:
        return {}
    with _by_itself():
        writer = _ShardWriter(folder, files, number=number)
        state_dict_saver.save(dict(tensors), storage_writer=writer, no_dist=True)
    mine = folder.glob(f"shard-{number:05d}-*")
    return {file.name: _digest(file) for file in mine}


def _commit(half: Path, state: TrainingState, files: Mapping[str, str]) -> None:
    """Make a checkpoint that is whole the last one, on the first rank."""
    _write(half / _STATE, _to_json(state, files))
    _sync_folder(half)
    final = half.with_name(f"{_PREFIX}{state.step:08d}")
    if not final.exists():
        half.rename(final)
    _sync_folder(half.parent)
    for other in half.parent.iterdir():
        if other.name.startswith((_PREFIX, _HALF)) and other != final:
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Say what to do where a checkpoint cannot be read."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ArtifactError(
            f"the checkpoint {folder.name} cannot be read ({type(error).__name__}). "
            "Delete it to start over; its steps stay charged."
        ) from error


def _verify(folder: Path, *, digest: str, ranks: Ranks) -> None:
    """Check a rank's part of the files, and that they are all, and of this run."""
    with _readable(folder):
        state, files = _from_json(folder / _STATE)
        if state.digest != digest:
            raise ArtifactError(
                f"the checkpoint {folder.name} must belong to this plan, model and "
                "data, but was made by another. Choose another checkpoint_dir."
            )
        there = {file.name for file in folder.glob("*.safetensors")}
        mine = sorted(files.keys() & there)[ranks.rank :: ranks.size]
        altered = {name for name in mine if _digest(folder / name) != files[name]}
        if wrong := sorted(altered | (there ^ files.keys())):
            raise ArtifactError(
                f"the checkpoint {folder.name} must hold the shards that were written, "
                f"got others or none as {', '.join(wrong)}. Delete it to start over; "
                "its steps stay charged."
            )


def _read_shards(
    folder: Path,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> dict[str, Tensor]:
    """Overwrite weights and moments by this rank's part; return the rest by name."""
    reader = HuggingFaceStorageReader(str(folder))
    found: Any = reader.read_metadata().state_dict_metadata
    tensors = _flat({_WEIGHTS: {n: p.detach() for n, p in parameters.items()}})
    shapes = {n: v.size for n, v in found.items() if n.startswith(f"{_WEIGHTS}.")}
    if shapes != {name: value.shape for name, value in tensors.items()}:
        raise ArtifactError(
            f"the checkpoint {folder.name} must hold {len(tensors)} trainable weights "
            f"of this model, got {len(shapes)} that do not match. Delete it to start "
            "over."
        )
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name in found.keys() - shapes.keys():
        size, dtype = found[name].size, found[name].properties.dtype
        tensors[name] = torch.empty(size, dtype=dtype)
        kind, index, *key = name.split(".")
        if kind == _OPTIMIZER:
            like = trained[int(index)].detach()
            if like.shape == size:
                tensors[name] = torch.empty_like(like, dtype=dtype)
            state.setdefault(int(index), {})[".".join(key)] = tensors[name]
    with _by_itself():
        state_dict_loader.load(tensors, storage_reader=reader, no_dist=True)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return tensors


def _part(tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return tensors of one kind by their names."""
    start = f"{kind}."
    return {n.removeprefix(start): v for n, v in tensors.items() if n.startswith(start)}


def _flat(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Name every tensor `<kind>.<name>`."""
    return {
        f"{kind}.{name}": value
        for kind, named in tensors.items()
        for name, value in named.items()
    }


def _state_of(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Name every state tensor `<index of parameter>.<key>`."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {
        f"{index}.{key}": value
        for index, entries in state.items()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }


def _digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


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


def _to_json(state: TrainingState, files: Mapping[str, str]) -> str:
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
        "files": dict(files),
    }
    return json.dumps(content, allow_nan=False)


def _from_json(path: Path) -> tuple[TrainingState, dict[str, str]]:
    """Read what `_to_json` wrote; refuse other formats."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["format"] != _FORMAT:
        raise ArtifactError(
            f"checkpoint format must be {_FORMAT}, got {content['format']}. "
            "Finish the run with the version that started it."
        )
    state = TrainingState(
        step=int(content["step"]),
        attempt=int(content["attempt"]),
        digest=str(content["digest"]),
        num_tokens=int(content["num_tokens"]),
        seconds=float(content["seconds"]),
        curve=tuple((int(step), float(loss)) for step, loss in content["curve"]),
        max_grad_norm=content["max_grad_norm"],
    )
    return state, dict(content["files"])


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
