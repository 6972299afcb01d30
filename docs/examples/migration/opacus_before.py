"""Train a classifier of short texts with Opacus: python opacus_before.py."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

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


def main() -> None:
    """Train, and print what was spent."""
    tokens = torch.randint(1, 100, (320, LENGTH))
    labels = (tokens > 50).sum(1) // (LENGTH // 2 + 1)
    data = list(zip(tokens, labels, strict=True))
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=BATCH_SIZE),
        target_epsilon=8.0,
        target_delta=1e-3,
        epochs=EPOCHS,
        max_grad_norm=1.0,
    )
    for _ in range(EPOCHS):
        for batch_tokens, batch_labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(batch_tokens), batch_labels).backward()
            optimizer.step()
    print(engine.get_epsilon(1e-3))


if __name__ == "__main__":
    main()
