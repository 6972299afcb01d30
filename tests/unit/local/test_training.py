"""Nothing un-noised crosses the line, and no sequence crosses it too often."""

import numpy as np
import pytest
import torch
from torch import nn

from dptune.errors import DataError, ModelError, PrivacyError
from dptune.local import training
from dptune.local.plan import ForwardPlan
from dptune.local.split import (
    ServerPart,
    StackedAutoencoder,
    UserPart,
    split_model,
    train_autoencoder,
)
from dptune.local.training import (
    Participations,
    UserSequences,
    accuracy,
    train_forward,
)

from .conftest import POSITIONS, KnownNoise, sequences


class Erasing:
    """Noise so large that nothing of the value is left: the same for all inputs."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(9)

    def add_to(self, values, *, stddev):
        values.copy_(torch.randn(values.shape, generator=self.generator) * stddev)


def parts(model, *, encoded=False):
    generator = torch.Generator().manual_seed(3)
    coder = StackedAutoencoder((16, 8, 4), generator=generator) if encoded else None
    return split_model(
        model, layer=2, autoencoder=coder, num_positions=POSITIONS, max_norm=1.0
    )


def plan_for(data, *sigmas):
    return ForwardPlan(
        noise_multipliers=sigmas, max_norm=1.0, num_users=len(data), batch_size=5
    )


def train(model, data, stream, *, sigmas=(0.5, 0.4), encoded=False, **changes):
    user, server = parts(model, encoded=encoded)
    charged = []
    train_forward(
        user,
        server,
        data,
        plan=plan_for(data, *sigmas),
        optimizer=torch.optim.AdamW(server.parameters(), lr=1e-2),
        charge=charged.append,
        stream=stream,
        order=np.random.default_rng(0),
        **changes,
    )
    return user, server, charged


def weights(server):
    return torch.cat([p.detach().flatten() for p in server.parameters()])


def sees_only_releases(model, *, encoded=False):
    """Whether the server ends up the same for other texts, other lengths included."""
    data = sequences()
    other = UserSequences(
        tokens=sequences(first=7).tokens.flip(0),
        mask=data.mask.roll(1, 0),
        labels=data.labels,
    )
    ends = [
        weights(train(model, texts, Erasing(), encoded=encoded)[1])
        for texts in (data, other)
    ]
    return ends[0].equal(ends[1])


@pytest.mark.parametrize("encoded", [False, True])
def test_nothing_but_releases_reaches_the_server(model, encoded):
    assert sees_only_releases(model, encoded=encoded)


def leak_unnoised(hidden, **_):
    return training.normalize(hidden, max_norm=1.0)


def leak_one_position(hidden, *, max_norm, noise_stddev, stream):
    sent = training.normalize(hidden, max_norm=max_norm).contiguous()
    stream.add_to(sent[:, 1:], stddev=noise_stddev)
    return sent


def leak_the_norm(hidden, *, noise_stddev, stream, **_):
    sent = torch.zeros_like(hidden)
    stream.add_to(sent, stddev=noise_stddev)
    return sent + hidden.norm()


@pytest.mark.parametrize("broken", [leak_unnoised, leak_one_position, leak_the_norm])
def test_leaks_past_the_noise_are_caught(model, broken, monkeypatch):
    monkeypatch.setattr(training, "release", broken)
    assert not sees_only_releases(model)


def test_server_that_is_sent_the_mask_is_caught(model, monkeypatch):
    sent_masks = []
    forward = UserPart.forward

    def spied(self, tokens, mask):
        sent_masks.append(mask)
        return forward(self, tokens, mask)

    def attending(self, received):
        lengths = sent_masks[-1].sum(1, keepdim=True).float()
        return self.classifier(self.pooler(received * self.scale)) * lengths

    monkeypatch.setattr(UserPart, "forward", spied)
    monkeypatch.setattr(ServerPart, "forward", attending)
    assert not sees_only_releases(model)


def test_labels_do_reach_the_server(model):
    data = sequences()
    other = UserSequences(tokens=data.tokens, mask=data.mask, labels=1 - data.labels)
    ends = [weights(train(model, texts, Erasing())[1]) for texts in (data, other)]
    assert not ends[0].equal(ends[1])


def test_user_part_is_frozen_and_its_copy_of_the_model_untouched(model, stream):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    user, server, _ = train(model, sequences(), stream, encoded=True)
    fresh, untrained = parts(model, encoded=True)
    assert not any(p.requires_grad for p in user.parameters())
    assert all(
        a.equal(b) for a, b in zip(user.parameters(), fresh.parameters(), strict=True)
    )
    assert all(before[n].equal(v) for n, v in model.state_dict().items())
    assert not weights(server).equal(weights(untrained))


def test_every_participation_is_charged_before_its_noise(model):
    events = []

    class Watched(KnownNoise):
        def add_to(self, values, *, stddev):
            events.append(round(stddev, 3))
            super().add_to(values, stddev=stddev)

    user, server = parts(model)
    data = sequences(6)
    train_forward(
        user,
        server,
        data,
        plan=plan_for(data, 0.5, 0.4),
        optimizer=torch.optim.SGD(server.parameters(), lr=0.1),
        charge=lambda j: events.append(f"charge {j}"),
        stream=Watched(),
        order=np.random.default_rng(0),
    )
    assert events == ["charge 0", 0.5, 0.5, "charge 1", 0.4, 0.4]


def test_charge_that_is_refused_draws_nothing(model):
    drawn = []

    class Watched(KnownNoise):
        def add_to(self, values, *, stddev):
            drawn.append(stddev)

    def refuse(_):
        raise PrivacyError("no budget")

    user, server = parts(model)
    data = sequences(6)
    with pytest.raises(PrivacyError, match="no budget"):
        train_forward(
            user,
            server,
            data,
            plan=plan_for(data, 0.5),
            optimizer=torch.optim.SGD(server.parameters(), lr=0.1),
            charge=refuse,
            stream=Watched(),
            order=np.random.default_rng(0),
        )
    assert drawn == []


def test_killed_run_goes_on_with_the_next_multiplier_only(model, stream):
    charged = train(model, sequences(), stream, sigmas=(3, 2, 1))[2]
    resumed = train(
        model, sequences(), stream, sigmas=(3, 2, 1), first_participation=2
    )[2]
    assert (charged, resumed) == ([0, 1, 2], [2])


@pytest.mark.parametrize("rows", [[0, 1, 1], [2, 2]])
def test_sequence_twice_at_once_is_refused(rows):
    counts = Participations(3, at_most=5)
    with pytest.raises(PrivacyError, match="at most 5"):
        counts.take(np.array(rows))


def test_order_that_repeats_sequences_is_caught(model, stream):
    class Repeating:
        def permutation(self, count):
            return np.resize(np.arange(count // 2), count)

    user, server = parts(model)
    data = sequences()
    with pytest.raises(PrivacyError, match="released at most 1"):
        train_forward(
            user,
            server,
            data,
            plan=plan_for(data, 0.5),
            optimizer=torch.optim.SGD(server.parameters(), lr=0.1),
            charge=lambda _: None,
            stream=stream,
            order=Repeating(),
        )


def test_data_of_another_size_is_refused(model, stream):
    user, server = parts(model)
    with pytest.raises(DataError, match="as planned"):
        train_forward(
            user,
            server,
            sequences(6),
            plan=plan_for(sequences(8), 0.5),
            optimizer=torch.optim.SGD(server.parameters(), lr=0.1),
            charge=lambda _: None,
            stream=stream,
            order=np.random.default_rng(0),
        )


def test_little_noise_lets_the_server_learn(model, stream):
    data = sequences(60)
    user, server, _ = train(model, data, stream, sigmas=(0.01,) * 25)
    assert accuracy(user, server, data, max_norm=1.0) > 0.95
    noisy = accuracy(user, server, data, max_norm=1.0, noise_stddev=50.0, stream=stream)
    assert noisy < 0.8


def test_split_without_noise_computes_what_the_model_does(model):
    user, server = parts(model)
    data = sequences()
    full = torch.ones_like(data.mask)
    hidden = user(data.tokens, full)
    server.scale.fill_(1.0)
    found = server.eval()(hidden)
    expected = model(input_ids=data.tokens, attention_mask=full).logits
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("layer", [0, 3])
def test_split_leaves_each_side_a_layer(model, layer):
    with pytest.raises(ModelError, match="layer must be in"):
        split_model(model, layer=layer, num_positions=6, max_norm=1.0)


def test_model_of_another_shape_cannot_be_split():
    class Odd(nn.Module):
        base_model = nn.Linear(1, 1)

    with pytest.raises(ModelError, match="must have encoder"):
        split_model(Odd(), layer=1, num_positions=6, max_norm=1.0)


def test_autoencoder_learns_states_of_low_rank():
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(3, 16, generator=generator)
    public = torch.randn(500, 3, generator=generator) @ basis
    trained = train_autoencoder(
        public, sizes=(16, 4), num_steps=600, learning_rate=1e-2
    )
    rebuilt = trained.decoder(trained.encoder(public))
    assert ((rebuilt - public).square().mean() / public.square().mean()).item() < 0.02
