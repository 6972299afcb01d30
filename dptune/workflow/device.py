"""Where to compute, and on how many processes."""

from dataclasses import dataclass

import torch

from dptune.config import PerformanceSettings
from dptune.errors import ConfigError, Problem


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The processes that train a stage.

    Args:
        device: `cpu` or `cuda`.
        num_processes: at least 1; each has an accelerator of its own, if there are any.
    """

    device: str
    num_processes: int

    def device_of(self, rank: int) -> str:
        """Return the device of one process."""
        return self.device if self.device == "cpu" else f"{self.device}:{rank}"


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


def place_processes(performance: PerformanceSettings) -> Placement:
    """Decide how many processes train, and where.

    `auto` is one for each visible accelerator, and one on the CPU.

    Raises:
        ConfigError: with everything that this machine does not have.
    """
    problems: list[Problem] = []
    try:
        device = pick_device(performance.device)
    except ConfigError as error:
        problems.extend(error.problems)
        device = "cpu"
    visible = torch.cuda.device_count() if device == "cuda" else 1
    wanted = performance.num_processes
    count = visible if wanted == "auto" else wanted
    if device == "cuda" and count > visible:
        problems.append(
            Problem(
                path="performance.num_processes",
                message=f"must be at most {visible}, the visible accelerators, got "
                f"{count}.",
                next_step='Say "auto", or device: cpu.',
            )
        )
    if performance.sharding != "none" and count == 1:
        problems.append(
            Problem(
                path="performance.sharding",
                message="must be none with one process, got "
                f"{performance.sharding}: there is nobody to share with.",
                next_step="Set num_processes to 2 or more.",
            )
        )
    if problems:
        raise ConfigError(problems)
    return Placement(device=device, num_processes=count)
