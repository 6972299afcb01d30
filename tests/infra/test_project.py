"""The project itself: layers, pins, and what no tracked file may hold."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
SOURCES = sorted((REPOSITORY / "dptune").rglob("*.py"))
APPLICATION = [
    path
    for folder in ("cli", "infra", "materializers", "pipelines", "steps")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
]


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = (REPOSITORY / name for name in listed.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


KUBEFLOW = "infra/kubeflow/constraints.txt"


def constraints(file="constraints.txt"):
    text = (REPOSITORY / file).read_text()
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    pinned = [line for line in lines if line and not line.startswith("-")]
    return {normal(line.split("==")[0]): line.split("==")[1] for line in pinned}


def normal(name):
    """Package names as PEP 503 compares them, without extras."""
    return re.sub(r"[-_.]+", "-", re.sub(r"\[.*\]", "", name)).lower()


def requirements():
    extras = PROJECT["project"]["optional-dependencies"]
    return [
        *PROJECT["project"]["dependencies"],
        *(r for name, extra in extras.items() if name != "kubeflow" for r in extra),
    ]


def test_layers_are_kept():
    code = "from importlinter.cli import lint_imports_command as c; c()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def refuse_circles(*packages):
    """Refuse modules that import each other, also where only a type checker follows."""
    graph = grimp.build_graph(*packages, cache_dir=None)
    imports = {n: graph.find_modules_directly_imported_by(n) for n in graph.modules}
    TopologicalSorter(imports).prepare()


def test_no_module_imports_what_imports_it():
    refuse_circles("dptune", "cli", "steps", "pipelines", "materializers", "infra")


def test_search_for_circles_finds_one_of_types(tmp_path, monkeypatch):
    package = tmp_path / "turning"
    package.mkdir()
    for name, other in (("left", "right"), ("right", "left")):
        text = f"if TYPE_CHECKING:\n    from turning.{other} import x\n"
        package.joinpath(f"{name}.py").write_text(
            "from typing import TYPE_CHECKING\n" + text
        )
    package.joinpath("__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CycleError, match=r"turning\.left.*turning\.right"):
        refuse_circles("turning")


def calls_and_asserts(path):
    """Lines of `print(...)` and `assert` in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if isinstance(node, ast.Assert) or (named and node.func.id == "print"):
            yield f"{path.name}:{node.lineno}"


def test_library_neither_prints_nor_asserts():
    assert len(SOURCES) > 80
    assert [line for path in SOURCES for line in calls_and_asserts(path)] == []


def test_search_for_prints_finds_one(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("def f(x):\n    assert x\n    print(x)\n")
    assert list(calls_and_asserts(path)) == ["a.py:2", "a.py:3"]


def environment_reads(path):
    """Lines that read or set environment variables."""
    pattern = re.compile(r"\bos\.(environ|getenv)\b")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if pattern.search(line):
            yield f"{path.relative_to(REPOSITORY)}:{number}"


def test_library_reads_no_environment():
    """But for the program that an agent of torch starts and tells so what it is."""
    others = [path for path in SOURCES if path.name != "rank.py"]
    assert len(others) == len(SOURCES) - 1
    assert [line for path in others for line in environment_reads(path)] == []


UNSAFE = {"pickle", "cPickle", "dill", "joblib", "cloudpickle", "shelve", "marshal"}


def unsafe(path):
    """Imports of pickles and calls that unpickle or run foreign code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]}
        else:
            names = set()
        is_attribute = isinstance(node, ast.Attribute)
        of_torch = is_attribute and ast.unparse(node) in ("torch.load", "torch.save")
        if names & UNSAFE or of_torch:
            yield f"{path.name}:{node.lineno}"
        remote = isinstance(node, ast.keyword) and node.arg == "trust_remote_code"
        if remote and ast.unparse(node.value) != "False":
            yield f"{path.name}:{node.value.lineno}"


def test_nothing_is_pickled_and_no_foreign_code_runs():
    found = [line for path in (*SOURCES, *APPLICATION) for line in unsafe(path)]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import load",
        "import torch\ntorch.load('x')",
        "f(trust_remote_code=True)",
    ],
)
def test_search_for_pickles_finds_one(tmp_path, code):
    path = tmp_path / "a.py"
    path.write_text(code)
    assert list(unsafe(path))


def test_no_cuda_package_is_pinned():
    strange = [
        name
        for name in constraints()
        if re.search(r"nvidia|cuda|triton|cu1[0-9]", name)
    ]
    assert strange == []


def test_torch_is_pinned():
    assert constraints()["torch"] == "2.13.0"


def test_every_pin_agrees_with_the_constraints():
    pins = dict(r.split("==") for r in requirements() if "==" in r)
    assert len(pins) > 20
    found = constraints()
    assert {name: found.get(normal(name)) for name in pins} == pins


def test_every_requirement_is_constrained():
    names = {normal(re.split(r"[=<>!~ ]", r)[0]) for r in requirements()}
    assert names - set(constraints()) == set()


def test_kubeflows_packages_have_constraints_of_their_own():
    extra = PROJECT["project"]["optional-dependencies"]["kubeflow"]
    theirs, ours = constraints(KUBEFLOW), constraints()
    assert dict(r.split("==") for r in extra).items() <= theirs.items()
    assert {name for name in theirs if name in ours} == {
        *("requests", "urllib3", "protobuf")
    }


def test_registered_models_ask_for_the_pinned_packages():
    text = (REPOSITORY / "steps" / "_tracking.py").read_text()
    asked = re.findall(r'"([a-z-]+)==([\d.]+)"', text)
    assert len(asked) >= 3
    assert dict(asked).items() <= constraints().items()


@pytest.mark.parametrize("line", ["/.dptune/", "/.venv", "/secrets/"])
def test_what_a_run_leaves_is_ignored(line):
    assert line in (REPOSITORY / ".gitignore").read_text().splitlines()


def test_makefile_has_the_two_commands_and_their_parts():
    text = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", text, flags=re.MULTILINE))
    assert {"run", "test", "check", "lint", "types", "layers", "unit"} <= targets
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()


def test_only_the_library_enters_the_package():
    found = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert found == ["dptune*"]


MACHINE = re.compile(r"(?<![\w.<])/(work|root|home/\w+|Users/\w+|tmp)/")


def test_no_tracked_file_names_a_place_on_a_machine():
    found = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" in data or path == Path(__file__):
            continue
        for number, line in enumerate(data.decode("utf-8").splitlines(), 1):
            if MACHINE.search(line):
                found.append(f"{path.relative_to(REPOSITORY)}:{number}")
    assert found == []


def test_no_tracked_file_is_large():
    large = [path.name for path in tracked() if path.stat().st_size > 2**20]
    assert large == ["tagger.safetensors"]  # the weights that the package ships


PLANTED = yaml.safe_load((REPOSITORY / "benchmarks" / "planted_bugs.yaml").read_text())


def stale(bugs):
    """Bugs whose text does not stand exactly once in its file, or that nobody asks."""
    return [
        bug["name"]
        for bug in bugs
        if (REPOSITORY / bug["file"]).read_text().count(bug["old"]) != 1
        or not all((REPOSITORY / test.split("::")[0]).exists() for test in bug["tests"])
    ]


def test_bugs_that_are_planted_can_be_planted():
    assert stale(PLANTED) == []


@pytest.mark.parametrize("change", [{"old": "no such text"}, {"tests": ["no/file.py"]}])
def test_bug_that_cannot_be_planted_is_named(change):
    assert stale([PLANTED[0] | change]) == [PLANTED[0]["name"]]
