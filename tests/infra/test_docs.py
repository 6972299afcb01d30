"""The documents name what exists: tests, files, headings, commands, recipes."""

import ast
import re
from pathlib import Path

import pytest
import typer

from cli.app import build_app

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")],
    key=lambda path: path.relative_to(REPOSITORY).as_posix(),
)
HISTORY = {"CHANGELOG.md", "LOG.md", "REPRODUCTION.md"}
GUIDES = [path for path in DOCUMENTS if path.name not in HISTORY]
FOREIGN_OPTIONS = {"--max-restarts"}  # of torchrun
PLANTED_BUGS = REPOSITORY / "docs" / "PLANTED_BUGS.md"
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
BARE_TEST_NAME = re.compile(r"`(test_\w+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:\brun\.py|`dptune) ([a-z][\w-]*)")
OPTION = re.compile(r"`(--[a-z][\w-]*)")
NAMED_IN = re.compile(
    r"((?:`[\w.]+`(?:,? and |, )?)+) (?:in|of) \[[^]]*\]\(([^)#]+\.py)"
)
SHELL = re.compile(r"(?ms)^```sh\n.*?^```")
TYPED = re.compile(r"(?m)^dptune ([a-z][\w-]*)")


def table_rows(text):
    """Cells of every table row, headings and rulers left out."""
    rows, previous = [], ""
    for line in text.splitlines():
        is_row = line.startswith("|") and not set(line) <= set("|-: ")
        if is_row and previous.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        previous = line
    return rows


def functions(path):
    """Names of the functions at the top of a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def unknown_tests(text):
    """Rows of the table of planted bugs that name no test that exists."""
    missing = []
    for cells in table_rows(text):
        found = TEST_NAME.fullmatch(cells[-1])
        path = REPOSITORY / found[1] if found else None
        if path is None or not path.is_file() or found[2] not in functions(path):
            missing.append(cells[-1])
    return missing


def anchors(text):
    """Fragments that headings of a document can be linked by, as GitHub makes them."""
    titles = re.findall(r"(?m)^#+ (.+)$", text)
    plain = (re.sub(r"[^\w\- ]", "", title).lower() for title in titles)
    return {title.replace(" ", "-") for title in plain}


def broken_links(text, folder):
    """Relative links of a document that lead nowhere."""
    broken = []
    for target in LINK.findall(re.sub(r"(?s)```.*?```", "", text)):
        path, _, fragment = target.partition("#")
        if "://" in path:
            continue
        file = folder / path if path else None
        if file is not None and not file.exists():
            broken.append(target)
        elif fragment:
            source = file.read_text(encoding="utf-8") if file else text
            if fragment not in anchors(source):
                broken.append(target)
    return broken


def misplaced_names(text, folder):
    """Names in code's letters, said to be in a file, that the file does not hold."""
    wrong = []
    for names, target in NAMED_IN.findall(re.sub(r"\s+", " ", text)):
        file = folder / target
        words = re.findall(r"\w+", file.read_text("utf-8")) if file.is_file() else []
        parts = (name.split(".") for name in re.findall(r"`([\w.]+)`", names))
        wrong += [".".join(part) for part in parts if not {*part} <= {*words}]
    return wrong


def options(command=None):
    """All options of the command line."""
    command = command or typer.main.get_command(build_app())
    found = {n for each in command.params for n in each.opts + each.secondary_opts}
    below = getattr(command, "commands", {}).values()
    return found.union(*map(options, below), {"--help"})


def commands():
    """Names of all commands, and of groups of commands."""
    app = build_app()
    names = {
        command.callback.__name__.replace("_", "-")
        for command in app.registered_commands
    }
    return names | {group.name for group in app.registered_groups}


def unknown_commands(text):
    """Commands in a document that the command line does not have."""
    named = {*COMMAND.findall(text), *TYPED.findall("\n".join(SHELL.findall(text)))}
    return sorted(named - commands())


def test_planted_bugs_all_name_a_test_that_exists():
    text = PLANTED_BUGS.read_text(encoding="utf-8")
    assert len(table_rows(text)) >= 20
    assert unknown_tests(text) == []


def test_planted_bugs_name_each_bug_once():
    rows = table_rows(PLANTED_BUGS.read_text(encoding="utf-8"))
    bugs = [tuple(cells[:2]) for cells in rows]
    assert len(set(bugs)) == len(bugs)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_document_links_resolve(path):
    assert broken_links(path.read_text(encoding="utf-8"), path.parent) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_document_commands_exist(path):
    assert unknown_commands(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_document_options_exist(path):
    named = set(OPTION.findall(path.read_text(encoding="utf-8")))
    assert named - options() <= FOREIGN_OPTIONS


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_document_names_stand_in_the_files_that_it_says(path):
    assert misplaced_names(path.read_text(encoding="utf-8"), path.parent) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_document_tests_in_passing_exist(path):
    names = set(BARE_TEST_NAME.findall(path.read_text(encoding="utf-8")))
    files = (REPOSITORY / "tests").rglob("test_*.py") if names else ()
    assert names <= {name for file in files for name in functions(file)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_document_names_no_machine_path(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(?:work|tmp|root|home|Users)/", text)


def test_list_of_commands_knows_every_command():
    text = (REPOSITORY / "docs" / "COMMANDS.md").read_text(encoding="utf-8")
    known = commands()
    assert known <= set(COMMAND.findall(text))


def test_guarantees_have_a_row_for_every_recipe():
    text = (REPOSITORY / "docs" / "GUARANTEES.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(\.\./configs/recipes/(\w+)\.yaml\)", text))
    assert linked == {file.stem for file in REPOSITORY.glob("configs/recipes/*.yaml")}


def test_readme_picture_is_a_small_png():
    data = (REPOSITORY / "docs" / "images" / "quickstart.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 400_000


HEAD = "| room | bug | caught by |\n|---|---|---|\n"
KNOWN = "tests/infra/test_docs.py::test_readme_picture_is_a_small_png"


@pytest.mark.parametrize(
    ("name", "is_caught"),
    [
        (KNOWN, False),
        (f"{KNOWN}_or_not", True),
        ("tests/infra/test_nothing.py::test_nothing", True),
        ("test_without_a_file", True),
    ],
)
def test_planted_bugs_check_catches_a_test_that_does_not_exist(name, is_caught):
    assert bool(unknown_tests(f"{HEAD}| a | b | `{name}` |\n")) is is_caught


@pytest.mark.parametrize(
    ("link", "is_caught"),
    [
        ("README.md", False),
        ("docs/GUARANTEES.md#known-limits", False),
        ("#here", False),
        ("https://example.org/x", False),
        ("docs/NOTHING.md", True),
        ("docs/GUARANTEES.md#nothing", True),
        ("#nowhere", True),
    ],
)
def test_link_check_catches_links_that_lead_nowhere(link, is_caught):
    text = f"# Here\n\n[a]({link})\n"
    assert bool(broken_links(text, REPOSITORY)) is is_caught


def test_command_check_catches_an_unknown_command():
    text = "`python run.py train x` `python run.py fly` `dptune run`\n"
    text += "dptune is no command here\n```sh\ndptune walk\n```\n"
    assert unknown_commands(text) == ["fly", "run", "walk"]


def test_name_check_catches_a_name_that_moved():
    text = "`build_app` and\n`Nowhere.build_app` in [this](cli/app.py)"
    assert misplaced_names(text, REPOSITORY) == ["Nowhere.build_app"]
