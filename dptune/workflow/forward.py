"""Train one stage with noise in the forward pass: users' releases, a server's part."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dptune.data.readers import read_records
from dptune.data.records import ProblemLog
from dptune.data.source import DataSource
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.randomness import (
    GaussianStream,
    RandomStream,
    scoped_randomness,
    seed_sequence,
)
from dptune.dpsgd.steps import Charge
from dptune.dpsgd.trainer import StepProgress, TrainingOutcome
from dptune.errors import ConfigError
from dptune.local.split import (
    ServerPart,
    StackedAutoencoder,
    UserPart,
    merge_server,
    split_model,
    train_autoencoder,
)
from dptune.local.training import ForwardProgress, UserSequences, train_forward
from dptune.models.loading import LoadedModel
from dptune.stages import StagePlan

_PUBLIC_RECORDS = 2000
_SHORTEST_PUBLIC = 40
_CHECKPOINT = "server.safetensors"


@dataclass(frozen=True, kw_only=True)
class PublicText:
    """Where an autoencoder learns what hidden states look like.

    Args:
        source: public text.
        data_root: folder that its relative paths start from.
    """

    source: DataSource
    data_root: Path


@dataclass(frozen=True, kw_only=True)
class _Progress:
    """What a checkpoint says beside the server's weights."""

    participations: int = 0
    seconds: float = 0.0
    losses: tuple[float, ...] = ()


def train_on_releases(
    loaded: LoadedModel,
    data: UnitDataset,
    *,
    plan: StagePlan,
    num_positions: int,
    public: PublicText | None,
    home: Path,
    num_charged: int,
    charge: Charge,
    on_step: Callable[[StepProgress], None] | None,
    seed: int | None,
    device: str,
) -> TrainingOutcome:
    """Train the server's part of a classifier and put it back into the whole model.

    The parts are kept in `home / parts`: `user.safetensors`, `server.safetensors`, and
    `split.json`, which says where the line is. The optimizer starts anew where a killed
    run goes on.

    Args:
        loaded: the classifier; its layers behind the noise are replaced.
        data: sequences with labels, one for each unit.
        plan: a stage with `local` settings.
        num_positions: public length that every sequence is padded or cut to.
        public: text for the autoencoder, needed if there is one.
        home: of the stage; its checkpoint and parts.
        num_charged: participations that were charged before, and are spent.
        charge: called with (participation, 1) before its noise.
        on_step: called after every participation.
        seed: known randomness, for tests.
        device: torch device.

    Raises:
        ConfigError: the model is no classifier, a unit has several sequences, or an
            autoencoder lacks its public text.
    """
    local = plan.settings.local
    if local is None or data.labels is None or data.largest_unit > 1:
        raise ConfigError(
            "forward noise needs model.task sequence_classification and one sequence "
            "for each privacy unit (model.max_sequences_per_unit: 1)."
        )
    coder = _autoencoder(loaded, plan, public, num_positions=num_positions)
    user, server = split_model(
        loaded.model,
        layer=local.layer,
        autoencoder=coder,
        num_positions=num_positions,
        max_norm=local.max_norm,
    )
    run = _Run(server, home / "checkpoint" / _CHECKPOINT, plan, on_step)
    resumed = run.progress.participations or None
    first = max(num_charged, run.progress.participations)
    optimizer = plan.settings.optimizer
    settings = OptimizerSettings(
        name=optimizer.name,
        learning_rate=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        momentum=optimizer.momentum,
    )
    noise = seed_sequence(RandomStream.NOISE, seed=seed, attempt=first)
    model_randomness = seed_sequence(RandomStream.MODEL, seed=seed, attempt=first)
    with scoped_randomness(model_randomness, device=device):
        train_forward(
            user.to(device),
            server.to(device),
            UserSequences.padded(
                [list(map(int, sequence)) for sequence in data.sequences],
                data.labels.tolist(),
                num_positions=num_positions,
                pad_token_id=int(loaded.tokenizer.pad_token_id),
            ),
            plan=replace(
                plan.forward_plan(plan.noise_multiplier or 0.0),
                num_users=len(data.sequences),  # the server sees who sends
            ),
            optimizer=settings.build(server.parameters()),
            charge=lambda participation: charge(participation, 1),
            stream=GaussianStream(noise, device=device),
            order=np.random.default_rng(first),  # public
            first_participation=first,
            on_step=run.note,
            on_participation=run.keep,
        )
    merge_server(loaded.model, server.cpu(), layer=local.layer)
    _store_parts(user.cpu(), server, plan, home / "parts")
    return TrainingOutcome(
        num_steps=plan.num_steps,
        num_tokens=plan.num_steps * len(data.sequences) * num_positions,
        seconds=run.progress.seconds,
        resumed_from_step=resumed,
        curve=tuple(enumerate(run.progress.losses, start=1)),
    )


class _Run:
    """Losses and checkpoints of one process."""

    def __init__(
        self,
        server: ServerPart,
        file: Path,
        plan: StagePlan,
        on_step: Callable[[StepProgress], None] | None,
    ) -> None:
        self.progress = _read(server, file)
        self._server, self._file, self._plan = server, file, plan
        self._on_step = on_step or (lambda _: None)
        self._losses: list[float] = []
        self._started = time.perf_counter()

    def note(self, now: ForwardProgress) -> None:
        """Remember the loss of a step."""
        self._losses.append(now.loss)

    def keep(self, participation: int) -> None:
        """Store the server after a participation, and report it."""
        seconds = time.perf_counter() - self._started
        loss = float(np.mean(self._losses))
        before = self.progress
        self.progress = replace(
            before,
            participations=participation + 1,
            seconds=before.seconds + seconds,
            losses=(*before.losses, loss),
        )
        _write(self._server, self._file, self.progress)
        sequences = self._plan.num_units
        self._on_step(
            StepProgress(
                step=participation + 1,
                num_steps=self._plan.num_steps,
                tokens=sequences * (participation + 1),
                seconds=self.progress.seconds,
                tokens_per_second=sequences / max(seconds, 1e-9),
                loss=loss,
            )
        )
        self._losses, self._started = [], time.perf_counter()


def _autoencoder(
    loaded: LoadedModel,
    plan: StagePlan,
    public: PublicText | None,
    *,
    num_positions: int,
) -> StackedAutoencoder | None:
    """Train the autoencoder of a stage on public text, if it has one."""
    local = plan.settings.local
    if local is None or not local.autoencoder:
        return None
    if public is None:
        raise ConfigError(
            "model.public_text must be set for an autoencoder, which learns from "
            "public text only."
        )
    states = _public_states(
        loaded, public, layer=local.layer, num_positions=num_positions
    )
    return train_autoencoder(
        states,
        sizes=(states.shape[1], *local.autoencoder),
        num_steps=local.autoencoder_steps,
    )


def _public_states(
    loaded: LoadedModel, public: PublicText, *, layer: int, num_positions: int
) -> Tensor:
    """Hidden states of public text at the line, `(tokens, features)`."""
    log = ProblemLog()
    records = read_records(public.source, data_root=public.data_root, log=log)
    texts = [r.text for r in records if isinstance(r.text, str)]
    log.raise_if_any()
    long = [text for text in texts if len(text) >= _SHORTEST_PUBLIC]
    chosen = (long or texts)[:_PUBLIC_RECORDS]
    encoded = loaded.tokenizer(chosen, truncation=True, max_length=num_positions)
    data = UserSequences.padded(
        encoded["input_ids"],
        [0] * len(chosen),
        num_positions=num_positions,
        pad_token_id=int(loaded.tokenizer.pad_token_id),
    )
    user, _ = split_model(
        loaded.model, layer=layer, num_positions=num_positions, max_norm=1.0
    )
    parts = [slice(start, start + 100) for start in range(0, len(data), 100)]
    states = [user(data.tokens[rows], data.mask[rows]) for rows in parts]
    return torch.cat(states).flatten(0, 1)


def _read(server: ServerPart, file: Path) -> _Progress:
    """Load a checkpoint into the server, if there is one."""
    if not file.is_file():
        return _Progress()
    with safe_open(file, framework="pt") as content:
        server.load_state_dict({k: content.get_tensor(k) for k in content.keys()})  # noqa: SIM118 - no mapping
        values = json.loads(content.metadata()["progress"])
    return _Progress(
        participations=values["participations"],
        seconds=values["seconds"],
        losses=tuple(values["losses"]),
    )


def _write(server: ServerPart, file: Path, progress: _Progress) -> None:
    """Store a checkpoint so that a killed process leaves no half of one."""
    values = {
        "participations": progress.participations,
        "seconds": progress.seconds,
        "losses": list(progress.losses),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_suffix(".half")
    weights = {name: value.contiguous() for name, value in server.state_dict().items()}
    save_file(weights, half, metadata={"progress": json.dumps(values)})
    half.rename(file)


def _store_parts(
    user: UserPart, server: ServerPart, plan: StagePlan, folder: Path
) -> None:
    """Write both parts and the place of the line between them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("user", user), ("server", server)):
        weights = {key: value.contiguous() for key, value in part.state_dict().items()}
        save_file(weights, folder / f"{name}.safetensors")
    local, forward = plan.settings.local, plan.forward_plan(plan.noise_multiplier or 0)
    line = {
        "settings": None if local is None else local.model_dump(mode="json"),
        "noise_multipliers": list(forward.noise_multipliers),
    }
    (folder / "split.json").write_text(json.dumps(line, indent=2), encoding="utf-8")
