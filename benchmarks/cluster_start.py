"""How long does `run.py train --profile kubernetes` take to the first pod of a step?

    PYTHONPATH=. python benchmarks/cluster_start.py --rounds 3

A ZenML server runs as a process, the cluster is the one in memory of tests/cluster,
and the command and its pods are processes with Pythons of their own, started as a shell
and a kubelet would: nothing is imported beforehand. Every round reads other data, so
that no step is answered from the cache. Seconds count from the start of the command's
process: to the orchestrator's pod, which the command submits, and to the first step's,
which that pod does. Then the round's processes are killed.

Processor seconds are those of the command until its pod was there, and of that pod's
process until the step's was. Where a machine is busy they grow far less than the rest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.kubernetes_api import Cluster
from tests.cluster.site import Site, open_site

REPOSITORY = Path(__file__).resolve().parents[1]
CONFIG = REPOSITORY / "configs" / "train" / "quickstart.yaml"
MOST_SECONDS = 300.0


def main() -> int:
    """Measure, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("config", type=Path, nargs="?", default=CONFIG)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        open_site(Path(name)) as site,
    ):
        seconds = [
            _measure(site, options.config, number) for number in range(options.rounds)
        ]
    first = {kind: [round(s[kind], 2) for s in seconds] for kind in seconds[0]}
    medians = {kind: statistics.median(values) for kind, values in first.items()}
    print(json.dumps({"median_seconds": medians, "seconds": first}))
    return 0


def _measure(site: Site, config: Path, number: int) -> dict[str, float]:
    """Start the command once; seconds to both pods."""
    known = {pod["metadata"]["name"] for pod in site.cluster.all("pods")}
    found: dict[str, float] = {}
    parent = ""
    with (site.cluster.folder / "logs" / f"command-{number}").open("w") as log:
        began = time.monotonic()
        command = subprocess.Popen(
            [
                *(sys.executable, "run.py", "train", str(config)),
                *("--profile", str(site.profile_file)),
                *("--set", f"data.source.seed={1000 + number}"),
            ],
            cwd=REPOSITORY,
            stdout=log,
            stderr=log,
        )
        while "step" not in found:
            for pod, kind in _new_pods(site.cluster, known):
                if kind in found:
                    continue
                found[kind] = time.monotonic() - began
                if kind == "orchestrator":
                    parent = pod
                    found["processor of the command"] = _processor_seconds(command.pid)
                else:
                    process = site.cluster.processes[parent]
                    found["processor of its pod"] = _processor_seconds(process.pid)
            if command.poll() is not None or time.monotonic() - began > MOST_SECONDS:
                raise SystemExit(Path(log.name).read_text())
            time.sleep(0.01)
    command.kill()
    command.wait()
    _kill_all(site.cluster)
    return found


def _new_pods(cluster: Cluster, known: set[str]) -> Iterator[tuple[str, str]]:
    """Name every new pod, and say whether it is a step's or an orchestrator's."""
    for pod in cluster.all("pods"):
        if (name := pod["metadata"]["name"]) not in known:
            is_step = "step_name" in (pod["metadata"].get("labels") or {})
            yield name, "step" if is_step else "orchestrator"


def _processor_seconds(process: int) -> float:
    """What a process and the children that it waited for have used so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _kill_all(cluster: Cluster) -> None:
    """End all pods; without its job none is started again."""
    with cluster.lock:
        for key in [k for k in cluster.objects if k[0] == "jobs"]:
            del cluster.objects[key]
    for process in list(cluster.processes.values()):
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
