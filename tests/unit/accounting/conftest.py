"""A budget store, which must be as it was written when its test ends."""

import pytest

from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.verify import verify


@pytest.fixture
def store(budget_url):
    made = BudgetStore.open(budget_url)
    yield made
    found = verify(made)
    made.engine.dispose()
    assert found.success, found.findings
