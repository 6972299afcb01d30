"""A certificate counts one training: a base model may not have learnt from the data."""

import json
from types import SimpleNamespace

import pytest

from dptune.errors import PrivacyError
from dptune.models.digest import model_digest
from dptune.models.loading import save_model
from dptune.models.tokenizer import train_tokenizer
from dptune.results import RegisteredVersion
from dptune.testing import tiny_model
from dptune.workflow.dossier import Dossier, RunResults
from steps import _lineage
from steps._lineage import refuse_trained_base
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
    """Versions by name and number: their digest, and what is stored with them."""

    EVIDENCE = "evidence.json"

    def model_names(self):
        return sorted({name for name, _ in self})

    def find_version(self, name, *, digest):
        numbers = [n for of, n in self if of == name and self[of, n][0] == digest]
        return SimpleNamespace(version=numbers[0]) if numbers else None

    def read_file(self, name, number, file):
        assert file == self.EVIDENCE
        return self[name, number][1]


@pytest.fixture
def over(monkeypatch):
    def said(others, **own):
        monkeypatch.setattr(_lineage, "_tracking", Registry(others))
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
