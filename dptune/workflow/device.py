"""Where to compute."""

import torch

from dptune.errors import ConfigError


def pick_device(wanted: str) -> str:
    """Turn `auto` into what this machine has.

    Raises:
        ConfigError: an accelerator was asked for and there is none.
    """
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ConfigError(
            "performance.device must be auto or cpu on this machine, got cuda: no "
            "accelerator is visible."
        )
    return "cuda" if wanted == "cuda" or (wanted == "auto" and available) else "cpu"
