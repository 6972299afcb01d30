"""The pod of a step starts the nodes that train its stage, follows them and ends them.

Nodes are started once each. Whoever is lost ends all of them, and only here it is
decided whether all start again, from the last checkpoint: agents restart nothing.

What is made belongs to the step's pod, and goes with it. A pod that is killed stays
behind with all that it owns: its nodes then end by themselves, since nobody touches the
job's `alive` file any more, and the step's next start removes what is left.
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.trainer import StepProgress
from dptune.errors import ArtifactError, ConfigError
from dptune.files import private_folder
from dptune.workflow.shared_job import PROGRESS, SharedJob, new_steps, write_job
from infra.nodes.ends import End, Fault, disruption, failure, is_up, not_started
from infra.nodes.objects import ALIVE, LOGS, node_objects
from infra.nodes.settings import JOB, NODES, NodeJob

if TYPE_CHECKING:  # kubernetes is an extra
    from infra.nodes.owned import Owned

_LOG = logging.getLogger(__name__)
_POLL_SECONDS: Final = 2.0
_SILENCE_SECONDS: Final = 300.0
"""How long the cluster may be silent before nodes are given up."""
_OnStep = Callable[[StepProgress], None]


def launcher_of(extra: Mapping[str, Any]) -> "NodeLauncher | None":
    """Return who trains a stage on several nodes, if its step was told of any.

    Args:
        extra: of the step, as `infra.pods` filled it in.
    """
    told = extra.get(NODES)
    return None if told is None else NodeLauncher(job=NodeJob.model_validate(told))


@dataclass(frozen=True, kw_only=True)
class NodeLauncher:
    """Trains a job on pods of its own; see `Launcher`.

    Args:
        job: what the profile says of them.
    """

    job: NodeJob

    @property
    def device(self) -> str:
        """What the nodes compute on."""
        return self.job.device

    def __call__(
        self, shared: SharedJob, data: UnitDataset, *, on_step: _OnStep
    ) -> None:
        """Train a job, and start again what was taken away or lost.

        **Formal guarantee**: that of `train_stage`. A start after a loss goes on from
        the last checkpoint, and the first rank charges the block that was cut off once
        more before it is drawn again; a second job of the same stage is refused.

        Args:
            shared: what to compute, and who pays.
            data: sequences by privacy unit, not in parts.
            on_step: called after every step; what it raises ends the nodes.

        Raises:
            ConfigError: the cluster refuses what is asked for.
            PrivacyError: another run trains the same stage.
            DptuneError: nodes did not start, or ended; of a rank's own kind where it
                failed with an error of ours.
        """
        from infra.nodes.owned import Owned  # noqa: PLC0415 - as above

        performance, home = shared.job.performance, shared.job.journal.parent
        each = _processes(performance.num_processes, gpus=self.job.gpus)
        restarts = performance.max_restarts
        with private_folder(home, purpose=NODES) as folder:
            _hand_over(shared, data, folder)
            name = f"dptune-{home.name[:20].lower()}"
            owned = Owned.by_this_pod(
                self.job.namespace,
                selector=f"{JOB}={name}",
                cache=folder / "discovery.json",
            )
            kind = owned.kind(self.job.kind)
            objects = node_objects(
                self.job,
                kind=kind,
                name=name,
                folder=folder,
                num_processes=each,
                owner=owned.owner,
            )
            with (folder / PROGRESS).open("rb") as progress:
                while True:
                    shutil.rmtree(folder / LOGS, ignore_errors=True)
                    (folder / ALIVE).touch()
                    with owned.made(objects):
                        _LOG.info("%s %s starts %d nodes", kind, name, self.job.count)
                        end = self._follow(owned, folder, each, progress, on_step)
                    if end is None:
                        return
                    is_lost = end.fault is Fault.LOST
                    if end.fault is Fault.FINAL or (is_lost and not restarts):
                        raise end.error
                    restarts -= is_lost
                    _LOG.warning("all nodes start again: %s", end.error)

    def _follow(
        self,
        owned: "Owned",
        folder: Path,
        each: int,
        progress: BinaryIO,
        on_step: _OnStep,
    ) -> End | None:
        """Tell of steps until the work is done, which is None, or cannot be done."""
        seen: set[str] = set()
        answered = waits_since = time.monotonic()
        count, minutes = self.job.count, self.job.start_within_minutes
        while True:
            (folder / ALIVE).touch()
            try:
                conditions, pods = owned.look()
            except ArtifactError:
                if time.monotonic() - answered > _SILENCE_SECONDS:
                    raise
                time.sleep(_POLL_SECONDS)
                continue
            answered = time.monotonic()
            for now in new_steps(progress):
                on_step(now)
            if "Complete" in conditions:
                return None
            if "Failed" in conditions:
                end = disruption(pods, set())
                failed = conditions["Failed"]
                return end or failure(failed, pods, folder, num_processes=each)
            if "Suspended" in conditions:  # by a queue, which may be long
                seen, waits_since = set(), answered
            elif "FailureTarget" not in conditions and (end := disruption(pods, seen)):
                return end
            if sum(map(is_up, pods)) >= count:
                waits_since = answered
            if answered - waits_since > 60 * minutes:
                return not_started(pods, count=count, minutes=minutes)
            time.sleep(_POLL_SECONDS)


def _processes(wanted: int | str, *, gpus: int) -> int:
    """Count the processes of a node: `auto` is one for each accelerator."""
    count = max(gpus, 1) if isinstance(wanted, str) else wanted
    if 0 < gpus < count:
        raise ConfigError(
            f"performance.num_processes must be at most {gpus}, the "
            f"pods.accelerated.gpus of a node, got {count}. Say auto."
        )
    return count


def _hand_over(shared: SharedJob, data: UnitDataset, folder: Path) -> None:
    """Write a job where all nodes see it; the model too, which may lie in this pod."""
    model = Path(shutil.copytree(shared.job.model, folder / "model"))
    job = shared.job.model_copy(update={"model": model})
    write_job(shared.model_copy(update={"job": job}), data, folder)
