"""One site for all tests of clusters: one ZenML client serves a whole process."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from zenml.utils import source_utils

from infra.workspace import REPOSITORY

from .forked_pods import start_forked
from .site import Site, open_site
from .story import Killed, Quickstart, Story, make_quickstart, make_story, watched

source_utils.set_custom_source_root(str(REPOSITORY))  # tests import steps


def pytest_collection_modifyitems(items):
    """Third-party warnings pass here; ours stay errors."""
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Iterator[Site]:
    """The production stack, registered, on a cluster whose pods are processes."""
    with open_site(tmp_path_factory.mktemp("site"), start=start_forked) as made:
        made.cluster.more_variables = partial(watched, made)
        yield made


@pytest.fixture(scope="session")
def story(site, tmp_path_factory) -> Story:
    """Three finished runs of the whole pipeline."""
    return make_story(site, tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="session")
def quickstart(site) -> Quickstart:
    """Both finished runs of the quickstart."""
    return make_quickstart(site)


@pytest.fixture(scope="session", params=["story", "quickstart"])
def killed(request) -> Killed:
    """A schedule's first run, of which a training pod was killed."""
    return request.getfixturevalue(request.param).killed
