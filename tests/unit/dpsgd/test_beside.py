"""What a loss has a gradient in beside its model: no clip and no noise reach that."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from dptune.api.private import make_private
from dptune.dpsgd import selfcheck
from dptune.errors import ModelError
from dptune.testing import tiny_model

ROWS = [{"input_ids": [1, 2, 3 + number % 7, number % 16]} for number in range(40)]
WANTED = {
    "target_epsilon": 8.0,
    "target_delta": 1e-3,
    "num_steps": 1,
    "expected_batch_size": 8,
    "max_grad_norm": 0.5,
    "max_tokens": 4,
    "pad_token_id": 0,
}


def losses(model, batch, *, scale=1.0):
    """Next-token losses of each row, of logits that are scaled."""
    given = {name: batch[name] for name in ("input_ids", "attention_mask")}
    logits = scale * model(**given).logits[:, :-1]
    return functional.cross_entropy(
        logits.mT, batch["labels"][:, 1:], reduction="none"
    ).sum(1)


def scaled_by(temperature):
    return lambda model, batch: losses(model, batch, scale=temperature)


def following(teacher, *, frozen):
    """A loss that follows a teacher, which somebody has frozen or not."""

    def loss(model, batch):
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.set_grad_enabled(not frozen):
            wanted = teacher(**given).logits.softmax(-1)
        found = (wanted * model(**given).logits.log_softmax(-1)).sum(2)
        return -(found * batch["attention_mask"]).sum(1)

    return loss


class Hidden(nn.Module):
    """Holds a layer in a list, which registers nothing."""

    def __init__(self):
        super().__init__()
        self.inner = tiny_model()
        self.layers = [nn.Linear(257, 257)]

    def forward(self, **given):
        found = self.inner(**given)
        found.logits = self.layers[0](found.logits)
        return found


def made(tmp_path, model, loss, **changes):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = WANTED | {"journal": tmp_path / "ledger.jsonl"} | changes
    return make_private(model, optimizer, ROWS, loss=loss, **chosen)


@pytest.mark.parametrize("physical_batch_size", [1, 8])
@pytest.mark.parametrize("kind", ["parameter", "tensor", "teacher", "hidden"])
def test_gradient_beside_the_model_is_refused(tmp_path, kind, physical_batch_size):
    losses_of = {
        "parameter": scaled_by(nn.Parameter(torch.ones(()))),
        "tensor": scaled_by(torch.ones((), requires_grad=True)),
        "teacher": following(tiny_model(seed=1), frozen=False),
        "hidden": losses,
    }
    model = Hidden() if kind == "hidden" else tiny_model()
    with pytest.raises(ModelError, match=r"beside them.*requires_grad_\(False\)"):
        made(
            tmp_path,
            model,
            losses_of[kind],
            physical_batch_size=physical_batch_size,
        )
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize("kind", ["frozen", "teacher", "anew"])
def test_what_has_no_gradient_or_none_that_lasts_is_fine(tmp_path, kind):
    model = tiny_model()
    if kind == "anew":  # as scripts of adapters do
        model.get_input_embeddings().requires_grad_(False)
        model.enable_input_require_grads()
    loss = {
        "frozen": scaled_by(torch.ones(())),
        "teacher": following(tiny_model(seed=1), frozen=True),
        "anew": losses,
    }[kind]
    trained = [p for p in model.parameters() if p.requires_grad]
    loop = make_private(
        model,
        torch.optim.SGD(trained, lr=0.1),
        ROWS,
        loss=loss,
        journal=tmp_path / "ledger.jsonl",
        **WANTED,
    )
    assert len(list(loop)) == 1


def test_twin_that_does_not_look_leaves_the_gradient_of_all_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(selfcheck, "check_weights_beside", lambda *_: None)
    temperature = nn.Parameter(torch.ones(()))
    list(made(tmp_path, tiny_model(), scaled_by(temperature)))
    assert temperature.grad.abs() > WANTED["max_grad_norm"]
