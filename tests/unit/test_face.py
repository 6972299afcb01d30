"""`import dptune`: every name is there, has a docstring, and loads no torch before."""

import ast
import doctest
import inspect
import re
import subprocess
import sys

import pytest

import dptune
from infra.workspace import REPOSITORY
from tests.unit.test_examples import EXEMPLARY

STUB = REPOSITORY / "dptune" / "__init__.pyi"


def test_import_loads_nothing_heavy():
    heavy = {"torch", "transformers", "numpy", "pydantic", "dp_accounting"}
    code = f"import sys, dptune; sys.exit(len({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=REPOSITORY)
    assert done.returncode == 0


@pytest.mark.parametrize("name", dptune.__all__)
def test_name_is_public_and_documented(name):
    found = getattr(dptune, name)
    assert found.__module__.startswith("dptune.")
    assert not any(part.startswith("_") for part in found.__module__.split("."))
    assert has_example(found)


def has_example(found):
    """Whether a docstring has an example, in a module whose examples are run."""
    text = inspect.getdoc(found) or ""
    return ">>> " in text and found.__module__ in EXEMPLARY


def test_search_for_examples_misses_none():
    def plain():
        """Do something."""

    def elsewhere():
        """
        >>> 1 + 1
        2
        """

    assert not has_example(plain)
    assert not has_example(elsewhere)


def test_names_are_those_that_the_page_lists():
    page = (REPOSITORY / "docs" / "LIBRARY.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `dptune\.(\w+)`", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(dptune.__all__)


@pytest.mark.parametrize("name", ["account", "calibrate", "Certificate", "decide"])
def test_claims_are_made_and_checked_without_torch(name):
    code = f"import sys, dptune; dptune.{name}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=REPOSITORY)
    assert done.returncode == 0


def test_stub_is_all_that_there_is():
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    names = [
        a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names
    ]
    assert sorted(names) == sorted(dptune.__all__)
    assert len(set(names)) == len(names)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = dptune.no_such_name


def test_examples_of_the_readme_and_the_package_hold():
    readme = doctest.testfile(str(REPOSITORY / "README.md"), module_relative=False)
    for found in (readme, doctest.testmod(dptune)):
        assert found.attempted
        assert not found.failed
