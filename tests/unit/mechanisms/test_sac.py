"""The small SAC: its losses by hand, and a control problem whose optimum is known."""

import math

import pytest
import torch
from torch.nn import functional

from dptune.mechanisms.sac import (
    SacSettings,
    SoftActorCritic,
    Transitions,
    bellman_target,
    log_density,
)

SMALL = SacSettings(width=8, batch_size=4)


def agent(settings=SMALL, *, seed=0, state=2, action=1):
    return SoftActorCritic(
        state_size=state,
        action_size=action,
        settings=settings,
        generator=torch.Generator().manual_seed(seed),
    )


def batch(size=3):
    generator = torch.Generator().manual_seed(5)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return Transitions(draw(size, 2), draw(size, 1), draw(size), draw(size, 2))


def test_settings_are_those_of_the_paper():
    paper = SacSettings()
    assert (paper.discount, paper.temperature, paper.polyak) == (0.99, 0.04, 0.01)
    assert (paper.actor_rate, paper.critic_rate) == (2e-4, 1e-4)
    assert (paper.capacity, paper.width) == (10_000, 128)
    assert (paper.batch_size, paper.num_updates) == (4, 2)


def test_encoder_is_two_normalised_layers_with_gelu():
    """Equation 22, written out."""
    made = agent()
    first, norm_1, _, second, norm_2, _ = made.actor.encoder
    state = torch.tensor([[0.3, -1.2]])
    hidden = functional.gelu(norm_1(state @ first.weight.T + first.bias))
    features = functional.gelu(norm_2(hidden @ second.weight.T + second.bias))
    torch.testing.assert_close(made.actor.encoder(state), features)
    assert first.out_features == second.out_features == 8


def test_log_density_by_hand():
    """Equation 24: two independent normals, no squashing."""
    got = log_density(
        torch.tensor([[1.0, -1.0]]),
        torch.tensor([[0.0, 0.0]]),
        torch.tensor([[2.0, 0.5]]),
    )
    by_hand = -0.5 * 0.25 - math.log(2.0) - 0.5 * math.log(2 * math.pi)
    by_hand += -0.5 * 4.0 - math.log(0.5) - 0.5 * math.log(2 * math.pi)
    assert float(got) == pytest.approx(by_hand)


def test_actions_are_not_squashed():
    made = agent()
    with torch.no_grad():
        made.actor.mean.bias.fill_(40.0)
    assert float(made.act(torch.zeros(2))) > 20.0


def test_bellman_target_by_hand():
    """Equation 25: 1 + .5 (min(3, 2) - .04 * 10) = 1.8."""
    got = bellman_target(
        torch.tensor([1.0]),
        [torch.tensor([3.0]), torch.tensor([2.0])],
        torch.tensor([10.0]),
        discount=0.5,
        temperature=0.04,
    )
    assert float(got) == pytest.approx(1.8)


def test_critic_loss_is_huber_of_both_critics():
    made, rows = agent(SacSettings(width=8, discount=0.0)), batch()
    pairs = torch.cat((made.actor.encoder(rows.state), rows.action), 1)
    by_hand = 0.0
    for critic in made._critics:
        gap = critic(pairs).squeeze(1) - rows.reward
        huber = torch.where(gap.abs() <= 1, 0.5 * gap**2, gap.abs() - 0.5)
        by_hand += float(huber.mean().detach())
    assert float(made._critic_loss(rows).detach()) == pytest.approx(by_hand, rel=1e-5)


def test_targets_move_by_tau():
    """Equation 26."""
    made = agent()
    old = [p.clone() for p in made._targets.parameters()]
    with torch.no_grad():
        for value in made._critics.parameters():
            value.add_(1.0)
    made._average_targets()
    for before, after in zip(old, made._targets.parameters(), strict=True):
        torch.testing.assert_close(after, before + 0.01)


def test_actor_is_pulled_towards_the_value():
    """Equation 27 with a fresh action: the critic has a say; with the stored one none.

    With Q(z, a) = a the mean must rise. The twin takes the action of the buffer, as the
    equation has it: the gradient of Q is then none at all.
    """
    made = agent(SacSettings(width=8, temperature=0.0, actor_rate=1e-2))
    with torch.no_grad():
        for critic in made._critics:
            first, _, last = critic
            first.weight.zero_()
            first.bias.zero_()
            first.weight[0, -1] = 1.0
            first.bias[0] = 100.0  # never cut off
            last.weight.zero_()
            last.weight[0, 0] = 1.0
    state = torch.randn(16, 2, generator=torch.Generator().manual_seed(1))

    def height():
        return float(torch.stack([made.best(row) for row in state]).mean())

    before = height()
    for _ in range(20):
        loss = made._actor_loss(state)
        made._actor_optimizer.zero_grad()
        loss.backward()
        made._actor_optimizer.step()
    assert height() > before + 0.1
    features = made.actor.encoder(state).detach()
    stored = torch.zeros(16, 1)
    twin = made._critics[0](torch.cat((features, stored), 1)).mean()
    made._actor_optimizer.zero_grad()
    twin.backward()
    assert all(p.grad is None or not p.grad.any() for p in made.actor.parameters())


def test_encoder_is_not_drawn_to_the_best_state():
    """The bug: an actor's loss that reaches the encoder through the critic."""
    made = agent(SacSettings(width=8, temperature=0.0))
    with torch.no_grad():
        for critic in made._critics:
            critic[0].weight[:, -1] = 0.0  # values of states, whatever is done
    made._actor_loss(torch.ones(4, 2)).backward()
    first = made.actor.encoder[0].weight
    assert first.grad is None or not first.grad.any()
    twin = made._critics[0](
        torch.cat((made.actor.encoder(torch.ones(4, 2)), torch.zeros(4, 1)), 1)
    )
    twin.mean().backward()
    assert first.grad.any()


def test_buffer_forgets_the_oldest():
    made = agent(SacSettings(width=8, capacity=3))
    for index in range(5):
        made.remember(torch.zeros(2), torch.zeros(1), float(index), torch.zeros(2))
    assert [float(row.reward) for row in made._replay] == [2.0, 3.0, 4.0]


def test_nothing_is_learnt_from_nothing():
    made = agent()
    before = made.state()
    made.learn()
    for name, value in made.state().items():
        assert torch.equal(value, before[name]), name


def walk(made, num_actions):
    """Act, remember, learn from one start; returns the actions."""
    state, actions = torch.tensor([0.5, -0.5]), []
    for _ in range(num_actions):
        action = made.act(state)
        following = 0.5 * state + 0.1 * action
        made.remember(state, action, -float(action.square()), following)
        made.learn()
        state = following
        actions.append(float(action))
    return actions


def test_restored_agent_goes_on_as_if_nothing_had_happened():
    whole, stopped = agent(seed=3), agent(seed=3)
    actions = [*walk(whole, 6), *walk(whole, 4)]
    first = walk(stopped, 6)
    resumed = agent(seed=99)
    resumed.restore(stopped.state())
    assert [*first, *walk(resumed, 4)] == actions
    assert whole.state().keys() == resumed.state().keys()
    for name, value in resumed.state().items():
        assert torch.equal(value, whole.state()[name]), name


def test_policy_learns_a_control_problem_with_a_known_optimum():
    """x' = .9 x + a, cost x'^2 + .1 a^2, discount .5: a linear law is optimal.

    With V(x) = -p x^2 and V' = .5 V the Riccati equation is k = .9 (1 + .5 p) /
    (1.1 + .5 p), p = (1 + .5 p) (.9 - k)^2 + .1 k^2.
    """
    p = 0.0
    for _ in range(100):
        gain = 0.9 * (1 + 0.5 * p) / (1.1 + 0.5 * p)
        p = (1 + 0.5 * p) * (0.9 - gain) ** 2 + 0.1 * gain**2
    made = agent(
        SacSettings(
            width=32,
            discount=0.5,
            temperature=0.05,
            batch_size=128,
            num_updates=1,
            actor_rate=3e-3,
            critic_rate=1e-2,
            polyak=0.05,
        ),
        seed=2,
        state=1,
    )
    draws = torch.Generator().manual_seed(0)
    for _ in range(250):
        x = 2 * torch.rand(1, generator=draws) - 1
        action = made.act(x)
        following = 0.9 * x + action
        cost = float(following.square() + 0.1 * action.square())
        made.remember(x, action, -cost, following)
        made.learn()
    starts = (-0.8, -0.4, 0.4, 0.8)
    best = p * sum(x**2 for x in starts)
    learnt, idle = cost_of(made.best, starts), cost_of(lambda x: 0 * x, starts)
    assert cost_of(lambda x: -gain * x, starts) == pytest.approx(best, rel=1e-4)
    assert idle > 15 * best
    assert best <= learnt < 0.2 * idle


def cost_of(policy, starts):
    """Discounted cost of twenty steps from each start."""
    total = 0.0
    for start in starts:
        x = torch.tensor([start])
        for step in range(20):
            action = policy(x)
            x = 0.9 * x + action
            total += 0.5**step * float(x.square() + 0.1 * action * action)
    return total
