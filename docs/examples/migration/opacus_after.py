"""Train a classifier of short texts with dptune: python opacus_after.py."""

import dptune
import torch
from torch import nn
from torch.nn.functional import cross_entropy

LENGTH, EPOCHS, BATCH_SIZE = 8, 3, 32


class Classifier(nn.Module):
    """A bag of words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, `(rows, 2)`."""
        return self.head(self.embedding(tokens).mean(1))


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss of each row, `(rows,)`."""
    logits = model(batch["input_ids"])
    return cross_entropy(logits, batch["labels"], reduction="none")


def main() -> None:
    """Train, and print what was spent."""
    tokens = torch.randint(1, 100, (320, LENGTH))
    labels = (tokens > 50).sum(1) // (LENGTH // 2 + 1)
    pairs = zip(tokens.tolist(), labels.tolist(), strict=True)
    data = [{"input_ids": row, "labels": label} for row, label in pairs]
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loop = dptune.make_private(
        model,
        optimizer,
        data,
        target_epsilon=8.0,
        target_delta=1e-3,
        num_steps=EPOCHS * len(data) // BATCH_SIZE,
        expected_batch_size=BATCH_SIZE,
        max_grad_norm=1.0,
        max_tokens=LENGTH,
        fixed_shapes=True,
        journal="ledger.jsonl",
        loss=loss,
    )
    for _ in loop:
        pass  # scheduler.step(), logging, evaluation
    print(loop.certificate().epsilon)


if __name__ == "__main__":
    main()
