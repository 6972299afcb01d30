"""A training stage in a folder that the processes which train it share.

```
FOLDER/                     private: it holds the tokens
├── job.json                what to compute, and who pays; no text, and no secret
├── units.safetensors       mapped into memory by all processes of a machine
└── progress.jsonl          a line for each step, by the first rank; private figures
```
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from safetensors.torch import load_file

from dptune.accounting.chain import LedgerJournal
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.trainer import StepProgress
from dptune.errors import ConfigError
from dptune.files import owner_only
from dptune.results import CorpusReport
from dptune.settings import Settings
from dptune.workflow.budget import Spender
from dptune.workflow.charging import charge_to
from dptune.workflow.job import TrainingJob, load_start, run_job

JOB, UNITS, PROGRESS = "job.json", "units.safetensors", "progress.jsonl"
BUDGET_URL: Final = "DPTUNE_BUDGET_URL"
"""Environment variable that the first rank reads the budget store's address from."""


class SharedJob(Settings):
    """What every process of a stage is told.

    Args:
        job: what they compute together; paths are the same for all.
        corpus: what is charged for, see `stage_entry`.
        recipe: name of the recipe, likewise.
        device: `cpu` or `cuda`.
        reservation: that pays; None where no budget is kept.
    """

    job: TrainingJob
    corpus: CorpusReport
    recipe: str
    device: str
    reservation: str | None


class Launcher(Protocol):
    """Trains a job on other machines.

    Its first rank charges before anything is drawn, as everywhere; when it returns, the
    checkpoint of the last step is there. What `on_step` raises ends the job.
    """

    @property
    def device(self) -> str:
        """`cpu` or `cuda`: what these machines have."""
        ...

    def __call__(
        self,
        shared: SharedJob,
        data: UnitDataset,
        *,
        on_step: Callable[[StepProgress], None],
    ) -> None:
        """Train, and call `on_step` here after every step."""
        ...


def write_job(shared: SharedJob, data: UnitDataset, folder: Path) -> None:
    """Fill an empty folder that only its owner may enter.

    Args:
        shared: what to compute.
        data: sequences, with or without classes.
        folder: where all processes see it.

    Raises:
        ConfigError: the units are parts.
    """
    with owner_only():
        write_units(data, folder / UNITS)
        (folder / PROGRESS).touch()
        (folder / JOB).write_text(shared.model_dump_json(), encoding="utf-8")


def read_job(folder: Path) -> SharedJob:
    """Read what `write_job` wrote."""
    return SharedJob.model_validate_json((folder / JOB).read_bytes())


def new_steps(file: BinaryIO) -> Iterator[StepProgress]:
    """Read the steps that were added to `progress.jsonl` since it was read last.

    Args:
        file: open; a line that is not whole yet is left for the next time.
    """
    for line in file:
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            return
        yield StepProgress(**json.loads(line))


def train_share(
    shared: SharedJob,
    folder: Path,
    *,
    device: str,
    budget_url: str | None,
    ranks_per_node: int | None = None,
) -> None:
    """Train with the other ranks of this process's group; the first one pays.

    **Formal guarantee**: that of `train_stage`, where `charge` writes to the budget
    store, if there is a reservation, and then to the stage's journal.

    Args:
        shared: from the folder.
        folder: takes a line for each step.
        device: of this rank.
        budget_url: of the store that holds the reservation; None where there is none.
        ranks_per_node: that this node has, for `hsdp`.

    Raises:
        ConfigError: there is a reservation, and no address of its store.
        DptuneError: see `train_stage`.
    """
    spend = None
    if Ranks.current().is_first and shared.reservation is not None:
        if budget_url is None:
            raise ConfigError(
                f"{BUDGET_URL} must name the budget store where the first rank runs, "
                "got nothing. Give all ranks the same environment."
            )
        spend = Spender(budget_url, reservation=shared.reservation)
    charge = charge_to(
        LedgerJournal(shared.job.journal),
        shared.corpus,
        shared.job.plan,
        recipe=shared.recipe,
        fixed_seed=shared.job.seed is not None,
        spend=spend,
    )

    def on_step(now: StepProgress) -> None:
        with (folder / PROGRESS).open("a", encoding="ascii") as file:
            file.write(json.dumps(asdict(now)) + "\n")

    loaded, _ = load_start(shared.job)
    data = read_units(folder / UNITS)
    run_job(
        shared.job,
        loaded,
        data,
        device=device,
        charge=charge,
        on_step=on_step,
        ranks_per_node=ranks_per_node,
    )


def write_units(data: UnitDataset, file: Path) -> None:
    """Write a data set as safetensors. Private: it holds the tokens.

    Args:
        data: sequences, with or without classes.
        file: replaced.

    Raises:
        ConfigError: the units are parts.
    """
    if data.kinds is not None or data.unnoised is not None:
        raise ConfigError(
            "performance.num_processes must be 1 for a recipe that trains units in "
            "parts."
        )
    bounds = [data.max_sequences_per_unit, data.num_dropped_sequences]
    tensors: dict[str, NDArray[Any]] = {"bounds": np.asarray(bounds, np.int64)}
    columns: dict[str, Ragged[Any]] = {
        "sequences": data.sequences,
        "loss_weights": data.loss_weights,
        "units": data.units,
    }
    for name, rows in columns.items():
        tensors[name] = rows.flat()
        tensors[f"{name}.lengths"] = rows.lengths
    if data.labels is not None:
        tensors["labels"] = data.labels
    save_file(tensors, file)


def read_units(file: Path) -> UnitDataset:
    """Map what `write_units` wrote; the file may be shared with others."""
    tensors = {name: tensor.numpy() for name, tensor in load_file(file).items()}

    sequences, loss_weights, units = (
        Ragged.cut(tensors[name], tensors[f"{name}.lengths"])
        for name in ("sequences", "loss_weights", "units")
    )
    max_sequences, num_dropped = tensors["bounds"].tolist()
    return UnitDataset(
        sequences=sequences,
        loss_weights=loss_weights,
        units=units,
        labels=tensors.get("labels"),
        max_sequences_per_unit=max_sequences,
        num_dropped_sequences=num_dropped,
    )
