"""LiRA and RMIA by models that saw none of the attacked records."""

import numpy as np
import pytest

from dptune.attacks.membership import membership_report
from dptune.attacks.roc import membership_signal
from dptune.attacks.shadows import shadow_scores
from dptune.errors import DataError


def drawn(leak, *, num=400, shadows=4):
    """Records of unlike difficulty, of which the first half was trained on."""
    generator = np.random.default_rng(0)
    hard = generator.normal(-3, 1, 2 * num)
    own = hard + generator.normal(0, 0.2, 2 * num)
    own[:num] += leak
    others = hard + generator.normal(0, 0.2, (shadows, 2 * num))
    further = generator.normal(-3, 1, 100)
    noise = generator.normal(0, 0.2, (shadows, 100))
    return own, others, further + generator.normal(0, 0.2, 100), further + noise


@pytest.mark.parametrize("name", ["lira", "rmia"])
def test_shadows_find_members_that_a_loss_does_not(name):
    own, *rest = drawn(0.4)
    scores = shadow_scores(own, *rest)[name]
    assert membership_signal(name, scores[:400], scores[400:]).auc > 0.85
    assert membership_signal("loss", own[:400], own[400:]).auc < 0.65


@pytest.mark.parametrize("name", ["lira", "rmia"])
def test_shadows_find_nothing_where_nothing_leaks(name):
    scores = shadow_scores(*drawn(0.0))[name]
    found = membership_signal(name, scores[:400], scores[400:])
    assert found.auc_interval.low < 0.5 < found.auc_interval.high


def test_shadow_scores_follow_their_formulas():
    own, shadows = np.array([-1.0, -2.0]), np.array([[-2.0, -2.0], [-3.0, -4.0]])
    found = shadow_scores(own, shadows, np.array([-1.0]), np.array([[-1.5], [-1.5]]))
    spread = np.sqrt((0.5 + 2.0) / 2)
    np.testing.assert_allclose(found["lira"], np.array([1.5, 1.0]) / spread)
    # log ratios: -1 - log mean(e^-2, e^-3) = 1.38, -2 + 2.57 = 0.57, population 0.5
    np.testing.assert_allclose(found["rmia"], [1.0, 1.0])
    assert shadow_scores(own, shadows, np.zeros(1), np.full((2, 1), -1.0))[
        "rmia"
    ].tolist() == [1.0, 0.0]


def test_shadow_scores_of_one_shadow_or_no_population_raise():
    own, shadows, further, others = drawn(0.1)
    with pytest.raises(DataError, match="1 shadows"):
        shadow_scores(own, shadows[:1], further, others[:1])
    with pytest.raises(DataError, match="0 records"):
        shadow_scores(own, shadows, further[:0], others[:, :0])


def test_membership_report_adds_both_attacks(make_model):
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 9, (70, 6)).tolist()
    texts = [str(row) for row in rows]
    model = make_model("gpt2", vocab_size=9)
    found = membership_report(
        rows[:30],
        rows[30:60],
        member_texts=texts[:30],
        non_member_texts=texts[30:60],
        model=model,
        base_model=make_model("gpt2", vocab_size=9, seed=1),
        model_digest="m",
        base_model_digest="b",
        num_resamples=100,
        shadow_models=(make_model("gpt2", vocab_size=9, seed=s) for s in (2, 3)),
        population=rows[60:],
    )
    assert [s.name for s in found.signals[-2:]] == ["lira", "rmia"]
