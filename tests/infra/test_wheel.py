"""The wheel: what is in it, and its command in a folder that is no repository."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from cli.runs import read_config

REPOSITORY = Path(__file__).resolve().parents[2]
APPLICATION = ("cli", "configs", "infra", "materializers", "pipelines", "steps")
BODY = "dptune/_application/"


def tracked(*folders):
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = listed.stdout.decode().split("\0")
    return [name for name in names if name and (REPOSITORY / name).is_file()]


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of what git knows, built where nothing else lies."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        if name.startswith(("benchmarks/", "docs/", "tests/")):
            continue
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, target)
    alone = ("--no-deps", "--no-index", "--no-build-isolation")
    pip("wheel", *alone, "--wheel-dir", folder / "made", folder / "source")
    (file,) = (folder / "made").glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder that the wheel is installed in, before this process' packages."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--target", target, wheel)
    return target


@pytest.fixture
def dptune(installed, tmp_path):
    """Run the command in an empty folder."""
    here = tmp_path / "empty"
    here.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DPTUNE_")}
    environment |= {"PYTHONPATH": str(installed), "COLUMNS": "200"}

    def run(*arguments, cwd=here):
        return subprocess.run(
            [sys.executable, str(installed / "bin" / "dptune"), *arguments],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    run.here, run.environment = here, environment
    return run


def test_wheel_has_one_name_and_the_whole_application(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.split("/")[0] for name in names}
    assert roots == {"dptune", "dptune-0.1.0.dist-info"}
    found = {n.removeprefix(BODY) for n in names if n.startswith(BODY)}
    assert found == {*tracked(*APPLICATION), "run.py"}
    library = {n for n in names if n.startswith("dptune/") and not n.startswith(BODY)}
    assert library == set(tracked("dptune"))


def test_wheel_has_one_command(wheel):
    archive = zipfile.ZipFile(wheel)
    (file,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    text = archive.read(file).decode()
    assert text.split() == ["[console_scripts]", "dptune", "=", "dptune.command:main"]


def test_help_loads_nothing_heavy(dptune):
    code = (
        "import sys; sys.argv = ['dptune', '--help']\n"
        "from dptune.command import main\n"
        "try: main()\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'zenml', 'mlflow', 'sqlalchemy'}\n"
        "sys.exit(code or ' '.join(heavy & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=dptune.here,
        env=dptune.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: dptune" in done.stdout
    assert list(dptune.here.iterdir()) == []


def test_init_makes_a_project_and_overwrites_nothing(dptune):
    (dptune.here / ".gitignore").write_text("mine")
    assert dptune("init").returncode == 0
    made = {str(p.relative_to(dptune.here)) for p in dptune.here.rglob("*.yaml")}
    assert made == {n for n in tracked("configs") if n.endswith(".yaml")}
    own = dptune.here / "configs/train/own_text.yaml"
    own.write_text("# mine")
    again = dptune("init")
    assert "0 files made" in again.stdout
    assert own.read_text() == "# mine"
    assert (dptune.here / ".gitignore").read_text() == "mine"
    for private in ("data", ".dptune"):
        assert (dptune.here / private).stat().st_mode & 0o077 == 0


def followed(page, folder):
    """Make the files of a tutorial's page as a reader would; names what is missing."""
    text = (REPOSITORY / "docs" / "tutorials" / f"{page}.md").read_text()
    copy = None
    for kind, block in re.findall(r"(?ms)^```(sh|yaml)\n(.*?)^```", text):
        for line in block.splitlines() if kind == "sh" else ():
            program, *words = line.split()
            if program == "cp":
                copy = folder / words[1]
                shutil.copy2(folder / words[0], copy)
            elif program != "dptune":
                yield program
        if kind == "yaml":
            own = yaml.safe_load(copy.read_text())
            copy.write_text(yaml.safe_dump(merged(own, yaml.safe_load(block))))
        for name in re.findall(r"\b(?:configs|data)/[\w./-]+", block):
            if not (folder / name).exists():
                yield name


def merged(own, changes):
    """Change what a page shows, at any depth; a source is shown whole."""
    both = dict(own)
    for key, value in changes.items():
        is_part = isinstance(value, dict) and key != "source" and key in own
        both[key] = merged(own[key], value) if is_part else value
    return both


def test_tutorials_need_nothing_but_the_wheel(dptune):
    dptune("init")
    invented = dptune("invent")
    assert invented.returncode == 0, invented.stderr
    for page in ("own_text", "own_chat", "jft_with_review"):
        assert list(followed(page, dptune.here)) == []
    for name in ("mine", "chats", "reviewed"):
        read_config(dptune.here / "configs" / "train" / f"{name}.yaml")


def test_file_that_a_tutorial_names_and_nobody_makes_is_found(dptune):
    dptune("init")
    assert "data/chats.jsonl" in list(followed("own_chat", dptune.here))


def test_commands_find_the_project_from_a_folder_below(dptune):
    dptune("init", "project")
    project = dptune.here / "project"
    (project / "configs/recipes/mine.yaml").write_text("title: Of this project\n")
    listed = dptune("configs", cwd=project / "data")
    assert listed.returncode == 0, listed.stderr
    assert "Of this project" in listed.stdout
    assert "Of this project" not in dptune("configs").stdout


def test_detect_works_without_a_project(dptune):
    text = dptune.here / "text.txt"
    text.write_text("please write to grace.hill@example.org")
    done = dptune("detect", str(text), "--tier", "low_entity", "--redact", "mask")
    assert done.returncode == 0, done.stderr
    assert "please write to <mask>" in done.stdout


def test_wrong_input_is_told_as_in_the_repository(dptune):
    done = dptune("train", "none.yaml")
    assert done.returncode == 2
    assert "Run `dptune configs`" in done.stderr
    assert "Nothing was created and no budget was spent." in done.stderr
    assert list(dptune.here.iterdir()) == []
