"""Train a stage on several processes of this machine, one for each accelerator.

Torch's elastic agent, in this process, starts, watches, stops and restarts them, and
nothing listens beyond the loopback interface. What they do, here or on several
machines, says `dptune.workflow.rank`.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented
from torch.distributed.elastic import multiprocessing, rendezvous
from torch.distributed.elastic.agent.server import api, local_elastic_agent
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import revive_error
from dptune.dpsgd.trainer import StepProgress
from dptune.errors import DptuneError
from dptune.files import private_folder
from dptune.workflow.rank import AGENT
from dptune.workflow.shared_job import (
    BUDGET_URL,
    PROGRESS,
    SharedJob,
    new_steps,
    write_job,
)

# -P: no module that lies in the working folder takes another one's place.
_PROGRAM: Final = ("-P", "-m", "dptune.workflow.rank")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_GRACE_SECONDS: Final = 5


def train_on_ranks(
    shared: SharedJob,
    data: UnitDataset,
    *,
    num_processes: int,
    budget_url: str | None,
    on_step: Callable[[StepProgress], None],
) -> None:
    """Run a job on several processes; its checkpoint is complete afterwards.

    **Formal guarantee**: that of `train_stage`; the first rank charges, once for each
    block and process start, and no rank draws before. An error of ours, as of a refused
    charge, is raised here. When a rank is lost all start again, as often as
    `performance.max_restarts` says; then the error names the signal. No rank is left
    behind: when this process is killed they notice and end by themselves.

    Args:
        shared: what to compute, and who pays.
        data: sequences by privacy unit, not in parts.
        num_processes: at least 2.
        budget_url: of the reservation's store; kept from files and command lines.
        on_step: called here after every step; what it raises ends the ranks.

    Raises:
        DptuneError: a rank failed; of the rank's own kind where it is one of ours.
    """
    with private_folder(shared.job.journal.parent, purpose="ranks") as folder:
        write_job(shared, data, folder)
        environment = {
            AGENT: str(os.getpid()),
            "PYTHONPATH": os.pathsep.join(sys.path),  # the modules of this process
        } | ({BUDGET_URL: budget_url} if budget_url else {})
        spec = api.WorkerSpec(
            role="rank",
            local_world_size=num_processes,
            entrypoint=sys.executable,
            args=(*_PROGRAM, str(folder)),
            rdzv_handler=_OneMachine(
                "localhost", 0, rank=0, world_size=1, run_id="ranks", timeout=0
            ),
            max_restarts=shared.job.performance.max_restarts,
            monitor_interval=0.1,
        )
        logs = _Logs(folder / "logs", environment)
        agent = _Agent(spec, logs, shutdown_timeout=_GRACE_SECONDS)
        with (folder / PROGRESS).open("rb") as agent.progress:
            agent.on_step = on_step
            try:
                result = agent.run()
            except multiprocessing.SignalException as stop:  # while they were started
                signal.raise_signal(stop.sigval)
                raise
    if result.is_failed():
        _, error = cause_of_failure(result.failures)
        raise error


class _OneMachine(static_tcp_rendezvous.StaticTCPRendezvous):
    """A rendezvous of one agent, which meets nobody and opens no port for it."""

    def next_rendezvous(self) -> rendezvous.RendezvousInfo:
        store_info = rendezvous.RendezvousStoreInfo("localhost", 0)
        return rendezvous.RendezvousInfo(HashStore(), 0, 1, store_info)


class _Logs(multiprocessing.DefaultLogsSpecs):
    """Where ranks leave their errors; and what is added to their environment."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(log_dir=str(folder))
        self._environment = environment

    def reify(self, envs: dict[int, dict[str, str]]) -> multiprocessing.LogsDest:
        for env in envs.values():
            env.update(self._environment)
        return super().reify(envs)


class _Agent(local_elastic_agent.LocalElasticAgent):
    """Torch's agent, which also tells what the first rank has done."""

    progress: BinaryIO
    on_step: Callable[[StepProgress], None]

    def _start_workers(self, worker_group: api.WorkerGroup) -> dict[int, Any]:
        """Start ranks, and leave signals to those who took them: they raise here."""
        is_main = threading.current_thread() is threading.main_thread()
        before = {n: signal.getsignal(n) for n in _SIGNALS if is_main}
        try:
            pids: dict[int, Any] = super()._start_workers(worker_group)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
        return pids

    def _monitor_workers(self, worker_group: api.WorkerGroup) -> api.RunResult:
        """Look after ranks; one that fails with an error of ours would do so again."""
        result: api.RunResult = super()._monitor_workers(worker_group)
        for now in new_steps(self.progress):
            self.on_step(now)
        if result.is_failed() and cause_of_failure(result.failures)[0] == "ours":
            self._remaining_restarts = 0
        return result


def cause_of_failure(
    failures: Mapping[int, ProcessFailure],
) -> tuple[str, DptuneError]:
    """Choose among the ends of ranks the one that explains the others.

    One of ours says what to do. Others often fail in the wake of a rank that is lost,
    and the agent ends those that are left by SIGTERM.

    Args:
        failures: by rank, at least one.

    Returns:
        `ours`, `lost`, `failed` or `stopped`; and an error that says so.
    """
    ends: dict[str, DptuneError] = {}
    for rank, failure in sorted(failures.items(), reverse=True):
        code, told = failure.exitcode, failure.error_file_data["message"]
        if isinstance(told, dict):
            told = {"kind": "an error", **told}  # torch's own files name none
            error = revive_error(told, who=f"rank {rank}")
            ends["ours" if type(error).__name__ == told["kind"] else "failed"] = error
            continue
        ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        ends["stopped" if code == -signal.SIGTERM else "lost"] = DptuneError(
            f"rank {rank} ended without a word ({ending}). If it ran out of memory, "
            "lower performance.physical_batch_size or num_processes."
        )
    cause = next(c for c in ("ours", "lost", "failed", "stopped") if c in ends)
    return cause, ends[cause]
