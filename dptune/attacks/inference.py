"""Where and how an attacked model is run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from dptune.errors import ModelError
from dptune.logits import (
    UnwrittenLogits,
    logits_at,
    unwritten_logits,
    vocabulary_size,
)
from dptune.precision import computing

_MAX_LOGITS = 1 << 25
_MAX_POSITIONS = 1 << 12
_ASSUMED_VOCABULARY = 50_257
_SAME = 1e-3
_SAME_BESIDE = 1e-4
_SAME_IN_HALF = 5e-2


KeyValues = list[tuple[Tensor, Tensor]]
OnProgress = Callable[[int, int], None]
"""Told how much of a piece of work is done, and how much there is."""
Tell = Callable[[str, int, int], None]
"""The same for many pieces of work, which it names."""


def unwatched(*_: object) -> None:
    """Tell nobody."""


def place(
    model: nn.Module, device: str | torch.device | None, *, allow_half: bool = False
) -> torch.device:
    """Check the weights' type and find, or set, the device."""
    if not (allow_half or _is_exact(model)):
        raise ModelError(
            "model weights must be float32 to rank candidates, because half precision "
            "makes many of them tie. Call model.float() on a copy."
        )
    if device is None:
        return next(model.parameters()).device
    model.to(device)
    return torch.device(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, then every module's own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def next_logits(
    model: nn.Module,
    tokens: Tensor,
    key_values: KeyValues,
    *,
    past: int,
    device: torch.device,
    rows: Tensor | None = None,
) -> tuple[Tensor, KeyValues]:
    """Logits behind the last token, and keys and values of all tokens so far.

    Where a model has none, or they do not lead to the logits of a fresh pass, all that
    is held are the tokens, and every call is such a pass: exact, and slower.

    Args:
        model: any causal language model.
        tokens: `(batch, tokens)` that follow what `key_values` holds.
        key_values: of each layer, `(batch, ...)`; empty for a fresh start.
        past: tokens that `key_values` holds.
        device: where the model is.
        rows: for each row of `tokens` the one of `key_values` that it follows; None if
            they are the same rows.

    Raises:
        ModelError: what follows a token changes its logits.
    """
    tokens = tokens.to(device)
    is_held = bool(key_values) and key_values[0][0].is_floating_point()
    if is_held or (not key_values and _leads_to_the_same(model, tokens[:1])):
        return _continued(model, tokens, key_values, past=past, rows=rows)
    if key_values:
        before = key_values[0][0][:, 0, :, 0]
        before = before if rows is None else before.index_select(0, rows)
        tokens = torch.cat([before, tokens], dim=1)
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    row = tokens.shape[1] * (vocabulary or _ASSUMED_VOCABULARY)
    parts = torch.split(tokens, max(1, _MAX_LOGITS // row))
    logits = torch.cat([_fresh(model, part)[:, -1] for part in parts])
    held = tokens[:, None, :, None]
    return logits, [(held, held)]


def _fresh(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits of a pass over whole rows, as in training."""
    mask = torch.ones_like(tokens)
    output = model(input_ids=tokens, attention_mask=mask, use_cache=False)
    logits: Tensor = output.logits.float()
    return logits


def _continued(
    model: nn.Module,
    tokens: Tensor,
    key_values: KeyValues,
    *,
    past: int,
    rows: Tensor | None = None,
) -> tuple[Tensor, KeyValues]:
    """Logits behind tokens that follow keys and values."""
    cache, (num, length) = DynamicCache(), tokens.shape
    cache.layers.extend(
        _Held(_with_room(key, rows, length), _with_room(value, rows, length), held=past)
        for key, value in key_values
    )
    positions = torch.arange(past, past + length, device=tokens.device)
    with unwritten_logits(model):
        output = model(
            input_ids=tokens,
            position_ids=positions.expand(num, length),
            past_key_values=cache,
            use_cache=True,
        )
    logits = logits_at(output.logits, slice(None), -1)
    return logits.float(), _layers(output.past_key_values)


def _leads_to_the_same(model: nn.Module, context: Tensor) -> bool:
    """Whether keys and values of a context, `(1, tokens)`, lead to a pass's logits.

    Raises:
        ModelError: what follows a token changes its logits.
    """
    tokens = context.repeat(1, 4)[:, : max(4, context.shape[1])]
    half = tokens.shape[1] // 2
    whole = check_causal(model, tokens)
    try:
        _, held = _continued(model, tokens[:, :half], [], past=0)
        logits, _ = _continued(model, tokens[:, half:], held, past=half)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 - code of models can raise anything
        return False
    return _is_same(model, logits[0], whole[-1], of=whole)


def check_causal(model: nn.Module, tokens: Tensor) -> Tensor:
    """Refuse a model that looks ahead, and return its logits of one row.

    Args:
        model: of language, in evaluation mode.
        tokens: `(1, tokens)`, at least two.

    Returns:
        `(tokens, vocabulary)`.

    Raises:
        ModelError: what follows a token changes its logits.
    """
    half = tokens.shape[1] // 2
    whole = _fresh(model, tokens)[0]
    alone = _fresh(model, tokens[:, :half])[0, -1]
    if not _is_same(model, alone, whole[half - 1], of=whole):
        raise ModelError(
            "the model must be causal to say what comes next, but what follows a token "
            "changes its logits. Use a language model, not an encoder."
        )
    return whole


def _is_same(model: nn.Module, found: Tensor, wanted: Tensor, *, of: Tensor) -> bool:
    """Whether logits agree but for rounding; NaN do."""
    share = _SAME if _is_exact(model) else _SAME_IN_HALF
    return not float((found - wanted).abs().max()) > share * float(of.abs().max())


def _is_exact(model: nn.Module) -> bool:
    """Whether a model computes in float32, whatever it holds its weights in."""
    numbers = (v for v in computing(model) if v.is_floating_point())
    return all(value.dtype.itemsize >= 4 for value in numbers)


class _Held(DynamicLayer):
    """Keys and values of one layer, with room for those of the tokens that come next.

    A layer of transformers grows by copying all that it holds: with many rows behind
    one long context that took half of the time of a forward.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor, *, held: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self._held = keys, values, held
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def get_seq_length(self) -> int:
        """Tokens that are held, without the room."""
        return self._held

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Fill the room."""
        self.keys[:, :, self._held :] = key_states
        self.values[:, :, self._held :] = value_states
        self._held = self.keys.shape[2]
        return self.keys, self.values


def _with_room(past: Tensor, rows: Tensor | None, length: int) -> Tensor:
    """Copy what is held, row by row, and leave room for `length` tokens."""
    num, heads, held, width = past.shape
    num = num if rows is None else len(rows)
    room = past.new_empty(num, heads, held + length, width)
    if rows is None:
        room[:, :, :held] = past
    else:
        torch.index_select(past, 0, rows, out=room[:, :, :held])
    return room


def _layers(cache: object) -> KeyValues:
    """Keys and values of every layer, if all have them."""
    layers = getattr(cache, "layers", None)
    if not layers or any(getattr(layer, "keys", None) is None for layer in layers):
        raise ModelError("not every layer keeps keys and values.")
    return [(layer.keys, layer.values) for layer in layers]


Floats = NDArray[np.float64]


def forwarded(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    batch_size: int,
    device: torch.device,
    on_progress: OnProgress = unwatched,
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Forward rows of similar length side by side, longest first.

    Args:
        model: a causal language model, in evaluation mode.
        sequences: token ids of each row, at least one.
        batch_size: rows forwarded at once, at most: fewer where their tokens, or their
            logits, are too many, and one where company moves them.
        device: where the model is.
        on_progress: told how many rows were forwarded.

    Yields:
        Row numbers, their tokens filled up with zeros, `(rows, tokens)`, and logits
        `(rows, tokens, vocabulary)`, of which some are taken by `logits_at`.
    """
    lengths = np.array([len(sequence) for sequence in sequences])

    def forward(rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        tokens, mask = (t.to(device) for t in _padded([sequences[r] for r in rows]))
        # a model counts positions as in training: RoBERTa's kin do not from 0
        with unwritten_logits(model):
            output = model(input_ids=tokens, attention_mask=mask, use_cache=False)
        return tokens, output.logits

    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    room = _MAX_LOGITS // (vocabulary or _ASSUMED_VOCABULARY)
    if room < batch_size * lengths.max(initial=0):
        _, logits = forward([int(lengths.argmin())])
        room = max(room, _MAX_POSITIONS * isinstance(logits, UnwrittenLogits))
    parts = list(_batches(lengths, batch_size, room))
    done = 0
    for rows in apart(model, parts, lengths, lambda rows: forward(rows)[1]):
        yield rows, *forward(rows)
        done += len(rows)
        on_progress(done, len(lengths))


def positions_at_once(logits: Tensor) -> int:
    """Return of how many positions logits are written out at once, as memory allows."""
    return max(1, _MAX_LOGITS // vocabulary_size(logits))


def _batches(
    lengths: NDArray[np.int64], batch_size: int, room: int
) -> Iterator[list[int]]:
    """Rows of similar length, longest first, of so many positions at most."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = min(batch_size, max(1, room // int(lengths[order[start]])))
        yield order[start : start + size].tolist()
        start += size


def apart(
    model: nn.Module,
    parts: Sequence[list[int]],
    lengths: NDArray[np.int64],
    logits: Callable[[Sequence[int]], Tensor],
) -> Sequence[list[int]]:
    """Take rows one by one where what pads them moves their logits.

    Some models read padding, or are made for it on the left: a record would be measured
    otherwise beside others than alone. Asked of the shortest and the longest row of the
    batch that has most of it.

    Args:
        model: whose weights say how exact it is.
        parts: row numbers of each batch.
        lengths: of all rows.
        logits: forwards rows side by side, `(rows, ...)`.
    """

    def ends(rows: list[int]) -> list[int]:
        return [f(rows, key=lengths.__getitem__) for f in (min, max)]

    pairs = [ends(rows) for rows in parts]
    pair = max(pairs, key=lambda ends: np.ptp(lengths[ends]), default=[])
    if not pair or np.ptp(lengths[pair]) == 0:
        return parts
    alone = logits_at(logits(pair[:1]), 0).float()
    beside = logits_at(logits(pair), 0)[: len(alone)].float()
    largest = alone[alone.isfinite()].abs().max() if alone.isfinite().any() else 0.0
    allowed = float(largest) * (_SAME_BESIDE if _is_exact(model) else _SAME_IN_HALF)
    if torch.allclose(alone, beside, rtol=0, atol=allowed, equal_nan=True):
        return parts
    return [[row] for rows in parts for row in rows]


def _padded(batch: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens filled up with zeros, and where they are not."""
    width = max(len(sequence) for sequence in batch)
    tokens = torch.zeros((len(batch), width), dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, sequence in enumerate(batch):
        tokens[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        mask[row, : len(sequence)] = 1
    return tokens, mask
