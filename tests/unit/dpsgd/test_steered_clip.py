"""Clip norms that a controller steers: one mechanism of the multiplier it was granted.

Every test of the claim has a twin with the bug that it must catch.
"""

import math
from dataclasses import replace

import dp_accounting
import pytest
import torch

from dptune.accounting.adaptive import Card, DeckTerms, OpenTerms
from dptune.dpsgd import adaptive_clipping
from dptune.dpsgd.adaptive_clipping import SteeredClip, group_stddevs
from dptune.dpsgd.clipping import BoundedGroups
from dptune.dpsgd.noise import GroupedNoise, noise_stream
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.schedule import AdaptiveNoise
from dptune.dpsgd.trainer import train_stage
from dptune.errors import ConfigError, PrivacyError
from dptune.privacy import NeighboringRelation
from tests.support import models, oracles
from tests.support.statistics import variance_bounds

DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1), seed=3)
RATE, NOISE, SHARE = 0.5, 1.5, 0.2
SIZES, NORMS = (4, 100, 9), (0.5, 2.0, 0.1)
CARDS = tuple(
    (Card(sample_rate=RATE, noise_multiplier=noise), 5) for noise in (1.0, 2.0)
)
DECK = DeckTerms(cards=CARDS)


class Steers:
    """Names given norms; keeps what it was shown."""

    def __init__(self, norms=NORMS, limits=(0.3, 1.0, 0.2, 1.0)):
        self.norms, self.limits = list(norms), list(limits)
        self.seen, self.raw, self.restored = [], [], None

    def wish(self, step):
        return 1.0 + step % 2

    def clip_norms(self, step):
        return [norm * (1 + 0.1 * step) for norm in self.norms]

    def thresholds(self, step):
        return self.limits

    def observe(self, released, *, step):
        assert released

    def observe_step(self, figures):
        self.seen.append(figures)

    def observe_raw(self, norms, *, loss):
        self.raw.append((norms, loss))

    def state(self):
        return {"steps": torch.tensor([figures.step for figures in self.seen])}

    def restore(self, state):
        self.restored = state["steps"].tolist()


def clip(controller, *, share=SHARE):
    return SteeredClip(
        controller,
        group_of={"a": 0, "b": 1, "c": 2},
        sizes=SIZES,
        share=share,
        expected_batch_size=4.0,
        stream=noise_stream(fixed_seed=1),
        device=torch.device("cpu"),
    )


def test_stddevs_by_hand():
    """C = (1, 2), d = (1, 4), z = 1: the sum is 1 + 4, and both are sqrt(5)."""
    assert group_stddevs((1, 2), (1, 4), multiplier=1.0) == pytest.approx(
        (math.sqrt(5), math.sqrt(5))
    )


def test_stddevs_have_the_least_variance_of_one_mechanism():
    """Against noise in proportion to C_i, sqrt(n) z C_i, which is as private."""
    stddevs = group_stddevs(NORMS, SIZES, multiplier=NOISE)
    cost = sum(c**2 / s**2 for c, s in zip(NORMS, stddevs, strict=True))
    assert cost == pytest.approx(1 / NOISE**2)
    ours = sum(d * s**2 for d, s in zip(SIZES, stddevs, strict=True))
    assert ours == pytest.approx(
        NOISE**2 * sum(c * math.sqrt(d) for c, d in zip(NORMS, SIZES, strict=True)) ** 2
    )
    theirs = sum(d * 3 * (NOISE * c) ** 2 for c, d in zip(NORMS, SIZES, strict=True))
    assert ours < theirs


def largest_share(monkeypatch=None, **bugs):
    """What one unit adds, divided by its noise: at most 1 / z by the guarantee."""
    controller = Steers()
    steered = clip(controller)
    policy = steered.open(0)
    norms = 3.0 * torch.rand(3, 50, generator=torch.Generator().manual_seed(0)) ** 4
    losses = torch.linspace(0.1, 4.0, 50)
    clipped = norms * policy.factors(norms)
    before = steered._now.counts.clone()
    counts = []
    for unit in range(50):
        steered._now.counts = before.clone()
        steered.count(norms[:, unit : unit + 1], losses[unit : unit + 1])
        counts.append(float(steered._now.counts.norm()))
    if "late" in bugs:
        steered._now.clip_norms = bugs["late"]
    stddevs = steered.draw(NOISE)
    spread = torch.tensor(list(stddevs.values()))[:, None]
    squares = (clipped / spread).square().sum(0)
    squares += torch.tensor(counts).square() * SHARE / NOISE**2
    return float(squares.max().sqrt())


def test_one_unit_adds_at_most_what_the_multiplier_says():
    assert largest_share() <= (1 + 1e-6) / NOISE
    assert largest_share() > 0.95 / NOISE


def test_twin_with_noise_of_every_group_alone_is_caught(monkeypatch):
    """The bug of RLDP's equation 6: sigma C_i for each of n groups, not for all."""
    monkeypatch.setattr(
        adaptive_clipping,
        "group_stddevs",
        lambda norms, sizes, *, multiplier: tuple(multiplier * c for c in norms),
    )
    assert largest_share() > 1.3 / NOISE


def test_twin_whose_norms_change_after_the_clip_is_caught():
    """The bug: noise scaled to norms that the controller named after the clip."""
    assert largest_share(late=(0.25, 1.0, 0.05)) > 1.5 / NOISE


def test_norms_are_frozen_when_the_step_opens():
    class Shifty(Steers):
        def clip_norms(self, step):
            return self.norms  # its own list, which it changes later

    controller = Shifty()
    steered = clip(controller)
    policy = steered.open(0)
    controller.norms[:] = [1e-3, 1e-3, 1e-3]
    kept = policy.factors(torch.tensor([[9.0], [9.0], [9.0]])) * 9.0
    assert kept[:, 0].tolist() == pytest.approx(NORMS)
    stddevs = steered.draw(NOISE)
    wanted = group_stddevs(NORMS, SIZES, multiplier=NOISE / math.sqrt(1 - SHARE))
    assert tuple(stddevs.values()) == pytest.approx(wanted)
    steered.close(loss=9.0)
    assert controller.seen[0].clip_norms == NORMS


def test_controller_is_shown_noisy_shares_and_public_figures_only():
    controller = Steers()
    steered = clip(controller)
    steered.open(3)
    norms = torch.tensor([[0.1, 0.5], [2.0, 3.0], [math.nan, 0.1]])
    steered.count(norms, torch.tensor([0.5, 0.5]))
    exact = steered._now.counts.clone()
    assert exact.tolist() == pytest.approx([-0.5, -0.5, 0.5, 0.5])
    steered.draw(NOISE)
    assert not torch.allclose(steered._now.counts, exact)
    steered.close(loss=7.25)
    (figures,) = controller.seen
    assert controller.raw == []
    assert figures.step == 3
    assert figures.noise_multiplier == NOISE
    assert len(figures.shares) == 4
    assert 7.25 not in figures.shares


def count_variance(share=SHARE, twin=1.0):
    """Mean square of noisy counts of nobody, over what the guarantee asks for."""
    steered = clip(Steers(), share=share)
    squares = []
    for step in range(1500):
        steered.open(step)
        steered.draw(twin * NOISE)
        squares += steered._now.counts.square().tolist()
    return sum(squares) / len(squares) / (NOISE**2 / share)


def test_counts_have_the_noise_of_their_share():
    """6,000 draws within chi-square bounds at 1e-6; a tenth less noise is outside."""
    low, high = variance_bounds(6000, stddev=1.0)
    assert low < count_variance() < high
    assert count_variance(twin=0.9) < low


def test_shares_are_those_of_the_units_on_average():
    """Four of four units below in group 0, none in group 1; noise averages out."""
    controller = Steers()
    steered = clip(controller, share=0.5)
    for step in range(400):
        steered.open(step)
        steered.count(
            torch.tensor([[0.1] * 4, [5.0] * 4, [0.1] * 4]), torch.full((4,), 2.0)
        )
        steered.draw(0.5)
        steered.close(loss=0.0)
    means = torch.tensor([f.shares for f in controller.seen]).mean(0)
    assert means.tolist() == pytest.approx([1.0, 0.0, 1.0, 0.0], abs=0.06)


def test_raw_run_shows_everything_and_has_no_epsilon():
    controller = Steers()
    steered = clip(controller, share=0.0)
    steered.open(0)
    steered.count(torch.ones(3, 2), torch.ones(2))
    assert tuple(steered.draw(2.0).values()) == pytest.approx([2 * c for c in NORMS])
    steered.close(loss=1.25)
    ((norms, loss),) = controller.raw
    assert (norms.shape, loss) == ((3, 2), 1.25)
    event = plan(count_share=0.0, adaptive=OpenTerms(sample_rate=RATE)).dp_event(4)
    assert event == dp_accounting.NonPrivateDpEvent()
    assert plan(count_share=0.0).dp_event(4) == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize("norms", [(0.1, 0.1), (0.1, 0.1, 0.0), (0.1, 0.1, math.inf)])
def test_norms_that_no_clip_enforces_are_refused(norms):
    with pytest.raises(PrivacyError, match="3 finite numbers above 0"):
        clip(Steers(norms)).open(0)


def test_steps_run_in_one_order():
    steered = clip(Steers())
    for call in (lambda: steered.draw(1.0), lambda: steered.close(loss=0.0)):
        with pytest.raises(PrivacyError, match="opened"):
            call()
    steered.open(0)
    with pytest.raises(PrivacyError, match="released before"):
        steered.close(loss=0.0)
    steered.draw(1.0)
    with pytest.raises(PrivacyError, match="once"):
        steered.draw(1.0)


def test_bounded_groups_keep_to_their_bounds():
    policy = BoundedGroups(NORMS)
    norms = torch.tensor([[0.1, 7.0, math.nan], [0.0, 2.0, 1.0], [0.3, 9.0, 1.0]])
    clipped = norms * policy.factors(norms)
    assert clipped[:, 1].tolist() == pytest.approx(NORMS)
    assert (clipped[:, 1] <= torch.tensor(NORMS)).all()
    assert policy.factors(norms)[0, 2] == 0.0
    root = math.sqrt(sum(c**2 for c in NORMS))
    assert policy.sensitivity(NeighboringRelation.REPLACE_ONE) == pytest.approx(
        2 * root
    )


def test_grouped_noise_leaves_no_sum_without_noise():
    sums = {"a": torch.zeros(3), "b": torch.zeros(3)}
    for stddevs in ({"a": 1.0}, {"a": 1.0, "b": 0.0}):
        noise = GroupedNoise(
            noise_stddevs=lambda step, s=stddevs: s, stream=noise_stream(fixed_seed=0)
        )
        with pytest.raises(PrivacyError, match="noise of its own"):
            noise.add(sums, step=0)
    assert not any(value.any() for value in sums.values())


def plan(**changes):
    numbers = {
        "noise_multiplier": 1.0,
        "sample_rate": RATE,
        "max_grad_norm": 0.3,
        "expected_batch_size": 3.0,
        "adaptive": DECK,
        "steering": True,
        "count_share": SHARE,
        "grouping": Grouping.PER_LAYER,
    }
    return GradientPlan(**numbers | changes)


class Follower(Steers):
    """As many norms as the model has groups."""

    def __init__(self, num_groups):
        super().__init__([0.1] * num_groups, [0.1] * num_groups + [1.0])


def run(controller=None, **changes):
    model = models.tiny_gpt2()
    groups = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    controller = controller or Follower(len(groups))
    settings = {
        "plan": plan(),
        "num_steps": 6,
        "optimizer": OptimizerSettings(name="sgd", learning_rate=0.5),
        "physical_batch_size": 16,
        "pad_token_id": 0,
        "loss_normalizer": 8.0,
        "checkpoint_dir": None,
        "block_size": 2,
        "charge": lambda first, count: None,
    } | changes
    train_stage(model, DATA, controller=controller, **settings)
    return controller


@pytest.fixture
def drawn(monkeypatch):
    """Multipliers that gradients' noise was really scaled to."""
    seen = []
    draw = SteeredClip.draw

    def watched(self, noise_multiplier):
        stddevs = draw(self, noise_multiplier)
        by_group = dict(zip(self._group_of.values(), stddevs.values(), strict=True))
        cost = sum(
            (norm / by_group[group]) ** 2
            for group, norm in enumerate(self._now.clip_norms)
        )
        seen.append(math.sqrt((1 - self._share) / cost))
        return stddevs

    monkeypatch.setattr(SteeredClip, "draw", watched)
    return seen


def test_training_draws_what_was_granted_at_the_norms_of_the_step(drawn):
    controller = run()
    granted = [figures.noise_multiplier for figures in controller.seen]
    assert granted == [1.0, 2.0] * 3
    assert drawn == pytest.approx(granted)
    first, last = controller.seen[0].clip_norms, controller.seen[-1].clip_norms
    assert last == pytest.approx([1.5 * norm for norm in first])
    assert controller.raw == []


def test_share_of_a_small_start_does_not_end_a_stage_that_was_paid():
    """The controller names what is clipped to; the plan's C is only where it starts."""
    assert run(plan=plan(max_grad_norm=1e-12), num_steps=1).seen


def test_twin_that_draws_less_than_was_granted_is_caught(drawn, monkeypatch):
    """The bug: sigma below what the deck granted."""
    take = AdaptiveNoise.take
    monkeypatch.setattr(
        AdaptiveNoise, "take", lambda self, step: 0.5 * take(self, step)
    )
    controller = run()
    assert drawn != pytest.approx([1.0, 2.0] * 3)
    assert [f.noise_multiplier for f in controller.seen] != [1.0, 2.0] * 3


def test_twin_that_shows_raw_norms_is_caught(monkeypatch):
    """The bug: a private run whose controller is shown norms without noise."""
    init = SteeredClip.__init__

    def raw(self, *args, **kwargs):
        init(self, *args, **kwargs | {"share": 0.0})

    monkeypatch.setattr(SteeredClip, "__init__", raw)
    assert run().raw != []


def test_killed_run_goes_on_with_the_state_of_its_block(tmp_path):
    def kill(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(checkpoint_dir=tmp_path, on_step=kill)
    resumed = run(checkpoint_dir=tmp_path)
    assert resumed.restored == [0, 1]
    assert [figures.step for figures in resumed.seen] == [2, 3, 4, 5]


def test_event_is_that_of_the_terms():
    assert plan().dp_event(6) == DECK.event


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"adaptive": None}, "adaptive terms"),
        ({"steering": False}, "count_share"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        plan(**changes)


def test_controller_that_steers_nothing_is_refused():
    class Only:
        def wish(self, step):
            return 1.0

        def observe(self, released, *, step):
            pass

    with pytest.raises(ConfigError, match="ClipController"):
        run(Only())


def test_noise_without_the_steered_clip_is_refused():
    granted = AdaptiveNoise(Steers(), DECK, sample_rate=RATE)
    for made in (plan(), replace(plan(), steering=False, count_share=0.0)):
        steered = None if made.steering else clip(Steers())
        with pytest.raises(PrivacyError, match="steered"):
            made.noise(None, sums={}, granted=granted, steered=steered)
