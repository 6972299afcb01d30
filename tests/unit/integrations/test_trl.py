"""TRL's trainer: what its own arguments would break, and what it makes targets of."""

import datetime
import secrets

import pytest
from datasets import Dataset

from dptune.errors import ConfigError
from tests.support import models
from tests.unit.integrations.conftest import WORDS, asked, make_prompts, word_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class OfAnother:
    """Puts an example from another row before each."""

    def __init__(self, rows):
        self.rows, self.turn = rows, 0

    def __call__(self, row):
        self.turn += 1
        example = self.rows[self.turn % len(self.rows)]
        return f"{example['text']} {row['text']}"


@pytest.fixture
def chat_script(tmp_path):
    from trl import SFTConfig  # noqa: PLC0415 - seconds of each worker

    from dptune.integrations.trl import DPSFTTrainer  # noqa: PLC0415

    def make(
        rows=None, *, privacy=None, processing_class=None, formatting=None, **changes
    ):
        fields = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 4,
            "max_steps": 3,
            "max_length": 12,
            "bf16": False,
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "save_strategy": "no",
            "gradient_checkpointing": False,
        }
        return DPSFTTrainer(
            model=models.tiny_gpt2(num_layers=1),
            args=SFTConfig(**(fields | changes)),
            train_dataset=Dataset.from_list(rows or make_prompts()),
            processing_class=processing_class or word_tokenizer(),
            formatting_func=formatting,
            privacy=privacy or asked(),
        )

    return make


def test_completions_are_the_targets_of_each_record_alone(chat_script, paid):
    trainer = chat_script()
    trainer.train()
    assert paid() == [3]
    assert trainer.certificate.status == "conditional"
    weights = trainer.script_run.rows.data.loss_weights
    assert {float(w.sum()) for w in weights} == {3.0}  # two words and an end
    assert trainer.privacy.max_tokens == 12


def test_row_that_a_replacement_takes_out_changes_the_rate_and_the_claim_says_so(
    chat_script, tmp_path
):
    def trained(rows, **changes):
        privacy = asked(relation="replace_one", **changes)
        folder = str(tmp_path / secrets.token_hex(4))
        trainer = chat_script(rows, privacy=privacy, output_dir=folder)
        trainer.train()
        return trainer.script_run.stage.sample_rate, trainer.certificate

    rows = make_prompts()
    replaced = [{"prompt": " w1" * 12, "completion": " w2"}, *rows[1:]]
    (rate, _), (other, claim) = trained(rows), trained(replaced)
    assert (rate, other) == (4 / 40, 4 / 39)
    assert claim.status == "conditional"
    assert "replacement_keeps_num_units" in claim.assumptions
    (rate, claim), (other, _) = (trained(r, num_units=40) for r in (rows, replaced))
    assert rate == other
    assert claim.status == "certified"


def test_owners_of_conversations_are_the_units(chat_script, paid):
    rows = [{"text": " ".join(WORDS[: 3 + i % 6]), "who": i % 15} for i in range(40)]
    privacy = asked(privacy_unit="user", unit_column="who", max_rows_per_unit=2)
    trainer = chat_script(rows, privacy=privacy)
    trainer.train()
    assert trainer.script_run.rows.data.num_units == 15
    assert paid() == [3]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"packing": True}, "args.packing"),
        ({"padding_free": True, "max_length": None}, "args.padding_free"),
        ({"loss_type": "dft"}, "args.loss_type"),
        ({"activation_offloading": True}, "args.activation_offloading"),
        ({"bf16": True, "max_length": None}, "privacy.max_tokens"),
    ],
)
def test_argument_of_trl_is_refused(chat_script, paid, changes, match):
    with pytest.raises(ConfigError, match=match):
        chat_script(**changes)
    assert paid() == []


def texts_of_words():
    """Rows of one text each, no two of one length behind another."""
    return [{"text": " ".join(WORDS[n % 7 : n % 7 + 3 + n % 5])} for n in range(35)]


def test_examples_that_are_taken_from_other_rows_are_refused(chat_script, paid):
    """A text stood in its own row and in others', and each was clipped by itself."""
    rows = texts_of_words()
    with pytest.raises(ConfigError, match="formatting_func") as refused:
        chat_script(rows, formatting=OfAnother(rows))
    assert "w1" not in str(refused.value)
    assert paid() == []


def test_rows_that_are_formatted_by_themselves_are_taken(chat_script, paid):
    chat_script(
        texts_of_words(), formatting=lambda row: f"w9 {row['text']}", max_steps=1
    ).train()
    assert paid() == [1]


def test_rows_of_preferences_are_refused_with_what_is_supported(chat_script, paid):
    """TRL said that a key was missing."""
    rows = [row | {"chosen": "w1", "rejected": "w2"} for row in make_prompts()]
    with pytest.raises(ConfigError, match="chosen, rejected of preferences"):
        chat_script(rows)
    assert paid() == []


def test_template_that_writes_the_date_makes_the_same_rows_every_day(
    chat_script, monkeypatch
):
    """A training that was cut off could not be resumed on the next day."""

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2031, 1, 2, tzinfo=tz)

    def rows():
        tokenizer = word_tokenizer()
        tokenizer.chat_template = (
            "{{ 'w' + strftime_now('%d').lstrip('0') }}"
            "{% for m in messages %}{{ ' ' + m['content'] + ' <eos>' }}{% endfor %}"
        )
        said = [
            {"role": "user", "content": "w1"},
            {"role": "assistant", "content": "w3"},
        ]
        trainer = chat_script([{"messages": said}] * 9, processing_class=tokenizer)
        return [row["input_ids"] for row in trainer.train_dataset]

    first = rows()
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Later)
    assert rows() == first


def test_template_leaves_no_telemetry(chat_script, monkeypatch):
    sent = []
    monkeypatch.setattr(
        "trl.trainer.base_trainer.send_telemetry", lambda *a, **k: sent.append(a)
    )
    chat_script()
    assert sent == []
