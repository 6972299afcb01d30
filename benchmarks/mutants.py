"""Do the tests see small changes of gates, accounting, clip, noise and exposure?

    pip install --target FOLDER --no-deps mutmut==3.8.1 libcst==1.9.0
    PYTHONPATH=.:FOLDER python benchmarks/mutants.py [--skip 0] [--take 10]

Mutants are made by the operators of mutmut, over whole modules: decorated functions,
class bodies and constants too, which mutmut itself leaves out. Left out here are what
cannot change behavior or only words a message: annotations, decorators, docstrings, and
texts with a blank in them. Of every module a share is drawn, the same again for the
same source: `--skip` and `--take` cut disjoint samples from an order that a hash gives.

The tests are collected once, and run once to see which executes what. For
each mutant a fork of that process takes its code in the place of the function's, and
runs the tests that execute the changed statement, the quickest first, until one fails.
What an import executes (class bodies, constants) is imported anew, for tests of files
that name its module, and for those that execute anything of it. The modules of the
budget store are tested on PostgreSQL too, where a server can be started.
Survivors are printed; those in `equivalent_mutants.yaml` are no bugs, and it says why.
"""

import argparse
import difflib
import gc
import hashlib
import importlib.util
import inspect
import itertools
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import coverage
import libcst as cst
import pytest
import yaml
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation.mutators import mutation_operators

from dptune.statistics import clopper_pearson
from tests.postgres import SHARED, running_server

REPOSITORY: Final = Path(__file__).parents[1]
EQUIVALENT: Final = REPOSITORY / "benchmarks" / "equivalent_mutants.yaml"
SEED: Final = "dptune"
MEMORY: Final = 12 << 30
ANEW: Final = 9
FLAGS: Final = ("-q", "-s", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider")
LOADED: Final = ("-W", "ignore:Module already imported")  # by the process we fork
QUICK: Final = ("-m", "not slow and not gpu", *LOADED)

MODULES: Final = (
    "dptune/dpsgd/clipping.py",
    "dptune/dpsgd/noise.py",
    "dptune/dpsgd/sampling.py",
    "dptune/attacks/exposure.py",
    "dptune/gates/*.py",
    "dptune/accounting/**/*.py",
)
TESTS: Final = (
    "tests/unit/dpsgd/test_clipping.py",
    "tests/unit/dpsgd/test_noise.py",
    "tests/unit/dpsgd/test_sampling.py",
    "tests/statistical/test_noise.py",
    "tests/statistical/test_sampling.py",
    "tests/unit/attacks/test_exposure.py",
    "tests/unit/gates",
    "tests/unit/accounting",
    "tests/golden/test_formats.py",
    "tests/golden/test_figures.py",
    "tests/golden/test_claims.py",
)
FORMATS: Final = "tests/golden/test_formats.py"  # of every module's values
BOOKS: Final = ("tests/golden/", "tests/unit/gates/test_decision_book.py")
"""Few and slow, and of everything: asked beyond the budget, where they execute it."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed module.

    Args:
        path: of the module.
        place: names of the classes and functions around the change.
        change: the node before and after, and which of equal ones it is.
        lines: of the statement, if it is one of a function.
        module, old, new: the tree, and what takes the place of what.
    """

    path: str
    place: str
    change: str
    lines: range | None
    module: cst.Module = field(repr=False)
    old: cst.CSTNode = field(repr=False)
    new: cst.CSTNode = field(repr=False)

    @property
    def key(self) -> str:
        """Name the change, whatever lies around it."""
        told = f"{SEED} {self.path} {self.place} {self.change}"
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def text(self) -> str:
        """Write the changed module."""
        return self.module.visit(_Replacement(self.old, self.new)).code

    def told(self) -> str:
        """Write what differs, line by line."""
        two = self.module.code.splitlines(), self.text().splitlines()
        lines = list(difflib.unified_diff(*two, n=0, lineterm=""))[2:]
        return "\n".join(f"{one[0]} {one[1:].strip()}" for one in lines)


class _Places(cst.CSTVisitor):
    """Collects the nodes that are changed, and what each becomes."""

    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider)

    def __init__(self) -> None:
        self.found: list[tuple[cst.CSTNode, cst.CSTNode, str, range | None]] = []
        self._names: list[str] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._names.append(node.name.value)
        if _is_left_out(node):
            return False
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                for changed in operator(node):
                    if not _only_words(node, changed):
                        lines = self._lines(node)
                        place = ".".join(self._names)
                        self.found.append((node, changed, place, lines))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self._names.pop()

    def _lines(self, node: cst.CSTNode) -> range | None:
        """Lines of the statement in a function; None where it runs at import."""
        statement: cst.CSTNode | None = None
        while node is not None:
            if statement is None and isinstance(
                node, cst.SimpleStatementLine | cst.BaseCompoundStatement
            ):
                statement = node
            if isinstance(node, cst.FunctionDef) and node is not statement:
                break
            node = self.get_metadata(ParentNodeProvider, node, None)
        if node is None or statement is None:
            return None
        where = self.get_metadata(PositionProvider, statement)
        end = where.end.line
        if isinstance(body := getattr(statement, "body", None), cst.IndentedBlock):
            end = self.get_metadata(PositionProvider, body.body[0]).start.line
        return range(where.start.line, end + 1)


def _is_left_out(node: cst.CSTNode) -> bool:
    """Whether nothing in a node is changed."""
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom):
        return True
    if isinstance(node, cst.SimpleStatementLine):
        inner = node.body[0]
        if isinstance(inner, cst.Expr) and isinstance(inner.value, cst.BaseString):
            return True  # a docstring
        if isinstance(inner, cst.Assign):
            return cst.Module([]).code_for_node(inner.targets[0].target) == "__all__"
    return _is_message(node)


def _is_message(node: cst.CSTNode) -> bool:
    """Whether a node is text for a reader: it has a blank in it."""
    if isinstance(node, cst.ConcatenatedString):
        return True
    if isinstance(node, cst.FormattedString):
        return any(
            isinstance(part, cst.FormattedStringText) and " " in part.value
            for part in node.parts
        )
    return isinstance(node, cst.SimpleString) and " " in node.value


def _only_words(node: cst.CSTNode, changed: cst.CSTNode) -> bool:
    """Whether a change of a call takes a message away, and nothing else."""
    if not (isinstance(node, cst.Call) and isinstance(changed, cst.Call)):
        return False
    kept = {id(argument) for argument in changed.args}
    lost = [argument for argument in node.args if id(argument) not in kept]
    return bool(lost) and all(_is_message(argument.value) for argument in lost)


class _Replacement(cst.CSTTransformer):
    """Puts one node in the place of another, by identity."""

    def __init__(self, old: cst.CSTNode, new: cst.CSTNode) -> None:
        self._old, self._new = old, new

    def on_leave(
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        return self._new if original_node is self._old else updated_node


def mutants(path: str) -> list[Mutant]:
    """Make all mutants of a module, in the order in which samples are cut."""
    wrapper = MetadataWrapper(cst.parse_module((REPOSITORY / path).read_bytes()))
    places = _Places()
    module = wrapper.visit(places)
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for old, new, place, lines in places.found:
        change = " -> ".join(module.code_for_node(node).strip() for node in (old, new))
        seen[place, change] += 1
        found.append(
            Mutant(
                path=path,
                place=place,
                change=f"{change} #{seen[place, change]}",
                lines=lines,
                module=module,
                old=old,
                new=new,
            )
        )
    return sorted(found, key=lambda one: one.key)


def compiled(mutant: Mutant) -> CodeType | None:
    """Return a mutant's code; None if it is no Python."""
    try:
        return compile(mutant.text(), str(REPOSITORY / mutant.path), "exec")
    except SyntaxError:
        return None


Functions = dict[tuple[str, str, int], list[FunctionType]]


def loaded_functions() -> Functions:
    """Find every function of ours, under whatever decorator, by its place."""
    found: Functions = {}
    for one in gc.get_objects():
        if type(one) is FunctionType:  # others may act when they are asked
            code = one.__code__
            place = (code.co_filename, code.co_qualname, code.co_firstlineno)
            found.setdefault(place, []).append(one)
    return found


def planted(mutant: Mutant, code: CodeType, functions: Functions) -> bool:
    """Put a mutant's code into the function that is loaded; false if it has no place.

    Whoever holds the function holds the mutant then.
    """
    inner = code
    for name in mutant.place.split("."):
        parts = [part for part in inner.co_consts if isinstance(part, CodeType)]
        inner = next(part for part in parts if part.co_name == name)
        if inner.co_flags & inspect.CO_OPTIMIZED:  # a function, and no class
            break
    place = (inner.co_filename, inner.co_qualname, inner.co_firstlineno)
    for function in functions.get(place, []):
        try:
            function.__code__ = inner
        except ValueError:  # it closes over other names
            return False
    return place in functions


class _Loader(SourceFileLoader):
    """Finds and loads one module as the mutant says."""

    def __init__(self, mutant: Mutant, code: CodeType) -> None:
        name = mutant.path.removesuffix(".py").removesuffix("/__init__")
        super().__init__(name.replace("/", "."), str(REPOSITORY / mutant.path))
        self._code = code

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Answer for the mutated module alone."""
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - of the protocol
        """Return the mutant."""
        return self._code


class Suite:
    """A plugin of pytest: takes the place of its loop over the tests.

    Args:
        job: is called with this suite once the tests are collected and watched.
        budget: seconds of computing that tests of one mutant may take; of those
            beyond, the slowest, only `BOOKS` are asked.
    """

    def __init__(self, job: Callable[["Suite"], None], *, budget: float) -> None:
        self._job, self._budget = job, budget
        self._tests: dict[str, pytest.Item] = {}
        self._seconds: dict[str, float] = {}
        self._lines: dict[str, dict[int, list[str]]] = {}
        self._coverage: coverage.Coverage | None = None
        self._current = ""
        self._functions: Functions = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Watch the tests, which must pass, and do the job."""
        self._tests = {item.nodeid: item for item in session.items}
        self._functions = loaded_functions()
        gc.freeze()  # forks share what is loaded, as long as nobody walks over it
        with tempfile.NamedTemporaryFile() as file:

            def look() -> int:
                told = self._watched()
                Path(file.name).write_text(json.dumps(told), encoding="utf-8")
                return session.testsfailed

            code = forked(look, seconds=3600)
            told = json.loads(Path(file.name).read_text(encoding="utf-8") or "{}")
            if code:
                failed = told.get("failed", f"code {code}")
                raise SystemExit(f"Tests must pass without a mutant, got {failed}.")
        self._seconds = told["seconds"]
        for path, lines in told["lines"].items():
            self._lines[path] = {int(line): names for line, names in lines.items()}
        seconds = sum(self._seconds.values())
        print(f"{len(self._tests)} tests, {seconds:.0f} s", flush=True)
        self._job(self)
        return True

    def _watched(self) -> dict[str, Any]:
        """Run all tests; returns their seconds, and who executes which line."""
        self._coverage = coverage.Coverage(
            data_file=None,
            config_file=False,
            include=[str(REPOSITORY / module) for module in MODULES],
        )
        self._coverage.start()
        seconds = {}
        for name, item in self._tests.items():
            self._current = name
            self._coverage.switch_context(name)
            start = time.process_time()
            if _run([item]):
                return {"failed": name}
            seconds[name] = time.process_time() - start
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {
            str(Path(file).relative_to(REPOSITORY)): data.contexts_by_lineno(file)
            for file in data.measured_files()
        }
        return {"seconds": seconds, "lines": lines}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Iterator[None]:
        """What a shared fixture executes, all tests execute that use it."""
        if self._coverage and fixturedef.scope != "function":
            self._coverage.switch_context(f"@{fixturedef.argname}")
            yield
            self._coverage.switch_context(self._current)
        else:
            yield

    def _covering(self, mutant: Mutant) -> list[pytest.Item]:
        """Tests that execute the statement, or of an import name the module."""
        known = self._lines.get(mutant.path, {})
        told = {one for line in mutant.lines or known for one in known.get(line, [])}
        by_name = set() if mutant.lines else self._naming(mutant)
        names = [
            name
            for name, item in self._tests.items()
            if name in told | by_name
            or any(f"@{one}" in told for one in item.fixturenames)
        ]

        def turn(name: str) -> tuple[bool, bool, float]:
            is_first = name in by_name and name.startswith(FORMATS)
            return not is_first, name not in by_name, self._seconds[name]

        names.sort(key=turn)
        ends = itertools.accumulate(map(self._seconds.__getitem__, names))
        asked = [
            name
            for name, end in zip(names, ends, strict=True)
            if end <= self._budget or name.startswith(BOOKS)
        ]
        return [self._tests[name] for name in asked or names[:1]]

    def _naming(self, mutant: Mutant) -> set[str]:
        """Tests of files that import a module, and of what is on disk."""
        module = mutant.path.removesuffix(".py").removesuffix("/__init__")
        package, _, last = module.replace("/", ".").rpartition(".")
        named = re.compile(rf"{re.escape(package)}(\.{last}\b| import .*\b{last}\b)")
        files = {item.path for item in self._tests.values()}
        found = {
            file
            for file in files
            if file.match(FORMATS) or named.search(file.read_text(encoding="utf-8"))
        }
        return {name for name, item in self._tests.items() if item.path in found}

    def survives(self, mutant: Mutant, code: CodeType) -> bool:
        """Whether no test sees a mutant."""
        tests = self._covering(mutant)

        def job() -> int:
            if mutant.lines and planted(mutant, code, self._functions):
                return _run(tests)
            return _anew(mutant, code, [item.nodeid for item in tests])

        seconds = sum(self._seconds[item.nodeid] for item in tests)
        return not tests or forked(job, seconds=30 + 4 * seconds) == 0


def _anew(mutant: Mutant, code: CodeType, tests: list[str]) -> int:
    """Import everything of ours again, the mutant among it, and run tests."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("dptune", "tests", "conftest"):
            del sys.modules[name]
    sys.meta_path.insert(0, _Loader(mutant, code))
    return int(pytest.main([*FLAGS, *QUICK, *tests]))


def _run(tests: Sequence[pytest.Item]) -> int:
    """Run tests until one fails; returns how many did."""
    for item, following in itertools.zip_longest(tests, tests[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            return 1
    return 0


def forked(job: Callable[[], int], *, seconds: float) -> int:
    """Do a job in a fork of this process; returns its code, or a signal below 0.

    Args:
        job: returns the code.
        seconds: of computing, after which it counts as a loop without end.
    """
    if process := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what it may have started
        return code
    os.setsid()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    limit = max(1, round(seconds))
    signal.alarm(600 + limit)
    used = round(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + limit, used + limit))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    code = 3
    try:
        code = job()
    finally:
        os._exit(code)


def judged(drawn: list[Mutant], known: Set[str], suite: Suite) -> Counter[str]:
    """Count what becomes of some mutants; print those that survive."""
    figures: Counter[str] = Counter()
    for mutant in drawn:
        code = compiled(mutant)
        if code is None:
            continue
        if mutant.key in known:
            figures["equivalent"] += 1
        elif suite.survives(mutant, code):
            figures["survived"] += 1
            where = f"{mutant.key} {mutant.path} {mutant.place}"
            print(f"\n{where}\n{mutant.told()}", flush=True)
        else:
            figures["killed"] += 1
    return figures


@contextmanager
def shared_server() -> Iterator[None]:
    """Run one PostgreSQL server for all forks, where there can be one."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_server())
        except pytest.skip.Exception as reason:
            print(f"without PostgreSQL: {reason}", flush=True)
        else:
            os.environ[SHARED] = str(server.folder)
        yield


def pooled(found: Sequence[tuple[int, Counter[str]]]) -> str:
    """Estimate the share of all mutants that is killed, from a sample of each module.

    Modules weigh as many mutants as they have. The interval is that of Clopper and
    Pearson, at Kish's effective size of a weighted sample.

    Args:
        found: of each module how many mutants it has, and what became of the sample.
    """
    rows = [(n, f["killed"], f["killed"] + f["survived"]) for n, f in found]
    rows = [row for row in rows if row[2]]
    whole = sum(row[0] for row in rows)
    if not whole:
        return "nothing was judged"
    share = sum(n / whole * killed / judged for n, killed, judged in rows)
    size = round(1 / sum((n / whole) ** 2 / judged for n, _, judged in rows))
    low, high = clopper_pearson(round(share * size), size)
    return f"{share:.1%} of {whole} are killed, 95 % interval {low:.1%} to {high:.1%}"


def main() -> int:
    """Draw mutants and tell which survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--take", type=int, default=10, help="mutants of each module")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of their paths")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="instead of all")
    parser.add_argument("--key", nargs="*", default=[], help="and these mutants")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of tests")
    options = parser.parse_args()
    os.chdir(REPOSITORY)
    os.environ["OMP_NUM_THREADS"] = "1"
    known = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8"))
    total: Counter[str] = Counter()
    modules: list[tuple[int, Counter[str]]] = []

    def job(suite: Suite) -> None:
        for file in [one for module in MODULES for one in REPOSITORY.glob(module)]:
            path = str(file.relative_to(REPOSITORY))
            if any(part in path for part in options.only):
                made = mutants(path)
                drawn = made[options.skip : options.skip + options.take]
                drawn += [one for one in made if one.key in options.key]
                figures = judged(drawn, known.keys(), suite)
                print(f"{path}: of {len(made)}", dict(figures), flush=True)
                total.update(figures)
                modules.append((len(made), figures))

    suite = Suite(job, budget=options.budget)
    with shared_server():
        pytest.main([*FLAGS, *QUICK, *options.tests], plugins=[suite])
    print(dict(total), pooled(modules))
    return 1 if total["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
