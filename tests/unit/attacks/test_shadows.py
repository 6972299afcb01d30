"""LiRA, RMIA and an attack that is learnt on shadows of known members."""

import numpy as np
import pytest

from dptune.attacks import shadow_models as module
from dptune.attacks.membership import membership_report
from dptune.attacks.roc import membership_signal
from dptune.attacks.shadow_models import (
    Attacked,
    Course,
    Opponent,
    attack_with_shadows,
    draw_halves,
    shadow_scores,
)
from dptune.errors import DataError

NUM = 800
NAMES = ("lira", "rmia", "combined")


def attacked(generator, hard, seen, leak):
    """Records of unlike difficulty; those that were seen are easier by `leak`."""
    own = hard + generator.normal(0, 0.2, NUM) + leak * seen
    return Attacked(statistic=own, scores={"loss": own, "noise": generator.random(NUM)})


def drawn(leak, *, shadow_leak=0.4, num_shadows=4, seed=0):
    """A model that saw the first half, and shadows that saw halves of all."""
    generator = np.random.default_rng(seed)
    hard = generator.normal(-3, 1, NUM)
    seen = draw_halves(NUM, num_shadows, seed=seed)
    shadows = [attacked(generator, hard, row, shadow_leak) for row in seen]
    return attacked(generator, hard, np.arange(NUM) < NUM // 2, leak), shadows, seen


def signal(name, scores):
    return membership_signal(name, scores[: NUM // 2], scores[NUM // 2 :])


def test_halves_are_halves_and_pairs_share_all_records():
    seen = draw_halves(101, 6, seed=3)
    assert seen[::2].sum(axis=1).tolist() == [50] * 3
    assert (seen[::2] ^ seen[1::2]).all()
    assert not (seen[0] == seen[2]).all()


@pytest.mark.parametrize("number", [2, 5])
def test_halves_for_too_few_or_unpaired_shadows_raise(number):
    with pytest.raises(DataError, match=f"got {number}"):
        draw_halves(10, number, seed=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_shadows", [4, 8])
def test_shadows_find_members_that_a_loss_does_not(name, num_shadows):
    model, *rest = drawn(0.4, num_shadows=num_shadows)
    assert signal(name, shadow_scores(model, *rest)[name]).auc > 0.85
    assert signal("loss", model.statistic).auc < 0.65


@pytest.mark.parametrize("name", NAMES)
def test_shadows_find_nothing_where_nothing_leaks(name):
    for seed in range(5):
        found = signal(name, shadow_scores(*drawn(0.0, seed=seed))[name])
        assert found.auc_interval.low < 0.5
        assert found.tpr_at_low_fpr_interval.low < 0.01


def test_shadow_scores_follow_their_formulas():
    inside, outside = np.array([[-1.0, -2.0], [-1.4, -2.2]]), np.full((2, 2), -3.0)
    outside[1] = -3.4
    seen = np.array([[True, False], [False, True], [False, True], [True, False]])
    rows = [
        np.where(seen[k], inside[k // 2], outside[k // 2]) for k in range(len(seen))
    ]
    own = np.array([-2.0, -2.0])
    model, *shadows = (Attacked(statistic=r, scores={"loss": r}) for r in (own, *rows))
    found = shadow_scores(model, shadows, seen)
    variances = inside.var(axis=0, ddof=1).mean(), outside.var(axis=0, ddof=1).mean()
    densities = [
        -np.log(np.sqrt(v)) - (own - m.mean(axis=0)) ** 2 / (2 * v)
        for m, v in zip((inside, outside), variances, strict=True)
    ]
    np.testing.assert_allclose(found["lira"], densities[0] - densities[1])
    mean = np.exp(np.concatenate([inside, outside])).mean(axis=0)
    np.testing.assert_allclose(found["rmia"], own - np.log(mean))


def test_combined_of_a_twin_that_knows_its_own_pair_is_caught(monkeypatch):
    """A shadow compared with itself gives its members away; the model's it cannot."""
    honest = signal("x", shadow_scores(*drawn(0.1, shadow_leak=0.1))["combined"])
    monkeypatch.setattr(module._Pairs, "without", lambda self, _: self)
    twin = signal("x", shadow_scores(*drawn(0.1, shadow_leak=0.1))["combined"])
    assert honest.auc > twin.auc + 0.03


def test_membership_report_trains_shadows_on_halves_and_attacks_with_them(make_model):
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 9, (61, 6)).tolist()
    texts = [str(row) for row in rows]
    asked = []

    def train(number, sequences, *, until):
        assert until > 0
        asked.append((number, [rows.index(s) for s in sequences]))
        return make_model("gpt2", vocab_size=9, seed=number + 2), Course(losses=())

    found = membership_report(
        [*rows[:30], [1]],
        rows[30:],
        member_texts=[*texts[:30], "short"],
        non_member_texts=texts[30:],
        model=make_model("gpt2", vocab_size=9),
        base_model=make_model("gpt2", vocab_size=9, seed=1),
        model_digest="m",
        base_model_digest="b",
        num_resamples=100,
        train_shadow=train,
        num_shadows=4,
    )
    assert tuple(s.name for s in found.signals[-3:]) == NAMES
    assert [number for number, _ in asked] == [0, 1, 2, 3]
    assert sorted(asked[0][1] + asked[1][1]) == list(range(61))
    assert len({row < 30 for row in asked[0][1]}) == 2
    assert (found.shadows.num_models, found.shadows.num_records) == (4, 30)


def test_an_opponent_serves_the_next_model_without_changing_what_is_found(make_model):
    """Base losses once; shadows again only where the next model ends them elsewhere."""
    rows = np.random.default_rng(0).integers(0, 9, (60, 6)).tolist()
    texts = [str(row) for row in rows]
    trained = []

    def report(seed, opponent):
        def train(number, sequences, *, until):
            trained.append((seed, number))
            model = make_model("gpt2", vocab_size=9, seed=number + 2 + (until > 2.2))
            return model, Course(losses=(2.3, 2.2), finished=until < 2.2)

        return membership_report(
            rows[:30],
            rows[30:],
            member_texts=texts[:30],
            non_member_texts=texts[30:],
            model=make_model("gpt2", vocab_size=9, seed=seed),
            base_model=make_model("gpt2", vocab_size=9, seed=1),
            model_digest="m",
            base_model_digest="b",
            num_resamples=100,
            train_shadow=train,
            num_shadows=4,
            opponent=opponent,
        )

    alone = {seed: report(seed, None) for seed in (0, 7)}
    trained.clear()
    opponent = Opponent()
    found = {seed: report(seed, opponent) for seed in (0, 7, 0)}
    assert found == alone
    assert trained[:4] == [(0, k) for k in range(4)]


@pytest.mark.parametrize("shadow_leak", [0.0, 0.4])
def test_shadows_report_what_they_learned_beside_the_model(shadow_leak):
    model, shadows, seen = drawn(0.4, shadow_leak=shadow_leak)
    order = iter(shadows)
    _, report = attack_with_shadows(
        model,
        train=lambda *_: (next(order), Course(losses=())),
        attack=lambda shadow, _: shadow,
        until=0.0,
        opponent=Opponent(),
        num_members=NUM // 2,
        num_records=NUM,
        num_shadows=len(seen),
        seed=0,
    )
    assert report.effect == pytest.approx(shadow_leak, abs=0.1)
    assert 0.1 < report.model_effect < 0.5
