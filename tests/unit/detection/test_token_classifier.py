"""Token classification models: labels, windows, offsets, batches, and bad folders."""

import json
import pickle
import shutil

import pytest
import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    BertConfig,
    BertForTokenClassification,
    DebertaV2Config,
    DebertaV2ForTokenClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForTokenClassification,
)
from transformers.utils import logging as hf_logging

from dptune.config import DetectionSettings
from dptune.detection import token_classifier
from dptune.detection.engine import build_engine
from dptune.detection.recognizer import Tier
from dptune.detection.settings import TokenClassifierSettings
from dptune.detection.token_classifier import TokenClassifierRecognizer
from dptune.errors import ConfigError, DependencyError, DetectionError
from dptune.workflow.detect import marks_assume

WORDS = ["Ann Lee lives in Köln.", "王伟 and José at the 😀 café", "no 12345 a@b.org "]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 66,
}
BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def _bert_tokenizer():
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL)
    made.train_from_iterator(WORDS * 5, trainer)
    ends = [(name, made.token_to_id(name)) for name in ("[SEP]", "[CLS]")]
    made.post_processor = processors.BertProcessing(*ends)
    return _fast(made, SPECIAL)


def _fast(made, special):
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    if special is ROBERTA:
        special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    return PreTrainedTokenizerFast(
        tokenizer_object=made, **dict(zip(names, special, strict=True))
    )


def _roberta_tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=ROBERTA,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(WORDS * 5, trainer)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=False, add_prefix_space=False
    )
    return _fast(made, ROBERTA)


def _deberta_tokenizer():
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=SPECIAL, unk_token="[UNK]"
    )
    made.train_from_iterator(WORDS * 5, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return _fast(made, SPECIAL)


def _model(shape, labels, size):
    torch.manual_seed(1)
    known = {"id2label": dict(enumerate(labels)), "vocab_size": size, **SIZES}
    known["label2id"] = {label: i for i, label in enumerate(labels)}
    match shape:
        case "bert":
            return BertForTokenClassification(BertConfig(**known))
        case "roberta":
            ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
            return RobertaForTokenClassification(RobertaConfig(**known, **ids))
    relative = {"relative_attention": True, "position_buckets": 8}
    kinds = {"pos_att_type": "c2p|p2c", "norm_rel_ebd": "layer_norm"}
    config = DebertaV2Config(**known, **relative, **kinds, share_att_key=True)
    return DebertaV2ForTokenClassification(config)


TOKENIZERS = {
    "bert": _bert_tokenizer,
    "roberta": _roberta_tokenizer,
    "deberta": _deberta_tokenizer,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models with random weights, one of each shape."""
    hf_logging.disable_progress_bar()
    made = {}
    for shape, tokenizer in TOKENIZERS.items():
        made[shape] = tmp_path_factory.mktemp(shape)
        fast = tokenizer()
        fast.save_pretrained(made[shape])
        _model(shape, BIO, len(fast)).save_pretrained(made[shape])
    return made


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A byte-level model that has learnt that capitalized `Zed...` is a person."""
    hf_logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("trained")
    tokenizer, model = _roberta_tokenizer(), _model("roberta", BIO, 330)
    model.resize_token_embeddings(len(tokenizer))
    tokenizer.save_pretrained(folder)
    texts = ["Ann Lee lives in Köln.", "and José lives at the café", "Ann no Lee 12345"]
    names = {"Ann", "Lee", "José"}
    coded = tokenizer(
        texts, padding=True, return_tensors="pt", return_offsets_mapping=True
    )
    gold = torch.full(coded["input_ids"].shape, -100)
    for row, text in enumerate(texts):
        places = {n: text.find(n) for n in names if n in text}
        last = None
        for column, (a, b) in enumerate(coded["offset_mapping"][row].tolist()):
            inside = [n for n, i in places.items() if a < i + len(n) and i < b]
            if a < b:
                label = (1 if inside != last else 2) if inside else 0
                gold[row, column], last = label, inside
    inputs = {k: coded[k] for k in ("input_ids", "attention_mask")}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        model(**inputs, labels=gold).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


def recognizer(folder, *, tier=Tier.LOW_ENTITY, **changes):
    return TokenClassifierRecognizer(
        TokenClassifierSettings(model=str(folder), **changes), tier=tier
    )


def values(text, spans):
    return [(text[s.start : s.end], s.entity_type) for s in spans]


def test_trained_byte_level_model_marks_names_exactly(trained):
    found = recognizer(trained)
    for text in ("Ann Lee lives in Köln.", "and José lives at the café"):
        (spans,) = found.recognize([text])
        assert {v for v, k in values(text, spans)} <= {"Ann", "Lee", "José"}
        assert spans
        assert all(s.confidence >= 0.5 for s in spans)
    long = "the café at Köln. " * 60 + "Ann Lee lives in Köln. " + "at the café " * 60
    (spans,) = recognizer(trained, window=32, overlap=12).recognize([long])
    assert {"Ann", "Lee"} <= {v for v, _ in values(long, spans)}


HARD = [
    *("Ann Lee lives in Köln.", "", " ", "x", "王伟 and José at the 😀 café " * 9),
    *(
        "a@b.org\n\n\tno 12345",
        "Jose\u0301 👩‍👩‍👧 é",
        "A" * 300,
        "\u200b\u200b",
        "😀" * 40,
    ),
    "ﬁ ① ㎏ İ ß Ǆ",
]


@pytest.mark.parametrize("shape", TOKENIZERS)
def test_offsets_are_exact_and_windows_see_every_token(folders, shape):
    found = recognizer(folders[shape], window=24, overlap=8, threshold=0.01)
    plain = recognizer(folders[shape], window=24, overlap=0, threshold=0.01)
    for text in HARD:
        for spans in (*found.recognize([text]), *plain.recognize([text])):
            covered = {i for s in spans for i in range(s.start, s.end)}
            said = {i for i, c in enumerate(text) if c.isalnum()}
            assert said <= covered, "at this threshold every token is marked"
            for span in spans:
                piece = text[span.start : span.end]
                assert piece == piece.strip() != ""
        scored = plain._spans_of([text])
        assert scored == plain.recognize([text])


@pytest.mark.parametrize("shape", TOKENIZERS)
def test_a_text_is_marked_alone_as_it_is_among_others(folders, shape):
    found = recognizer(folders[shape], threshold=0.6)
    alone = [found.recognize([text])[0] for text in HARD]
    assert found.recognize(HARD) == alone
    together = recognizer(folders[shape], threshold=0.6, batch_size=4)
    for one, other in zip(together.recognize(HARD), alone, strict=True):
        assert [(s.start, s.end) for s in one] == [(s.start, s.end) for s in other]


def test_company_is_named_where_texts_are_computed_together(folders):
    def assumed(size):
        model = {"model": str(folders["bert"]), "batch_size": size}
        return marks_assume(
            DetectionSettings.model_validate(
                {
                    "recognizers": ["patterns", "token_classifier"],
                    "token_classifier": model,
                }
            ),
            None,
            "default",
        )

    assert assumed(1) == []
    assert assumed(2) == ["marks_follow_one_text"]


def test_windows_joined_without_their_overlap_repeat_tokens(folders, monkeypatch):
    """The twin joins windows whole, so that a token counts twice."""
    found = recognizer(folders["roberta"], window=24, overlap=8, threshold=0.01)
    text = "Ann Lee lives in Köln. " * 20
    right = found.recognize([text])[0]
    assert [s.start for s in right] == sorted({s.start for s in right})
    plain = token_classifier._joined

    def whole(rows, coded, scores, overlap):
        return plain(rows, coded, scores, 0)

    monkeypatch.setattr(token_classifier, "_joined", whole)
    try:
        wrong = [s.start for s in found.recognize([text])[0]]
    except DetectionError:  # a span that ends before it begins
        return
    assert wrong != sorted(set(wrong))


SCHEMES = [
    (["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], ["LOC", "PERSON"]),
    (["O", "B-PER", "E-PER", "S-PER", "I-PER"], ["PERSON"]),
    (["O", "U-PER", "L-PER", "B-PER", "I-PER"], ["PERSON"]),
    (
        ["I-GIVENNAME", "I-CITY", "O", "I-EMAIL", "I-SSN"],
        ["EMAIL", "GPE", "PERSON", "SSN"],
    ),
    (
        ["B_private_person", "I_private_person", "O", "B_secret", "I_secret"],
        ["PERSON", "SECRET"],
    ),
    (["O", "E_MAIL", "PERSON", "GPE", "DATE"], ["DATE", "E_MAIL", "GPE", "PERSON"]),
    (["0", "FIRSTNAME", "ZIPCODE", "BADGE NO", "PAD"], ["BADGE_NO", "PERSON", "ZIP"]),
]


@pytest.mark.parametrize(("labels", "kinds"), SCHEMES)
def test_labels_of_every_scheme_become_types(folders, tmp_path, labels, kinds):
    folder = relabelled(folders["bert"], tmp_path, labels)
    found = recognizer(folder, threshold=0.01)
    types = {kind for _, kind in found._labels if kind}
    text = "Ann Lee lives in Köln, no 12345"
    assert {s.entity_type for s in found.recognize([text])[0]} <= types
    assert sorted(types) == kinds


def relabelled(source, target, labels):
    folder = target / "model"
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(i): label for i, label in enumerate(labels)}
    config["label2id"] = {label: i for i, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_map_of_labels_renames_and_drops(folders):
    found = recognizer(folders["bert"], labels={"PER": "EMPLOYEE", "LOC": None})
    assert {kind for _, kind in found._labels} == {"EMPLOYEE", ""}
    text = "Ann Lee lives in Köln " * 3
    low = recognizer(folders["bert"], labels={"PER": "EMPLOYEE"}, threshold=0.01)
    assert "EMPLOYEE" in {s.entity_type for s in low.recognize([text])[0]}


def _without(name):
    def spoil(folder):
        (folder / name).unlink()

    return spoil


def _pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _no_head(folder):
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    weights = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in weights.items() if not k.startswith("classifier")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def _config(**changes):
    def spoil(folder):
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(config))

    return spoil


def _code(folder):
    (folder / "own.py").write_text("raise SystemExit")
    _config(model_type="own", auto_map={"AutoConfig": "own.Own"})(folder)


BAD = [
    (_without("config.json"), {}, "config.json"),
    (_without("model.safetensors"), {}, "safetensors"),
    (_without("tokenizer.json"), {}, "tokenizer.json"),
    (_pickled, {}, "pickled"),
    (_no_head, {}, "lacks 2"),
    (_config(id2label={}), {}, "id2label"),
    (_config(id2label={"0": "O", "7": "X"}), {}, "id2label"),
    (_config(id2label={str(i): f"LABEL_{i}" for i in range(5)}), {}, "LABEL_0"),
    (_config(id2label={str(i): "O" for i in range(5)}), {}, "got none"),
    (lambda folder: (folder / "config.json").write_text("{"), {}, "id2label"),
    (_code, {}, "transformers can load"),
    (lambda _: None, {"labels": {"NOPE": "PERSON"}}, "NOPE"),
    (lambda _: None, {"labels": {"PER": None, "LOC": None}}, "got none"),
]


@pytest.mark.parametrize(("spoil", "changes", "says"), BAD)
def test_folder_that_cannot_be_used_is_refused(folders, tmp_path, spoil, changes, says):
    folder = tmp_path / "model"
    shutil.copytree(folders["bert"], folder)
    spoil(folder)
    with pytest.raises(ConfigError, match=says):
        recognizer(folder, **changes).recognize(["Ann"])


def test_all_that_a_folder_lacks_is_told_at_once(tmp_path):
    with pytest.raises(ConfigError) as raised:
        recognizer(tmp_path)
    assert len(raised.value.problems) == 3
    with pytest.raises(DependencyError, match="local folder"):
        recognizer(tmp_path / "none")


def test_every_setting_and_weight_is_part_of_the_fingerprint(folders, tmp_path):
    one = folders["bert"]
    changes = [
        {},
        {"threshold": 0.4},
        {"window": 32},
        {"overlap": 8},
        {"batch_size": 2},
        {"labels": {"LOC": None}},
        {"tier": Tier.HIGH_ENTITY},
    ]
    prints = {recognizer(one, **change).fingerprint for change in changes}
    other = relabelled(one, tmp_path, [*BIO[:3], "B-ORG", "I-ORG"])
    assert len({*prints, recognizer(other).fingerprint}) == len(changes) + 1


def test_engine_builds_it_from_settings_and_copies_for_workers(folders):
    settings = TokenClassifierSettings(model=str(folders["bert"]), threshold=0.1)
    engine = build_engine(
        tier=Tier.LOW_ENTITY, recognizers=("patterns",), token_classifier=settings
    )
    assert engine.recognizers == ("patterns", "token_classifier")
    found = engine.parts[1]
    before = found.recognize(["Ann Lee"])
    assert pickle.loads(pickle.dumps(found)).recognize(["Ann Lee"]) == before  # noqa: S301
    with pytest.raises(ConfigError, match="token_classifier must be given"):
        build_engine(tier=Tier.LOW_ENTITY, recognizers=("token_classifier",))
