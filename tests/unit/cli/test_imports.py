"""A run starts as soon as what it needs before its first step is imported.

Modules are read, not run: what a module imports inside a function, or for the type
checker only, does not count.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from infra.workspace import REPOSITORY

OURS = {"cli", "dptune", "infra", "materializers", "pipelines", "steps"}
TRAINING = {"transformers", "tokenizers", "peft", "opacus", "accelerate", "sklearn"}
DRAWING = {"matplotlib"}
CHECKING = {"great_expectations", "spacy", "mlflow"}
NUMERICS = {"torch", "numpy", "scipy", "pandas", "pyarrow", "datasets", "dp_accounting"}
COMMAND = (
    *("cli.main", "cli.training", "cli.runs"),
    *("dptune.workflow.preflight", "infra.stacks.production", "pipelines.train"),
    *("steps._reviewing", "steps._observing", "steps._scheduling"),
)


def test_command_before_its_run_imports_nothing_that_only_steps_need():
    reached = libraries(*COMMAND)
    assert not reached & (TRAINING | DRAWING | CHECKING)
    assert "zenml" in reached  # it was walked


def test_first_step_as_the_orchestrators_pod_imports_it_needs_no_numerics():
    """That pod imports every step that it looks for in the cache, this one first."""
    reached = libraries("steps.ingest", "steps._caching")
    assert not reached & (TRAINING | DRAWING | CHECKING | NUMERICS)
    assert "zenml" in reached


@pytest.mark.parametrize(
    ("module", "library"),
    [
        ("dptune.models.loading", "transformers"),
        ("dptune.reports.html", "matplotlib"),  # by way of another module
        ("steps._registry", "mlflow"),
        ("dptune.data.building", "datasets"),
    ],
)
def test_heavy_import_is_seen(module, library):
    assert library in libraries(module)


def libraries(*modules: str) -> set[str]:
    """Name the libraries that these modules import, ours that they import included."""
    found, seen, waiting = set(), set(), list(modules)
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if module.split(".")[0] not in OURS:
            found.add(module.split(".")[0])
            continue
        waiting += _imports(module)
    return found


@cache
def _imports(module: str) -> list[str]:
    """What one of our modules imports, the packages around it included."""
    file, parent = _file(module), module.rpartition(".")[0]
    if file is None:
        return []
    names = _imported(ast.parse(file.read_text(encoding="utf-8")).body)
    return [*names, *([parent] if parent else [])]


def _file(module: str) -> Path | None:
    """The file of one of our modules; none for a name inside of a module."""
    path = REPOSITORY / module.replace(".", "/")
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def _imported(body: list[ast.stmt]) -> list[str]:
    """What statements import when their module is."""
    names = []
    for statement in body:
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            source = str(statement.module)
            names += [source, *(f"{source}.{alias.name}" for alias in statement.names)]
        elif isinstance(statement, ast.If):
            is_typing = "TYPE_CHECKING" in ast.unparse(statement.test)
            names += [] if is_typing else _imported(statement.body)
            names += _imported(statement.orelse)
        elif isinstance(statement, ast.Try | ast.With | ast.ClassDef):
            names += _imported(statement.body)
    return names
