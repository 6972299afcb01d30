"""Membership and utility of a sequence classifier, from the loss of each class.

| name | score of a record with class y, higher is a member |
|---|---|
| `loss` | log p_y (Yeom et al. 2018) |
| `calibrated_loss` | log p_y minus that of the base model (Watson et al. 2022) |
| `margin` | log p_y - log(1 - p_y) (Carlini et al. 2022, LiRA, equation 2) |
| `modified_entropy` | - Mentr(p, y) (Song, Mittal 2021, equation 8) |
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dptune.attacks.inference import (
    OnProgress,
    Tell,
    apart,
    evaluating,
    place,
    unwatched,
)
from dptune.attacks.roc import RocSettings, blind_signal, membership_signal
from dptune.attacks.shadow_models import Attacked, Course, Opponent, attack_with_shadows
from dptune.errors import DataError
from dptune.results import Interval, MembershipReport, UtilityReport
from dptune.statistics import clopper_pearson, unit_numbers

Floats = NDArray[np.float64]

_CONFIDENCE = 0.95


class TrainClassifier(Protocol):
    """Trains a copy of the base; of the workflow, which knows an engine."""

    def __call__(
        self: Self,
        number: int,
        sequences: Sequence[Sequence[int]],
        labels: Sequence[int],
        *,
        until: float,
    ) -> tuple[nn.Module, Course]:
        """Train shadow `number` until its records have this mean loss, if ever."""
        ...


@dataclass(frozen=True, kw_only=True)
class LabelledSequences:
    """Records of a classifier. Private.

    Args:
        tokens: of each record, as in training.
        labels: its class, from 0.
        texts: its text, for the blind baseline.
    """

    tokens: Sequence[Sequence[int]] = field(repr=False)
    labels: Sequence[int] = field(repr=False)
    texts: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Refuse columns of unequal length."""
        if len(self.tokens) != len(self.labels):
            raise DataError(
                f"every record needs a label, got {len(self.labels)} labels for "
                f"{len(self.tokens)} records."
            )


@torch.inference_mode()
def class_log_probs(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    batch_size: int = 32,
    device: str | torch.device | None = None,
    on_progress: OnProgress = unwatched,
) -> Floats:
    """Log probability of every class for every record.

    Args:
        model: a sequence classifier of transformers.
        sequences: token ids, at least one each.
        batch_size: records forwarded at once.
        device: where to run; None is where the model is.
        on_progress: told how many records were forwarded.

    Returns:
        Nats, `(records, classes)`.

    Raises:
        DataError: there is no record, or one has no token.
    """
    if not sequences or min(map(len, sequences)) == 0:
        raise DataError("a classifier needs records of at least one token.")
    target = place(model, device, allow_half=True)
    lengths = np.array([len(sequence) for sequence in sequences])
    order = np.argsort(-lengths, kind="stable").tolist()
    starts = range(0, len(order), batch_size)
    parts = [order[start : start + batch_size] for start in starts]
    rows: dict[int, Tensor] = {}

    def forward(part: Sequence[int]) -> Tensor:
        return _logits(model, [sequences[i] for i in part], device=target)

    with evaluating(model):
        for part in apart(model, parts, lengths, forward):
            logits = forward(part)
            found = torch.log_softmax(logits.double(), dim=-1).cpu()
            rows |= zip(part, found, strict=True)
            on_progress(len(rows), len(order))
    return torch.stack([rows[i] for i in range(len(rows))]).numpy()


def _logits(
    model: nn.Module, batch: Sequence[Sequence[int]], *, device: torch.device
) -> Tensor:
    """Forward one batch, padded on the right with tokens that are not attended to."""
    width = max(map(len, batch))
    # Decoders find their last token by what they pad with.
    padding = int(getattr(getattr(model, "config", None), "pad_token_id", None) or 0)
    tokens = torch.full((len(batch), width), padding, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, sequence in enumerate(batch):
        tokens[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        mask[row, : len(sequence)] = 1
    found: Tensor = model(
        input_ids=tokens.to(device), attention_mask=mask.to(device)
    ).logits
    return found


def classification_membership(
    members: LabelledSequences,
    non_members: LabelledSequences,
    *,
    model: nn.Module,
    base_model: nn.Module,
    model_digest: str,
    base_model_digest: str,
    batch_size: int = 32,
    device: str | None = None,
    settings: RocSettings | None = None,
    train_shadow: TrainClassifier | None = None,
    num_shadows: int = 0,
    opponent: Opponent | None = None,
    tell: Tell = unwatched,
) -> MembershipReport:
    """Attack a classifier by every attack of the table and by shadow models.

    Args:
        members: records that were trained on.
        non_members: of the same law that were not.
        model: the fine-tuned classifier.
        base_model: before fine-tuning; it calibrates the loss.
        model_digest: of the model's weights.
        base_model_digest: of the base model's weights.
        batch_size: records forwarded at once.
        device: where to run; None is where each model is.
        settings: of the curves; the defaults of `RocSettings`.
        train_shadow: trains shadows, one at a time; with None, the attacks of
            `shadow_scores` are left out.
        num_shadows: how many, as `draw_halves` asks for.
        opponent: of another model of this base, these records and these settings.
        tell: told how many records each model has forwarded.

    Raises:
        DataError: a group is empty, or a loss is NaN.

    Privacy:
        A function of private data outside any epsilon, shadows included.
    """
    settings = settings or RocSettings()
    tokens = [*members.tokens, *non_members.tokens]
    labels = np.array([*members.labels, *non_members.labels])

    def log_probs(one: nn.Module, name: str) -> Floats:
        return class_log_probs(
            one,
            tokens,
            batch_size=batch_size,
            device=device,
            on_progress=partial(tell, f"losses of attacked records, {name}"),
        )

    opponent = opponent or Opponent()
    if opponent.base is None:
        opponent.base = log_probs(base_model, "base")
    base = opponent.base

    def attacked(one: nn.Module, name: str) -> Attacked:
        scores = class_scores(log_probs(one, name), base, labels)
        return Attacked(statistic=scores["margin"], scores=scores)

    found = attacked(model, "model")
    scores, shadows = dict(found.scores), None
    if train_shadow is not None:
        until = -float(found.scores["loss"][: len(members.tokens)].mean())
        scores, shadows = attack_with_shadows(
            found,
            train=lambda k, rows: train_shadow(
                k, [tokens[i] for i in rows], labels[rows].tolist(), until=until
            ),
            attack=attacked,
            until=until,
            opponent=opponent,
            num_members=len(members.tokens),
            num_records=len(tokens),
            num_shadows=num_shadows,
            seed=settings.seed,
        )
    count = len(members.tokens)
    together = replace(settings, num_attacks=len(scores))
    return MembershipReport(
        model_digest=model_digest,
        base_model_digest=base_model_digest,
        num_members=count,
        num_non_members=len(tokens) - count,
        signals=tuple(
            membership_signal(name, values[:count], values[count:], settings=together)
            for name, values in scores.items()
        ),
        blind=blind_signal(members.texts, non_members.texts, settings=settings),
        shadows=shadows,
    )


def class_scores(
    log_probs: Floats, base_log_probs: Floats, labels: NDArray[np.int64]
) -> dict[str, Floats]:
    """Score every record by every attack of the table; higher means member.

    Args:
        log_probs: `(records, classes)`, nats.
        base_log_probs: of the same records under the base model.
        labels: `(records,)`.
    """
    rows = np.arange(len(labels))
    own, base = log_probs[rows, labels], base_log_probs[rows, labels]
    scores: Mapping[str, Callable[[], Floats]] = {
        "loss": lambda: own,
        "calibrated_loss": lambda: own - base,
        "margin": lambda: own - _others(log_probs, labels),
        "modified_entropy": lambda: -_modified_entropy(log_probs, labels),
    }
    return {name: score() for name, score in scores.items()}


def _others(log_probs: Floats, labels: NDArray[np.int64]) -> Floats:
    """Log of the probability of all classes but the true one, exact near 0."""
    masked = log_probs.copy()
    masked[np.arange(len(labels)), labels] = -np.inf
    return np.asarray(np.logaddexp.reduce(masked, axis=1), np.float64)


def _modified_entropy(log_probs: Floats, labels: NDArray[np.int64]) -> Floats:
    """-(1 - p_y) log p_y - sum over other classes of p_i log(1 - p_i)."""
    rows = np.arange(len(labels))
    probs = np.exp(log_probs)
    rest = np.log1p(-np.minimum(probs, 1 - 1e-12))
    others = probs * rest
    others[rows, labels] = 0.0
    own = -np.expm1(log_probs[rows, labels]) * log_probs[rows, labels]
    return np.asarray(-own - others.sum(1), np.float64)


def classification_utility(
    records: LabelledSequences,
    *,
    model: nn.Module,
    base_model: nn.Module,
    model_digest: str,
    corpus_fingerprint: str,
    split: str,
    majority_class: int,
    units: Sequence[Hashable] = (),
    batch_size: int = 32,
    device: str | None = None,
) -> UtilityReport:
    """Accuracy and loss on held-out records, beside the base and a constant guess.

    Args:
        records: held out from training.
        model: the fine-tuned classifier.
        base_model: before fine-tuning.
        model_digest: of the model's weights.
        corpus_fingerprint: of the corpus that the records belong to.
        split: the records' split.
        majority_class: most frequent class of the *training* split; its share here is
            what a model without any input reaches.
        units: whose each record is; by default each of its own.
        batch_size: records forwarded at once.
        device: where to run; None is where each model is.

    Returns:
        A record counts as one token, its class: `nll_per_token` is nats per record.

    Privacy:
        Held-out records are private too: a function of private data outside any
        epsilon.
    """
    labels = np.array(records.labels)
    found, base = (
        class_log_probs(one, records.tokens, batch_size=batch_size, device=device)
        for one in (model, base_model)
    )
    losses, base_losses = (-x[np.arange(len(labels)), labels] for x in (found, base))
    hits = int((found.argmax(1) == labels).sum())
    low, high = clopper_pearson(hits, len(labels), confidence=_CONFIDENCE)
    return UtilityReport(
        model_digest=model_digest,
        corpus_fingerprint=corpus_fingerprint,
        split=split,
        num_records=len(labels),
        num_tokens=len(labels),
        nll_per_token=sum(losses.tolist()) / len(labels),
        perplexity=math.exp(min(700.0, losses.mean())),
        base_perplexity=math.exp(min(700.0, base_losses.mean())),
        record_nll=tuple(losses.tolist()),
        record_tokens=(1,) * len(labels),
        accuracy=hits / len(labels),
        accuracy_interval=Interval(low=low, high=high, confidence=_CONFIDENCE),
        base_accuracy=float((base.argmax(1) == labels).mean()),
        majority_accuracy=float((labels == majority_class).mean()),
        base_record_nll=tuple(base_losses.tolist()),
        record_units=unit_numbers(units),
    )
