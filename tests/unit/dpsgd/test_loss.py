import pytest
import torch
from torch.nn import functional

from dptune.dpsgd.dataset import PhysicalBatch
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss, token_losses
from dptune.errors import ConfigError
from dptune.logits import cross_entropy
from tests.support import models, oracles


def batch_of(ids, weights):
    ids = torch.tensor(ids)
    return PhysicalBatch(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        loss_weights=torch.tensor(weights),
        rows_of_unit=torch.arange(len(ids))[:, None],
    )


def test_token_losses_are_shifted_and_weighted():
    logits = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(0))
    losses = token_losses(logits, batch_of([[4, 2, 1]], [[9.0, 0.5, 2.0]]))
    nll = -functional.log_softmax(logits, -1)
    expected = torch.stack([0.5 * nll[0, 0, 2], 2 * nll[0, 1, 1], torch.zeros(())])
    torch.testing.assert_close(losses[0], expected)


def test_target_with_weight_zero_contributes_nothing_even_if_infinite():
    logits = torch.zeros(1, 2, 3)
    logits[0, 0, 1] = -torch.inf
    logits.requires_grad_()
    losses = token_losses(logits, batch_of([[0, 1]], [[1.0, 0.0]]))
    losses.sum().backward()
    assert losses.sum() == 0
    assert not logits.grad.any()


@pytest.mark.parametrize("normalizer", [5.0, None])
def test_loss_of_a_row_is_the_same_alone_and_in_company(normalizer):
    model = models.tiny_gpt2().eval()
    data = oracles.random_data()
    loss = CausalLoss(loss_normalizer=normalizer)
    together = loss(model, data.collate(range(4), 0))
    for unit in range(4):
        alone = loss(model, data.collate([unit], 0))
        torch.testing.assert_close(alone[0], together[unit], rtol=1e-5, atol=1e-7)


def test_normalizer_divides_and_total_nll_undoes_it():
    model = models.tiny_gpt2().eval()
    batch = oracles.random_data().collate(range(4), 0)
    one, ten = CausalLoss(loss_normalizer=1.0), CausalLoss(loss_normalizer=10.0)
    torch.testing.assert_close(one(model, batch), 10 * ten(model, batch))
    nll, weight = ten.total_nll(ten(model, batch), batch)
    assert nll == pytest.approx(float(one(model, batch).sum().detach()), rel=1e-5)
    assert weight == pytest.approx(float(batch.loss_weights[:, 1:].sum()))


def test_total_nll_leaves_out_rows_that_are_not_finite():
    loss = CausalLoss(loss_normalizer=2.0)
    batch = batch_of([[1, 2], [1, 2]], [[1.0, 0.5], [1.0, 1.0]])
    assert loss.total_nll(torch.tensor([3.0, torch.nan]), batch) == (6.0, 0.5)


def test_sequence_of_one_token_has_no_loss():
    model = models.tiny_gpt2()
    losses = CausalLoss(loss_normalizer=1.0)(model, batch_of([[3]], [[1.0]]))
    losses.sum().backward()
    assert losses.tolist() == [0.0]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_normalizer_is_refused(value):
    with pytest.raises(ConfigError, match="loss_normalizer"):
        CausalLoss(loss_normalizer=value)


def logits_and_targets(rows=7, classes=11, dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    logits = 4 * torch.randn(rows, classes, generator=generator)
    targets = torch.randint(0, classes, (rows,), generator=generator)
    targets[2] = -100
    return logits.to(dtype), targets


@pytest.mark.parametrize("entries", [1, 30, 1 << 18])
def test_cross_entropy_in_pieces_equals_that_of_torch(entries, monkeypatch):
    monkeypatch.setattr("dptune.logits._PIECE_ENTRIES", (entries, entries))
    logits, targets = logits_and_targets()
    weights = torch.linspace(-1, 2, len(targets))
    mine = logits.clone().requires_grad_()
    theirs = logits.clone().requires_grad_()
    losses = cross_entropy(mine, targets)
    expected = functional.cross_entropy(theirs, targets, reduction="none")
    torch.testing.assert_close(losses, expected)
    (losses * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_gradient_takes_the_memory_of_the_logits():
    logits, targets = logits_and_targets()
    leaf = logits.clone().requires_grad_()
    computed = leaf * 1.0
    seen = []
    computed.register_hook(lambda grad: seen.append(grad.data_ptr()))
    cross_entropy(computed, targets).sum().backward()
    assert seen == [computed.data_ptr()]


def test_kept_graph_can_be_run_again():
    logits, targets = logits_and_targets()
    leaf = logits.clone().requires_grad_()
    total = cross_entropy(leaf * 1.0, targets).sum()
    total.backward(retain_graph=True)
    first = leaf.grad.clone()
    total.backward()
    torch.testing.assert_close(leaf.grad, 2 * first)


def test_cross_entropy_of_bfloat16_is_computed_in_float32():
    logits, targets = logits_and_targets(dtype=torch.bfloat16)
    losses = cross_entropy(logits, targets)
    expected = functional.cross_entropy(logits.float(), targets, reduction="none")
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, expected)


def test_classification_normalizer_must_divide():
    with pytest.raises(ConfigError, match="loss_normalizer"):
        ClassificationLoss(loss_normalizer=0.0)


def test_own_normalizer_counts_targets_and_total_nll_undoes_it():
    model = models.tiny_gpt2().eval()
    weights = [[0.0, 1.0, 0.5, 0.0], [9.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    batch = batch_of([[4, 2, 1, 3], [5, 5, 6, 2], [7, 2, 2, 3]], weights)
    whole = CausalLoss(loss_normalizer=1.0)(model, batch)
    loss = CausalLoss(loss_normalizer=None)
    own = loss(model, batch)
    torch.testing.assert_close(own, whole / torch.tensor([2.0, 1.0, 3.0]))
    assert own[1] == 0
    nll, weight = loss.total_nll(own, batch)
    assert nll == pytest.approx(float(whole.detach().sum()), rel=1e-5)
    assert weight == 4.5
