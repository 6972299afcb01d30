"""Why the nodes of a stage ended, from what the cluster and their ranks say of it."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from dptune.errors import DptuneError
from dptune.workflow.ranks import cause_of_failure
from infra.nodes.objects import LOGS

_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_SIGNALS: Final = frozenset(map(int, signal.Signals))
Pod = dict[str, Any]


class Fault(Enum):
    """Whose fault an end is, and so what follows.

    `NOBODYS`: a node was taken away; all start again. `LOST`: a rank or a pod failed by
    itself; all start again as often as `performance.max_restarts` says. `FINAL`: it
    would only fail again.
    """

    NOBODYS = "nobody's"
    LOST = "lost"
    FINAL = "final"


@dataclass(frozen=True, kw_only=True)
class End:
    """How nodes ended before their work was done.

    Args:
        fault: whose it is.
        error: that the step raises, unless all start again.
    """

    fault: Fault
    error: DptuneError


def disruption(pods: Sequence[Pod], seen: set[str]) -> End | None:
    """Find a pod that the cluster takes away: preempted, drained, or on a lost node.

    Args:
        pods: of a job that has not failed.
        seen: names of pods that were there, to which these are added.
    """
    text = ""
    if gone := seen - {pod["metadata"]["name"] for pod in pods}:
        text = f"node {min(gone)} was taken away."
    for pod in pods:
        seen.add(pod["metadata"]["name"])
        for condition in pod.get("status", {}).get("conditions") or []:
            if (
                condition["type"] == "DisruptionTarget"
                and condition["status"] == "True"
            ):
                why = condition.get("reason", "no reason given")
                text = f"{_name(pod)} was taken away by the cluster ({why})."
    return End(fault=Fault.NOBODYS, error=DptuneError(text)) if text else None


def not_started(pods: Sequence[Pod], *, count: int, minutes: int) -> End:
    """Say which of the nodes wait, and what for, after all the time that they had."""
    waiting = [pod for pod in pods if not is_up(pod)]
    reasons = {f"{_name(pod)}: {_reason_to_wait(pod)}" for pod in waiting}
    if missing := count - len(pods):
        reasons.add(f"{missing} not created, see the events of their job")
    text = (
        f"all {count} nodes must start within {minutes} minutes, got "
        f"{count - len(waiting) - missing}. {'; '.join(sorted(reasons))}. Make room, "
        "or raise pods.accelerated.nodes.start_within_minutes."
    )
    return End(fault=Fault.FINAL, error=DptuneError(text))


def is_up(pod: Pod) -> bool:
    """Whether a pod has started."""
    return pod.get("status", {}).get("phase") not in (None, "Pending")


def failure(
    condition: Pod, pods: Sequence[Pod], folder: Path, *, num_processes: int
) -> End:
    """Choose what explains the end of a job that failed.

    An error of ours says what to do; memory and room of a node come next, since ranks
    that lost one another say nothing of them.

    Args:
        condition: `Failed`, of the job.
        pods: that are still listed.
        folder: of the job, with what ranks left of their errors.
        num_processes: of each node.
    """
    reason = condition.get("reason", "")
    if "DeadlineExceeded" in reason:
        text = "nodes ran out of time. Raise pods.accelerated.timeout_minutes."
        return End(fault=Fault.FINAL, error=DptuneError(text))
    told = dict(_errors(folder, num_processes=num_processes))
    told |= _silent(pods, told, num_processes=num_processes)
    text = f"their job failed ({reason}: {condition.get('message', 'no message')})."
    cause, error = cause_of_failure(told) if told else ("lost", DptuneError(text))
    if cause == "ours":
        return End(fault=Fault.FINAL, error=error)
    fatal = (DptuneError(words) for pod in pods for words in _fatal(pod))
    return End(fault=Fault.LOST, error=next(fatal, error))


def _errors(
    folder: Path, *, num_processes: int
) -> Iterator[tuple[int, ProcessFailure]]:
    """Find torch's error files, by rank: logs/NODE/RUN/attempt_0/LOCAL/error.json."""
    for file in sorted((folder / LOGS).glob("*/*/attempt_*/*/error.json")):
        node, _, _, local, _ = file.relative_to(folder / LOGS).parts
        failed = ProcessFailure(int(local), 0, 1, str(file))
        yield int(node) * num_processes + int(local), failed


def _silent(
    pods: Sequence[Pod], told: Mapping[int, ProcessFailure], *, num_processes: int
) -> dict[int, ProcessFailure]:
    """Find nodes whose ranks left no error; killed ones explain the others."""
    speak = {rank // num_processes for rank in told}
    codes = {
        int(pod["metadata"]["annotations"][_INDEX]): _exit(ended.get("exitCode", 0))
        for pod in pods
        for ended in _terminated(pod)
    }
    silent = {n: code for n, code in codes.items() if code and n not in speak}
    killed = {n: code for n, code in silent.items() if 0 > code != -signal.SIGTERM}
    return {
        node * num_processes: ProcessFailure(0, 0, code, "")
        for node, code in (killed or silent).items()
    }


def _exit(code: int) -> int:
    """Return a container's exit code as Python has it: less than 0 for a signal."""
    return 128 - code if code - 128 in _SIGNALS else code


def _fatal(pod: Pod) -> Iterator[str]:
    """Say that a pod was out of memory, or out of its node's room."""
    status = pod.get("status", {})
    for ended in _terminated(pod):
        if ended.get("reason") == "OOMKilled":
            yield (
                f"{_name(pod)} ran out of memory (OOMKilled). Raise "
                "pods.accelerated.memory, or lower performance.physical_batch_size."
            )
    if status.get("reason"):
        yield f"{_name(pod)}: {status['reason']}, {status.get('message', 'no message')}"


def _reason_to_wait(pod: Pod) -> str:
    """Say what a pod waits for: a node, an image, a secret."""
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if waiting := (status.get("state") or {}).get("waiting"):
            return f"{waiting.get('reason')}, {waiting.get('message') or 'no message'}"
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return f"{condition.get('reason')}, {condition.get('message')}"
    return "no reason given"


def _terminated(pod: Pod) -> Iterator[Pod]:
    """How containers of a pod ended."""
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if ended := (status.get("state") or {}).get("terminated"):
            yield ended


def _name(pod: Pod) -> str:
    return f"node {pod['metadata']['name']}"
