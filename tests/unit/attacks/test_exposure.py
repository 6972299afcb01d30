"""Exact exposure against brute force, and what must not go wrong."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer

from dptune.attacks import exposure as module
from dptune.attacks import inference
from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.candidates import encode_secrets, plain_tokenizer
from dptune.attacks.exposure import (
    CandidateScores,
    Measured,
    exposure_report,
    measure_exposure,
    rank_canaries,
    score_candidates,
)
from dptune.attacks.trie import CandidateTrie
from dptune.errors import ModelError
from dptune.gates.null_law import uniform_p_value


def num_alike(sequences):
    """Leading tokens that all sequences share."""
    return next(
        (
            i
            for i, column in enumerate(zip(*sequences, strict=False))
            if len(set(column)) > 1
        ),
        min(map(len, sequences)),
    )


def brute_force(model, spec, tokenizer, *, bos, indices=None):
    """Forward every whole record on its own; score what differs between records."""
    model.eval()
    opening = [] if bos is None else [bos]
    every = [
        opening
        + tokenizer(spec.record(spec.secret_at(i)), add_special_tokens=False)[
            "input_ids"
        ]
        for i in range(spec.space_size)
    ]
    start = num_alike(every)
    behind = num_alike([ids[::-1] for ids in every])
    totals = []
    for i in range(spec.space_size) if indices is None else indices:
        ids = every[int(i)]
        with torch.inference_mode():
            logp = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        scored = range(start, len(ids) - behind)
        totals.append(-sum(logp[t - 1, ids[t]].item() for t in scored))
    return np.array(totals)


def assert_same_as_brute_force(model, spec, tokenizer, *, bos):
    trie = CandidateTrie.build(spec, tokenizer, bos=bos)
    scores = score_candidates(model, trie, batch_size=37)
    expected = brute_force(model, spec, tokenizer, bos=bos)
    np.testing.assert_allclose(scores.nll, expected, atol=1e-4)
    canaries = draw_canaries(spec, seed=1)
    for canary, secret in zip(
        rank_canaries(scores, trie, canaries),
        canaries.planted + canaries.held_out,
        strict=True,
    ):
        own = expected[spec.index_of(secret)]
        assert canary.rank == 1 + int((expected < own).sum())
        assert canary.exposure == pytest.approx(
            math.log2(spec.space_size) - math.log2(canary.rank)
        )
    tokens = len(trie.leaf_level) * len(trie.context) + int(trie.leaf_level.sum())
    assert scores.num_token_forwards < tokens


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("with_bos", [True, False])
@pytest.mark.parametrize("tokenizer", ["digit_tokenizer", "merging_tokenizer"])
def test_exposure_small_space_equals_brute_force(
    make_model, kind, with_bos, tokenizer, request
):
    tokenizer = request.getfixturevalue(tokenizer)
    spec = CanarySpec(length=2, num_planted=5, num_held_out=5)
    model = make_model(kind, vocab_size=len(tokenizer))
    bos = tokenizer.bos_token_id if with_bos else None
    assert_same_as_brute_force(model, spec, tokenizer, bos=bos)


@pytest.mark.parametrize(
    "template", ["the pin {secret}, of my card", "{secret}", "x{secret}7"]
)
def test_exposure_any_template_equals_brute_force(
    make_model, template, merging_tokenizer
):
    spec = CanarySpec(template=template, length=2, num_planted=3, num_held_out=3)
    model = make_model("gpt2", vocab_size=len(merging_tokenizer))
    assert_same_as_brute_force(model, spec, merging_tokenizer, bos=0)


@pytest.mark.parametrize("template", ["code is {secret}. so", "code is {secret}"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_exposure_scores_tokens_beside_the_secret_that_depend_on_it(
    make_model, template, kind, crossing_tokenizer
):
    """The twin scores tokens that overlap the secret, and ranks by other sums."""
    spec = CanarySpec(template=template, length=2, num_planted=40, num_held_out=40)
    tokenizer, model = crossing_tokenizer, make_model(kind, vocab_size=330)
    assert_same_as_brute_force(model, spec, tokenizer, bos=0)
    trie = CandidateTrie.build(spec, tokenizer, bos=0)
    parts = encode_secrets(
        spec,
        plain_tokenizer(tokenizer),
        [spec.secret_at(i) for i in range(100)],
        prefix=spec.prefix,
    )
    assert len(set(parts.first.tolist())) > 1
    assert trie.num_scored.max() > (parts.last - parts.first).max()
    narrow = np.array(
        [
            overlapping(model, parts.tokens[i], int(parts.first[i]), int(parts.last[i]))
            for i in range(100)
        ]
    )
    whole = score_candidates(model, trie).nll
    ranks = [1 + (v < v[:, None]).sum(axis=1) for v in (whole, narrow)]
    assert np.abs(np.log2(ranks[0]) - np.log2(ranks[1])).max() > 1


def overlapping(model, tokens, first, last):
    """The loss of the tokens that overlap the secret, no others."""
    ids = [0, *tokens[:last].tolist()]
    with torch.inference_mode():
        logp = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    return -sum(logp[t, ids[t + 1]].item() for t in range(first, last))


def test_exposure_alphanumeric_equals_brute_force(make_model, merging_tokenizer):
    spec = CanarySpec(length=1, alphabet="alphanumeric", num_planted=4, num_held_out=4)
    model = make_model("llama", vocab_size=len(merging_tokenizer))
    assert_same_as_brute_force(model, spec, merging_tokenizer, bos=0)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_exposure_lora_model_equals_brute_force(make_model, digit_tokenizer):
    spec = CanarySpec(length=2, num_planted=3, num_held_out=3)
    base = make_model("gpt2", vocab_size=len(digit_tokenizer))
    config = LoraConfig(
        r=2, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = get_peft_model(base, config)
    assert_same_as_brute_force(model, spec, digit_tokenizer, bos=0)


@pytest.mark.parametrize("folder", ["gpt2_tokenizer", "stories260k", "babyllama105"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_exposure_real_tokenizer_equals_brute_force(
    make_model, folder, kind, shared_data
):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / folder)
    spec = CanarySpec(length=2, num_planted=5, num_held_out=5)
    model = make_model(kind, vocab_size=len(tokenizer))
    assert_same_as_brute_force(model, spec, tokenizer, bos=tokenizer.bos_token_id)


def test_exposure_large_space_agrees_with_brute_force_on_a_sample(
    make_model, merging_tokenizer
):
    spec = CanarySpec(length=4, num_planted=0, num_held_out=0)
    model = make_model("llama", vocab_size=len(merging_tokenizer))
    trie = CandidateTrie.build(spec, merging_tokenizer, bos=0)
    scores = score_candidates(model, trie)
    picked = np.random.default_rng(0).integers(0, spec.space_size, 50)
    expected = brute_force(model, spec, merging_tokenizer, bos=0, indices=picked)
    np.testing.assert_allclose(scores.nll[picked], expected, atol=1e-4)


def train(model, sequences, *, steps=60):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    tokens = torch.tensor(sequences)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


def test_exposure_memorised_canary_has_rank_one_and_control_has_not(
    make_model, digit_tokenizer
):
    spec = CanarySpec(length=3, num_planted=1, num_held_out=1)
    canaries = draw_canaries(spec, seed=3)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    before = measure_exposure(model, trie, canaries).canaries
    text = spec.record(canaries.planted[0])
    train(model, [[0, *digit_tokenizer(text)["input_ids"]]])
    planted, held_out = measure_exposure(model, trie, canaries).canaries
    assert planted.rank == 1
    assert planted.exposure == pytest.approx(math.log2(1000))
    assert before[0].rank > 1
    assert held_out.rank > 1
    assert (planted.insertions, held_out.insertions) == (1, 0)


def made_up(spec, trie, nll):
    return CandidateScores(
        nll=np.asarray(nll, np.float64),
        num_scored=trie.num_scored,
        num_token_forwards=0,
        trie_key=trie.key,
    )


def test_rank_of_ties_is_uniform_and_that_of_the_twin_is_not(
    digit_tokenizer, monkeypatch
):
    """A model that likes all alike, or in blocks, has not memorised anything."""
    spec = CanarySpec(length=3, num_planted=40, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)

    def p_values():
        for block in (1, 250, 1000):
            scores = made_up(spec, trie, np.arange(1000) // block)
            ranks = [
                canary.rank
                for seed in range(50)
                for canary in rank_canaries(
                    scores, trie, draw_canaries(spec, seed=seed)
                )
            ]
            assert (min(ranks) >= 1, max(ranks) <= 1000) == (True, True)
            yield uniform_p_value(ranks, 1000)

    assert min(p_values()) > 1e-3
    monkeypatch.setattr(module, "tie_place", lambda *_: 0)
    untied, *tied = p_values()
    assert (untied > 1e-3, max(tied) < 1e-6) == (True, True)


def test_rank_counts_better_candidates(digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=1, num_held_out=9)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    canaries = draw_canaries(spec, seed=0)
    ordered = rank_canaries(made_up(spec, trie, np.arange(10)), trie, canaries)
    secrets = canaries.planted + canaries.held_out
    assert [c.rank for c in ordered] == [1 + int(secret) for secret in secrets]
    assert max(c.exposure for c in ordered) == pytest.approx(math.log2(10))
    assert min(c.exposure for c in ordered) == pytest.approx(0.0)


def test_scores_broken_position_ids_twin_is_caught(
    make_model, digit_tokenizer, monkeypatch
):
    spec = CanarySpec(length=2, num_planted=0, num_held_out=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    expected = brute_force(model, spec, digit_tokenizer, bos=0)
    forward = model.forward

    def shifted(*, position_ids=None, **arguments):
        cache = arguments.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 0:
            position_ids = torch.zeros_like(position_ids)
        return forward(position_ids=position_ids, **arguments)

    monkeypatch.setattr(model, "forward", shifted)
    found = score_candidates(model, trie).nll  # by passes over all tokens
    np.testing.assert_allclose(found, expected, atol=1e-5)
    monkeypatch.setattr(inference, "_leads_to_the_same", lambda *_: True)
    found = score_candidates(model, trie).nll
    assert np.abs(found - expected).max() > 1e-3


def test_scores_unscored_suffix_and_prefix_do_not_count(make_model, digit_tokenizer):
    spec = CanarySpec(length=2, num_planted=0, num_held_out=0)
    longer = spec.model_copy(update={"template": spec.template + " and more"})
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    left, right = (
        score_candidates(model, CandidateTrie.build(s, digit_tokenizer, bos=0)).nll
        for s in (spec, longer)
    )
    np.testing.assert_allclose(left, right, atol=1e-5)


def test_scores_mode_of_every_module_is_restored(make_model, digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer)).train()
    model.transformer.h[0].eval()
    score_candidates(model, trie)
    assert model.training
    assert not model.transformer.h[0].training


def test_scores_nan_weights_raise(make_model, digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    with torch.no_grad():
        model.transformer.ln_f.weight.fill_(math.nan)
    with pytest.raises(ModelError, match="NaN"):
        score_candidates(model, trie)


def test_scores_half_precision_raises(make_model, digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer)).bfloat16()
    with pytest.raises(ModelError, match="float32"):
        score_candidates(model, trie)


def test_scores_tokenizer_larger_than_model_raises(make_model, digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    levels = tuple(
        dataclasses.replace(level, token=level.token + 1000) for level in trie.levels
    )
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    with pytest.raises(ModelError, match="tokenizer"):
        score_candidates(model, dataclasses.replace(trie, levels=levels))


def test_rank_canaries_of_another_template_raise(digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=1, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    other = draw_canaries(spec.model_copy(update={"template": "pin {secret}"}), seed=0)
    with pytest.raises(ModelError, match="one template"):
        rank_canaries(made_up(spec, trie, np.zeros(10)), trie, other)


def test_exposure_mean_divides_by_scored_tokens(merging_tokenizer):
    spec = CanarySpec(length=3, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, merging_tokenizer, bos=0)
    scores = made_up(spec, trie, np.full(1000, 6.0))
    assert len(set(trie.num_scored.tolist())) > 1
    np.testing.assert_allclose(scores.by("mean"), 6.0 / trie.num_scored)


@pytest.mark.parametrize("placement", ["own_record", "appended"])
def test_exposure_report_holds_counts_and_no_secret(placement):
    spec = CanarySpec(
        length=6, num_planted=2, num_held_out=2, insertions=3, placement=placement
    )
    canaries = draw_canaries(spec, seed=0)
    nothing = Measured(canaries=(), num_token_forwards=7)
    report = exposure_report(
        measured=nothing,
        base=nothing,
        canary_set=canaries,
        model_digest="m",
        base_model_digest="b",
        planted_found=5,
    )
    assert (report.planted_found, report.planted_expected) == (5, 6)
    assert report.scored == module.SCORED
    assert report.appended == (placement == "appended")
    assert "drawn" in report.ties
    assert report.space_size == 10**6
    dumped = report.model_dump_json()
    assert not any(s in dumped for s in canaries.planted + canaries.held_out)


@pytest.mark.parametrize("trained", [None, (3, 0)])
@pytest.mark.parametrize(
    ("setting", "recall", "marked"),
    [
        ("as_detected", None, [None, None]),
        ("missed", None, [False, False]),
        ("not_missed", None, [True, True]),
        ("partly_missed", 0.5, [True, False]),
    ],
)
def test_exposure_report_says_of_planted_canaries_what_became_of_them(
    setting, recall, marked, trained, digit_tokenizer
):
    """Held-out ones are in no corpus, so nobody marked them or trained on them."""
    spec = CanarySpec(
        length=2,
        num_planted=2,
        num_held_out=1,
        insertions=3,
        setting=setting,
        recall=recall,
    )
    canaries = draw_canaries(spec, seed=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    model, base = (
        Measured(
            canaries=rank_canaries(made_up(spec, trie, nll), trie, canaries),
            num_token_forwards=7,
        )
        for nll in (np.arange(100), np.arange(100)[::-1])
    )
    report = exposure_report(
        measured=model,
        base=base,
        canary_set=canaries,
        model_digest="m",
        base_model_digest="b",
        planted_found=6,
        trained=trained,
        scoring="mean",
    )
    for found, given in (
        (report.canaries, model.canaries),
        (report.base_canaries, base.canaries),
    ):
        assert [c.marked for c in found] == [*marked, None]
        assert [c.trained for c in found] == [*(trained or [None, None]), None]
        ids = [(c.canary_id, c.planted, c.insertions) for c in found]
        assert ids == [
            ("planted-0", True, 3),
            ("planted-1", True, 3),
            ("held-out-0", False, 0),
        ]
        assert [c.rank for c in found] == [c.rank for c in given]
    nlls = [int(s) for s in canaries.planted + canaries.held_out]
    assert [c.nll for c in report.canaries] == nlls
    assert (report.model_digest, report.base_model_digest) == ("m", "b")
    assert report.canary_set_digest == canaries.digest
    assert (report.scoring, report.setting) == ("mean", setting)
    assert (report.exact, report.drawn, report.num_token_forwards) == (True, True, 7)


def test_exposure_report_of_given_secrets_or_of_bounds_says_so():
    spec = CanarySpec(length=2, num_planted=1, num_held_out=0, fixed=("12",))
    given = draw_canaries(spec, seed=0)
    bound = module.CanaryExposure(
        canary_id="planted-0",
        planted=True,
        insertions=1,
        rank=1,
        exposure=1.0,
        nll=1.0,
        method="uniform_sample",
    )
    measured = Measured(canaries=(bound,), num_token_forwards=0)
    report = exposure_report(
        measured=measured,
        base=measured,
        canary_set=given,
        model_digest="m",
        base_model_digest="b",
        planted_found=1,
    )
    assert (report.drawn, report.exact, report.scoring) == (False, False, "sum")


def test_rank_by_the_mean_is_another_than_by_the_sum(make_model, merging_tokenizer):
    spec = CanarySpec(length=3, num_planted=5, num_held_out=5)
    canaries = draw_canaries(spec, seed=0)
    trie = CandidateTrie.build(spec, merging_tokenizer, bos=0)
    model = make_model("gpt2", vocab_size=len(merging_tokenizer))
    scores = score_candidates(model, trie)
    for scoring, values in (
        ("sum", scores.nll),
        ("mean", scores.nll / trie.num_scored),
    ):
        found = measure_exposure(model, trie, canaries, scoring=scoring)
        for one, secret in zip(
            found.canaries, canaries.planted + canaries.held_out, strict=True
        ):
            assert one.rank == 1 + int((values < values[spec.index_of(secret)]).sum())
        assert found.num_token_forwards == scores.num_token_forwards
    by_sum, by_mean = (
        measure_exposure(model, trie, canaries, scoring=scoring).canaries
        for scoring in ("sum", "mean")
    )
    assert by_sum != by_mean


def test_scores_are_of_the_trie_that_is_ranked(digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=1, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    scores, canaries = made_up(spec, trie, np.zeros(10)), draw_canaries(spec, seed=0)
    other = dataclasses.replace(scores, trie_key="another")
    with pytest.raises(ModelError, match="one template"):
        rank_canaries(other, trie, canaries)
    longer = draw_canaries(spec.model_copy(update={"length": 2}), seed=0)
    with pytest.raises(ModelError, match="one template"):
        rank_canaries(scores, trie, longer)


@pytest.mark.parametrize(("batch_size", "room"), [(3, 1024), (1024, 3)])
def test_nodes_are_forwarded_in_batches_that_fit(
    batch_size, room, make_model, digit_tokenizer, monkeypatch
):
    spec = CanarySpec(length=2, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    whole, sizes, forward = score_candidates(model, trie).nll, [], module.next_logits

    def noted(model, tokens, *rest, **options):
        sizes.append(len(tokens))
        return forward(model, tokens, *rest, **options)

    monkeypatch.setattr(module, "next_logits", noted)
    monkeypatch.setattr(module, "_room", lambda *_: room)
    found = score_candidates(model, trie, batch_size=batch_size).nll
    np.testing.assert_allclose(found, whole, atol=1e-5)
    assert max(sizes) == 3


def test_room_on_a_cpu_shrinks_with_the_vocabulary(make_model):
    model = make_model("gpt2", vocab_size=1 << 10)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert module._room(model, cpu) == 1 << 13
    assert module._room(make_model("gpt2", vocab_size=1 << 9), cpu) == 1 << 14
    assert module._room(model, cuda) > 1 << 40
    model.config.vocab_size = 1 << 25
    assert module._room(model, cpu) == 1
    assert module._room(torch.nn.Identity(), cpu) == 1 << 23


def test_scores_repr_hides_values(digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    assert "array" not in repr(made_up(spec, trie, np.zeros(10)))
