"""Exact exposure: the rank of a canary among all candidates, from one pass.

Exposure is `log2 |R| - log2 rank` (Carlini et al. 2019, equation 2). The score of a
candidate is the negative log likelihood, in nats, of its record from the first to the
last token that differs between candidates: their log-perplexity (definition 2 there),
less what all share before, and without what all share behind the last difference, which
would take a forward of every candidate in the place of one in ten. Tokens that overlap
the secret are too few: where one before depends on it, ranks differ by up to 8 bits.

Where candidates tie, the canary takes a place among them that a hash of the set's nonce
draws, whatever the model. The rank of a canary that the model never saw is then exactly
uniform; were it the first of them, ties would pass for a leak.

Every internal node of the candidates' trie is forwarded once, as one token with the
keys and values of its ancestors; planted and held-out canaries are read off the same
scores.
"""

import hmac
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dptune.attacks.canaries import CanarySet
from dptune.attacks.inference import (
    KeyValues,
    OnProgress,
    evaluating,
    next_logits,
    place,
    unwatched,
)
from dptune.attacks.trie import CandidateTrie
from dptune.errors import ModelError
from dptune.results import CanaryExposure, ExposureReport

Scoring = Literal["sum", "mean"]

SCORED = "tokens from the first to the last that differs between candidates"
TIES = "a place among them, drawn by the set's nonce"

_CACHE_ROWS = 4
_MAX_LOGITS = 1 << 23


@dataclass(frozen=True, kw_only=True)
class CandidateScores:
    """Negative log likelihood of every candidate under one model. Restricted.

    Args:
        nll: total over the tokens behind the context, nats.
        num_scored: how many there are.
        num_token_forwards: tokens that went through the model.
        trie_key: the trie that was scored.
        levels: the same of every node of the trie, by its level.
    """

    nll: NDArray[np.float64] = field(repr=False)  # (candidates,)
    num_scored: NDArray[np.uint8] = field(repr=False)  # (candidates,)
    num_token_forwards: int
    trie_key: str
    levels: tuple[NDArray[np.float64], ...] = field(default=(), repr=False)

    def by(self: Self, scoring: Scoring) -> NDArray[np.float64]:
        """Scores to rank by: the total, or the mean per token."""
        return self.nll if scoring == "sum" else self.nll / self.num_scored

    def expected_nodes(self: Self, trie: CandidateTrie, below: float) -> int:
        """Estimate from some nodes how many in all have children and a smaller loss."""
        found = 0.0
        for level, losses in zip(trie.levels, self.levels, strict=True):
            known = losses[level.internal & np.isfinite(losses)]
            found += level.internal.sum() * (known < below).mean() if len(known) else 0
        return math.ceil(found)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Ranks of all canaries under one model, and what they cost.

    Args:
        canaries: planted first, then held out.
        num_token_forwards: tokens that went through the model.
    """

    canaries: tuple[CanaryExposure, ...]
    num_token_forwards: int


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Internal nodes of one level whose parents were forwarded together."""

    depth: int
    nodes: NDArray[np.int64]  # (nodes,)
    rows: NDArray[np.int64]  # (nodes,) rows of the parents in `key_values`
    key_values: KeyValues


@torch.inference_mode()
def score_candidates(
    model: nn.Module,
    trie: CandidateTrie,
    *,
    only: NDArray[np.int64] | None = None,
    below: float = -math.inf,
    batch_size: int = 1024,
    device: str | torch.device | None = None,
    on_progress: OnProgress = unwatched,
) -> CandidateScores:
    """Score every candidate of the trie, or some of them, exactly, in fp32.

    Args:
        model: any causal language model of transformers, with or without LoRA, its
            weights in float32; slower without a key-value cache.
        trie: candidates tokenized for this model's tokenizer.
        only: candidates that are scored; None for all.
        below: with `only`, all that have a smaller loss than this are scored too.
        batch_size: nodes forwarded at once, at most: on a CPU fewer, where the logits
            of a large vocabulary would need new pages of memory every time.
        device: where to run; None is where the model is.
        on_progress: told how many nodes were forwarded.

    Returns:
        Scores of all candidates, in candidate order; infinite for those that nobody
        asked for, but for some.

    Raises:
        ModelError: the weights are not float32, the model is not causal, the
            tokenizer has more tokens than the model, or a score is NaN.

    Privacy:
        The scores are private: they are a function of the model, and the candidates
        with the smallest ones may be training data.
    """
    target = place(model, device)
    with evaluating(model):
        walk = _Walk(model=model, trie=trie, device=target, only=only, below=below)
        walk.run(min(batch_size, _room(model, target)), on_progress)
    nll = np.empty(len(trie.leaf_node))
    for depth, scores in enumerate(walk.nll):
        here = trie.leaf_level == depth
        nll[here] = scores[trie.leaf_node[here]]
    if np.isnan(nll).any():
        raise ModelError(
            "scores must be numbers, got NaN. The model's weights or activations are "
            "not finite; no exposure can be measured."
        )
    return CandidateScores(
        nll=nll,
        num_scored=trie.num_scored,
        num_token_forwards=walk.num_forwards,
        trie_key=trie.key,
        levels=tuple(walk.nll),
    )


def _room(model: nn.Module, device: torch.device) -> int:
    """Nodes whose logits the CPU's allocator hands out again without new pages."""
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None) or 1
    return max(1, (_MAX_LOGITS if device.type == "cpu" else 1 << 62) // vocabulary)


class _Walk:
    """Depth-first walk over chunks of nodes; keys and values of one path are alive."""

    def __init__(
        self,
        *,
        model: nn.Module,
        trie: CandidateTrie,
        device: torch.device,
        only: NDArray[np.int64] | None,
        below: float,
    ) -> None:
        self.model, self.trie, self.device = model, trie, device
        self.below, self.wanted = below, nodes_to(trie, only)
        self.num_forwards = 0
        # a node that is left out by mistake is no number, and refused
        unknown = np.nan if only is None else np.inf
        self.nll = [np.full(len(level.token), unknown) for level in trie.levels]
        parents = [1, *(len(level.token) for level in trie.levels)]
        self.first_child = [
            np.searchsorted(level.parent, np.arange(parents[depth] + 1))
            for depth, level in enumerate(trie.levels)
        ]

    def run(self, batch_size: int, on_progress: OnProgress) -> None:
        """Forward the context, then every internal node."""
        num_nodes = sum(int(wanted.sum()) for wanted in self.wanted)
        done = 0
        root = torch.from_numpy(self.trie.context.astype(np.int64))[None]
        logits, key_values = self._forward(root, [], past=0)
        stack = self._expand(-1, np.zeros(1, np.int64), np.zeros(1), logits, key_values)
        while stack:
            work = stack.pop()
            if len(work.nodes) > batch_size:
                stack.extend(_split(work, batch_size))
                continue
            stack.extend(self._visit(work))
            done += len(work.nodes)
            on_progress(done, num_nodes)

    def _visit(self, work: _Work) -> list[_Work]:
        """Forward one chunk of nodes and score their children."""
        level = self.trie.levels[work.depth]
        token = torch.from_numpy(level.token[work.nodes].astype(np.int64))[:, None]
        length = len(self.trie.context) + work.depth
        logits, key_values = self._forward(
            token,
            work.key_values,
            past=length,
            rows=torch.from_numpy(work.rows).to(self.device),
        )
        scores = self.nll[work.depth][work.nodes]
        return self._expand(work.depth, work.nodes, scores, logits, key_values)

    def _forward(
        self,
        tokens: Tensor,
        key_values: KeyValues,
        *,
        past: int,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """Count tokens and forward them."""
        self.num_forwards += tokens.numel()
        return next_logits(
            self.model, tokens, key_values, past=past, device=self.device, rows=rows
        )

    def _expand(
        self,
        depth: int,
        nodes: NDArray[np.int64],
        scores: NDArray[np.float64],
        logits: Tensor,
        key_values: KeyValues,
    ) -> list[_Work]:
        """Score the children of `nodes`; return those that have children themselves."""
        level, first = self.trie.levels[depth + 1], self.first_child[depth + 1]
        counts = first[nodes + 1] - first[nodes]
        rows = np.repeat(np.arange(len(nodes)), counts)
        offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        children = first[nodes][rows] + offsets
        tokens = level.token[children].astype(np.int64)
        losses = _losses(logits, rows, tokens)
        self.nll[depth + 1][children] = scores[rows] + losses
        near = self.nll[depth + 1][children] < self.below
        inner = level.internal[children] & (self.wanted[depth + 1][children] | near)
        if not inner.any():
            return []
        return [
            _Work(
                depth=depth + 1,
                nodes=children[inner],
                rows=rows[inner],
                key_values=key_values,
            )
        ]


def nodes_to(
    trie: CandidateTrie, only: NDArray[np.int64] | None
) -> list[NDArray[np.bool_]]:
    """Tell the nodes with children that lead to these candidates, by level.

    Args:
        trie: of all candidates.
        only: some of them; None for all.
    """
    if only is None:
        return [level.internal for level in trie.levels]
    wanted = [np.zeros(len(level.token), np.bool_) for level in trie.levels]
    for depth in range(len(wanted) - 1, 0, -1):
        ends = trie.leaf_node[only[trie.leaf_level[only] == depth]]
        wanted[depth - 1][trie.levels[depth].parent[ends]] = True
        on_the_way = trie.levels[depth].parent[wanted[depth]]
        wanted[depth - 1][on_the_way] = True
    return wanted


def _split(work: _Work, batch_size: int) -> list[_Work]:
    """Cut work into chunks that share the parents' keys and values."""
    return [
        _Work(
            depth=work.depth,
            nodes=work.nodes[start : start + batch_size],
            rows=work.rows[start : start + batch_size],
            key_values=work.key_values,
        )
        for start in range(0, len(work.nodes), batch_size)
    ]


def _losses(
    logits: Tensor, rows: NDArray[np.int64], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Negative log likelihood of `tokens[i]` behind row `rows[i]`."""
    if tokens.max() >= logits.shape[1]:
        raise ModelError(
            f"token ids must be below the model's {logits.shape[1]} logits, got "
            f"{int(tokens.max())}. Use the model's own tokenizer."
        )
    at = torch.from_numpy(rows).to(logits.device)
    target = torch.from_numpy(tokens).to(logits.device)
    # in blocks that fit a cache: whole batches cost three passes over main memory
    blocks = [torch.logsumexp(block, dim=-1) for block in _rows(logits)]
    # rounding must not make a loss negative: walks end where none can be smaller
    losses = (torch.cat(blocks)[at] - logits[at, target]).clamp_min(0.0)
    out: NDArray[np.float64] = losses.double().cpu().numpy()
    return out


def _rows(logits: Tensor) -> Iterator[Tensor]:
    """Blocks of a few rows."""
    for start in range(0, len(logits), _CACHE_ROWS):
        yield logits[start : start + _CACHE_ROWS]


def rank_canaries(
    scores: CandidateScores,
    trie: CandidateTrie,
    canary_set: CanarySet,
    *,
    scoring: Scoring = "sum",
) -> tuple[CanaryExposure, ...]:
    """Rank every planted and held-out canary among all candidates.

    `rank = 1 + number of candidates with a strictly smaller score`, plus its place
    among those with the same one, see `tie_place`.

    Args:
        scores: of all candidates under one model.
        trie: what was scored.
        canary_set: canaries of the same template and space.
        scoring: `sum` of the nats, or `mean` per token.

    Raises:
        ModelError: scores, trie and canaries are not of one candidate space.
    """
    spec = canary_set.spec
    same = (spec.template, spec.symbols, spec.length) == (
        trie.spec.template,
        trie.spec.symbols,
        trie.spec.length,
    )
    if not same or scores.trie_key != trie.key:
        raise ModelError(
            "scores, trie and canaries must be of one template and candidate space. "
            "Build the trie from canary_set.spec."
        )
    values = scores.by(scoring)
    ordered = np.sort(values)
    groups = (("planted", canary_set.planted), ("held-out", canary_set.held_out))
    found = []
    for group, drawn in groups:
        for number, secret in enumerate(drawn):
            index = spec.index_of(secret)
            better = int(np.searchsorted(ordered, values[index], side="left"))
            tied = int(np.searchsorted(ordered, values[index], side="right")) - better
            rank = 1 + better + tie_place(canary_set, secret, tied)
            found.append(
                CanaryExposure(
                    canary_id=f"{group}-{number}",
                    planted=group == "planted",
                    insertions=spec.insertions if group == "planted" else 0,
                    rank=rank,
                    exposure=math.log2(len(values)) - math.log2(rank),
                    nll=float(scores.nll[index]),
                )
            )
    return tuple(found)


def tie_place(canary_set: CanarySet, secret: str, num_tied: int) -> int:
    """Draw the place of a canary among `num_tied` equals, itself one of them, from 0.

    The draw is a keyed hash of the secret: the same again for the same set, uniform,
    and nothing that a model depends on.
    """
    text = f"place among ties {secret}".encode()
    drawn = hmac.digest(canary_set.nonce.encode(), text, "sha256")[:8]
    return int.from_bytes(drawn) * num_tied >> 64


def measure_exposure(
    model: nn.Module,
    trie: CandidateTrie,
    canary_set: CanarySet,
    *,
    batch_size: int = 1024,
    device: str | torch.device | None = None,
    scoring: Scoring = "sum",
    on_progress: OnProgress = unwatched,
) -> Measured:
    """Score all candidates and rank all canaries under one model.

    See `score_candidates` and `rank_canaries` for arguments and errors.
    """
    scores = score_candidates(
        model, trie, batch_size=batch_size, device=device, on_progress=on_progress
    )
    return Measured(
        canaries=rank_canaries(scores, trie, canary_set, scoring=scoring),
        num_token_forwards=scores.num_token_forwards,
    )


def exposure_report(
    *,
    measured: Measured,
    base: Measured,
    canary_set: CanarySet,
    model_digest: str,
    base_model_digest: str,
    planted_found: int,
    trained: Sequence[int] | None = None,
    scoring: Scoring = "sum",
) -> ExposureReport:
    """Put exposures under a model and under its base on one report.

    Args:
        measured: exposures under the model.
        base: exposures under the model before fine-tuning.
        canary_set: what was planted.
        model_digest: digest of the model's weights.
        base_model_digest: digest of the base model's weights.
        planted_found: `planted_count` of the corpus.
        trained: copies of every planted canary that were trained on, by tokens; None
            where nobody counted.
        scoring: what ranks were made from.

    Privacy:
        A function of private data outside any epsilon: show it inside the trust
        boundary, and say so on the card.
    """
    return ExposureReport(
        model_digest=model_digest,
        base_model_digest=base_model_digest,
        canary_set_digest=canary_set.digest,
        space_size=canary_set.spec.space_size,
        scoring=scoring,
        setting=canary_set.spec.setting,
        exact=all(c.method == "exact" for c in measured.canaries),
        canaries=_with_marks(measured.canaries, canary_set, trained),
        base_canaries=_with_marks(base.canaries, canary_set, trained),
        planted_found=planted_found,
        planted_expected=canary_set.num_expected,
        num_token_forwards=measured.num_token_forwards,
        drawn=not canary_set.spec.fixed,
        appended=canary_set.spec.placement == "appended",
        scored=SCORED,
        ties=TIES,
    )


def _with_marks(
    canaries: tuple[CanaryExposure, ...],
    canary_set: CanarySet,
    trained: Sequence[int] | None,
) -> tuple[CanaryExposure, ...]:
    """Say of every planted canary whether it was marked, and how often trained on."""
    copies: Sequence[int | None] = trained or [None] * len(canary_set.planted)
    known = iter(
        {"marked": canary_set.spec.is_marked(number), "trained": count}
        for number, count in enumerate(copies)
    )
    return tuple(
        one.model_copy(update=next(known)) if one.planted else one for one in canaries
    )
