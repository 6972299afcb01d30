"""Arguments of public functions: every wrong one is named, all at once, for nothing."""

import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import dptune
from dptune.errors import ConfigError, PrivacyError
from dptune.gates.evidence import Evidence
from dptune.gates.policy import GatePolicy
from dptune.integrations.arguments import PrivacyArguments, ScriptBudget
from dptune.privacy import CertificateStatus
from dptune.testing import tiny_model, tiny_tokenizer

ROWS = [{"input_ids": [1, 2, 3, number]} for number in range(40)]
ODD = ["8", "", b"x", True, [], {}, (lambda *_: None), Path("x"), Decimal(2), object]
NUMBERS = [math.nan, math.inf, -math.inf, -1, 0.5, 10**30, np.array([1, 2])]
TENSORS = [torch.tensor(2.0), complex(1, 1), "\ud800", "a\0b"]
WHOLE = [*ODD, *NUMBERS, *TENSORS, np.float64(2.0), 2.5]
NUMBER = [*ODD, *TENSORS, math.nan, math.inf, -1]
CHOICE = [*ODD, *NUMBERS, *TENSORS, None]
KIND = [*ODD, *NUMBERS, None]
FUNCTION = ["8", 1, [], True]
TRAINING = {
    "target_epsilon": (8.0, [*NUMBER, None]),
    "target_delta": (1e-3, [*NUMBER, None, 1]),
    "num_steps": (2, [*WHOLE, None, 0]),
    "expected_batch_size": (8, [*WHOLE, None, 0]),
    "max_grad_norm": (1.0, [*NUMBER, None, 0]),
    "max_tokens": (4, [*WHOLE, None, 0]),
    "pad_token_id": (0, WHOLE),
    "loss": (None, FUNCTION),
    "owners": (None, ["8" * 40, 1, {}, [1, 2]]),
    "max_rows_per_unit": (1, [*WHOLE, None, 0]),
    "public_units": (None, [*WHOLE, 0, 123]),
    "relation": ("replace_one", [*CHOICE, "replace"]),
    "physical_batch_size": (8, [*WHOLE, None, 0]),
    "block_size": (2, [*WHOLE, None, 0]),
    "dtype": ("float32", [*CHOICE, "float16"]),
    "spend": (None, [*FUNCTION, 5]),
    "seed": (None, WHOLE),
}


def models(*names):
    return dict.fromkeys(names, (None, KIND))


CASES = {
    "account": {
        "noise_multiplier": (1.0, NUMBER),
        "sample_rate": (0.1, [*NUMBER, 0, 1.5]),
        "num_steps": (9, WHOLE),
        "delta": (1e-5, [*NUMBER, 0, 1]),
        "relation": ("replace_one", CHOICE),
        "privacy_unit": ("user", CHOICE),
    },
    "calibrate": {
        "target_epsilon": (2.0, [*NUMBER, 0]),
        "target_delta": (1e-5, [*NUMBER, 0, 1]),
        "sample_rate": (0.1, [*NUMBER, 0, 1.5]),
        "num_steps": (9, [*WHOLE, 0]),
        "relation": ("replace_one", CHOICE),
    },
    "canaries": {
        "num_planted": (2, WHOLE),
        "num_held_out": (2, WHOLE),
        "template": ("code {secret}", [1, None, b"{secret}"]),
        "alphabet": ("digits", CHOICE),
        "length": (4, [*WHOLE, 0, 33]),
    },
    "detect": {
        "texts": (["x"], ["x", b"x", 1, None, {"a": 1}, [1], [None], ["x", []]]),
        "tier": ("low_entity", CHOICE),
    },
    "redact": {
        "texts": (["x"], ["x", 1, None, [1]]),
        "operator": ("mask", CHOICE),
        "tier": ("low_entity", CHOICE),
    },
    "exposure": {
        **models("model", "base_model", "tokenizer", "drawn"),
        "bos_token_id": (None, WHOLE),
        "batch_size": (8, [*WHOLE, 0]),
    },
    "extraction": {
        **models("model", "tokenizer", "drawn"),
        "bos_token_id": (None, WHOLE),
        "num_trials": (8, [*WHOLE, 0]),
        "max_new_tokens": (8, [*WHOLE, 0]),
    },
    "membership": {
        **models("model", "base_model", "tokenizer"),
        "members": (["x"], ["x", 1, [None]]),
        "non_members": (["x"], ["x", 1, [None]]),
        "max_tokens": (8, [*WHOLE, 0]),
        "member_owners": (["me"], ["me", 1, [None], [], ["me", "you"]]),
        "non_member_owners": ([1], ["me", 1, [None], [], ["me", "you"]]),
        "batch_size": (8, [*WHOLE, 0]),
    },
    "audit": {
        **models("report", "certificate"),
        "confidence": (0.95, [*NUMBER, 0, 1]),
    },
    "decide": models("evidence", "policy"),
    "make_private": {
        **models("model", "optimizer"),
        "data": (ROWS, ["8", None, 1, {}, iter(ROWS)]),
        **TRAINING,
        "journal": ("ledger.jsonl", [1, "", "a\0b", b"x", Path("/")]),
        "fixed_shapes": (False, [1, "no", np.True_]),
    },
    "train": {
        **models("model"),
        "data": (ROWS, ["8", None, 1, {}, iter(ROWS), DataLoader(ROWS)]),
        **TRAINING,
        "folder": ("out", [None, 1, "", "a\0b", b"x", __file__]),
        "learning_rate": (0.1, [*NUMBER, None, 0]),
        "optimizer": ("sgd", [*CHOICE, "adam"]),
        "schedule": ("linear", CHOICE),
        "device": ("cpu", ["abc", "", [], {}, "cuda:99"]),
        "gradient_checkpointing": (False, [None, 1, "no"]),
        "on_step": (None, FUNCTION),
    },
}
EVERY = [(name, part) for name, table in CASES.items() for part in table]
GOOD = {
    "model": tiny_model,
    "base_model": tiny_model,
    "tokenizer": tiny_tokenizer,
    "drawn": lambda: dptune.canaries(num_planted=2, num_held_out=2, length=2),
    "evidence": lambda: Evidence(model_digest="0" * 64),
    "policy": lambda: GatePolicy(notion="record", max_epsilon=8, max_delta=1e-5),
    "certificate": lambda: dptune.account(
        noise_multiplier=1.0, sample_rate=0.1, num_steps=9, delta=1e-5
    ),
}


def called(name, **given):
    """Call a public function; what only an object can be is given positionally too."""
    return getattr(dptune, name)(**given)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Collect the paths of all problems that a call is refused with."""
    monkeypatch.chdir(tmp_path)

    def problems(name, **given):
        with pytest.raises(ConfigError) as caught:
            called(name, **given)
        assert not list(tmp_path.iterdir())
        return {one.path for one in caught.value.problems}

    return problems


@pytest.mark.parametrize("name", CASES)
def test_all_wrong_arguments_are_told_at_once(told, name):
    given = {part: wrong[0] for part, (_, wrong) in CASES[name].items()}
    # an optimizer is looked at beside its model, and owners beside their rows
    assert set(given) - {"owners", "optimizer"} <= told(name, **given)


@pytest.mark.parametrize(("name", "part"), EVERY, ids=str)
def test_every_wrong_value_of_an_argument_is_refused(told, name, part):
    made = {
        key: GOOD[key]() if key in GOOD else good
        for key, (good, _) in CASES[name].items()
    }
    if name == "make_private":
        made["optimizer"] = torch.optim.SGD(made["model"].parameters(), lr=0.1)
    if name == "audit" and part != "report":
        pytest.importorskip("torch")
        made["report"] = dptune.exposure(
            tiny_model(), tiny_model(), tiny_tokenizer(), GOOD["drawn"]()
        )
    for wrong in CASES[name][part][1]:
        if part == "sample_rate" and wrong == 0.5:
            continue
        assert part in told(name, **made | {part: wrong}), wrong


def test_numbers_of_numpy_are_numbers():
    asked = {"noise_multiplier": 1.0, "sample_rate": 0.1, "num_steps": 9, "delta": 1e-5}
    numpy = {name: np.asarray(value)[()] for name, value in asked.items()}
    assert {type(value) for value in numpy.values()} == {np.float64, np.int64}
    assert dptune.account(**numpy) == dptune.account(**asked)
    half = np.float32(0.5)
    assert dptune.account(**asked | {"sample_rate": half}).epsilon > 0


@pytest.mark.parametrize("number", [0, 41.0, True, 123])
def test_number_of_units_that_nobody_declared_certifies_nothing(tmp_path, number):
    """Zero was taken for the exact number, and the claim for one about a public one."""
    model = tiny_model()
    wanted = {name: good for name, (good, _) in TRAINING.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"journal": tmp_path / "ledger.jsonl", "relation": "add_or_remove_one"}
    with pytest.raises(ConfigError, match="public_units"):
        dptune.make_private(
            model, optimizer, ROWS, **wanted | given | {"public_units": number}
        )
    loop = dptune.make_private(model, optimizer, ROWS, **wanted | given)
    list(loop)
    assert loop.certificate().status is CertificateStatus.CONDITIONAL


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "numbers",
    [
        {"noise_multiplier": 1e-308},
        {"noise_multiplier": 1e-12},
        {"noise_multiplier": 1e308},
        {"sample_rate": 1e-308},
        {"delta": 5e-324},
    ],
    ids=str,
)
def test_numbers_beyond_double_precision_end_in_no_claim_or_a_sound_one(numbers):
    asked = {"noise_multiplier": 1.0, "sample_rate": 0.1, "num_steps": 9, "delta": 1e-5}
    if set(numbers) <= {"noise_multiplier", "sample_rate"}:
        with pytest.raises(PrivacyError, match="double precision"):
            dptune.account(**asked | numbers)
    else:
        assert dptune.account(**asked | numbers).epsilon > 0


@pytest.mark.parametrize(
    "change",
    [
        {"target_epsilon": True},
        {"max_grad_norm": None},
        {"max_rows_per_unit": None},
        {"block_size": None},
        {"seed": "abc"},
        {"seed": -1},
        {"seed": True},
        {"relation": []},
        {"unit_column": 1, "privacy_unit": "user"},
        {"evaluation_is_public": "no"},
        {"target_delta": np.float32(math.nan)},
    ],
    ids=str,
)
def test_privacy_arguments_are_of_their_kinds(change):
    asked = {"target_epsilon": 8.0, "target_delta": 1e-5, "max_grad_norm": 1.0}
    (name, *_) = change
    with pytest.raises(ConfigError, match=f"privacy.{name}"):
        PrivacyArguments(**asked | change)


@pytest.mark.parametrize(
    "change",
    [
        {"url": 1},
        {"url": ""},
        {"data_set": 1},
        {"key": b"short"},
        {"key": "k" * 32},
        {"required": "no"},
        {"purpose": "fun"},
        {"sweep": "lr"},
        {"purpose": "tuning"},
    ],
    ids=str,
)
def test_budget_of_a_script_is_checked_before_it_is_opened(change):
    asked = {"url": "sqlite:///b.db", "data_set": "notes", "key": b"k" * 32}
    with pytest.raises(ConfigError, match="budget"):
        ScriptBudget(**asked | change)
