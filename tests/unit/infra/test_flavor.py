"""How MLflow keeps a model: its interface is what it was trained on."""

import mlflow
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from dptune.gates.manifest import read_manifest
from dptune.models.chat import answers_chats, note_training
from dptune.models.loading import load_tokenizer, save_model
from steps import _tracking
from tests.support.chats import chat_tokenizer
from tests.unit.attacks.conftest import make_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow

END = "<|eot_id|>"
ASKED = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture
def folder(tmp_path):
    """Return what writes a model that says nothing but the end of a turn."""

    def write(*, on_chats):
        tokenizer = chat_tokenizer("llama_3")
        tokenizer.eos_token = "<|end_of_text|>"  # ends texts, not turns
        bos = (tokenizer.bos_token, tokenizer.bos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos[0]} $A", special_tokens=[bos]
        )
        note_training(tokenizer, on_chats=on_chats)
        model = make_model("gpt2", vocab_size=len(tokenizer)).eval()
        with torch.no_grad():
            model.transformer.ln_f.weight.zero_()
            model.transformer.ln_f.bias.fill_(1.0)
            model.transformer.wte.weight[tokenizer.convert_tokens_to_ids(END)] = 9.0
        save_model(model, tokenizer, tmp_path / "model")
        return tmp_path / "model"

    return write


def test_interface_follows_what_was_trained_and_not_the_template(folder):
    flavor = _tracking._flavor(folder(on_chats=False))
    assert flavor["transformers_model"]["tokenizer"].chat_template
    assert flavor["task"] == "text-generation"
    assert "model_config" not in flavor


def test_plain_text_trained_on_a_model_for_chats_is_plain_again(folder):
    tokenizer = load_tokenizer(folder(on_chats=True))
    assert answers_chats(tokenizer)
    note_training(tokenizer, on_chats=False)
    assert not answers_chats(tokenizer)


def asked(folder, place, monkeypatch, **changes):
    """Ask a stored model: tokens that it was given, and how many it said."""
    flavor = _tracking._flavor(folder)
    flavor["model_config"] = flavor["model_config"] | changes
    mlflow.transformers.save_model(path=str(place), **flavor)
    loaded = mlflow.pyfunc.load_model(str(place))
    model = loaded._model_impl.pipeline.model
    given, generate = [], model.generate

    def spy(*args, **options):
        given.append(options["input_ids"][0].tolist())
        return generate(*args, **options)

    monkeypatch.setattr(model, "generate", spy)
    (answer,) = loaded.predict(ASKED)
    return given[0], answer["usage"]["completion_tokens"]


def test_no_answer_or_file_names_the_folder_of_this_machine(folder, tmp_path):
    """Whoever asked a served model was told where it lay when it was registered."""
    stored, place = folder(on_chats=True), tmp_path / "own"
    mlflow.transformers.save_model(path=str(place), **_tracking._flavor(stored))
    (answer,) = mlflow.pyfunc.load_model(str(place)).predict(ASKED)
    assert answer["model"] == "dptune:model"
    files = [file for file in place.rglob("*") if file.is_file()]
    assert not [f.name for f in files if str(tmp_path).encode() in f.read_bytes()]


def test_chat_has_one_bos_and_stops_at_the_end_of_a_turn(folder, tmp_path, monkeypatch):
    stored = folder(on_chats=True)
    tokenizer = load_tokenizer(stored)
    given, said = asked(stored, tmp_path / "own", monkeypatch)
    rendered = tokenizer.apply_chat_template(
        ASKED["messages"], add_generation_prompt=True
    )["input_ids"]
    assert given == list(rendered)
    assert given.count(tokenizer.bos_token_id) == 1
    assert said == 1
    given, _ = asked(stored, tmp_path / "twin", monkeypatch, add_special_tokens=True)
    assert given.count(tokenizer.bos_token_id) == 2
    eos = {"eos_token_id": tokenizer.eos_token_id}
    _, said = asked(stored, tmp_path / "deaf", monkeypatch, **eos)
    assert said == ASKED["max_tokens"]


def test_version_of_a_chat_model_is_written_again_alike(folder):
    stored, names = folder(on_chats=True), []
    for _ in range(2):
        with _tracking.written_anew(stored) as place:
            files = read_manifest(place).files
            names.append({f.path: f.sha256 for f in files if f.path != "MLmodel"})
    assert names[0] == names[1]
