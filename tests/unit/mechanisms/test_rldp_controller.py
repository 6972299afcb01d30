"""RLDP's controller: acts in time, on what was released, and resumes exactly."""

import math

import pytest
import torch

from dptune.dpsgd.adaptive_clipping import ClipController, SteeredStep
from dptune.dpsgd.clipping import SMALLEST_MAX_GRAD_NORM
from dptune.errors import PrivacyError
from dptune.mechanisms.nominal import gdp_epsilon
from dptune.mechanisms.rldp import deck, deck_terms, next_clip, reward
from dptune.mechanisms.rldp_controller import ControlTerms, RldpController
from dptune.mechanisms.sac import SacSettings

GROUPS = {"a.lora_A": 0, "a.lora_B": 0, "b.lora_A": 1, "b.lora_B": 1}


def terms(**changes):
    numbers = {
        "group_of": GROUPS,
        "start_norm": 0.2,
        "start_noise": 1.0,
        "sample_rate": 0.1,
        "num_steps": 40,
        "warmup": 4,
        "interval": 3,
    }
    return ControlTerms(**numbers | changes)


def controller(*, seed=0, public=None, kind=RldpController, **changes):
    return kind(
        terms(**changes),
        sac=SacSettings(width=8),
        generator=torch.Generator().manual_seed(seed),
        public_loss=public,
    )


def play(made, steps, *, raw=None):
    """Run steps on made-up releases; returns wishes and clip norms."""
    seen = []
    for step in steps:
        wish, norms = made.wish(step), tuple(made.clip_norms(step))
        draws = torch.Generator().manual_seed(step)
        shares = torch.rand(3, generator=draws).tolist()
        made.observe_step(
            SteeredStep(
                step=step,
                noise_multiplier=1.0 + 0.1 * (step % 3),
                clip_norms=norms,
                noise_stddevs=(0.1, 0.1),
                shares=() if raw else tuple(shares),
            )
        )
        if raw is not None:
            made.observe_raw(raw(step), loss=2.0 - 0.01 * step)
        made.observe(
            {name: torch.randn(3, 2, generator=draws) for name in GROUPS}, step=step
        )
        seen.append((wish, norms))
    return seen


def test_controller_steers_clips():
    assert isinstance(controller(), ClipController)


def test_controller_acts_when_it_is_due():
    made = controller()
    seen = play(made, range(20))
    assert made.actions_at == (4, 7, 10, 13, 16, 19)
    assert len(made.trace) == 20
    assert {wish for wish, _ in seen[:4]} == {1.0}
    changed = [s for s in range(1, 20) if seen[s][0] != seen[s - 1][0]]
    assert changed == list(made.actions_at)


def test_clip_follows_the_tracked_median_and_then_the_policy():
    made = controller()
    seen = play(made, range(5))
    assert seen[0][1] == (0.2, 0.2)
    assert seen[3][1] == pytest.approx(tuple(made.trace[3][2:]))
    references = made.thresholds(5)[:2]
    ratios = [c / r for c, r in zip(made.clip_norms(5), references, strict=True)]
    assert all(0.5 <= ratio <= 2.0 for ratio in ratios)
    assert all(abs(math.log(ratio)) > 1e-6 for ratio in ratios)


def test_equation_10_can_be_taken_as_it_is():
    made = controller(clip_span=None)
    play(made, range(5))
    actions = made._action[:-1].tolist()
    assert made.clip_norms(5) == tuple(next_clip(action) for action in actions)


@pytest.mark.parametrize("span", [1000.0, None])
def test_clip_stays_where_float32_can_enforce_it(span):
    """A smaller one is refused in the middle of a stage whose deck was paid."""
    made = controller(clip_span=span, start_norm=1e-13)
    assert made.clip_norms(0) == (SMALLEST_MAX_GRAD_NORM,) * 2
    play(made, range(5))
    made._action = torch.tensor([-40.0, -40.0, 0.0])
    assert made.clip_norms(5) == (SMALLEST_MAX_GRAD_NORM,) * 2


def test_first_reward_by_hand():
    """Utility from public text, epsilon from what was granted between two actions."""
    losses = iter([3.0, 2.9, 2.8])
    made = controller(public=lambda: next(losses))
    play(made, range(8))
    ((state, action, gained, following),) = made._sac._replay
    grants = [1.0 + 0.1 * (step % 3) for step in range(7)]
    spent = [
        gdp_epsilon([(z, 1) for z in grants[:k]], sample_rate=0.1, delta=1e-5)
        for k in (4, 7)
    ]
    by_hand = reward(3.0 - 2.9, spent[1] - spent[0], largest_loss=5.0)
    assert float(gained) == pytest.approx(by_hand, rel=1e-5)
    assert state.shape == following.shape == (terms().state_size,)
    assert action.shape == (3,)


@pytest.mark.parametrize("stop", [2, 9])
def test_resumed_controller_goes_on_exactly(stop):
    whole = play(controller(), range(20))
    stopped = controller()
    play(stopped, range(stop))
    resumed = controller(seed=7)
    resumed.restore(stopped.state())
    assert play(resumed, range(stop, 20)) == whole[stop:]
    assert [row[0] for row in resumed.trace] == list(range(20))


def test_twin_that_forgets_its_buffer_is_caught():
    """The bug: a state without the replay buffer."""
    whole = play(controller(), range(40))
    stopped = controller()
    play(stopped, range(20))
    kept = {k: v for k, v in stopped.state().items() if "replay" not in k}
    resumed = controller(seed=7)
    resumed.restore(kept)
    assert play(resumed, range(20, 40)) != whole[20:]


def test_sound_controller_refuses_private_norms():
    with pytest.raises(PrivacyError, match="private norms"):
        controller().observe_raw(torch.ones(2, 4), loss=1.0)


class Peeks(RldpController):
    """The bug: it keeps the private norms that it is shown, and acts on them."""

    scale = 1.0

    def observe_raw(self, norms, *, loss):
        self.scale = float(norms.mean())

    def clip_norms(self, step):
        return tuple(self.scale * norm for norm in super().clip_norms(step))


def test_what_is_released_decides_and_nothing_else():
    """Neighbors with equal releases get equal norms and noise; the twin tells them."""
    first, second = (play(controller(), range(12)) for _ in range(2))
    assert first == second
    twins = []
    for norm in (1.0, 5.0):
        twin = controller(kind=Peeks)
        play(twin, range(4))
        twin.observe_raw(torch.full((2, 3), norm), loss=1.0)
        twins.append(play(twin, range(4, 8)))
    assert twins[0] != twins[1]


def test_raw_run_clips_at_the_median_and_has_the_papers_state():
    def norms(step):
        return torch.tensor([[1.0, 2.0, 9.0], [0.1, 0.3, 0.5]]) * (1 + step)

    made = controller(raw=True, clip_span=None)
    seen = play(made, range(10), raw=norms)
    assert seen[0][1] == (0.2, 0.2)
    assert seen[3][1] == pytest.approx((6.0, 0.9))
    assert made.utility_source == "private_batch"
    (row,) = made._sac._replay
    assert row.state.shape == (3 * 2 + 8,)
    assert all(norm <= 1.0 for norm in seen[-1][1])


def test_deck_has_a_card_for_every_step():
    """100 = 6 + 25 + 38 + 25 + 6, levels in equal ratios between 1/2 and 2."""
    cards = deck(1.5, num_steps=100, spread=4.0)
    assert [count for _, count in cards] == [6, 25, 38, 25, 6]
    assert [z / 1.5 for z, _ in cards] == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0])
    assert deck(1.5, num_steps=7, spread=1.0) == ((1.5, 7),)
    assert sum(count for _, count in deck(1.5, num_steps=3, spread=2.0)) == 3


def test_controller_plays_the_deck_out():
    budget = deck_terms(deck(1.0, num_steps=40, spread=1.25), sample_rate=0.1).open()
    made = controller()
    grants = [budget.ask(wish) for wish, _ in play(made, range(40))]
    assert not budget.left or not any(budget.left.values())
    assert len(set(grants)) == 5
