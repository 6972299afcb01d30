"""A small Soft Actor-Critic, as RLDP draws it.

It differs from what libraries do: actions are not squashed, the temperature is fixed,
states pass an encoder that both heads of the actor share, and critics see its features.

Where the paper contradicts itself, this is what is done:

* the replay buffer holds states, as in its algorithm 1, and not features (section 2.4),
  which would go stale with every update of the encoder;
* the actor's loss takes a fresh action, by the reparameterisation of equation 24. With
  the action of the buffer, as equation 27 has it, the critic's part has no gradient;
* the encoder belongs to the actor, with which it shares its name theta, and critics see
  its features as constants. If the actor's loss reached it through the critic, it would
  learn to encode every state as the best one: on a control problem with a known optimum
  the policy then ignores its state.

References:
    Khadangi et al. (2025), RLDP, equations 21 to 27 and algorithm 1; Haarnoja et al.
    (2018), https://arxiv.org/abs/1801.01290v2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

_LEAST_LOG_STD, _LARGEST_LOG_STD = -8.0, 2.0


@dataclass(frozen=True, kw_only=True)
class SacSettings:
    """Numbers of section 3.1 and 4.5; the paper's unless said otherwise.

    Args:
        discount: gamma.
        temperature: alpha, fixed.
        polyak: tau, of the target critics.
        actor_rate, critic_rate: learning rates of Adam.
        batch_size: transitions in an update.
        num_updates: rounds for every action, K.
        capacity: transitions that are kept.
        width: of encoder and critics.
    """

    discount: float = 0.99
    temperature: float = 0.04
    polyak: float = 0.01
    actor_rate: float = 2e-4
    critic_rate: float = 1e-4
    batch_size: int = 4
    num_updates: int = 2
    capacity: int = 10_000
    width: int = 128


class Transitions(NamedTuple):
    """States `(batch, state)`, actions `(batch, action)`, rewards `(batch,)`, next."""

    state: Tensor
    action: Tensor
    reward: Tensor
    following: Tensor


class Actor(nn.Module):
    """Encoder and Gaussian policy, equations 22 to 24.

    Args:
        state_size: d_s.
        action_size: n + 1.
        width: of the features z.
    """

    def __init__(self, state_size: int, action_size: int, *, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(state_size, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.GELU(),
        )
        self.mean = nn.Linear(width, action_size)
        self.log_std = nn.Linear(width, action_size)

    def law(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations, `(batch, action)` each."""
        log_std = self.log_std(features).clamp(_LEAST_LOG_STD, _LARGEST_LOG_STD)
        return self.mean(features), log_std.exp()


def log_density(action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return log pi(a | s), summed over the entries of the action, `(batch,)`."""
    whitened = (action - mean) / std
    terms = -0.5 * whitened.square() - std.log() - 0.5 * math.log(2 * math.pi)
    return terms.sum(-1)


def bellman_target(
    reward: Tensor,
    values: Sequence[Tensor],
    log_pi: Tensor,
    *,
    discount: float,
    temperature: float,
) -> Tensor:
    """Return y = r + gamma (min of the target critics - alpha log pi), equation 25."""
    least = torch.minimum(values[0], values[1])
    return reward + discount * (least - temperature * log_pi)


class SoftActorCritic:
    """Chooses actions, remembers what came of them, and learns.

    Args:
        state_size, action_size: d_s, n + 1.
        settings: numbers of the paper.
        generator: all randomness, initial weights included. It must not depend on
            private data.
    """

    def __init__(
        self,
        *,
        state_size: int,
        action_size: int,
        settings: SacSettings,
        generator: torch.Generator,
    ) -> None:
        self.settings = settings
        self._generator = generator
        self.actor = Actor(state_size, action_size, width=settings.width)
        self._critics = nn.ModuleList(
            _critic(settings.width + action_size, settings.width) for _ in range(2)
        )
        for module in (self.actor, self._critics):
            _initialize(module, generator)
        self._targets = nn.ModuleList(
            _critic(settings.width + action_size, settings.width) for _ in range(2)
        )
        self._targets.load_state_dict(self._critics.state_dict())
        self._targets.requires_grad_(requires_grad=False)
        self._actor_optimizer = torch.optim.Adam(
            self.actor.parameters(), lr=settings.actor_rate, fused=True
        )
        self._critic_optimizer = torch.optim.Adam(
            self._critics.parameters(), lr=settings.critic_rate, fused=True
        )
        self._replay: list[Transitions] = []

    @torch.no_grad()
    def act(self, state: Tensor) -> Tensor:
        """Draw an action `(action,)` for a state `(state,)`."""
        return self._sample(self.actor.encoder(state[None]))[0][0]

    @torch.no_grad()
    def best(self, state: Tensor) -> Tensor:
        """Return the mean of the policy, `(action,)`."""
        mean: Tensor = self.actor.law(self.actor.encoder(state[None]))[0][0]
        return mean

    def remember(
        self, state: Tensor, action: Tensor, reward: float, following: Tensor
    ) -> None:
        """Store one transition; the oldest one leaves a full buffer."""
        row = Transitions(state, action, torch.tensor(reward), following)
        self._replay.append(row)
        del self._replay[: -self.settings.capacity]

    def learn(self) -> None:
        """Run the update rounds of one action; without a transition, nothing."""
        if not self._replay:
            return
        for _ in range(self.settings.num_updates):
            self._update(self._batch())

    def _batch(self) -> Transitions:
        """Draw transitions, each as likely as any other."""
        size = min(self.settings.batch_size, len(self._replay))
        picks = torch.randint(len(self._replay), (size,), generator=self._generator)
        rows = [self._replay[int(pick)] for pick in picks]
        return Transitions(*(torch.stack(parts) for parts in zip(*rows, strict=True)))

    def _update(self, batch: Transitions) -> None:
        """One critic update, targets, one actor update: lines 34 to 36."""
        loss = self._critic_loss(batch)
        self._critic_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._critic_optimizer.step()
        self._average_targets()
        self._critics.requires_grad_(requires_grad=False)
        policy_loss = self._actor_loss(batch.state)
        self._actor_optimizer.zero_grad()
        policy_loss.backward()  # type: ignore[no-untyped-call]
        self._actor_optimizer.step()
        self._critics.requires_grad_(requires_grad=True)

    def _critic_loss(self, batch: Transitions) -> Tensor:
        """Return the Huber-Bellman loss of both critics, equation 25."""
        with torch.no_grad():
            features = self.actor.encoder(batch.state)
            following = self.actor.encoder(batch.following)
            action, log_pi = self._sample(following)
            target = bellman_target(
                batch.reward,
                _values(self._targets, following, action),
                log_pi,
                discount=self.settings.discount,
                temperature=self.settings.temperature,
            )
        values = _values(self._critics, features, batch.action)
        first, second = (functional.huber_loss(value, target) for value in values)
        return first + second

    def _actor_loss(self, state: Tensor) -> Tensor:
        """Return the mean of alpha log pi - min Q at a fresh action, equation 27."""
        features = self.actor.encoder(state)
        action, log_pi = self._sample(features)
        value = torch.minimum(*_values(self._critics, features.detach(), action))
        return (self.settings.temperature * log_pi - value).mean()

    def _sample(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions mu + sigma epsilon and their log densities, equation 24."""
        mean, std = self.actor.law(features)
        action = mean + std * torch.randn(mean.shape, generator=self._generator)
        return action, log_density(action, mean, std)

    @torch.no_grad()
    def _average_targets(self) -> None:
        """Move the target critics a little, equation 26."""
        pairs = zip(self._targets.parameters(), self._critics.parameters(), strict=True)
        for target, value in pairs:
            target.lerp_(value, self.settings.polyak)

    def policy(self) -> dict[str, Tensor]:
        """Return the weights of encoder and policy."""
        return {name: value.clone() for name, value in self.actor.state_dict().items()}

    def state(self) -> dict[str, Tensor]:
        """Return all that is needed to go on exactly as if nothing had happened."""
        parts = {
            **_named("actor", self.actor.state_dict()),
            **_named("critics", self._critics.state_dict()),
            **_named("targets", self._targets.state_dict()),
            **_named("actor_adam", _moments(self._actor_optimizer)),
            **_named("critic_adam", _moments(self._critic_optimizer)),
            "generator": self._generator.get_state(),
        }
        if self._replay:
            columns = Transitions(*map(torch.stack, zip(*self._replay, strict=True)))
            parts |= _named("replay", columns._asdict())
        return parts

    def restore(self, parts: Mapping[str, Tensor]) -> None:
        """Take a state that `state` gave."""
        self.actor.load_state_dict(_under("actor", parts))
        self._critics.load_state_dict(_under("critics", parts))
        self._targets.load_state_dict(_under("targets", parts))
        _take_moments(self._actor_optimizer, _under("actor_adam", parts))
        _take_moments(self._critic_optimizer, _under("critic_adam", parts))
        self._generator.set_state(parts["generator"])
        columns = _under("replay", parts)
        ordered = [columns[name] for name in Transitions._fields if name in columns]
        self._replay = [Transitions(*row) for row in zip(*ordered, strict=True)]


def _critic(inputs: int, width: int) -> nn.Module:
    """Two layers, ReLU between."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 1))


def _values(critics: nn.ModuleList, features: Tensor, action: Tensor) -> list[Tensor]:
    """Return Q of both critics, `(batch,)` each."""
    pairs = torch.cat((features, action), -1)
    return [critic(pairs).squeeze(-1) for critic in critics]


@torch.no_grad()
def _initialize(module: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of linear layers as torch does, from our own randomness."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            bound = 1 / math.sqrt(layer.in_features)
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Name every tensor of Adam `<index>.<key>`."""
    entries = cast("dict[int, dict[str, Tensor]]", optimizer.state_dict()["state"])
    return {
        f"{index}.{key}": value
        for index, row in entries.items()
        for key, value in row.items()
    }


def _take_moments(optimizer: torch.optim.Optimizer, flat: Mapping[str, Tensor]) -> None:
    """Rebuild what `_moments` took apart."""
    rows: dict[int, dict[str, Tensor]] = {}
    for name, value in flat.items():
        index, key = name.split(".", 1)
        rows.setdefault(int(index), {})[key] = value.clone()
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": rows, "param_groups": groups})


def _named(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put names under a prefix."""
    return {f"{prefix}/{name}": value.clone() for name, value in values.items()}


def _under(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what lies under a prefix."""
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}
