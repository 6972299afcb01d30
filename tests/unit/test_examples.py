"""Every example in the library's docstrings says what happens."""

import doctest
import importlib
from pathlib import Path

import pytest

import dptune

ROOT = Path(dptune.__file__).parent
EXEMPLARY = sorted(
    ".".join(("dptune", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", EXEMPLARY)
def test_examples_run_as_written(name):
    module = importlib.import_module(name.removesuffix(".__init__"))
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0


def test_wrong_example_is_caught():
    def wrong():
        """
        >>> 1 + 1
        3
        """

    found = doctest.DocTestFinder().find(wrong, "wrong")
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(found[0], out=lambda _: None).failed == 1
