"""What a checkpoint must agree with before a run may resume from it."""

import hashlib
import json
from dataclasses import asdict

import torch
from torch import Tensor, nn

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan, PlainPlan


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
