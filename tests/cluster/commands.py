"""Commands of ours, run as users run them, and what their runs measured."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from zenml.client import Client
from zenml.models import PipelineRunResponse

from cli.main import main

_DIGEST = re.compile(r"digest is [0-9a-f]+")
_ATTACKS = ("exposure", "membership", "extraction", "utility")


def command(*arguments: object) -> int:
    """Run a command in this process; the exit code."""
    argv, sys.argv = sys.argv, ["run.py", *map(str, arguments)]
    try:
        return main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = argv


def overrides(values: tuple[str, ...]) -> list[str]:
    """Settings as options of a command."""
    return [word for value in values for word in ("--set", value)]


def output(run: PipelineRunResponse, step: str, name: str) -> Any:
    """Load one output of one step."""
    return run.steps[step].outputs[name][0].load()


def measured(run: PipelineRunResponse) -> dict[str, Any]:
    """What a run measured and decided, as JSON values, but for when it did so."""
    reports = {name: output(run, "attack", name) for name in _ATTACKS}
    reports["decision"] = output(run, "gate", "decision")
    found = {name: json.loads(r.model_dump_json()) for name, r in reports.items()}
    for name in ("evidence_digest", "manifest_digest", "dossier_digest"):
        del found["decision"][name]  # hold the times of the attacks
    for name in _ATTACKS:
        del found[name]["measured_at"]
    for criterion in found["decision"]["criteria"]:
        criterion["reason"] = _DIGEST.sub("", criterion["reason"])
        if criterion["name"] == "evidence_age":
            del criterion["measured"]
    return found


if __name__ == "__main__":  # FILE, then a command whose run is written there
    code = command(*sys.argv[2:])
    (last,) = Client().list_pipeline_runs(sort_by="desc:created", size=1).items
    done = Client().get_pipeline_run(last.id)
    Path(sys.argv[1]).write_text(json.dumps({"code": code, **measured(done)}))
