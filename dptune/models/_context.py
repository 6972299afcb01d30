"""Contexts that leave no trace: seeded initialisation, silent progress bars."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.utils import logging as hf_logging


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from `seed` inside; the global generator is as before afterwards.

    transformers and peft initialise from the global CPU generator and take no other.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def silent_progress() -> Iterator[None]:
    """Switch the progress bars of transformers off inside."""
    was_enabled = hf_logging.is_progress_bar_enabled()
    if was_enabled:
        hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_enabled:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
