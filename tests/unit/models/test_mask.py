"""The mask token: one row, the mean of the others."""

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from dptune.errors import ModelError
from dptune.models.build import add_lora
from dptune.models.loading import load_model, load_tokenizer, save_model
from dptune.models.tokens import add_mask_token, add_new_tokens


@pytest.mark.parametrize("tied", [True, False])
def test_mask_new_rows_are_the_mean_of_the_old(make_gpt2, tokenizer, tied):
    model = make_gpt2(tie_word_embeddings=tied)
    before = [
        model.transformer.wte.weight.detach().clone(),
        model.lm_head.weight.detach().clone(),
    ]
    mask = add_mask_token(model, tokenizer)
    after = [model.transformer.wte.weight, model.lm_head.weight]
    assert mask == len(tokenizer) - 1 == 300
    assert (after[0] is after[1]) == tied
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new[:mask], old)
        torch.testing.assert_close(new[mask], old.mean(dim=0))
    assert model.config.vocab_size == 301


def test_mask_called_twice_changes_nothing(make_gpt2, tokenizer):
    model = make_gpt2()
    mask = add_mask_token(model, tokenizer)
    with torch.no_grad():
        model.transformer.wte.weight[mask] = 7.0
    assert add_mask_token(model, tokenizer) == mask
    assert (model.transformer.wte.weight[mask] == 7.0).all()


def test_mask_second_model_of_one_tokenizer_gets_its_row(make_gpt2, tokenizer):
    first, second = make_gpt2(), make_gpt2()
    mask = add_mask_token(first, tokenizer)
    assert add_mask_token(second, tokenizer) == mask
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)


def test_mask_spare_row_of_a_padded_model_is_used(make_gpt2, tokenizer):
    model = make_gpt2()
    model.resize_token_embeddings(304, mean_resizing=False)
    mask = add_mask_token(model, tokenizer)
    weight = model.transformer.wte.weight
    assert weight.shape[0] == 304
    torch.testing.assert_close(weight[mask], weight[:300].mean(dim=0))


def test_mask_leaves_the_global_random_state_alone(make_gpt2, tokenizer):
    model = make_gpt2()
    before = torch.get_rng_state()
    add_mask_token(model, tokenizer)
    assert torch.equal(before, torch.get_rng_state())


def test_mask_gpt2_swallows_the_space_before_it(shared_data, make_gpt2):
    tokenizer = load_tokenizer(shared_data / "gpt2_tokenizer")
    model = make_gpt2()
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    mask = add_mask_token(model, tokenizer)
    ids = tokenizer("Call <mask> now.", add_special_tokens=False)["input_ids"]
    assert ids == [14134, mask, 783, 13]
    plain = tokenizer("Call me now.", add_special_tokens=False)["input_ids"]
    assert [ids[0], *ids[2:]] == [plain[0], *plain[2:]]


def test_mask_llama_adds_no_lone_space(stories):
    mask = add_mask_token(stories.model, stories.tokenizer)
    encode = stories.tokenizer.encode
    around = [*encode("Tim"), mask, *encode("ran", add_special_tokens=False)]
    assert encode("Tim <mask> ran") == around
    assert stories.model(torch.tensor([around])).logits.shape[-1] == mask + 1


def test_mask_survives_save_and_load(make_gpt2, tokenizer, tmp_path):
    model = make_gpt2()
    mask = add_mask_token(model, tokenizer)
    save_model(model, tokenizer, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    text = "the old <mask> house"
    assert loaded.tokenizer.mask_token_id == mask
    assert loaded.tokenizer.encode(text) == tokenizer.encode(text)


def bert(mask):
    """A masked language model whose mask token is written as given."""
    words = ["[PAD]", "[UNK]", mask, "the", "old", "house", "mask", "<", ">"]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, mask_token=mask, pad_token="[PAD]"
    )
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    return BertForMaskedLM(config), tokenizer


def test_mask_of_roberta_is_its_own():
    model, tokenizer = bert("<mask>")
    before = model.get_input_embeddings().weight.detach().clone()
    assert add_mask_token(model, tokenizer) == 2
    assert torch.equal(model.get_input_embeddings().weight, before)
    assert tokenizer.encode("the <mask> house", add_special_tokens=False) == [3, 2, 5]


def test_mask_of_bert_is_its_own():
    """`encode_classes` writes it in the place of `<mask>`."""
    model, tokenizer = bert("[MASK]")
    assert add_mask_token(model, tokenizer) == tokenizer.mask_token_id == 2
    assert len(tokenizer) == model.get_input_embeddings().weight.shape[0]


def test_mask_under_lora_keeps_its_row(make_gpt2, tokenizer):
    model = make_gpt2()
    mask = add_mask_token(model, tokenizer)
    row = model.get_input_embeddings().weight[mask].detach().clone()
    embeddings = add_lora(model, rank=2, alpha=4).get_input_embeddings().weight
    assert torch.equal(embeddings[mask], row)
    assert not embeddings.requires_grad


def test_mask_after_lora_is_refused(make_gpt2, tokenizer):
    adapted = add_lora(make_gpt2(), rank=2, alpha=4)
    with pytest.raises(ModelError, match="before LoRA"):
        add_mask_token(adapted, tokenizer)


def with_a_gap(last):
    vocabulary = {"a": 0, "b": 1, "[U]": 2, "c": last}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[U]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[U]")


@pytest.mark.parametrize("last", [4, 5], ids=["taken", "free"])
def test_new_tokens_of_a_vocabulary_with_gaps_are_refused(make_gpt2, last):
    with pytest.raises(ModelError, match="number its tokens without gaps, got 4"):
        add_mask_token(make_gpt2(), with_a_gap(last))
    with pytest.raises(ModelError, match="number its tokens without gaps"):
        add_new_tokens(make_gpt2(), with_a_gap(last), "\ue000\ue001")


def test_mask_takes_the_number_of_a_word_where_there_is_a_gap():
    """What is refused: the word would be read as a mask."""
    tokenizer = with_a_gap(4)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    assert tokenizer("a c <mask>")["input_ids"] == [0, 4, 4]
