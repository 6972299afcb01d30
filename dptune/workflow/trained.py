"""Which canaries a stage trains on: by tokens that have a loss, not by the corpus."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from dptune.attacks.canaries import CanarySet
from dptune.attacks.candidates import (
    encode_secrets,
    longest_canary,
    plain_tokenizer,
    refuse_alike,
)
from dptune.dpsgd.dataset import FloatArray, IntArray, UnitDataset
from dptune.errors import ConfigError, DataError, Problem
from dptune.recipes import View
from dptune.results import TrainedCanaries
from dptune.stages import StagePlan
from dptune.workflow.chats import written_canaries

_HOST = "x\n"
"""Stands for the host's text that an appended canary follows on a line of its own."""
_SAMPLE = 100


def trained_canaries(
    data: UnitDataset,
    canaries: CanarySet,
    tokenizer: PreTrainedTokenizerFast,
    *,
    stage: str,
) -> TrainedCanaries:
    """Count the copies of every planted canary that a stage trains on.

    A token of a secret is trained on where it has a loss behind the tokens that all
    candidates share and the secret's own tokens before it. Of the tokens from the first
    to the last that differs between candidates, the one that was trained on least often
    says how many copies count: a part of a unit in tiers may have the loss of some, and
    another part that of the rest. Redaction, cutting, the bound of sequences per unit,
    weights and tiers have been applied to what is counted in.

    **Privacy**: counts of planted records, which do not depend on others. A record that
    spells the same secret counts for a copy, and is one.

    Args:
        data: what the stage trains on.
        canaries: what was planted.
        tokenizer: that the data were encoded with.
        stage: its name.
    """
    if not canaries.planted:
        return TrainedCanaries(stage=stage, copies=())
    context, paths = _spelt(canaries, tokenizer)
    beginning: dict[int, list[int]] = {}
    for number, path in enumerate(paths):
        beginning.setdefault(int(path[0]), []).append(number)
    times = [np.zeros(len(path), np.int64) for path in paths]
    for tokens, weights in _rows(data):
        seen: dict[int, NDArray[np.bool_]] = {}  # a sequence counts once
        for start in _behind(tokens, context):
            for number in beginning.get(int(tokens[start]), ()):
                path = paths[number]
                row = tokens[start : start + len(path)]
                whole = np.logical_and.accumulate(row == path[: len(row)])
                own = seen.setdefault(number, np.zeros(len(path), np.bool_))
                own[: len(row)] |= whole & (weights[start : start + len(row)] > 0)
        for number, own in seen.items():
            times[number] += own
    most = canaries.spec.insertions
    return TrainedCanaries(
        stage=stage, copies=tuple(min(int(n.min()), most) for n in times)
    )


def opens_with_bos(
    data: UnitDataset, canaries: CanarySet, tokenizer: PreTrainedTokenizerFast
) -> bool:
    """Whether canary records open with the tokenizer's BOS: they are ranked so.

    Args:
        data: what was trained on.
        canaries: what was planted, as records of their own.
        tokenizer: that the data were encoded with.

    Raises:
        DataError: no canary is a record of its own, as the tokenizer encodes it: behind
            other tokens than those that it was trained behind, its rank means nothing.
    """
    bos = written_canaries(canaries, tokenizer).bos
    if not canaries.planted:
        return bos is not None
    context, paths = _spelt(canaries, tokenizer)
    wanted = [[*context.tolist(), *path.tolist()] for path in paths]
    for tokens, _ in _rows(data):
        row = tokens.tolist()
        for opening in ([] if bos is None else [bos], []):
            if any(row[: len(opening) + len(one)] == opening + one for one in wanted):
                return bool(opening)
    raise DataError(
        "canaries must be rows of their own, tokenized as the tokenizer does, got none "
        "in train_dataset. Add the text of each of "
        "[drawn.spec.record(s) for s in drawn.planted] as a row, before tokenizing."
    )


def refuse_untrained(
    found: TrainedCanaries, plan: StagePlan, *, max_tokens: int
) -> None:
    """Refuse a stage that sees the original text, and none of the planted secrets.

    Its canaries could not show what it memorizes; nothing was charged yet.

    Raises:
        ConfigError: no copy of any canary is whole in what the stage trains on.
    """
    settings = plan.settings
    sees_all = settings.view is View.ORIGINAL and settings.screened is None
    if not found.copies or any(found.copies) or not sees_all:
        return
    raise ConfigError(
        [
            Problem(
                path="canaries",
                message="must be trained on, but the whole secret of none of "
                f"{len(found.copies)} reaches a loss of stage {found.stage}, whose "
                f"sequences have {max_tokens} tokens.",
                next_step="Raise model.max_tokens or model.max_sequences_per_unit, "
                "shorten canaries.template, or plant own records.",
            )
        ]
    )


def refuse_beyond_positions(
    canaries: CanarySet, tokenizer: PreTrainedTokenizerFast, *, positions: int | None
) -> None:
    """Refuse canaries that the model cannot read whole: none could be ranked.

    Args:
        canaries: what was planted.
        tokenizer: of the model.
        positions: how many tokens the model can read; None if there is no limit.

    Raises:
        ConfigError: one is longer, with its BOS; nothing was charged yet.
    """
    if positions is None or not canaries.planted:
        return
    asked = written_canaries(canaries, tokenizer)
    spec, plain = asked.canaries.spec, plain_tokenizer(asked.tokenizer)
    longest = longest_canary(spec, plain, canaries.planted)
    longest += asked.bos is not None
    if longest > positions:
        raise ConfigError.at(
            "canaries.template",
            f"must leave a canary within the {positions} positions of the model, got "
            f"{longest} tokens.",
            "Shorten it.",
        )


def most_trained(stages: Sequence[TrainedCanaries], *, num: int) -> tuple[int, ...]:
    """Return the copies of each of `num` canaries in the stage that has the most."""
    counts = [stage.copies for stage in stages if len(stage.copies) == num]
    return tuple(max(of_one, default=0) for of_one in zip(*counts, strict=True))


def _rows(data: UnitDataset) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yield the sequences of all units, and of what joins without noise."""
    for tokens, weights in zip(data.sequences, data.loss_weights, strict=True):
        yield tokens.astype(np.int64, copy=False), weights  # compared byte by byte
    if data.unnoised is not None:
        yield from _rows(data.unnoised)


def _spelt(
    canaries: CanarySet, tokenizer: PreTrainedTokenizerFast
) -> tuple[IntArray, list[IntArray]]:
    """Tokens of the template up to the first that differs, and those of each secret."""
    asked = written_canaries(canaries, tokenizer)
    spec, plain = asked.canaries.spec, plain_tokenizer(asked.tokenizer)
    refuse_alike(spec, plain)
    lead = _HOST if spec.placement == "appended" else ""
    step = max(1, (spec.space_size - 1) // (_SAMPLE - 1))
    some = [spec.secret_at(i) for i in range(0, spec.space_size, step)]
    encoded = encode_secrets(
        spec, plain, [*canaries.planted, *some], prefix=lead + spec.prefix
    )
    text = lead + spec.record(canaries.planted[0])
    offsets = plain.encode(text, add_special_tokens=False).offsets
    shared, ends = encoded.num_shared, encoded.end
    opening = sum(low < len(lead) for low, _ in offsets[:shared])
    rows = encoded.tokens[: len(canaries.planted)]
    return rows[0, opening:shared].astype(np.int64), [
        row[shared:end].astype(np.int64) for row, end in zip(rows, ends, strict=False)
    ]


def _behind(tokens: IntArray, context: IntArray) -> Iterator[int]:
    """Yield every place of a sequence that comes right behind the context."""
    if not len(context):
        yield from range(len(tokens))
    elif len(context) < len(tokens) and context.tobytes() in tokens.tobytes():
        windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], len(context))
        for place in np.flatnonzero((windows == context).all(axis=1)):
            yield int(place) + len(context)
