"""RLDP's controller of a stage: built from its plan, and what it leaves behind."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import save_file
from torch import Tensor, nn

from dptune.data.readers import read_records
from dptune.data.records import ProblemLog
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.parameters import Grouping, group_parameters, trainable_parameters
from dptune.dpsgd.randomness import RandomStream, seed_sequence, torch_generator
from dptune.errors import ConfigError
from dptune.mechanisms.rldp_controller import ControlTerms, RldpController
from dptune.mechanisms.sac import SacSettings
from dptune.models.encode import encode_corpus
from dptune.models.loading import LoadedModel
from dptune.results import ControllerReport, ControllerStep
from dptune.settings import ControllerSettings
from dptune.stages import StagePlan
from dptune.workflow.forward import PublicText

PREFIX = "controller_"
_PUBLIC_RECORDS = 64
_SHORTEST_PUBLIC = 40
_PUBLIC_ROWS = 16
_TRACE_POINTS = 200


def stage_controller(
    plan: StagePlan,
    loaded: LoadedModel,
    *,
    public: PublicText | None,
    max_tokens: int,
    seed: int | None,
) -> RldpController:
    """Build the controller that a stage asks for.

    **Privacy**: it is given the model, which is trained by releases alone, and public
    text. Its coins come from the operating system unless the run has a seed.

    Args:
        plan: a stage with `controller` settings.
        loaded: the model with its adapters.
        public: where rewards come from; None, or a classifier, takes what is released.
        max_tokens: of a public sequence.
        seed: of the run.
    """
    settings, clipping = plan.settings.controller, plan.settings.clipping
    if settings is None or clipping is None or plan.noise_multiplier is None:
        raise ConfigError(f"stage {plan.settings.name} has no controller.")
    groups = group_parameters(
        trainable_parameters(loaded.model), Grouping(clipping.kind)
    )
    num_pairs = 1 + max(groups.values())
    terms = ControlTerms(
        group_of=groups,
        start_norm=clipping.max_grad_norm / num_pairs**0.5,
        start_noise=plan.noise_multiplier,
        sample_rate=plan.sample_rate,
        num_steps=plan.num_steps,
        warmup=plan.warmup_steps,
        interval=plan.interval,
        clip_span=settings.clip_span,
        largest_loss=settings.largest_loss,
        raw=not settings.count_share,
    )
    return RldpController(
        terms,
        sac=_sac(settings),
        generator=torch_generator(seed_sequence(RandomStream.CONTROLLER, seed=seed)),
        public_loss=_public_loss(loaded, public, max_tokens=max_tokens)
        if public is not None and not loaded.class_names
        else None,
    )


def controller_report(
    plan: StagePlan, controller: RldpController, model: nn.Module
) -> ControllerReport:
    """Say what a controller did, thinned to a few hundred steps."""
    names = trainable_parameters(model)
    groups = group_parameters(names, Grouping.PER_LORA_PAIR)
    layers = {number: name.partition(".lora_")[0] for name, number in groups.items()}
    pairs = {n: layer.removeprefix("base_model.model.") for n, layer in layers.items()}
    every = max(1, len(controller.trace) // _TRACE_POINTS)
    return ControllerReport(
        stage=plan.settings.name,
        pairs=tuple(pairs[number] for number in sorted(pairs)),
        warmup_steps=plan.warmup_steps,
        interval=plan.interval,
        num_actions=len(controller.actions_at),
        start_noise=plan.noise_multiplier or 0.0,
        rewards_from=controller.utility_source,
        trace=tuple(
            ControllerStep(step=int(step), noise_multiplier=noise, clip_norms=norms)
            for step, noise, *norms in controller.trace[::every]
        ),
    )


def store_controller(
    controller: RldpController, report: ControllerReport, folder: Path
) -> None:
    """Write policy and trace beside the weights of a model."""
    name = f"{PREFIX}{report.stage}"
    save_file(controller.policy(), folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(report.model_dump_json(), encoding="utf-8")


def read_controllers(folder: Path) -> tuple[ControllerReport, ...]:
    """Return what controllers of a model's stages did."""
    files = sorted(folder.glob(f"{PREFIX}*.json"))
    contents = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    return tuple(map(ControllerReport.model_validate, contents))


def _sac(settings: ControllerSettings) -> SacSettings:
    """Hand the numbers over."""
    return SacSettings(
        discount=settings.discount,
        temperature=settings.temperature,
        polyak=settings.polyak,
        actor_rate=settings.actor_rate,
        critic_rate=settings.critic_rate,
        batch_size=settings.batch_size,
        num_updates=settings.num_updates,
        capacity=settings.replay_capacity,
    )


def _public_loss(
    loaded: LoadedModel, public: PublicText, *, max_tokens: int
) -> Callable[[], float]:
    """Return what measures the mean loss per token on public text."""
    data = _public_data(loaded, public, max_tokens=max_tokens)
    pad = int(loaded.tokenizer.pad_token_id)
    loss = CausalLoss(loss_normalizer=float(max_tokens))
    model, everyone = loaded.model, np.arange(data.num_units)

    @torch.no_grad()
    def measure() -> float:
        device = next(model.parameters()).device
        was_training = model.training
        model.train(mode=False)
        nll = weight = 0.0
        for batch in data.physical_batches(
            everyone, physical_batch_size=_PUBLIC_ROWS, pad_token_id=pad
        ):
            there = batch.to(device)
            losses: Tensor = loss(model, there)
            sums = loss.total_nll(losses, there)
            nll, weight = nll + sums[0], weight + sums[1]
        model.train(was_training)
        return nll / max(weight, 1.0)

    return measure


def _public_data(
    loaded: LoadedModel, public: PublicText, *, max_tokens: int
) -> UnitDataset:
    """Encode the first public texts that are worth it."""
    log = ProblemLog()
    records = read_records(public.source, data_root=public.data_root, log=log)
    texts = [r.text for r in records if isinstance(r.text, str)]
    log.raise_if_any()
    chosen = [t for t in texts if len(t) >= _SHORTEST_PUBLIC] or texts
    chosen = chosen[:_PUBLIC_RECORDS]
    names = [f"public-{i}" for i in range(len(chosen))]
    encoded = encode_corpus(
        Dataset.from_dict({"id": names, "unit_id": names, "text": chosen}),
        loaded.tokenizer,
        max_tokens=max_tokens,
        long_records="truncate",
    )
    return UnitDataset.from_encoded(encoded, max_sequences_per_unit=1, folder=None)
