"""Whether a model's own loss is told from the one that is trained."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from dptune.dpsgd import own_loss
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.own_loss import check_own_loss
from dptune.errors import ModelError
from tests.support import models

CAUSAL = {
    "gpt2": models.tiny_gpt2,
    "dropout": lambda: models.tiny_gpt2(dropout=0.5),
    "llama": models.tiny_llama,
    "bfloat16": lambda: models.tiny_gpt2().bfloat16(),
}


def feed_of(*, classes=None):
    data = UnitDataset.from_columns(
        [[1, 2, 3]], [[1.0] * 3], [0], max_sequences_per_unit=1, labels=classes
    )
    return Feed(
        data=data,
        record_loss=CausalLoss(loss_normalizer=7.0)
        if classes is None
        else ClassificationLoss(),
        physical_batch_size=2,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
        fixed_shapes=True,
        max_tokens=12,
    )


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_model_has_the_loss_that_is_trained(name):
    model = CAUSAL[name]()
    model.train()
    check_own_loss(model, feed_of(), next_step="")
    assert model.training


def test_classifier_has_the_loss_that_is_trained():
    model = models.tiny_bert_classifier()
    check_own_loss(model, feed_of(classes=[1]), next_step="")


class Changed(nn.Module):
    """A model whose loss is another function of the model's."""

    def __init__(self, change):
        super().__init__()
        self.model = models.tiny_gpt2()
        self.config = self.model.config
        self._change = change

    def forward(self, **named):
        output = self.model(**named)
        if output.loss is not None:
            output.loss = self._change(output)
        return output


OTHERS = {
    "doubled": lambda output: 2 * output.loss,
    "regularised": lambda output: output.loss + 1e-2,
    "smoothed": lambda output: output.loss - 0.1 * output.logits.mean(),
    "unshifted": lambda output: output.logits.log_softmax(-1)[..., 1].mean(),
    "none": lambda _: None,
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_loss_is_refused_with_the_way_out(name):
    with pytest.raises(
        ModelError, match=r"cross-entropy of the tokens that come next.* Do this"
    ):
        check_own_loss(Changed(OTHERS[name]), feed_of(), next_step="Do this.")


class Weighed(nn.Module):
    """A classifier whose classes weigh more or less."""

    def __init__(self):
        super().__init__()
        self.model = models.tiny_bert_classifier()
        self.config = self.model.config

    def forward(self, labels=None, **named):
        output = self.model(**named)
        if labels is not None:
            weigh = 1.0 + torch.arange(self.config.num_labels)
            output.loss = functional.cross_entropy(output.logits, labels, weigh)
        return output


def check_weighed():
    check_own_loss(Weighed(), feed_of(classes=[1]), next_step="Do this.")


def check_contrasted():
    """A loss that tells rows from each other."""

    def contrast(output):
        seen = output.logits.mean(1)
        return output.loss + (seen @ seen.T).log_softmax(-1).diagonal().mean()

    check_own_loss(Changed(contrast), feed_of(), next_step="Do this.")


def check_in_training():
    """A loss with a term that is there in training mode alone."""
    model = Changed(None)
    model._change = lambda output: output.loss * (2 if model.training else 1)
    check_own_loss(model.eval(), feed_of(), next_step="Do this.")


SHOWN = (check_weighed, check_contrasted, check_in_training)


@pytest.mark.parametrize("check", SHOWN)
def test_loss_that_shows_beside_other_rows_or_in_training_is_refused(check):
    with pytest.raises(ModelError, match="got another"):
        check()


def test_one_row_in_evaluation_shows_none_of_them(monkeypatch):
    monkeypatch.setattr(own_loss, "_MOST_ROWS", 1)
    monkeypatch.setattr(own_loss, "training_mode", lambda _: nullcontext())
    for check in SHOWN:
        check()


def targets_of(change):
    """A loss of logits and targets, on a model whose tokens are all as likely."""

    class OfTargets(Changed):
        def forward(self, labels=None, **named):
            output = self.model(**named)
            if labels is not None:
                logits = output.logits[:, :-1].transpose(1, 2)
                output.loss = change(logits, labels[:, 1:])
            return output

    model = OfTargets(None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0**-10)
    return model


def smoothed(logits, labels, rate=0.01):
    return functional.cross_entropy(logits, labels, label_smoothing=rate)


def focal(logits, labels):
    losses = functional.cross_entropy(logits, labels, reduction="none")
    return (losses + functional.relu((-losses).exp() - 0.5)).mean()


@pytest.mark.parametrize("change", [smoothed, focal])
def test_loss_that_shows_where_tokens_are_likely_is_refused(change):
    model = targets_of(change)
    with torch.no_grad():
        model.model.transformer.ln_f.weight.fill_(1.0)
        model.model.transformer.wte.weight.normal_(std=0.1)
    with pytest.raises(ModelError, match="got another"):
        check_own_loss(model, feed_of(), next_step="Do this.")
    plain = targets_of(functional.cross_entropy)
    plain.load_state_dict(model.state_dict())
    check_own_loss(plain, feed_of(), next_step="Do this.")


def test_model_that_takes_no_labels_is_refused():
    class Unlabelled(Changed):
        def forward(self, input_ids, attention_mask, use_cache=False):
            return self.model(input_ids, attention_mask=attention_mask)

    with pytest.raises(ModelError, match="Do this"):
        check_own_loss(Unlabelled(None), feed_of(), next_step="Do this.")
