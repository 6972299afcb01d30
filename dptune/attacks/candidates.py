"""Tokens of every candidate secret in its context, as arrays.

Three ways, the fastest that is exact for the tokenizer at hand:

1. one token per symbol (no vocabulary entry spans two symbols): a table of
   position x symbol, checked against the tokenizer on a sample;
2. tokenize only the last word of the context, checked against whole records on a
   sample;
3. tokenize every whole record.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerFast

from dptune.attacks.canaries import CanarySpec
from dptune.errors import ModelError

MAX_CANDIDATES = 20_000_000
"""Largest space that is enumerated: about 1 GB of tokens."""

_CHUNK = 10_000
_SAMPLE = 2_000
_BYTE_FALLBACK = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Token ids of every candidate's whole record, and where they differ.

    ```
    my access code| is 4|1|7.| thanks
    <- shared ---> <- differs -> <- shared
    ```

    A secret changes more than the tokens that overlap it: one before may join its first
    symbol, one behind its last.

    Args:
        tokens: those behind `head`, padded with -1.
        num_tokens: of each record, its head included, as in the columns that follow.
        first: column of the first token that overlaps the secret.
        last: one past the column of the last token that overlaps it.
        head: tokens that are known to open every record, held once.
    """

    tokens: NDArray[np.int32]  # (candidates, columns)
    num_tokens: NDArray[np.int32]  # (candidates,)
    first: NDArray[np.int32]  # (candidates,)
    last: NDArray[np.int32]  # (candidates,)
    head: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    def records(self: Self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Tokens of some whole records, padded with -1."""
        heads = np.broadcast_to(self.head, (len(indices), len(self.head)))
        return np.concatenate([heads, self.tokens[indices]], axis=1)

    @property
    def num_shared(self: Self) -> int:
        """Leading tokens that every candidate shares, none of them of a secret."""
        limit = int(self.first.min()) - len(self.head)
        same = (self.tokens[:, :limit] == self.tokens[0, :limit]).all(axis=0)
        return len(self.head) + int(limit if same.all() else np.argmin(same))

    @property
    def end(self: Self) -> NDArray[np.int32]:
        """One past the last token that differs between candidates. Shape (candidates,).

        What comes behind is the same in all, none of it of a secret.
        """
        rows, num = np.arange(len(self.tokens)), 0
        limit = int((self.num_tokens - self.last).min())
        while num < limit:
            column = self.tokens[rows, self.num_tokens - len(self.head) - num - 1]
            if (column != column[0]).any():
                break
            num += 1
        return self.num_tokens - np.int32(num)


def plain_tokenizer(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """Copy the Rust tokenizer without padding or truncation, which would alter ids.

    Raises:
        ModelError: the tokenizer is not a fast one.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            "tokenizer must be a fast one, because exposure needs character offsets. "
            "Load it with AutoTokenizer."
        )
    plain = Tokenizer.from_str(backend.to_str())
    plain.no_padding()
    plain.no_truncation()
    return plain


def tokenize_candidates(
    spec: CanarySpec, tokenizer: Tokenizer, *, bos: int | None
) -> Candidates:
    """Tokenize the whole candidate space in context.

    Args:
        spec: template and candidate space.
        tokenizer: from `plain_tokenizer`.
        bos: token that opens a record, or None.

    Raises:
        ModelError: more than `MAX_CANDIDATES` candidates, or a candidate with no token
            of its own.
    """
    if spec.space_size > MAX_CANDIDATES:
        raise ModelError(
            f"the candidate space must be at most {MAX_CANDIDATES} for exact ranks, "
            f"got {spec.space_size}. Choose a shorter secret or digits."
        )
    sample = _sample_indices(spec)
    expected = _encode(spec, tokenizer, sample, prefix=spec.prefix)
    found = _by_symbol(spec, tokenizer, sample, expected)
    if found is None:
        found = _by_tail(spec, tokenizer, sample, expected)
    if found is None:
        found = _encode(spec, tokenizer, np.arange(spec.space_size), prefix=spec.prefix)
    return with_bos(found, bos)


def secrets_at(spec: CanarySpec, indices: NDArray[np.int64]) -> list[str]:
    """`spec.secret_at` for many indices at once."""
    symbols = np.array([ord(symbol) for symbol in spec.symbols], np.uint32)
    points = np.ascontiguousarray(symbols[_digits(spec, indices)])
    texts: list[str] = points.view(f"U{spec.length}")[:, 0].tolist()
    return texts


def _places(spec: CanarySpec) -> NDArray[np.int64]:
    """Value of each position of a secret read as a number."""
    powers = np.arange(spec.length - 1, -1, -1, dtype=np.int64)
    return np.int64(len(spec.symbols)) ** powers


def _digits(spec: CanarySpec, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Symbol numbers of each candidate."""
    return indices[:, None] // _places(spec) % len(spec.symbols)


def _sample_indices(spec: CanarySpec) -> NDArray[np.int64]:
    """Candidates to check a shortcut on: all of a small space, else a fixed spread."""
    if spec.space_size <= _SAMPLE:
        return np.arange(spec.space_size)
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, spec.space_size, _SAMPLE)
    return np.unique(np.append(drawn, (0, spec.space_size - 1)))


def longest_canary(spec: CanarySpec, tokenizer: Tokenizer, drawn: Sequence[str]) -> int:
    """Return the tokens of the longest canary, without a BOS.

    Secrets of one length have other numbers of tokens where a tokenizer joins symbols:
    those that were drawn are counted, and a spread of all candidates.

    Args:
        spec: template and candidate space.
        tokenizer: from `plain_tokenizer`.
        drawn: secrets that a model must be able to read.
    """
    secrets = [*drawn, *secrets_at(spec, _sample_indices(spec))]
    records = [spec.record(secret) for secret in secrets]
    encoded = tokenizer.encode_batch(records, add_special_tokens=False)
    return max(len(one.ids) for one in encoded)


def _encode(
    spec: CanarySpec, tokenizer: Tokenizer, indices: NDArray[np.int64], *, prefix: str
) -> Candidates:
    """Tokenize `prefix + secret + suffix` for the given candidates."""
    chunks = (  # one after the other: a million strings take 60 MB
        secrets_at(spec, indices[start : start + _CHUNK])
        for start in range(0, len(indices), _CHUNK)
    )
    return _join([encode_secrets(spec, tokenizer, c, prefix=prefix) for c in chunks])


def encode_secrets(
    spec: CanarySpec,
    tokenizer: Tokenizer,
    drawn: Sequence[str],
    *,
    prefix: str,
    tail: int = 0,
) -> Candidates:
    """Tokenize `prefix + secret + suffix` for some candidates of any space.

    Args:
        spec: template and candidate space.
        tokenizer: from `plain_tokenizer`.
        drawn: candidates.
        prefix: text before the secret.
        tail: code points of the suffix that count as the secret's for `last`.

    Raises:
        ModelError: a candidate has no token of its own.
    """
    texts = [prefix + secret + spec.suffix for secret in drawn]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    return _to_arrays(encodings, start=len(prefix), length=spec.length + tail)


def refuse_alike(spec: CanarySpec, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer that reads two symbols of a secret alike.

    Among candidates of the same tokens a canary has a place by chance: one that is
    known by heart would rank as if nobody had ever seen it. Secrets that differ in one
    symbol are compared, at every place, or at the last one of a large alphabet; a trie
    compares them all.

    Raises:
        ModelError: two have the same tokens.
    """
    places = _places(spec)
    if len(spec.symbols) * spec.length > _SAMPLE:
        places = places[-1:]
    drawn = np.unique((np.arange(len(spec.symbols))[:, None] * places).ravel())
    found = _encode(spec, tokenizer, drawn, prefix=spec.prefix)
    if len(np.unique(found.tokens, axis=0)) < len(drawn):
        raise alike()


def alike() -> ModelError:
    """Say that a tokenizer does not tell candidates apart."""
    return ModelError(
        "the tokenizer must tell all candidates apart, but reads some of them alike: "
        "no rank says what a model knows. Choose an alphabet that it knows."
    )


def _join(parts: Sequence[Candidates]) -> Candidates:
    """Put candidates one below the other."""
    width = max(part.tokens.shape[1] for part in parts)
    tokens = [_pad(part.tokens, width) for part in parts]
    return Candidates(
        tokens=np.concatenate(tokens),
        num_tokens=np.concatenate([part.num_tokens for part in parts]),
        first=np.concatenate([part.first for part in parts]),
        last=np.concatenate([part.last for part in parts]),
    )


def _pad(tokens: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    """Widen with -1."""
    missing = width - tokens.shape[1]
    return np.pad(tokens, ((0, 0), (0, missing)), constant_values=-1)


def _to_arrays(encodings: list[Encoding], *, start: int, length: int) -> Candidates:
    """Ids and the range of tokens that overlap the secret."""
    widths = np.fromiter((len(e.ids) for e in encodings), np.int64, len(encodings))
    width = int(widths.max(initial=0))
    inside = np.arange(width) < widths[:, None]
    tokens = np.full((len(encodings), width), -1, np.int32)
    tokens[inside] = np.concatenate([e.ids for e in encodings])
    spans = np.zeros((len(encodings), width, 2), np.int32)
    spans[inside] = np.concatenate(
        [np.asarray(e.offsets, np.int32).reshape(-1, 2) for e in encodings]
    )
    lo, hi = spans[..., 0], spans[..., 1]
    own = inside & (hi > lo) & (hi > start) & (lo < start + length)
    if not own.any(axis=1).all():
        raise ModelError(
            "the tokenizer drops whole candidates, so they cannot be ranked. Choose "
            "an alphabet that it knows."
        )
    return Candidates(
        tokens=tokens,
        num_tokens=widths.astype(np.int32),
        first=np.argmax(own, axis=1).astype(np.int32),
        last=(width - np.argmax(own[:, ::-1], axis=1)).astype(np.int32),
    )


def _by_symbol(
    spec: CanarySpec,
    tokenizer: Tokenizer,
    sample: NDArray[np.int64],
    expected: Candidates,
) -> Candidates | None:
    """A table of one token per symbol, or None if the tokenizer merges symbols."""
    if _merges_symbols(tokenizer, spec.symbols):
        return None
    first, last = int(expected.first[0]), int(expected.last[0])
    base, length = len(spec.symbols), spec.length
    if last - first != length:
        return None
    probes = (np.arange(base)[:, None] * _places(spec)).ravel()  # (base * length,)
    encoded = _encode(spec, tokenizer, probes, prefix=spec.prefix)
    width = encoded.tokens.shape[1]
    if (encoded.num_tokens != width).any() or (encoded.last != last).any():
        return None
    table = encoded.tokens[:, first:last].reshape(base, length, length)
    columns = table[:, np.arange(length), np.arange(length)]  # (base, length)
    tokens = np.empty((spec.space_size, width - first), np.int32)
    tokens[:] = encoded.tokens[0, first:]
    by_symbols = tokens.reshape(*[base] * length, -1)
    for place in range(length):  # the rightmost symbol changes from row to row
        along = [base if axis == place else 1 for axis in range(length)]
        by_symbols[..., place] = columns[:, place].reshape(along)
    found = Candidates(
        tokens=tokens,
        num_tokens=np.broadcast_to(np.int32(width), spec.space_size),
        first=np.broadcast_to(np.int32(first), spec.space_size),
        last=np.broadcast_to(np.int32(last), spec.space_size),
        head=encoded.tokens[0, :first],
    )
    return found if _agrees(found, sample, expected) else None


def _merges_symbols(tokenizer: Tokenizer, symbols: str) -> bool:
    """Whether some vocabulary entry spans two symbols of a secret."""
    adjacent = re.compile(f"[{re.escape(symbols)}]{{2}}", re.IGNORECASE)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return any(
        adjacent.search(entry) and not _BYTE_FALLBACK.fullmatch(entry)
        for entry in tokenizer.get_vocab(with_added_tokens=True)
        if entry not in added
    )


def _by_tail(
    spec: CanarySpec,
    tokenizer: Tokenizer,
    sample: NDArray[np.int64],
    expected: Candidates,
) -> Candidates | None:
    """Tokenize from the last blank before the secret, or None if that alters tokens."""
    blank = spec.prefix.rfind(" ")
    if blank <= 0 or spec.space_size <= len(sample):
        return None
    tail = spec.prefix[blank:]
    head = _head(_encode(spec, tokenizer, sample, prefix=tail), expected)
    if head is None:
        return None
    every = np.arange(spec.space_size)
    part = _encode(spec, tokenizer, every, prefix=tail)
    return _prepend(part, head)


def _head(part: Candidates, expected: Candidates) -> NDArray[np.int32] | None:
    """Tokens that whole records have before those of `part`, the only difference."""
    extra = int(expected.last[0] - part.last[0])
    if extra < 0:
        return None
    head = expected.tokens[0, :extra]
    found = _prepend(part, head)
    return head if _agrees(found, np.arange(len(found.last)), expected) else None


def _prepend(part: Candidates, head: NDArray[np.int32]) -> Candidates:
    """Put the same tokens before every candidate."""
    more = np.int32(len(head))
    return replace(
        part,
        num_tokens=part.num_tokens + more,
        first=part.first + more,
        last=part.last + more,
        head=np.concatenate([head, part.head]),
    )


def with_bos(candidates: Candidates, bos: int | None) -> Candidates:
    """Open every candidate with BOS if records open with it."""
    if bos is None:
        return candidates
    return _prepend(candidates, np.asarray([bos], np.int32))


def _agrees(
    found: Candidates, indices: NDArray[np.int64], expected: Candidates
) -> bool:
    """Whether the chosen rows are exactly the expected ones."""
    tokens = found.records(indices)
    width = max(tokens.shape[1], expected.tokens.shape[1])
    pairs: tuple[tuple[NDArray[Any], NDArray[Any]], ...] = (
        (_pad(tokens, width), _pad(expected.tokens, width)),
        (found.num_tokens[indices], expected.num_tokens),
        (found.first[indices], expected.first),
        (found.last[indices], expected.last),
    )
    return all(np.array_equal(left, right) for left, right in pairs)
