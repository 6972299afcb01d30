"""Nodes that need no torch and do as they are told; started in place of agents."""

import subprocess
import sys

from .node_cluster import Container

FAKE = """
import json, os, pathlib, signal, sys, time
words = sys.argv[1:]
folder = pathlib.Path(words[-1])
(index,) = (w.rpartition("/")[2] for w in words if w.startswith("--log-dir="))
index, first = int(index), os.environ["ATTEMPT"] == "1"
(logs,) = (pathlib.Path(w[10:]) for w in words if w.startswith("--log-dir="))
def fail(kind, message):
    told = {"kind": kind, "message": message, "extraInfo": {"timestamp": "1"}}
    home = logs / "none_x" / "attempt_0" / "0"
    home.mkdir(parents=True)
    (home / "error.json").write_text(json.dumps({"message": told}))
    sys.exit(1)
def once_lost():
    while not any(logs.parent.glob("*/*/*/*/error.json")):
        time.sleep(0.02)
def report(step):
    figures = {"step": step, "num_steps": 5, "tokens": 9, "seconds": 1.0}
    figures |= {"tokens_per_second": 9.0, "loss": 2.0}
    with (folder / "progress.jsonl").open("a") as file:
        file.write(json.dumps(figures) + "\\n")
"""


def starting(behaviour: str):
    """Return what starts a container whose node behaves so."""

    def start(command, variables, log):
        with log.open("w") as sink:
            words = [sys.executable, "-c", FAKE + behaviour, *command[1:]]
            return Container(
                process=subprocess.Popen(
                    words,
                    env=dict(variables),
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    return start
