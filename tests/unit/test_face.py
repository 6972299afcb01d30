"""`import dptune`: every name is there, has a docstring, and loads no torch before."""

import ast
import doctest
import inspect
import subprocess
import sys

import pytest

import dptune
from infra.workspace import REPOSITORY

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
    assert inspect.getdoc(found)


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
