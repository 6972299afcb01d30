"""A run is not trained for hours towards what its own gate refuses."""

import contextlib
import re
from pathlib import Path

import pytest

from cli import runs
from dptune.accounting.store.allowances import Grant
from dptune.accounting.store.store import BudgetStore
from dptune.configfile import load_train_config
from dptune.errors import ConfigError
from dptune.privacy import NeighboringRelation, Notion, UnitsFrom
from dptune.workflow.budget import lacks_grant
from dptune.workflow.expectation import check_gate, expected_ledger, gate_doubts
from dptune.workflow.planned_units import PlannedUnits
from dptune.workflow.power import canary_doubt, members_doubt
from dptune.workflow.preflight import _check_processes, plan_for
from tests.unit.reports.samples import corpus_report

REPOSITORY = Path(__file__).resolve().parents[3]
UNITS = PlannedUnits(number=2000)
DECLARED = PlannedUnits(number=2000, origin=UnitsFrom.DECLARED)
TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"


def config(*overrides):
    return load_train_config(
        TINY, configs=REPOSITORY / "configs", overrides=list(overrides)
    )


def check(made, *, plan=True):
    planned = plan_for(made.recipe, made.privacy, units=UNITS) if plan else None
    check_gate(made, planned)


def test_target_above_the_gates_epsilon_is_refused():
    with pytest.raises(ConfigError, match=r"gate.max_epsilon \(8; selective"):
        check(config("privacy.target_epsilon=8.01"))


def test_epsilon_a_hair_above_is_not_refused_as_the_limit_itself():
    with pytest.raises(ConfigError, match=r"got 8\.001: "):
        check(config("privacy.target_epsilon=8.00001"), plan=False)


def test_target_is_refused_where_the_corpus_cannot_be_read_either():
    with pytest.raises(ConfigError, match="got 9"):
        check(config("privacy.target_epsilon=9"), plan=False)


def test_epsilon_and_delta_are_told_at_once():
    made = config("privacy.target_epsilon=9", "gate.max_delta=1.0e-5")
    with pytest.raises(ConfigError) as refusal:
        check(made)
    paths = [problem.path for problem in refusal.value.problems]
    assert paths == ["privacy.target_epsilon", "privacy.target_delta"]


def test_given_noise_that_costs_more_than_the_gate_accepts_is_refused():
    """There is no target to compare: what the plan will spend is."""
    noise = "stages.jft.private_finetune.noise.noise_multiplier"
    target = "privacy.target_epsilon=null"
    check(config(target, f"{noise}=4.0"))
    with pytest.raises(ConfigError, match=r"gate.max_epsilon"):
        check(config(target, f"{noise}=0.3"))


def test_gate_of_the_other_relation_is_compared_under_its_own():
    """Epsilon under add or remove may hold where that of a replacement does not."""
    record = ("recipe=dp_sgd", "privacy.notion=record", "gate.notion=record")
    loose = (*record, "privacy.relation=add_or_remove_one", "privacy.target_epsilon=7")
    check(config(*loose))
    with pytest.raises(ConfigError, match="replace_one"):
        check(config(*loose, "gate.relation=replace_one"))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("privacy.target_epsilon=100", "recipe=no_dp"),
        ("privacy.target_epsilon=100", "privacy.mode=paper"),
    ],
)
def test_what_the_gate_may_pass_or_nobody_claims_is_trained(overrides):
    check(config(*overrides))


DP_SGD = (
    *("recipe=dp_sgd", "gate.notion=record", "privacy.notion=record"),
    "privacy.relation=add_or_remove_one",
)


def doubts(*overrides, units=UNITS, **reported):
    made = config(*overrides)
    plan = plan_for(made.recipe, made.privacy, units=units)
    ledger = expected_ledger(
        made, plan, corpus_report(**{"deduplicated": False} | reported)
    )
    return gate_doubts(made, ledger)


def test_target_for_users_is_compared_with_a_gate_about_records_as_a_replacement():
    users = (*DP_SGD, "data.privacy_unit=user", "privacy.target_epsilon=7")
    with pytest.raises(ConfigError, match=r"record, replace_one\).*about a user"):
        check(config(*users))
    check(config(*users, "gate=user", "privacy.target_delta=1e-5"))
    told = doubts(*users, units=DECLARED, privacy_unit="user")
    assert any("under replace_one will be for epsilon 1" in doubt for doubt in told)


def test_claim_that_the_gate_cannot_accept_is_told_before_training():
    (doubt,) = doubts(*DP_SGD)
    assert "num_units_is_public" in doubt
    assert "data.public_units" in doubt
    (doubt,) = doubts(*DP_SGD, "gate.accepted_statuses=[certified]")
    assert "conditional on num_units_is_public" in doubt
    (doubt,) = doubts(*DP_SGD, units=DECLARED, deduplicated=True)
    assert "deduplicated_corpus" in doubt
    (doubt,) = doubts(*DP_SGD, "canaries.placement=appended", units=DECLARED)
    assert "canary_hosts_are_fixed" in doubt


def test_claim_that_the_gate_can_accept_is_not_doubted():
    accepted = 'gate.accepted_assumptions=["num_units_is_public"]'
    assert doubts(*DP_SGD, accepted) == ()
    assert doubts(*DP_SGD, units=DECLARED) == ()
    assert doubts() == ()
    assert doubts("recipe=no_dp") == ()


def test_claim_of_another_notion_or_unit_than_the_gate_asks_for_is_doubted():
    (doubt,) = doubts("gate.notion=record")
    assert "record claim under add_or_remove_one will be none" in doubt
    (doubt,) = doubts(*DP_SGD, "gate.privacy_unit=user", units=DECLARED)
    assert "about a record" in doubt
    (doubt,) = doubts("recipe=dp_sgd", "privacy.notion=record", "gate.max_epsilon=2")
    assert "accepts at most 2" in doubt


def test_audit_that_is_left_out_is_doubted_where_the_gate_asks_for_it():
    (doubt,) = doubts("audit.num_steps=0")
    assert "audit of steps" in doubt
    assert doubts("audit.num_steps=0", "gate.require_step_audit=false") == ()


DEFAULT = (
    *("gate.assurance_bound_bits=2.5", "gate.control_level=5.0e-4"),
    *("gate.base_level=5.0e-4", "gate.effect_size_bits=2.5"),
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("canaries.num_planted=30",), "0.00 by 30.*num_planted: 60 would do"),
        (
            ("canaries.num_planted=30", "attack.sampled_candidates=4000"),
            "0.00 by 30.*num_planted: 130 would do",
        ),
        (
            ("canaries.num_planted=30", "attack.sampled_candidates=1000"),
            "0.00 by 30.*num_planted: 60 would do with exact ranks",
        ),
        (
            ("canaries.num_planted=130", "attack.sampled_candidates=2000"),
            "0.84 by 130.*attack.sampled_candidates: 4000 would do",
        ),
        (("canaries.num_planted=30", "gate.min_canaries=100"), "asks for 100"),
    ],
)
def test_canaries_by_which_a_clean_model_often_fails_are_told(changes, words):
    """Nobody was told before the run was paid for: `calibrate` alone knew."""
    held_out = "canaries.num_held_out=30"
    assert re.search(words, canary_doubt(config(*DEFAULT, held_out, *changes)))


def test_canaries_that_will_do_are_not_doubted():
    enough = ("canaries.num_planted=130", "canaries.num_held_out=30")
    assert canary_doubt(config(*DEFAULT, *enough)) == ""
    assert canary_doubt(config()) == ""
    assert canary_doubt(config(*DEFAULT, "recipe=no_dp")) == ""
    assert canary_doubt(config(*DEFAULT, "gate.require_canaries=false")) == ""


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ({"train": 900, "test": 291}, "291 non-members to attack.*asks for 500"),
        ({"train": 240}, "240 members and 0 non-members"),
    ],
)
def test_fewer_units_to_attack_than_the_gate_asks_for_are_told(units, words):
    """A run was paid for that no gate could pass: `calibrate` alone knew."""
    asked = ("gate.min_membership_records=500", "attack.num_members=1000")
    assert re.search(words, members_doubt(config(*asked), units))


def test_units_to_attack_that_will_do_are_not_doubted():
    asked = ("gate.min_membership_records=500", "attack.num_members=1000")
    enough, few = {"train": 900, "test": 500}, {"train": 90, "test": 50}
    assert members_doubt(config(*asked), enough) == ""
    assert members_doubt(config(*asked, "recipe=no_dp"), few) == ""


def test_budget_that_nobody_granted_is_told(tmp_path):
    url, asks = f"sqlite:///{tmp_path / 'b.db'}", "gate.require_dataset_budget=true"
    assert lacks_grant(url, config()) == ""
    assert "none was granted" in lacks_grant(url, config(asks))
    granted = Grant(
        data_set=config().budget.data_set,
        notion=Notion.SELECTIVE,
        relation=NeighboringRelation.REPLACE_ONE,
        epsilon=9.0,
        delta=1e-5,
    )
    with BudgetStore.open(url) as store:
        store.grant(granted, reason="")
    assert lacks_grant(url, config(asks)) == ""
    assert "none was granted" in lacks_grant(url, config(asks, "gate.max_delta=1e-6"))
    assert "none was granted" in lacks_grant(url, config(asks, "gate.notion=record"))


def test_train_refuses_before_anything_is_created(tmp_path, monkeypatch):
    monkeypatch.setenv("DPTUNE_HOME", str(tmp_path / "home"))
    with pytest.raises(ConfigError) as refusal:
        runs.run_training(config("privacy.target_epsilon=9", "gate.max_delta=1.0e-5"))
    assert {"privacy.target_epsilon", "privacy.target_delta"} <= {
        problem.path for problem in refusal.value.problems
    }
    assert not (tmp_path / "home").exists()


def test_twin_without_the_check_starts_to_train(monkeypatch):
    def opened(profile):
        raise RuntimeError("training starts")

    monkeypatch.setattr("dptune.workflow.preflight.check_gate", lambda *_: None)
    monkeypatch.setattr(runs, "open_profile", opened)
    with pytest.raises(RuntimeError, match="training starts"):
        runs.run_training(config("privacy.target_epsilon=9"))


def test_stage_that_needs_one_process_is_refused_before_a_pod_has_several():
    """The machine that sends the run has no accelerators; its pods have."""
    made = load_train_config(
        REPOSITORY / "configs/train/quickstart.yaml",
        configs=REPOSITORY / "configs",
        overrides=["recipe=rldp", "performance.num_processes=auto"],
    )
    errors = []
    for count in (None, 1, 8):
        with contextlib.suppress(ConfigError):
            _check_processes(made, accelerators=count)
            continue
        errors.append(count)
    assert errors == [8]
