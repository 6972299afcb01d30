"""One run of the whole pipeline through Kubeflow, which all tests look at."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from zenml.client import Client
from zenml.enums import StackComponentType as Kind
from zenml.models import PipelineRunResponse
from zenml.utils import source_utils

from infra.profiles import PROFILES, Profile, read_profile
from infra.stacks.production import register
from infra.stacks.settings import STACKS
from infra.workspace import REPOSITORY
from tests.cluster.commands import command, overrides
from tests.cluster.forked_pods import start_forked
from tests.cluster.site import Site, _secret, open_site

source_utils.set_custom_source_root(str(REPOSITORY))  # tests import steps
TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
SEEDED = ("seed=7", "registry.model_name=seeded", "budget.data_set=seeded")
LONGER = (
    *("name=killed", "registry.model_name=killed", "budget.data_set=killed"),
    *("stages.jft.private_finetune.epochs=6", "gate.max_epsilon=12"),
    "data.source.seed=6",  # texts keep the name of the data set that they had first
)


def pytest_collection_modifyitems(items):
    """Skip without kfp, which cannot be beside this project's versions."""
    absent = pytest.mark.skip(reason="needs kfp: `make kubeflow` has an environment")
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            if find_spec("kfp") is None:
                item.add_marker(absent)


@dataclass(frozen=True, kw_only=True)
class Kubeflow:
    """A Kubeflow on a cluster, and a profile that leads to it."""

    site: Site
    api: object
    profile: Profile
    profile_file: Path
    key: str


@pytest.fixture(scope="session")
def kubeflow(tmp_path_factory) -> Iterator[Kubeflow]:
    """The repository's own profile and stack, but for where they are."""
    from infra.kubeflow.orchestrator import (  # noqa: PLC0415 - needs kfp
        PipelinesOrchestrator,
    )
    from tests.kubeflow.pipelines_api import PipelinesApi  # noqa: PLC0415 - needs kfp

    folder = tmp_path_factory.mktemp("kubeflow")
    with open_site(folder / "site", start=start_forked) as site:
        api = PipelinesApi(site.cluster, namespace="dptune-kubeflow")
        client = Client()
        account = client.create_service_account("pods")
        key = client.create_api_key(account.id, "pods").key
        secret = _secret("dptune-zenml-pods", {"api-key": key})
        site.cluster.put("secrets", "dptune-kubeflow", secret)
        site.cluster.more_variables = lambda _pod: {"ABSENT": "kfp"}  # as in the image
        profile_file = _profile(folder, api.url)
        profile = read_profile(str(profile_file))
        stack = profile.production_stack()
        register(stack)
        kinds = (Kind.ARTIFACT_STORE, Kind.EXPERIMENT_TRACKER)
        here = {k: client.get_stack_component(k, f"here-{k}").id for k in kinds}
        client.update_stack(stack.name, component_updates=here)
        with pytest.MonkeyPatch.context() as patch:  # artifacts are kept on this disk
            patch.setattr(PipelinesOrchestrator, "validator", None)
            yield Kubeflow(
                site=site, api=api, profile=profile, profile_file=profile_file, key=key
            )
        api.close()


@dataclass(frozen=True, kw_only=True)
class Done:
    """A finished run, its exit code, and Kubeflow's own record of it."""

    run: PipelineRunResponse
    code: int
    record: dict


def train(kubeflow: Kubeflow, changes: tuple[str, ...]) -> Done:
    """Train through Kubeflow."""
    words = ("train", TINY, *overrides(changes), "--profile", kubeflow.profile_file)
    code = command(*words)
    (last,) = Client().list_pipeline_runs(sort_by="desc:created", size=1).items
    run = Client().get_pipeline_run(last.id)
    return Done(run=run, code=code, record=list(kubeflow.api.runs.values())[-1])


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same `train`, through Kubeflow and on this machine."""

    there: Done
    here: dict


@pytest.fixture(scope="session")
def pair(kubeflow, tmp_path_factory) -> Pair:
    """Run both at once."""
    folder = tmp_path_factory.mktemp("local")
    local = start_forked(
        [
            *("python", "-m", "tests.cluster.commands", folder / "result.json"),
            *("train", TINY, *overrides(SEEDED), "--profile", "local"),
        ],
        {"DPTUNE_HOME": str(folder / "home"), "PATH": os.environ["PATH"]},
        folder / "log",
    )
    there = train(kubeflow, SEEDED)
    assert local.wait() == 0, (folder / "log").read_text()[-3000:]
    return Pair(there=there, here=json.loads((folder / "result.json").read_text()))


@pytest.fixture(scope="session")
def killed(kubeflow) -> Done:
    """A run whose first training pod dies in mid-training."""
    cluster = kubeflow.site.cluster

    def variables(pod: dict) -> dict[str, str]:
        is_it = pod["metadata"]["labels"]["task"] == "train-private-finetune"
        witness = {"WITNESS": str(cluster.folder / "witness")} if is_it else {}
        return {"ABSENT": "kfp"} | witness

    before, cluster.more_variables = cluster.more_variables, variables
    yield train(kubeflow, LONGER)
    cluster.more_variables = before


def _profile(folder: Path, url: str) -> Path:
    stack = yaml.safe_load((STACKS / "kubeflow.yaml").read_text())
    stack["image"] = "registry.test/dptune@sha256:" + "a" * 64
    stack["kubeflow"]["host"] = url
    (folder / "stack.yaml").write_text(yaml.safe_dump(stack))
    profile = yaml.safe_load((PROFILES / "kubeflow.yaml").read_text())
    profile["stack"] = str(folder / "stack.yaml")
    profile["performance"]["detection_shards"] = 2
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    return folder / "profile.yaml"
