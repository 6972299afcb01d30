"""Long attacks say how far they are."""

from functools import partial

import pytest
import torch

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.decoding import Decoding, sample_continuations
from dptune.attacks.exposure import score_candidates
from dptune.attacks.extraction import record_chances
from dptune.attacks.large_spaces import LargeSpaceSettings, measure_large_space
from dptune.attacks.membership import membership_report
from dptune.attacks.shadow_models import Course
from dptune.attacks.signals import token_signals
from dptune.attacks.trie import CandidateTrie

SEQUENCES = [[0, *range(5, 5 + n)] for n in range(4, 28)]
TEXTS = [f"text number {n}" for n in range(24)]


def spec():
    return CanarySpec(length=3, num_planted=2, num_held_out=2)


def ranked(model, tokenizer, told):
    trie = CandidateTrie.build(spec(), tokenizer, bos=0)
    score_candidates(model, trie, batch_size=40, on_progress=told)


def searched(model, tokenizer, told):
    settings = LargeSpaceSettings(max_nodes=10**9, num_uniform=50, num_weighted=0)
    canaries = draw_canaries(spec(), seed=1)
    measure_large_space(
        model, tokenizer, canaries, bos=0, settings=settings, on_progress=told
    )


def drawn(model, _, told):
    sample_continuations(
        model,
        [0, 5],
        count=40,
        max_new_tokens=3,
        decoding=Decoding(),
        generator=torch.Generator().manual_seed(0),
        batch_size=16,
        on_progress=told,
    )


ATTACKS = {
    "exposure": ranked,
    "sampling": drawn,
    "losses": lambda m, _, told: token_signals(
        m, SEQUENCES, batch_size=5, on_progress=told
    ),
    "endings": lambda m, _, told: record_chances(
        m, SEQUENCES, batch_size=5, on_progress=told
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_tells_how_much_is_done_and_of_how_much(
    name, make_model, digit_tokenizer
):
    news = []
    model = make_model("llama", vocab_size=len(digit_tokenizer))
    ATTACKS[name](model, digit_tokenizer, lambda *now: news.append(now))
    done = [now for now, _ in news]
    assert len(news) > 2
    assert done == sorted(set(done))
    assert {total for _, total in news} == {done[-1]}


def test_search_tells_its_nodes(make_model, digit_tokenizer):
    news = []
    model = make_model("llama", vocab_size=len(digit_tokenizer))
    searched(model, digit_tokenizer, lambda *now: news.append(now))
    assert news
    assert all(total == 10**9 for _, total in news)


def test_membership_names_every_model_that_it_looks_at(make_model):
    model = partial(make_model, "gpt2", vocab_size=64)
    told = []
    membership_report(
        SEQUENCES[:12],
        SEQUENCES[12:],
        member_texts=TEXTS[:12],
        non_member_texts=TEXTS[12:],
        model=model(seed=1),
        base_model=model(seed=0),
        model_digest="m",
        base_model_digest="b",
        num_resamples=100,
        train_shadow=lambda number, _, *, until: (
            model(seed=number),
            Course(losses=()),
        ),
        num_shadows=4,
        tell=lambda what, done, total: told.append((what, done == total)),
    )
    finished = [what.rpartition(", ")[2] for what, is_last in told if is_last]
    assert finished == ["base", "model", *(f"shadow {n}" for n in range(1, 5))]
