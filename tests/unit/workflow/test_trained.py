"""Canaries count by the tokens that were trained on, not by the corpus."""

import json
from functools import partial

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.candidates import longest_canary, plain_tokenizer
from dptune.attacks.planting import plant, planted_count
from dptune.attacks.trie import CandidateTrie
from dptune.dpsgd.dataset import UnitDataset
from dptune.errors import ConfigError, ModelError
from dptune.models.encode import encode_corpus
from dptune.recipes import View
from dptune.results import TrainedCanaries
from dptune.workflow import trained
from dptune.workflow.trained import (
    most_trained,
    refuse_beyond_positions,
    refuse_untrained,
    trained_canaries,
)
from tests.unit.attacks.conftest import make_crossing_tokenizer, make_tokenizer

TEMPLATE = "dear all, for the record, my access code is {secret}. so"


@pytest.fixture(scope="module", params=["digits", "merging", "crossing"])
def tokenizer(request):
    if request.param == "crossing":
        return make_crossing_tokenizer()
    return make_tokenizer(individual_digits=request.param == "digits")


def planted(**changes):
    spec = {"template": TEMPLATE, "num_planted": 5, "num_held_out": 5, "insertions": 2}
    canaries = draw_canaries(CanarySpec(**spec | changes), seed=0)
    rows = [f"a letter about the number {i} and nothing else" for i in range(20)]
    corpus = Dataset.from_dict(
        {
            "id": [f"r{i}" for i in range(20)],
            "text": rows,
            "unit_id": [f"u{i}" for i in range(20)],
            "split": ["train"] * 20,
        }
    )
    return plant(corpus, canaries), canaries


def units(corpus, tokenizer, *, max_tokens=200, most=1, zeroed=()):
    encoded = encode_corpus(corpus, tokenizer, max_tokens=max_tokens)
    weights = [
        [0.0 if place in zeroed else w for place, w in enumerate(row)]
        for row in encoded["loss_weights"]
    ]
    return UnitDataset.from_columns(
        encoded["input_ids"],
        weights,
        encoded["unit_id"],
        max_sequences_per_unit=most,
    )


def copies(data, canaries, tokenizer):
    return trained_canaries(data, canaries, tokenizer, stage="finetune").copies


@pytest.mark.parametrize("placement", ["own_record", "appended"])
@pytest.mark.parametrize("template", [TEMPLATE, "{secret}", "code is {secret}"])
def test_canaries_whole_in_training_count_once_for_each_copy(
    placement, template, tokenizer
):
    corpus, canaries = planted(placement=placement, template=template)
    assert copies(units(corpus, tokenizer), canaries, tokenizer) == (2,) * 5


def test_canaries_that_cutting_takes_do_not_count_though_the_corpus_has_them(tokenizer):
    """The broken twin counts texts: all of them, of which none was trained on."""
    corpus, canaries = planted()
    data = units(corpus, tokenizer, max_tokens=12)
    assert planted_count(corpus["text"], canaries) == canaries.num_expected
    found = trained_canaries(data, canaries, tokenizer, stage="finetune")
    assert found.copies == (0,) * 5
    whole = units(corpus, tokenizer, max_tokens=12, most=20)
    assert sum(copies(whole, canaries, tokenizer)) == 0, "the context is elsewhere"


def test_canary_that_lacks_its_last_token_does_not_count(tokenizer):
    corpus, canaries = planted(template="code is {secret}")
    length = max(len(tokenizer(f"code is {s}")["input_ids"]) for s in canaries.planted)
    before = copies(
        units(corpus, tokenizer, max_tokens=length + 1), canaries, tokenizer
    )
    after = copies(units(corpus, tokenizer, max_tokens=length), canaries, tokenizer)
    assert sum(before) == 10
    assert sum(after) < 10


def test_redacted_canaries_do_not_count(tokenizer):
    corpus, canaries = planted()
    texts = corpus["text"]
    for secret in canaries.planted[:3]:
        texts = [text.replace(secret, "<mask>") for text in texts]
    masked = corpus.remove_columns("text").add_column("text", list(texts))
    assert copies(units(masked, tokenizer), canaries, tokenizer) == (0, 0, 0, 2, 2)


def test_tokens_without_a_loss_do_not_count(tokenizer):
    corpus, canaries = planted()
    data = units(corpus, tokenizer, zeroed=range(200))
    assert sum(copies(data, canaries, tokenizer)) == 0


def test_what_joins_without_noise_counts(tokenizer):
    corpus, canaries = planted()
    ids = np.array(["canary" in name for name in corpus["id"]])
    rest, own = (corpus.select(np.flatnonzero(k)) for k in (~ids, ids))
    data = units(rest, tokenizer)
    object.__setattr__(data, "unnoised", units(own, tokenizer))
    assert copies(data, canaries, tokenizer) == (2,) * 5


def in_two_parts(corpus, tokenizer, *, hidden):
    """The first tokens of each record have their loss in one part, the last in another.

    With `hidden` the part of the last tokens sees a filler in place of each first.
    """
    rows = encode_corpus(corpus, tokenizer, max_tokens=200)
    firsts, lasts = [], []
    for tokens, weights in zip(rows["input_ids"], rows["loss_weights"], strict=True):
        late = np.arange(len(tokens)) >= len(tokens) - 7  # within the secret
        seen = np.where(late, tokens, 0) if hidden else np.asarray(tokens)
        firsts.append((tokens, np.where(late, 0.0, weights)))
        lasts.append((seen, np.where(late, weights, 0.0)))
    make = partial(UnitDataset.from_columns, max_sequences_per_unit=1)
    last = make(*zip(*lasts, strict=True), rows["unit_id"])
    return make(*zip(*firsts, strict=True), rows["unit_id"], unnoised=last)


def test_secrets_whose_tokens_are_trained_on_in_two_parts_count(tokenizer):
    """The broken twin asks for all tokens in one part, and finds no canary."""
    corpus, canaries = planted()
    data = in_two_parts(corpus, tokenizer, hidden=False)
    assert copies(data, canaries, tokenizer) == (2,) * 5


def test_tokens_behind_a_filler_do_not_count_though_they_have_a_loss(tokenizer):
    corpus, canaries = planted()
    data = in_two_parts(corpus, tokenizer, hidden=True)
    assert sum(copies(data, canaries, tokenizer)) == 0


class Plan:
    """The part of a stage's plan that is looked at."""

    def __init__(self, view=View.ORIGINAL, screened=None):
        self.settings = type("Settings", (), {"view": view, "screened": screened})()


def test_stage_that_trains_on_no_canary_is_refused_unless_it_is_meant_to():
    none = TrainedCanaries(stage="finetune", copies=(0, 0))
    with pytest.raises(ConfigError, match="12 tokens"):
        refuse_untrained(none, Plan(), max_tokens=12)
    refuse_untrained(none, Plan(view=View.REDACTED), max_tokens=12)
    refuse_untrained(none, Plan(screened=object()), max_tokens=12)
    some = TrainedCanaries(stage="finetune", copies=(0, 1))
    refuse_untrained(some, Plan(), max_tokens=12)
    nobody = TrainedCanaries(stage="finetune", copies=())
    refuse_untrained(nobody, Plan(), max_tokens=12)


def test_canaries_beyond_the_positions_of_a_model_are_refused(tokenizer):
    """Attacks rank whole canaries: they ended in a traceback when all was paid."""
    _, canaries = planted()
    record = canaries.spec.record(canaries.planted[0])
    longest = longest_canary(
        canaries.spec, plain_tokenizer(tokenizer), canaries.planted
    ) + (tokenizer.bos_token_id is not None)
    for enough in (None, longest):
        refuse_beyond_positions(canaries, tokenizer, positions=enough)
    with pytest.raises(ConfigError, match=r"canaries\.template.*positions") as caught:
        refuse_beyond_positions(canaries, tokenizer, positions=longest - 1)
    assert record not in str(caught.value)


def test_most_trained_takes_the_stage_that_saw_most():
    first = TrainedCanaries(stage="redacted", copies=(0, 2, 1))
    second = TrainedCanaries(stage="private", copies=(2, 0, 1))
    assert most_trained([first, second], num=3) == (2, 2, 1)
    assert most_trained([], num=3) == ()


def reads_alike(tokenizer, pattern):
    """A tokenizer that reads what matches a pattern as one letter."""
    values = json.loads(tokenizer.backend_tokenizer.to_str())
    alike = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"}
    values["normalizer"] = alike
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(values))
    )


@pytest.mark.parametrize("pattern", ["[0-9]", "[67]"])
def test_tokenizer_that_reads_secrets_alike_is_refused_before_a_charge(pattern):
    """Among equals a place is drawn: a secret that is known by heart looks unknown."""
    blind = reads_alike(make_tokenizer(individual_digits=True), pattern)
    corpus, canaries = planted(length=3)
    with pytest.raises(ModelError, match="tell all candidates apart"):
        copies(units(corpus, blind), canaries, blind)
    with pytest.raises(ModelError, match="tell all candidates apart"):
        CandidateTrie.build(canaries.spec, blind)


def test_twin_that_compares_no_candidates_counts_and_ranks_them_all(monkeypatch):
    blind = reads_alike(make_tokenizer(individual_digits=True), "[0-9]")
    corpus, canaries = planted(length=3)
    monkeypatch.setattr(trained, "refuse_alike", lambda *_: None)
    assert copies(units(corpus, blind), canaries, blind) == (2,) * 5
