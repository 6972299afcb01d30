"""Membership attacks: figures against slow references, blind baseline, refusals."""

import math
import random
import zlib

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from dptune.attacks import roc as blind
from dptune.attacks import signals as signals_module
from dptune.attacks.membership import membership_report, membership_scores
from dptune.attacks.roc import RocSettings, blind_signal, membership_signal
from dptune.attacks.signals import token_signals
from dptune.errors import DataError

WORDS = ["red", "blue", "cat", "dog", "sun", "rain", "tree", "road"]


def texts_of(num, *, seed, words=WORDS):
    draw = random.Random(seed)  # noqa: S311 - test data
    return [" ".join(draw.choices(words, k=draw.randint(4, 9))) for _ in range(num)]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_signal_equals_scikit_learn(ties, shift):
    generator = np.random.default_rng(0)
    members = generator.normal(shift, 1, 180)
    others = generator.normal(0, 1, 250)
    if ties:
        members, others = members.round(0), others.round(0)
    found = membership_signal("x", members, others, fold=False)
    labels = np.repeat((1, 0), (180, 250))
    scores = np.concatenate([members, others])
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    assert found.auc == pytest.approx(roc_auc_score(labels, scores))
    assert found.tpr_at_low_fpr == pytest.approx(tpr[fpr <= 0.01].max())
    assert found.auc_interval.low <= found.auc <= found.auc_interval.high
    low, high = found.tpr_at_low_fpr_interval.low, found.tpr_at_low_fpr_interval.high
    assert low <= found.tpr_at_low_fpr <= high
    assert found.roc_fpr[-1] == found.roc_tpr[-1] == 1.0


@pytest.mark.parametrize(("num", "shift"), [(5, 2.0), (10, 3.0), (30, 3.0)])
def test_interval_of_a_large_area_holds_for_few_records(num, shift):
    """The bootstrap alone holds for .63, .52 and .81: apart, groups have no spread."""
    generator = np.random.default_rng(0)
    area = stats.norm.cdf(shift / math.sqrt(2))
    settings, held = RocSettings(num_resamples=100), 0
    for _ in range(200):
        members, others = generator.normal(shift, 1, num), generator.normal(0, 1, num)
        found = membership_signal("one", members, others, settings=settings)
        held += found.auc_interval.low <= area <= found.auc_interval.high
    assert held >= 183  # .95 of 200, less two standard errors


def test_signal_resampling_equals_a_slow_bootstrap():
    generator = np.random.default_rng(1)
    members = generator.normal(0.5, 1, 60).round(1)
    others = generator.normal(0, 1, 80).round(1)
    settings = RocSettings(num_resamples=50, seed=3, low_fpr=0.05)
    fast = membership_signal("x", members, others, settings=settings, fold=False)
    draws = np.random.default_rng(3)
    left = np.sort(members)[draws.integers(0, 60, (50, 60))]
    right = np.sort(others)[draws.integers(0, 80, (50, 80))]
    labels = np.repeat((1, 0), (60, 80))
    areas = [
        roc_auc_score(labels, np.concatenate(pair))
        for pair in zip(left, right, strict=True)
    ]
    low, high = np.quantile(areas, (0.025, 0.975))
    assert fast.auc_interval.low == pytest.approx(low)
    assert fast.auc_interval.high == pytest.approx(high)


def test_signal_is_folded_once_and_its_interval_is_not():
    generator = np.random.default_rng(2)
    members, others = generator.normal(-1, 1, 300), generator.normal(0, 1, 300)
    folded = membership_signal("x", members, others)
    plain = membership_signal("x", members, others, fold=False)
    assert folded.auc == pytest.approx(1 - plain.auc)
    nothing = membership_signal("x", others[:150], others[150:])
    assert nothing.auc >= 0.5
    assert nothing.auc_interval.low < 0.5


def test_signal_of_few_known_by_heart_is_not_turned_away_from_them():
    """A twentieth is certain, the others look a little less like members than not."""
    generator = np.random.default_rng(2)
    members, others = generator.normal(-0.5, 1, 1000), generator.normal(0, 1, 1000)
    members[:50] = 9.0
    found = membership_signal("x", members, others)
    assert found.tpr_at_low_fpr >= 0.05
    assert found.auc > 0.55  # of the other direction
    turned = membership_signal("x", -members, -others)
    assert turned.hits == found.hits


def test_signal_without_any_hit_still_has_an_upper_bound():
    found = membership_signal("x", np.zeros(100), np.ones(100), fold=False)
    assert found.tpr_at_low_fpr == 0.0
    assert found.tpr_at_low_fpr_interval.high == pytest.approx(0.0376, abs=1e-3)


def test_signal_of_nan_or_nothing_raises():
    with pytest.raises(DataError, match="NaN"):
        membership_signal("x", np.array([math.nan]), np.zeros(3))
    with pytest.raises(DataError, match="empty"):
        membership_signal("x", np.zeros(0), np.zeros(3))


@pytest.mark.parametrize("piece", [1 << 18, 150], ids=["whole", "pieces"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_token_signals_equal_one_record_at_a_time(kind, piece, make_model, monkeypatch):
    monkeypatch.setattr(signals_module, "_PIECE_ENTRIES", piece)
    model = make_model(kind, vocab_size=50)
    generator = np.random.default_rng(0)
    sequences = [generator.integers(0, 50, n).tolist() for n in (7, 2, 12, 1, 5)]
    found = token_signals(model, sequences, batch_size=3, moments=True)
    model.eval()
    for signals, sequence in zip(found, sequences, strict=True):
        with torch.inference_mode():
            logp = model(input_ids=torch.tensor([sequence])).logits[0].log_softmax(-1)
        logp = logp[:-1].double().numpy()
        chosen = logp[np.arange(len(sequence) - 1), sequence[1:]]
        mean = (np.exp(logp) * logp).sum(-1)
        var = (np.exp(logp) * (logp - mean[:, None]) ** 2).sum(-1)
        np.testing.assert_allclose(signals.log_probs, chosen, atol=1e-5)
        np.testing.assert_allclose(signals.means, mean, atol=1e-4)
        np.testing.assert_allclose(signals.stddevs, np.sqrt(var), atol=1e-3)
        assert signals.nll == pytest.approx(-chosen.sum(), abs=1e-4)
        assert "array" not in repr(signals)


def test_moments_are_those_of_the_tokens_that_are_not_ruled_out():
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0], [0.0, 0.0, 0.0, 300.0]])
    found = signals_module._statistics(logits, torch.tensor([1, 0]), moments=True)
    _, _, means, stddevs = torch.cat(list(found), dim=1)
    logp = torch.tensor([0.0, 1.0, 2.0]).double().log_softmax(0).numpy()
    mean = (np.exp(logp) * logp).sum()
    variance = (np.exp(logp) * (logp - mean) ** 2).sum()
    np.testing.assert_allclose(means, [mean, 0], atol=1e-6)
    np.testing.assert_allclose(stddevs, [np.sqrt(variance), 0], atol=1e-6)


def test_token_signals_of_an_empty_record_raise(make_model):
    with pytest.raises(DataError, match="1 empty"):
        token_signals(make_model("gpt2", vocab_size=9), [[1, 2], []])


def test_membership_scores_follow_their_formulas(make_model):
    sequences, texts = [[1, 2, 3, 4, 5, 6, 7]], ["some text of a record"]
    model = make_model("gpt2", vocab_size=9)
    base = make_model("gpt2", vocab_size=9, seed=1)
    own = token_signals(model, sequences, moments=True)
    before = token_signals(base, sequences)
    scores = membership_scores(own, before, texts)
    logp = own[0].log_probs
    size = len(zlib.compress(texts[0].encode()))
    standard = (logp - own[0].means) / own[0].stddevs
    assert scores["loss"][0] == pytest.approx(logp.mean())
    assert scores["zlib"][0] == pytest.approx(logp.sum() / size)
    assert scores["min_k"][0] == pytest.approx(logp.min())
    assert scores["min_k_plus_plus"][0] == pytest.approx(standard.min())
    calibrated = logp.mean() - before[0].log_probs.mean()
    assert scores["calibrated_loss"][0] == pytest.approx(calibrated)


def overfit(model, sequences):
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    for _ in range(10):
        for sequence in sequences:
            tokens = torch.tensor([sequence])
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()


def report_of(make_model, *, train):
    members, others = texts_of(24, seed=0), texts_of(24, seed=1)
    numbers = {word: i for i, word in enumerate(WORDS)}
    left, right = (
        [[numbers[w] for w in t.split()] for t in g] for g in (members, others)
    )
    model = make_model("gpt2", vocab_size=8, seed=2)
    if train:
        overfit(model, left)
    return membership_report(
        [*left, [1]],
        right,
        member_texts=[*members, "short"],
        non_member_texts=others,
        model=model,
        base_model=make_model("gpt2", vocab_size=8, seed=2),
        model_digest="m",
        base_model_digest="b",
        num_resamples=200,
    )


def test_membership_report_finds_an_overfit_model(make_model):
    report = report_of(make_model, train=True)
    by_name = {signal.name: signal for signal in report.signals}
    assert set(by_name) == {
        "loss",
        "zlib",
        "min_k",
        "min_k_plus_plus",
        "calibrated_loss",
        "ending",
        "ez_mia",
        "wbc",
    }
    assert by_name["calibrated_loss"].auc > 0.9
    assert (report.num_members, report.num_non_members) == (24, 24)
    assert report.blind.auc_interval.low < 0.5


def test_membership_report_untrained_twin_is_not_found(make_model):
    report = report_of(make_model, train=False)
    by_name = {signal.name: signal for signal in report.signals}
    assert by_name["calibrated_loss"].auc == pytest.approx(0.5)
    assert by_name["calibrated_loss"].tpr_at_low_fpr == 0.0


def test_blind_baseline_is_at_one_half_on_one_law():
    found = blind_signal(texts_of(150, seed=0), texts_of(150, seed=1))
    assert 0.4 < found.auc < 0.6
    assert found.auc_interval.low < 0.5
    assert found.auc_interval.confidence == 0.99
    assert found.p_value > 0.05


@pytest.mark.parametrize("shift", ["words", "length"])
def test_blind_baseline_shifted_twin_is_caught(shift):
    if shift == "words":
        others = texts_of(150, seed=1, words=[*WORDS, "snow"])
    else:
        others = [text + " red" for text in texts_of(150, seed=1)]
    found = blind_signal(texts_of(150, seed=0), others)
    assert found.auc_interval.low > 0.5
    assert found.p_value < 0.001


def with_odd_word(texts):
    """Every tenth text has a word that no other has."""
    return [f"{t} zyx" if i % 10 == 0 else t for i, t in enumerate(texts)]


@pytest.mark.parametrize("side", ["members", "others"])
def test_blind_baseline_finds_an_odd_word_in_a_tenth_of_the_texts(side):
    members, others = texts_of(300, seed=0), texts_of(300, seed=1)
    if side == "members":
        members = with_odd_word(members)
    else:
        others = with_odd_word(others)
    assert blind_signal(members, others).p_value < 0.001


def test_blind_baseline_of_a_classifier_alone_is_caught(monkeypatch):
    """An odd word in a tenth of the texts moves an area by .05 at most."""
    monkeypatch.setattr(blind, "_odd_word_p_value", lambda *_: 1.0)
    found = blind_signal(with_odd_word(texts_of(300, seed=0)), texts_of(300, seed=1))
    assert found.p_value > 0.001


def uneven(generator, num):
    """Texts of common, rare and single words, so that counts are discrete."""
    draws = generator.zipf(1.3, size=(num, 12)) % 997
    return [" ".join(f"w{k}" for k in row) for row in draws]


def test_odd_words_are_found_by_luck_no_more_often_than_said():
    generator = np.random.default_rng(0)
    labels = np.repeat((1, 0), 40)
    found = [blind._odd_word_p_value(uneven(generator, 80), labels) for _ in range(150)]
    assert np.mean(np.array(found) <= 0.1) <= 0.1
    assert min(found) > 1e-4


def test_blind_baseline_of_too_few_texts_raises():
    with pytest.raises(DataError, match="at least 5"):
        blind_signal(["a"] * 4, ["b"] * 10)


def test_membership_report_of_unpaired_texts_raises(make_model):
    model = make_model("gpt2", vocab_size=8)
    with pytest.raises(DataError, match="every record"):
        membership_report(
            [[1, 2]],
            [[1, 2]],
            member_texts=[],
            non_member_texts=["x"],
            model=model,
            base_model=model,
            model_digest="m",
            base_model_digest="b",
        )
