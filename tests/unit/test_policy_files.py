"""A policy is its thresholds: no file passes under the name of another."""

import copy
from pathlib import Path

import pytest
import yaml

from dptune import configfile
from dptune.configfile import load_policy, load_train_config, train_config_of, validate
from dptune.errors import ConfigError
from dptune.gates.policy import GatePolicy

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
DEFAULT = yaml.safe_load((CONFIGS / "gates" / "default.yaml").read_text())
OPEN = {
    "max_epsilon": 1e9,
    "max_delta": 0.99,
    "require_canaries": False,
    "max_membership_tpr": 1.0,
}


def text(**changes):
    return yaml.safe_dump({**DEFAULT, **changes})


def load(file):
    return load_policy(str(file), configs=CONFIGS, key="--policy")


@pytest.fixture
def write(tmp_path):
    def write(content, name="mine.yaml"):
        file = tmp_path / name
        body = content if isinstance(content, bytes) else content.encode()
        file.write_bytes(body)
        return file

    return write


BORROWED = {
    "by path": text(**OPEN),
    "version raised": text(**OPEN, version=3),
    "version lowered": text(version=1),
    "one threshold": text(max_nll_increase=5.0),
    "a default spelled out and moved": text(control_level=0.02),
    "no name: it is called default then": yaml.safe_dump(
        {k: v for k, v in {**DEFAULT, **OPEN}.items() if k != "name"}
    ),
    "another policy's name": text(name="selective"),
    "byte order mark": b"\xef\xbb\xbf" + text(**OPEN).encode(),
    "anchors": "a: &a {}\n" + text(**OPEN),
    "merged": "<<: {max_epsilon: 1.0e+9}\n"
    + "\n".join(ln for ln in text().splitlines() if "epsilon" not in ln),
    "JSON": '{"name": "default", "version": 2, "notion": "record", '
    '"max_epsilon": 1000, "max_delta": 0.5}',
}
UNUSABLE = {
    "UTF-16": text(name="mine").encode("utf-16"),
    "UTF-16 of a borrowed name": text(**OPEN).encode("utf-16-le"),
    "Latin-1": text(name="mine").encode() + b"# \xe9\n",
    "a key twice": text(name="mine") + "max_epsilon: 1000\n",
    "a name twice": text(**OPEN, name="mine") + "name: default\n",
    "NaN": text(name="mine", max_epsilon=float("nan")),
    "infinity": text(name="mine", max_epsilon=float("inf")),
    "minus infinity": text(name="mine", effect_size_bits=float("-inf")),
    "infinity in words": text(name="mine", max_epsilon="inf"),
    "too large for a number": text(name="mine", max_epsilon="1e999"),
    "true for a number": text(name="mine", max_membership_tpr=True),
    "yes for a number": text(name="mine").replace(
        "max_epsilon: 8.0", "max_epsilon: yes"
    ),
    "true for a version": text(name="mine", version=True),
    "fraction of a version": text(name="mine", version=2.0),
    "version in words": text(name="mine", version="2"),
    "capital": text(**OPEN, name="Default"),
    "blank": text(**OPEN, name="default "),
    "line": text(**OPEN, name="default\n"),
    "no width": text(**OPEN, name="default\u200b"),
    "Cyrillic": text(**OPEN, name="d\u0435fault"),
    "no name at all": text(**OPEN, name=""),
    "path for a name": text(**OPEN, name="../gates/default"),
    "terminal": text(**OPEN, name="x\x1b[2Kdefault"),
    "nothing": "",
    "a list": "- 1\n",
    "an object": "!!python/object/apply:os.getcwd []\n",
    "two documents": text(name="mine") + "---\n" + text(**OPEN),
    "unknown switch": text(name="mine", skip_everything=True),
}


@pytest.mark.parametrize("case", BORROWED)
def test_policy_that_borrows_a_name_is_refused_by_its_digest(case, write):
    with pytest.raises(ConfigError) as refusal:
        load(write(BORROWED[case]))
    said = str(refusal.value)
    assert "sha256:" in said or "no such key" in said, said


@pytest.mark.parametrize("case", UNUSABLE)
def test_policy_file_that_cannot_be_used_is_refused(case, write):
    with pytest.raises(ConfigError) as refusal:
        load(write(UNUSABLE[case]))
    assert "\x1b" not in str(refusal.value)


def test_policy_behind_a_link_is_what_it_says(write, tmp_path):
    link = tmp_path / "default.yaml"
    link.symlink_to(write(text(**OPEN)))
    with pytest.raises(ConfigError, match="sha256:"):
        load(link)


@pytest.mark.parametrize("name", ["pipe.yaml", "folder.yaml", "nothing.yaml"])
def test_policy_that_is_no_file_is_refused(name, tmp_path):
    import os  # noqa: PLC0415

    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match="--policy"):
        load(tmp_path / name)


@pytest.mark.parametrize("key", ["gate", "gate.name"])
def test_policy_in_a_training_configuration_borrows_no_name(key):
    values = yaml.safe_load((ROOT / "tests" / "configs" / "tiny.yaml").read_text())
    loose = copy.deepcopy(values)
    loose["gate"]["name"] = "default"
    if key == "gate":
        del loose["gate"]["name"]
    with pytest.raises(ConfigError, match="sha256:"):
        train_config_of(loose, configs=CONFIGS)
    assert train_config_of(values, configs=CONFIGS).gate.name == "tiny"
    with pytest.raises(ConfigError, match="sha256:"):
        load_train_config(
            ROOT / "tests" / "configs" / "tiny.yaml",
            configs=CONFIGS,
            overrides=["gate.name=quickstart"],
        )


@pytest.mark.parametrize("file", sorted((CONFIGS / "gates").glob("*.yaml")), ids=str)
def test_shipped_policy_is_itself_by_name_by_path_and_copied(file, write):
    by_name = load(file.stem)
    assert by_name.name == file.stem
    assert load(file) == by_name == load(write(file.read_bytes()))
    spelled = write(yaml.safe_dump(by_name.model_dump(mode="json")))
    assert load(spelled).digest == by_name.digest


def test_twin_that_believes_a_name_lets_a_lax_file_through(write, monkeypatch):
    monkeypatch.setattr(configfile, "_refuse_borrowed_name", lambda *_, key: None)
    assert load(write(BORROWED["by path"])).name == "default"


def changed(policy):
    """Every field of a policy, with another value that it may have."""
    other = {
        "name": "other",
        "version": 9,
        "notion": "local",
        "privacy_unit": "user",
        "relation": "replace_one",
        "accepted_statuses": ("certified", "conditional"),
        "accepted_assumptions": ("screened_by_hand",),
        "min_audit_capacity": 1.0,
        "max_language_missing_rate": 0.5,
        "max_language_masked_share": 0.5,
    }
    for name, value in policy.model_dump().items():
        if name == "schema_version":
            continue
        if name in other:
            yield name, other[name]
        elif isinstance(value, bool):
            yield name, not value
        elif isinstance(value, int):
            yield name, value + 1
        else:
            yield name, value * 0.99


def test_digest_of_a_policy_covers_every_field():
    policy = validate(GatePolicy, DEFAULT)
    digests = {policy.digest}
    names = []
    for name, value in changed(policy):
        twin = GatePolicy.model_validate({**policy.model_dump(), name: value})
        digests.add(twin.digest)
        names.append(name)
    assert len(digests) == len(names) + 1 == len(GatePolicy.model_fields)
