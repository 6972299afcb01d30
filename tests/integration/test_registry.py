"""A version belongs to the model of its name, and to no other whose name is longer."""

import pytest
from zenml.client import Client

from steps._registry import ensure_zenml_version, twin_name

LONGER, SHORTER = "prefix-and-more", "prefix"


@pytest.fixture
def twins(project):
    made = [
        ensure_zenml_version(name, version, metadata={})
        for name, version in ((LONGER, "1"), (LONGER, "2"), (SHORTER, "1"))
    ]
    yield made
    for twin in made[::2]:
        Client().delete_model(twin.model.id)


def test_model_whose_name_begins_another_is_a_model_of_its_own(twins):
    assert [twin.model.name for twin in twins] == [LONGER, LONGER, SHORTER]
    again = ensure_zenml_version(SHORTER, "1", metadata={})
    assert (again.id, again.name) == (twins[2].id, twin_name("1"))
