"""The trie of all candidates' tokens: every shared prefix is forwarded once.

```
context          level 0    level 1    level 2
my access code   " 4" ───── "1" ────── "7"        leaf of candidate 417
                       └─── "2" ────── "0"        leaf of candidate 420
```

Candidates are tokenized in context, prefix and suffix included. The context are the
tokens that all of them share, and a candidate ends at its last token that differs:
every node is scored.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerFast

from dptune.attacks.canaries import CanarySpec
from dptune.attacks.candidates import (
    MAX_CANDIDATES,
    Candidates,
    alike,
    plain_tokenizer,
    tokenize_candidates,
)
from dptune.errors import ArtifactError, ModelError

_FORMAT = "dptune-candidate-trie-2"
_TOKEN_BITS = 22
_ROWS_AT_ONCE = 50_000
_LEVEL_FIELDS = ("parent", "token")


@dataclass(frozen=True, kw_only=True)
class TrieLevel:
    """Nodes at one depth, ordered by parent.

    Args:
        parent: index of the parent in the level above (0 is the context at level 0).
        token: token id.
        internal: whether the node has children.
    """

    parent: NDArray[np.int32]  # (nodes,)
    token: NDArray[np.int32]  # (nodes,)
    internal: NDArray[np.bool_]  # (nodes,)


@dataclass(frozen=True, kw_only=True)
class CandidateTrie:
    """All candidates of a canary spec, as one trie of tokens.

    Args:
        spec: the law of the candidates; candidate `i` is `spec.secret_at(i)`.
        key: digest of tokenizer, template, candidate space and BOS; see `trie_key`.
        context: tokens that all candidates share, never empty.
        levels: nodes by depth.
        leaf_level: level of each candidate's last token.
        leaf_node: its index in that level.
        num_scored: tokens of each candidate behind the context.
    """

    spec: CanarySpec
    key: str
    context: NDArray[np.int32]  # (context,)
    levels: tuple[TrieLevel, ...]
    leaf_level: NDArray[np.uint8]  # (candidates,)
    leaf_node: NDArray[np.int32]  # (candidates,)
    num_scored: NDArray[np.uint8]  # (candidates,)

    @classmethod
    def build(
        cls: type[Self],
        spec: CanarySpec,
        tokenizer: PreTrainedTokenizerFast,
        *,
        bos: int | None = None,
    ) -> Self:
        """Tokenize every candidate and fold the tokens into a trie.

        Args:
            spec: template and candidate space, at most `MAX_CANDIDATES` candidates.
            tokenizer: any fast tokenizer; its padding and truncation are ignored.
            bos: token that opens a record in training; None if there is none.

        Raises:
            ModelError: the space is too large, the tokenizer drops symbols of the
                secret or reads two of them alike, or nothing stands before the secret.
        """
        plain = plain_tokenizer(tokenizer)
        key = trie_key(spec, tokenizer, bos=bos)
        trie = cls.of(spec, tokenize_candidates(spec, plain, bos=bos), key=key)
        for level in range(len(trie.levels)):
            nodes = trie.leaf_node[trie.leaf_level == level]
            if np.bincount(nodes).max(initial=0) > 1:
                raise alike()
        return trie

    @classmethod
    def of(
        cls: type[Self], spec: CanarySpec, candidates: Candidates, *, key: str
    ) -> Self:
        """Fold tokenized candidates, all of a space or some, into a trie."""
        return cls(spec=spec, key=key, **_fold(candidates))  # type: ignore[arg-type]

    def save(self: Self, path: Path) -> None:
        """Write arrays and a JSON header as safetensors. Holds no drawn secret."""
        tensors: dict[str, NDArray[np.generic]] = {
            "context": self.context,
            "leaf_level": self.leaf_level,
            "leaf_node": self.leaf_node,
            "num_scored": self.num_scored,
        }
        for depth, level in enumerate(self.levels):
            for name in _LEVEL_FIELDS:
                tensors[f"level_{depth}_{name}"] = getattr(level, name)
        header = {
            "format": _FORMAT,
            "key": self.key,
            "spec": self.spec.model_dump_json(),
            "num_levels": str(len(self.levels)),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata=header)

    @classmethod
    def load(cls: type[Self], path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ArtifactError: the file is absent or no trie of this version.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                header = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except (OSError, SafetensorError) as error:
            raise ArtifactError(
                f"{path.name} must be a safetensors file of candidate tokens. "
                "Delete it and build the trie again."
            ) from error
        if header.get("format") != _FORMAT:
            raise ArtifactError(
                f"{path.name} must have format {_FORMAT}, got "
                f"{header.get('format')}. Delete it and build the trie again."
            )
        num_levels = int(header["num_levels"])
        tables = [
            {name: arrays.pop(f"level_{depth}_{name}") for name in _LEVEL_FIELDS}
            for depth in range(num_levels)
        ]
        return cls(
            spec=CanarySpec.model_validate_json(header["spec"]),
            key=header["key"],
            levels=_with_internal(tables),
            **arrays,
        )


def load_or_build(
    spec: CanarySpec,
    tokenizer: PreTrainedTokenizerFast,
    *,
    bos: int | None,
    folder: Path | None = None,
) -> CandidateTrie:
    """Read the trie from a cache folder, or build it and leave it there.

    Args:
        spec: template and candidate space.
        tokenizer: any fast tokenizer.
        bos: token that opens a record in training; None if there is none.
        folder: where tries are kept by key; None builds without a cache.
    """
    if folder is None:
        return CandidateTrie.build(spec, tokenizer, bos=bos)
    key = trie_key(spec, tokenizer, bos=bos)
    path = folder / f"trie-{key}.safetensors"
    if path.exists():
        with suppress(ArtifactError):  # a damaged one is built anew
            trie = CandidateTrie.load(path)
            if trie.key == key:
                return trie
    trie = CandidateTrie.build(spec, tokenizer, bos=bos)
    trie.save(path)
    return trie


def trie_key(
    spec: CanarySpec, tokenizer: PreTrainedTokenizerFast, *, bos: int | None
) -> str:
    """Digest of all that decides the tokens: tokenizer, template, space, BOS."""
    parts = [
        _FORMAT,
        plain_tokenizer(tokenizer).to_str(),
        spec.template,
        spec.symbols,
        spec.length,
        bos,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _fold(candidates: Candidates) -> dict[str, object]:
    """Group equal token prefixes, level by level."""
    end, num_shared = candidates.end, _num_shared(candidates)
    behind = candidates.tokens[:, num_shared - len(candidates.head) :]
    num, width = len(end), int(end.max())
    node = np.zeros(num, np.int32)
    leaf_level, leaf_node = np.zeros(num, np.uint8), np.zeros(num, np.int32)
    tables: list[dict[str, NDArray[np.generic]]] = []

    def paths(column: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Candidates that have this column, and by what they are told apart there."""
        for start in range(0, num, _ROWS_AT_ONCE):
            rows = start + np.flatnonzero(end[start : start + _ROWS_AT_ONCE] > column)
            above = node[rows].astype(np.int64) << _TOKEN_BITS
            yield rows, above | behind[rows, column - num_shared]

    for column in range(num_shared, width):
        found = np.concatenate([np.unique(path) for _, path in paths(column)])
        found.sort()  # `np.unique` of all would hash them, in several times the memory
        found = found[np.append(True, found[1:] != found[:-1])]
        tables.append(
            {
                "parent": (found >> _TOKEN_BITS).astype(np.int32),
                "token": (found & ((1 << _TOKEN_BITS) - 1)).astype(np.int32),
            }
        )
        for rows, path in paths(column):
            node[rows] = np.searchsorted(found, path)
            done = rows[end[rows] == column + 1]
            leaf_level[done] = column - num_shared
            leaf_node[done] = node[done]
    return {
        "context": candidates.records(np.arange(1))[0, :num_shared],
        "levels": _with_internal(tables),
        "leaf_level": leaf_level,
        "leaf_node": leaf_node,
        "num_scored": (end - num_shared).astype(np.uint8),
    }


def _num_shared(candidates: Candidates) -> int:
    """Leading tokens that every candidate shares, at least one."""
    shared = candidates.num_shared
    if shared == 0:
        raise ModelError(
            "a canary must have a token before the secret. Put text before {secret} "
            "in the template, or open records with a BOS token."
        )
    return shared


def _with_internal(
    tables: list[dict[str, NDArray[np.generic]]],
) -> tuple[TrieLevel, ...]:
    """Levels, with the mark of nodes that have children."""
    levels = []
    for depth, table in enumerate(tables):
        internal = np.zeros(len(table["token"]), np.bool_)
        if depth + 1 < len(tables):
            internal[tables[depth + 1]["parent"]] = True
        levels.append(TrieLevel(**table, internal=internal))  # type: ignore[arg-type]
    return tuple(levels)


__all__ = [
    "MAX_CANDIDATES",
    "CandidateTrie",
    "TrieLevel",
    "load_or_build",
    "trie_key",
]
