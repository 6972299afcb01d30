"""A base model is made once, and again if what it is made of has changed."""

import hashlib
import shutil

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel

from dptune import files
from dptune.config import ModelSettings, PerformanceSettings
from dptune.errors import ModelError
from dptune.models.build import build_gpt2
from dptune.models.loading import save_model
from dptune.models.tokenizer import train_tokenizer
from dptune.workflow import prepare_model
from dptune.workflow.prepare_model import base_files_digest, prepare_base

TINY = {"num_layers": 1, "num_heads": 1, "hidden_size": 8, "max_tokens": 16}


@pytest.fixture
def save(tmp_path):
    """Save a tiny model, or its tokenizer, under one name; the last one stays."""
    tokenizer = train_tokenizer(["some words of a text"] * 9, vocab_size=260)

    def write(seed):
        shutil.rmtree(tmp_path / "mine", ignore_errors=True)
        model = build_gpt2(tokenizer, **TINY, seed=seed)
        save_model(model, tokenizer, tmp_path / "mine")

    return write


@pytest.fixture
def prepared(tmp_path):
    """Prepare the base model of a source, as a run does."""

    def prepare(source):
        return prepare_base(
            ModelSettings.model_validate({"source": source, "max_tokens": 16}),
            PerformanceSettings(device="cpu"),
            data_root=tmp_path,
            folder=tmp_path / "cache",
        )

    return prepare


BY_PATH = {"kind": "path", "path": "mine"}
TRAINED = {
    "kind": "architecture",
    **TINY,
    "vocab_size": 270,
    "tokenizer": {"kind": "trained"},
}
PRETRAINING = {"epochs": 1, "batch_size": 4, "learning_rate": 0.1}


def test_model_that_was_replaced_under_its_name_is_read_again(save, prepared):
    digests = []
    for seed in (0, 1, 0):
        save(seed)
        digests.append(prepared(BY_PATH).digest)
    assert digests[0] == digests[2] != digests[1]


def test_model_that_stays_is_loaded_once(save, prepared, tmp_path):
    save(0)
    places = {prepared(BY_PATH).path for _ in range(2)}
    assert [path.name for path in places] == [
        path.name for path in (tmp_path / "cache").iterdir()
    ]


def test_model_that_another_run_makes_meanwhile_is_taken(
    save, prepared, tmp_path, monkeypatch
):
    """Both wrote into one folder, and the second run crashed."""
    save(0)
    write, others = prepare_model.save_model, []

    def meanwhile(*arguments):
        if not others:
            others.append(None)
            others.append(prepared(BY_PATH))
        write(*arguments)

    monkeypatch.setattr(prepare_model, "save_model", meanwhile)
    own = prepared(BY_PATH)
    assert own == others[1]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [own.path.name]


def test_text_of_a_tokenizer_that_was_edited_is_read_again(prepared, tmp_path):
    source = {
        "kind": "architecture",
        **TINY,
        "vocab_size": 270,
        "tokenizer": {"kind": "trained", "public_text": ["words.txt"]},
    }
    digests = set()
    for words in ("the cat sat there", "no dog ran home"):
        (tmp_path / "words.txt").write_text(f"{words}\n" * 50)
        digests.add(prepared(source).digest)
    assert len(digests) == 2


def test_files_of_a_base_model_are_known_by_what_they_hold(save, tmp_path):
    settings = ModelSettings.model_validate({"source": BY_PATH, "max_tokens": 16})
    digests = [base_files_digest(settings, data_root=tmp_path)]  # nothing there yet
    for seed in (0, 1, 0):
        save(seed)
        digests.append(base_files_digest(settings, data_root=tmp_path))
    assert digests[1] == digests[3]
    assert len(set(digests)) == 3


def test_files_of_a_base_model_are_hashed_once_until_they_are_written_to(
    save, tmp_path, monkeypatch
):
    """A run asks for the tag of its work, and for the model; files may be large."""
    settings = ModelSettings.model_validate({"source": BY_PATH, "max_tokens": 16})
    hashed, plain = [], hashlib.file_digest

    def counted(stream, name):
        hashed.append(stream.name)
        return plain(stream, name)

    def asked():
        return base_files_digest(settings, data_root=tmp_path), len(hashed)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    save(0)
    first, number = asked()
    assert asked() == (first, 2 * number)  # written a moment ago: maybe once more
    monkeypatch.setattr(files, "_SETTLED", 0)
    assert asked() == (first, 3 * number)
    assert asked() == (first, 3 * number)
    save(1)
    assert asked()[0] != first


@pytest.mark.parametrize("place", ["pretraining", "public_text"])
def test_public_text_is_known_by_what_it_holds(tmp_path, place):
    source = {"kind": "text", "path": "public.txt"}
    pretraining = {"source": source, **PRETRAINING}
    text = pretraining if place == "pretraining" else source
    settings = ModelSettings.model_validate(
        {"source": TRAINED, "max_tokens": 16, place: text}
    )
    digests = set()
    for words in ("the cat sat there", "no dog ran home"):
        (tmp_path / "public.txt").write_text(words)
        digests.add(base_files_digest(settings, data_root=tmp_path))
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        (BY_PATH, True),
        ({"kind": "package", "package": "a_model"}, True),
        ({"kind": "hub", "id": "openai-community/gpt2"}, False),
        ({"kind": "architecture", **TINY, "tokenizer": BY_PATH}, True),
        (TRAINED, False),
    ],
)
def test_step_is_answered_from_the_cache_only_where_no_file_decides(source, reads):
    settings = ModelSettings.model_validate({"source": source, "max_tokens": 16})
    assert settings.reads_files is reads


@pytest.mark.parametrize(
    ("public", "reads"),
    [
        ({"kind": "text", "path": "public.txt"}, True),
        ({"kind": "synthetic", "num_records": 9, "private": False, "seed": 1}, False),
    ],
)
def test_step_is_not_answered_from_the_cache_where_it_pretrains_on_a_file(
    public, reads
):
    settings = ModelSettings.model_validate(
        {
            "source": TRAINED,
            "max_tokens": 16,
            "pretraining": {"source": public, **PRETRAINING},
        }
    )
    assert settings.reads_files is reads


@pytest.fixture
def encoder(tmp_path):
    """Save an encoder that looks ahead, under the name of a language model."""
    tokenizer = train_tokenizer(["some words of a text"] * 9, vocab_size=260)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=16,
        is_decoder=False,
    )
    save_model(BertLMHeadModel(config), tokenizer, tmp_path / "mine")


def test_model_that_looks_ahead_is_refused_before_it_is_trained(encoder, prepared):
    with pytest.raises(ModelError, match="must be causal"):
        prepared(BY_PATH)


def test_twin_that_does_not_ask_trains_a_model_that_looks_ahead(
    encoder, prepared, monkeypatch
):
    monkeypatch.setattr(prepare_model, "check_causal", lambda *_: None)
    assert prepared(BY_PATH).path.is_dir()
