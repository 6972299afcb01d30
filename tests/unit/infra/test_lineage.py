"""A certificate counts one training: a base model may not have learnt from the data."""

import json
from types import SimpleNamespace

import pytest

from dptune.errors import ArtifactError, GateFailedError, PrivacyError
from dptune.models.digest import model_digest
from dptune.models.loading import save_model
from dptune.models.tokenizer import train_tokenizer
from dptune.results import RegisteredVersion
from dptune.testing import tiny_model
from dptune.workflow.dossier import Dossier, RunResults
from steps import _lineage
from steps._lineage import refuse_other_training, refuse_trained_base
from steps._tracking import digest_of
from tests.unit.reports import samples
from tests.unit.workflow.test_dossier import reports
from tests.unit.workflow.test_preflight import config

BUDGET = samples.budget_report()


def dossier(budget=BUDGET):
    results = RunResults.collect(reports(budget=budget).values())
    return Dossier.of(
        results, model_digest=samples.MODEL, base_model="m", recipe=samples.recipe()
    )


BASE = dossier().exposure.base_model_digest


class Registry(dict):
    """By name and number the digest of a version, its evidence, and what was noted."""

    EVIDENCE = "evidence.json"
    digest_of = staticmethod(digest_of)

    def model_names(self):
        return sorted({name for name, _ in self})

    def find_version(self, name, *, digest):
        numbers = [n for of, n in self if of == name and self[of, n][0] == digest]
        return SimpleNamespace(version=numbers[0]) if numbers else None

    def get_version(self, name, number):
        return self[name, number]

    def read_file(self, name, number, file):
        assert file == self.EVIDENCE
        return self[name, number][1]

    def evidence_digest_of(self, found):
        return digest_of(found[-1] or "")


@pytest.fixture
def over(monkeypatch):
    def said(others, *, outcome="PASS", **own):
        monkeypatch.setattr(_lineage, "_tracking", Registry(others))
        monkeypatch.setattr(
            _lineage._noting,
            "noted_outcomes",
            lambda name: {number: outcome for of, number in others if of == name},
        )
        version = RegisteredVersion(
            model_name="own",
            version="2",
            model_digest=samples.MODEL,
            model_uri="",
            recipe="jft",
        )
        return _lineage.trained_over(dossier(**own), version)

    return said


SAME = dossier().model_dump_json()
OTHER = dossier(
    BUDGET.model_copy(update={"data_set": "other-people"})
).model_dump_json()


@pytest.mark.parametrize("name", ["own", "another"])
@pytest.mark.parametrize("evidence", [SAME, None, "{}"])
def test_base_that_learnt_from_the_data_is_told(over, name, evidence):
    said = over({(name, "1"): (BASE, evidence)})
    assert f"trained over version 1 of {name}, which had learnt from data set" in said


def over_base(base, evidence):
    """Evidence of a version that was trained over another base model."""
    made = Dossier.model_validate_json(evidence)
    exposure = made.exposure.model_copy(update={"base_model_digest": base})
    return made.model_copy(update={"exposure": exposure}).model_dump_json()


def test_base_whose_own_base_learnt_from_the_data_is_told(over):
    """A training on other people between the two takes nothing back."""
    first, second = "1" * 64, "2" * 64
    known = {
        ("other", "1"): (BASE, over_base(second, OTHER)),
        ("other", "2"): (second, over_base(first, OTHER)),
        ("own", "1"): (first, SAME),
    }
    assert "trained over version 1 of own, which had learnt from data" in over(known)
    del known["own", "1"]
    assert over(known) == ""


def test_models_that_are_each_others_base_are_looked_at_once(over):
    known = {
        ("other", "1"): (BASE, over_base("1" * 64, OTHER)),
        ("other", "2"): ("1" * 64, over_base(BASE, OTHER)),
    }
    assert over(known) == ""


def test_edited_evidence_hides_no_data_set(over):
    known = {("another", "1"): (BASE, OTHER, SAME)}
    assert "trained over version 1 of another" in over(known)


def test_version_that_another_training_left_as_it_was_keeps_its_evidence(over):
    """Else what it learnt first were in no evidence, and the next training public."""
    version = ("own", "1")
    over({version: (samples.MODEL, SAME)})
    refuse_other_training(dossier(), "own")
    refuse_other_training(Dossier.model_validate_json(OTHER), "another")
    for evidence in (OTHER, over_base("1" * 64, SAME)):
        over({version: (samples.MODEL, evidence)})
        with pytest.raises(ArtifactError, match="must not be version 1 of own again"):
            refuse_other_training(dossier(), "own")
    over({version: (samples.MODEL, "lost")})
    refuse_other_training(dossier(), "own")


def test_base_that_learnt_from_nobody_knows_whom_is_told(over):
    unpaid = dossier(None).model_dump_json()
    assert "trained over version 1 of script" in over({("script", "1"): (BASE, unpaid)})


@pytest.mark.parametrize("outcome", ["BLOCK", "INCONCLUSIVE", "INVALID", None])
def test_refused_base_of_other_people_is_told(over, outcome):
    """Else a second training, on whomever, made a pass of every refusal."""
    said = over({("another", "1"): (BASE, OTHER)}, outcome=outcome)
    assert "version 1 of another, which had learnt from data set 'other-people'" in said
    assert "has no PASS" in said


def test_broken_log_holds_no_pass(over, monkeypatch):
    def broken(_):
        raise GateFailedError("the chain is broken")

    over({("another", "1"): (BASE, OTHER)})
    monkeypatch.setattr(_lineage._noting, "noted_outcomes", broken)
    assert not _lineage._passed("another", "1")


def test_base_of_other_people_or_none_is_public(over):
    assert over({}) == ""
    assert over({("own", "1"): (samples.MODEL, SAME)}) == ""
    assert over({("another", "1"): (BASE, OTHER)}) == ""


def test_model_that_training_left_as_it_was_is_not_its_own_base(over):
    assert over({("own", "2"): (BASE, SAME)}) == ""


def test_run_over_a_model_that_learnt_from_the_data_is_refused(over, tmp_path):
    """Before it spends anything; a folder that is not there is somebody else's word."""
    model = tiny_model()
    save_model(model, train_tokenizer([], vocab_size=258), tmp_path / "mine")
    source = {"kind": "path", "path": "mine"}
    data_set = f"budget.data_set={BUDGET.data_set}"
    made = config(f"model.source={json.dumps(source)}", "model.pretraining=null")
    charged = config(
        f"model.source={json.dumps(source)}", "model.pretraining=null", data_set
    )
    over({("another", "1"): (model_digest(tmp_path / "mine"), SAME)})
    refuse_trained_base(made, data_root=tmp_path)
    refuse_trained_base(charged, data_root=tmp_path / "elsewhere")
    with pytest.raises(PrivacyError, match="got version 1 of another, which had"):
        refuse_trained_base(charged, data_root=tmp_path)
