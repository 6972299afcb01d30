"""Formulas of single membership attacks, on made-up losses."""

import math

import numpy as np
import pytest

from dptune.attacks.membership import (
    WINDOW_SIZES,
    ending,
    error_zone,
    window_votes,
)
from dptune.attacks.roc import RocSettings, membership_signal
from dptune.attacks.signals import TokenSignals


def signals(log_probs, *, hits=None):
    log_probs = np.asarray(log_probs, np.float64)
    hits = np.zeros(len(log_probs), bool) if hits is None else np.asarray(hits)
    return TokenSignals(
        log_probs=log_probs, hits=hits, means=np.empty(0), stddevs=np.empty(0)
    )


def test_ending_is_the_mean_of_the_last_half():
    assert ending(signals([-9, -9, -1, -3])) == -2
    assert ending(signals([-9, -2, -4])) == -3
    assert ending(signals([-5])) == -5


def test_ending_that_reads_the_prompt_is_caught():
    """The broken twin scores the wrong positions and finds nothing."""
    generator = np.random.default_rng(0)

    def record(gain):
        prompt, tail = generator.normal(-4, 1, 8), generator.normal(-4 + gain, 1, 8)
        return signals(np.concatenate([prompt, tail]))

    members, others = [record(2) for _ in range(200)], [record(0) for _ in range(200)]
    wrong = [[s.log_probs[:8].mean() for s in group] for group in (members, others)]
    right = [[ending(s) for s in group] for group in (members, others)]
    found = membership_signal("x", *map(np.array, right))
    assert found.auc_interval.low > 0.9
    blind = membership_signal("x", *map(np.array, wrong))
    assert blind.auc_interval.low < 0.55


def test_error_zone_is_the_smoothed_log_ratio_where_either_model_errs():
    model = signals([-1, -2, -0.1, -5], hits=[False, False, True, True])
    base = signals([-2, -1.5, -3, -1], hits=[False, True, False, True])
    expected = math.log((1 + 2.9 + 1) / (0.5 + 1))
    assert error_zone(model, base) == pytest.approx(expected)


def test_error_zone_of_a_record_known_by_heart_is_highest_and_as_published_lowest():
    base = signals([-3.0] * 10)
    known = signals([-0.01] * 10, hits=[True] * 10)
    better = signals([-2.5] * 10)
    published = [
        np.maximum(s.log_probs - base.log_probs, 0)[~s.hits].sum()
        for s in (known, better)
    ]
    assert published[0] == 0 < published[1]
    assert error_zone(known, base) > error_zone(better, base) > 0
    assert error_zone(base, base) == 0


def test_window_votes_equal_a_slow_loop():
    generator = np.random.default_rng(1)
    model, base = generator.normal(-2, 1, 30), generator.normal(-2, 1, 30)
    shares = []
    for size in (s for s in WINDOW_SIZES if s <= 30):
        windows = range(30 - size + 1)
        shares.append(
            np.mean(
                [model[i : i + size].sum() > base[i : i + size].sum() for i in windows]
            )
        )
    assert window_votes(signals(model), signals(base)) == pytest.approx(np.mean(shares))


def test_window_votes_of_short_records_and_of_no_change():
    assert window_votes(signals([-1.0]), signals([-2.0])) == 1
    assert window_votes(signals([-1.0] * 5), signals([-1.0] * 5)) == 0


def test_window_votes_ignore_one_outlier():
    base = np.full(60, -2.0)
    model = base - 0.1
    model[30] += 100
    assert (model - base).mean() > 0
    assert window_votes(signals(model), signals(base)) < 0.5


def test_rates_need_enough_non_members():
    generator = np.random.default_rng(0)
    few = membership_signal(
        "x", generator.normal(1, 1, 500), generator.normal(0, 1, 500)
    )
    tenth, thousandth = few.rates
    assert tenth.resolvable
    assert 0.2 < tenth.tpr < 0.6
    assert tenth.interval.low <= tenth.tpr <= tenth.interval.high
    assert not thousandth.resolvable
    assert (thousandth.tpr, thousandth.interval, thousandth.needed) == (
        None,
        None,
        10_000,
    )
    settings = RocSettings(num_resamples=100)
    many = membership_signal(
        "x",
        generator.normal(3, 1, 500),
        generator.normal(0, 1, 10_000),
        settings=settings,
    )
    rate = many.rates[1]
    assert rate.tpr == pytest.approx(0.46, abs=0.1)
    assert rate.interval.low <= rate.tpr <= rate.interval.high
