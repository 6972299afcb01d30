"""One site for all tests of clusters: one ZenML client serves a whole process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from zenml.utils import source_utils

from infra.workspace import REPOSITORY

from .forked_pods import start_forked
from .site import Site, open_site
from .story import Story, make_story

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
        yield made


@pytest.fixture(scope="session")
def story(site, tmp_path_factory) -> Story:
    """Three finished runs of the whole pipeline."""
    return make_story(site, tmp_path_factory.mktemp("local"))
