"""The server's training on releases, each charged before its noise is drawn.

Participation j of every sequence has multiplier sigma_j, whatever happened before. A
run that is killed in participation j goes on with j + 1: the noise of j is spent, and
what it bought is lost. So no sequence is ever released more than E times, and the
charge of a stage never exceeds that of an undisturbed one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dptune.errors import DataError, PrivacyError
from dptune.local.plan import ForwardPlan
from dptune.local.release import NormalStream, normalize, release
from dptune.local.split import ServerPart, UserPart


@dataclass(frozen=True, kw_only=True)
class UserSequences:
    """Sequences of users, padded to one public length. Labels are sent in the clear.

    Args:
        tokens: `(sequences, positions)`.
        mask: 1 for tokens, 0 for padding, `(sequences, positions)`; private.
        labels: class of each sequence, `(sequences,)`.
    """

    tokens: Tensor = field(repr=False)
    mask: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    @classmethod
    def padded(
        cls,
        sequences: list[list[int]],
        labels: list[int],
        *,
        num_positions: int,
        pad_token_id: int,
    ) -> "UserSequences":
        """Cut or pad every sequence to `num_positions`.

        Raises:
            DataError: there is no sequence, or not a label for each.
        """
        if not sequences or len(sequences) != len(labels):
            raise DataError(
                f"every sequence needs a label, got {len(sequences)} sequences and "
                f"{len(labels)} labels."
            )
        tokens = torch.full((len(sequences), num_positions), pad_token_id)
        mask = torch.zeros_like(tokens)
        for row, sequence in enumerate(sequences):
            cut = torch.as_tensor(sequence[:num_positions], dtype=torch.long)
            tokens[row, : len(cut)] = cut
            mask[row, : len(cut)] = 1
        return cls(tokens=tokens, mask=mask, labels=torch.as_tensor(labels))

    def __len__(self) -> int:
        """Count the sequences."""
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class ForwardProgress:
    """How far a run is. Losses are of released states and clear labels.

    Args:
        participation: from 0.
        step: of the server, from 1, over all participations of this process.
        loss: mean of the step.
    """

    participation: int
    step: int
    loss: float


class Participations:
    """Counts the releases of each sequence and refuses one too many."""

    def __init__(self, num_users: int, *, at_most: int, already: int = 0) -> None:
        self._counts = np.full(num_users, already, np.int64)
        self._at_most = at_most

    def take(self, rows: NDArray[np.int64]) -> None:
        """Count a release of each row before it is drawn.

        Raises:
            PrivacyError: a sequence would be released more than E times, or twice at
                once.
        """
        np.add.at(self._counts, rows, 1)
        if (self._counts[rows] > self._at_most).any() or len(np.unique(rows)) < len(
            rows
        ):
            raise PrivacyError(
                f"a sequence must be released at most {self._at_most} times, as the "
                "plan was accounted for. Plan more participations."
            )


def train_forward(
    user: UserPart,
    server: ServerPart,
    data: UserSequences,
    *,
    plan: ForwardPlan,
    optimizer: torch.optim.Optimizer,
    charge: Callable[[int], None],
    stream: NormalStream,
    order: np.random.Generator,
    first_participation: int = 0,
    on_step: Callable[[ForwardProgress], None] | None = None,
    on_participation: Callable[[int], None] | None = None,
) -> None:
    """Train the server's part in place.

    **Formal guarantee** (local, replace one sequence): the server's view of a sequence,
    its label apart, is dominated by `plan.dp_event(E)`; see `ForwardPlan`. `charge(j)`
    has returned before any noise of participation j is drawn.

    **Privacy**: `data.tokens` and `data.mask` never leave the user; `data.labels` do.

    Args:
        user: frozen.
        server: trained.
        data: as many sequences as the plan says.
        plan: clip and noise.
        optimizer: of the server's parameters.
        charge: called with the number of each participation before its noise.
        stream: secret normal numbers, fresh in every process.
        order: of the sequences; public.
        first_participation: participations that were charged before, by a process that
            was killed.
        on_step: called after every step of the server.
        on_participation: called after each participation, to store the server.

    Raises:
        DataError: the data has another number of sequences.
        PrivacyError: a sequence would be released too often.
    """
    if len(data) != plan.num_users:
        raise DataError(
            f"data must have {plan.num_users} sequences, as planned, got {len(data)}."
        )
    counts = Participations(
        len(data), at_most=plan.num_participations, already=first_participation
    )
    step, device = 0, next(server.parameters()).device
    server.train()
    for participation in range(first_participation, plan.num_participations):
        charge(participation)
        for rows in _batches(order.permutation(len(data)), plan.batch_size):
            counts.take(rows)
            sent = release(
                user(data.tokens[rows].to(device), data.mask[rows].to(device)),
                max_norm=plan.max_norm,
                noise_stddev=plan.noise_stddev(step=participation),
                stream=stream,
            )
            labels = data.labels[rows].to(device)
            loss = functional.cross_entropy(server(sent), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            if on_step is not None:
                on_step(
                    ForwardProgress(
                        participation=participation, step=step, loss=loss.item()
                    )
                )
        if on_participation is not None:
            on_participation(participation)
    server.eval()


@torch.no_grad()
def accuracy(
    user: UserPart,
    server: ServerPart,
    data: UserSequences,
    *,
    max_norm: float,
    noise_stddev: float = 0.0,
    stream: NormalStream | None = None,
    batch_size: int = 256,
) -> float:
    """Return the share of sequences whose class is found.

    Args:
        user: frozen.
        server: trained.
        data: held out.
        max_norm: C.
        noise_stddev: of releases at inference; 0 is a model that its owner runs whole.
        stream: needed with noise.
        batch_size: sequences at once.

    Privacy:
        A function of private data outside any epsilon.
    """
    server.eval()
    hits, device = 0, next(server.parameters()).device
    for rows in _batches(np.arange(len(data)), batch_size):
        hidden = user(data.tokens[rows].to(device), data.mask[rows].to(device))
        if stream is None:
            sent = normalize(hidden, max_norm=max_norm)
        else:
            sent = release(
                hidden, max_norm=max_norm, noise_stddev=noise_stddev, stream=stream
            )
        found = server(sent).argmax(1).cpu()
        hits += int((found == data.labels[rows]).sum())
    return hits / len(data)


def _batches(rows: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
    """Cut rows into batches."""
    for start in range(0, len(rows), batch_size):
        yield rows[start : start + batch_size]
