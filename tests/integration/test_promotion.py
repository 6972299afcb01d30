"""A decision is made again where another run moved the champion since."""

from types import SimpleNamespace

import pytest
import yaml

from dptune.gates.decision import GateDecision, GateOutcome
from dptune.gates.policy import GatePolicy
from dptune.results import RegisteredVersion
from steps import _deciding

from .conftest import TINY

VERSION = RegisteredVersion(
    model_name="bot",
    version="2",
    model_digest="d",
    model_uri="models:/m-2",
    recipe="jft",
)


def decision(outcome):
    return GateDecision(
        outcome=outcome,
        model_digest="d",
        policy_name="tiny",
        policy_version=1,
        policy_digest="p",
        evidence_digest="e",
        criteria=(),
    )


@pytest.fixture
def decide(monkeypatch):
    """Decide with another champion then and now; also returns what was shown."""

    def run(*, then, now, again):
        shown = []
        tags = {"dptune.decided_beside_version": then}
        policy = GatePolicy.model_validate(yaml.safe_load(TINY.read_text())["gate"])
        fakes = {
            "get_version": lambda *_: SimpleNamespace(tags=tags),
            "read_file": lambda *_: policy.model_dump_json(),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(_deciding._tracking, name, fake)
        monkeypatch.setattr(_deciding._champions, "champion", lambda *_: now)
        made = decision(again)
        monkeypatch.setattr(
            _deciding, "decide_on", lambda *_, policy: (made, policy.name)
        )
        monkeypatch.setattr(_deciding, "at_a_glance", lambda *_: {})
        monkeypatch.setattr(
            _deciding, "show_on_run", lambda *_, outcome: shown.append(outcome)
        )
        monkeypatch.setattr(
            _deciding, "log_metadata", lambda found: shown.append(found["gate"])
        )
        before = decision(GateOutcome.PASS)
        return _deciding.decide_beside_champion(VERSION, before).outcome, shown

    return run


@pytest.mark.parametrize(("then", "now"), [("", None), ("1", "1"), ("2", "2")])
def test_decision_stands_while_the_champion_stays(decide, then, now):
    found = decide(then=then, now=now, again=GateOutcome.BLOCK)
    assert found == (GateOutcome.PASS, [])


@pytest.mark.parametrize(("then", "now"), [("", "1"), ("1", "3"), ("1", None)])
def test_decision_is_made_again_beside_another_champion(decide, then, now):
    found = decide(then=then, now=now, again=GateOutcome.BLOCK)
    assert found == (GateOutcome.BLOCK, [GateOutcome.BLOCK, "BLOCK"])
