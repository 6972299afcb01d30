"""The images, as far as they go without Docker: parsed, linted, every source there."""

import io
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

from infra.health import health_problems, pinned_requirements

REPOSITORY = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((REPOSITORY / "infra" / "docker").glob("*.Dockerfile"))
DIGEST = re.compile(r"@sha256:(?!0{64})[0-9a-f]{64}$")
COMPILERS = re.compile(r"\b(gcc|g\+\+|clang|make|build-essential|cargo|rustc|nvcc)\b")
INSTALLERS = re.compile(r"\b(pip3?|apt-get|apt|apk|conda|uv)\b")
INSTALL_SCRIPT = "sh infra/install.sh"


def instructions(text):
    """Instructions of a Dockerfile as (name, value), build arguments put in."""
    parser = DockerfileParser(fileobj=io.BytesIO(text.encode()))
    given, found = {}, []
    for step in parser.structure:
        name, value = step["instruction"], step["value"]
        if name == "COMMENT":
            continue
        if name == "ARG" and "=" in value:
            given |= dict([value.split("=", 1)])
        if name == "FROM":
            for argument, chosen in given.items():
                value = value.replace(f"${{{argument}}}", chosen)
        found.append((name, value))
    return found


def stages(text):
    """Instructions of each stage."""
    found = []
    for name, value in instructions(text):
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, value))
    return found


def allowed(path, ignore):
    """Whether a path of the repository reaches the builder (allow-lists only)."""
    lines = [n.strip() for n in ignore.splitlines() if n.strip() and n[0] != "#"]
    names = {line[1:] for line in lines if line.startswith("!")}
    parts = Path(path).parts
    kept = any("/".join(parts[:n]) in names for n in range(1, len(parts) + 1))
    return lines[0] == "*" and kept


def copied(stage):
    """Sources in the repository that a stage copies."""
    for name, value in stage:
        if name in ("COPY", "ADD") and "--from=" not in value:
            yield from value.split()[:-1]


def docker_problems(text, *, ignore):
    """What is wrong with a Dockerfile, a word for each kind."""
    parts = stages(text)
    last, problems = parts[-1], set()
    bases = [value.split()[0] for name, value in instructions(text) if name == "FROM"]
    if not all(DIGEST.search(base) for base in bases):
        problems.add("unpinned")
    if len(parts) < 2:
        problems.add("one stage")
    users = [value for name, value in last if name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        problems.add("root")
    commands = " ".join(value for name, value in last if name == "RUN")
    if COMPILERS.search(commands) or INSTALLERS.search(commands):
        problems.add("builds in the last stage")
    everywhere = " ".join(v for part in parts for n, v in part if n == "RUN")
    if re.search(r"\b(curl|wget|git)\b", everywhere):
        problems.add("fetches")
    if INSTALL_SCRIPT not in everywhere or "PIP_ONLY_BINARY=:all:" not in text:
        problems.add("not as tested")
    if any(name == "ADD" for part in parts for name, _ in part):
        problems.add("ADD")
    if not any(name == "HEALTHCHECK" for name, _ in last):
        problems.add("no health check")
    sources = {source for part in parts for source in copied(part)}
    if any(not (REPOSITORY / source).exists() for source in sources):
        problems.add("missing source")
    if any(source == "." or not allowed(source, ignore) for source in sources):
        problems.add("ignored source")
    if re.search(r"(?i)(password|token|secret|_key)\w*=", text):
        problems.add("secret")
    return problems


IGNORE = (REPOSITORY / ".dockerignore").read_text()


def test_there_is_an_image_for_each_target():
    assert [path.stem for path in DOCKERFILES] == ["cpu", "cuda"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_dockerfile_has_no_problem(path):
    assert docker_problems(path.read_text(), ignore=IGNORE) == set()


BROKEN = {
    "unpinned": (r"@sha256:\w+", ""),
    "root": ("USER 10001:10001", "USER dptune"),
    "builds in the last stage": ("COPY cli cli", "RUN apt-get install gcc"),
    "fetches": ("COPY cli cli", "RUN curl https://example.org/x"),
    "not as tested": ("sh infra/install.sh /opt/venv", "pip install /opt/venv"),
    "ADD": ("COPY cli cli", "ADD cli cli"),
    "no health check": ("(?m)^HEALTHCHECK.*$", ""),
    "missing source": ("COPY cli cli", "COPY dptune/nothing cli"),
    "ignored source": ("COPY cli cli", "COPY tests tests"),
    "secret": ("USER 10001:10001", "ENV HF_TOKEN=abc\nUSER 10001:10001"),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_dockerfile_checks_each_catch_their_broken_twin(problem):
    text = DOCKERFILES[0].read_text()
    broken, changes = re.subn(*BROKEN[problem], text)
    assert changes
    assert docker_problems(broken, ignore=IGNORE) == {problem}


def test_dockerfile_of_one_stage_is_caught():
    last = DOCKERFILES[0].read_text().split("FROM ${BASE} AS run")[1]
    base = "python:3.11@sha256:" + "a" * 64
    assert "one stage" in docker_problems(f"FROM {base}\n{last}", ignore=IGNORE)


def test_both_images_run_the_same_code_the_same_way():
    of_target = [re.sub(r"NVIDIA\S+", "", p.read_text()) for p in DOCKERFILES]
    runs = [stages(text)[-1] for text in of_target]
    assert [step for step in runs[0] if step[0] != "ENV"] == [
        step for step in runs[1] if step[0] != "ENV"
    ]


def test_dockerignore_lets_nothing_in_but_what_is_copied():
    copies = {
        source.split("/")[0]
        for path in DOCKERFILES
        for stage in stages(path.read_text())
        for source in copied(stage)
    }
    lines = IGNORE.splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == copies
    assert not allowed("tests/conftest.py", IGNORE)
    assert not allowed(".git/config", IGNORE)
    assert not allowed("pyproject.toml", IGNORE.replace("*\n", "", 1))


def test_images_install_with_the_lines_that_ci_runs():
    makefile = (REPOSITORY / "Makefile").read_text()
    assert f"{INSTALL_SCRIPT} $(BIN)/python --editable '.[dev]'" in makefile
    assert "$(BIN)/python -m pip install --quiet --constraint" not in makefile
    for path in DOCKERFILES:
        line = f"{INSTALL_SCRIPT} /opt/venv/bin/python --editable '.[cluster]'"
        assert line in path.read_text()


@pytest.mark.parametrize("index", ["", "https://example.org/cpu"])
def test_install_script_installs_torch_first_and_all_under_constraints(tmp_path, index):
    fake = tmp_path / "python"
    fake.write_text(
        f"""#!/bin/sh
        test "$1" = -c && exec {sys.executable} "$@"
        echo "$@" >> {tmp_path}/log"""
    )
    fake.chmod(0o755)
    environment = os.environ | {"TORCH_INDEX": index}
    subprocess.run(
        ["sh", "infra/install.sh", str(fake), "--editable", ".[cluster]"],
        cwd=REPOSITORY,
        env=environment,
        check=True,
    )
    first, *beside, last = (tmp_path / "log").read_text().splitlines()
    common = "-m pip install --quiet --no-compile --constraint constraints.txt "
    extra = f"--extra-index-url {index} " if index else ""
    assert first == f"{common}{extra}torch==2.13.0"
    assert sorted(beside) == sorted([last, f"{common}--editable .[cluster]"])
    assert last.startswith("-m compileall -qq -j 0 -x /tests/|")
    assert last.endswith(sysconfig.get_path("purelib"))


def test_health_finds_nothing_wrong_with_what_is_installed(tmp_path):
    found = health_problems(
        requirements=pinned_requirements(), folders=[tmp_path], user=10001
    )
    assert list(found) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"user": 0}, "root"),
        ({"requirements": {"torch": "1.0"}}, "torch must be 1.0"),
        ({"requirements": {"no-such-package": "1.0"}}, "got None"),
        ({"folders": [Path("/proc/nothing")]}, "writable"),
    ],
)
def test_health_names_what_is_wrong(tmp_path, change, named):
    healthy = {"requirements": {}, "folders": [tmp_path], "user": 10001}
    (problem,) = health_problems(**healthy | change)
    assert named in problem


def test_sbom_lists_packages_with_their_versions(tmp_path):
    target = tmp_path / "sbom.json"
    command = REPOSITORY / "build" / "sbom" / "bin" / "cyclonedx-py"
    if not command.is_file():
        pytest.skip("`make sbom` installs the tool, in an environment of its own")
    site = tmp_path / "site" / "small-1.2.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: small\nVersion: 1.2\n")
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} -S "$@"\n'
    )
    wrapper.chmod(0o755)
    done = subprocess.run(
        [command, "environment", "--output-reproducible", "-o", target, wrapper],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    parts = json.loads(target.read_text())["components"]
    assert {(part["name"], part["version"]) for part in parts} == {("small", "1.2")}
