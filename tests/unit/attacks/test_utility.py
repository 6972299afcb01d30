"""Loss on held-out records."""

import math
from functools import partial

import pytest
import torch

from dptune.attacks.signals import held_out_losses, utility_report
from dptune.errors import DataError


def report_of(make_model, sequences, *, units=(), **models):
    model = make_model("gpt2", vocab_size=9)
    models = {"model": model, "base_model": model, **models}
    return utility_report(
        sequences,
        measure=partial(held_out_losses, models["model"], sequences),
        measure_base=partial(held_out_losses, models["base_model"], sequences),
        model_digest="m",
        corpus_fingerprint="c",
        split="test",
        units=units,
    )


def test_utility_report_numbers_units_that_have_several_records(make_model):
    sequences = [[1, 2], [3, 4], [5, 6]]
    assert report_of(make_model, sequences, units="abc").record_units == ()
    assert report_of(make_model, sequences, units="aba").record_units == (0, 1, 0)


def test_utility_report_weighs_records_by_tokens(make_model):
    sequences = [[1, 2, 3, 4], [5, 6], [7]]
    report = report_of(make_model, sequences)
    model = make_model("gpt2", vocab_size=9).eval()
    total = 0.0
    for sequence in sequences[:2]:
        tokens = torch.tensor([sequence])
        with torch.inference_mode():
            loss = model(input_ids=tokens, labels=tokens).loss.item()
        total += loss * (len(sequence) - 1)
    assert report.record_tokens == (3, 1, 0)
    assert report.record_nll[2] == 0.0
    assert report.nll_per_token == pytest.approx(total / 4, abs=1e-5)
    assert report.perplexity == pytest.approx(math.exp(report.nll_per_token))
    assert report.base_perplexity == report.perplexity


def test_utility_report_counts_first_choices_in_the_same_pass(make_model, monkeypatch):
    sequences = [[1, 2, 3, 4], [5, 6], [7]]
    model, base = (make_model("gpt2", vocab_size=9, seed=s).eval() for s in (0, 1))
    hits = {}
    for name, one in (("model", model), ("base", base)):
        with torch.inference_mode():
            hits[name] = sum(
                int((one(torch.tensor([s])).logits[0, :-1].argmax(-1) == t).sum())
                for s, t in ((s, torch.tensor(s[1:])) for s in sequences[:2])
            )
    calls = []
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k)
    )
    report = report_of(make_model, sequences, model=model, base_model=base)
    assert report.token_accuracy == hits["model"] / 4
    assert report.base_token_accuracy == hits["base"] / 4
    assert len(calls) == 3  # two of them look whether padding moves anything


def test_utility_report_of_a_broken_model_keeps_nan(make_model):
    model = make_model("gpt2", vocab_size=9)
    with torch.no_grad():
        model.transformer.ln_f.weight.fill_(math.nan)
    report = report_of(make_model, [[1, 2]], model=model)
    assert math.isnan(report.nll_per_token)
    assert math.isfinite(report.base_perplexity)


def test_utility_report_of_an_unlikely_text_is_infinite_not_a_crash(make_model):
    model = make_model("gpt2", vocab_size=9)
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(1e6)
    assert report_of(make_model, [[1, 2]], model=model).perplexity > 1e100


@pytest.mark.parametrize("sequences", [[], [[1], [2]]])
def test_utility_report_without_a_token_to_predict_raises(sequences, make_model):
    with pytest.raises(DataError, match="split test"):
        report_of(make_model, sequences)
