"""Which tokens can spell a secret, for spaces too large to be enumerated.

```
prefix              secret           suffix
... code| is         4 1 7 ...     .| thanks
context |<- head ->|<- secret ->|tail|
```

The context are the tokens that every candidate shares; behind the tail they share all
tokens again. Between, a candidate is spelt by pieces: vocabulary entries that fit the
pattern at their place, where a place of head or suffix takes one character and a place
of the secret any symbol.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from dptune.attacks.canaries import CanarySpec
from dptune.attacks.candidates import Candidates, encode_secrets, plain_tokenizer
from dptune.errors import ModelError

Spell = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How candidates of one spec are spelt in tokens. Restricted with its text.

    Args:
        spec: template and candidate space.
        tokenizer: without padding or truncation.
        bos: token that opens a record, or None.
        context: tokens that all candidates share.
        head: text between the context and the secret.
        tail: code points of the suffix up to the last token that differs.
        pieces: token ids that fit at each place of head, secret and tail.
        lengths: their lengths in code points.
    """

    spec: CanarySpec = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    bos: int | None
    context: tuple[int, ...] = field(repr=False)
    head: str = field(repr=False)
    tail: int
    pieces: tuple[NDArray[np.int64], ...] = field(repr=False)
    lengths: tuple[NDArray[np.int64], ...] = field(repr=False)
    spell: Spell = field(repr=False)

    @property
    def end(self: Self) -> int:
        """The place behind the last token that differs."""
        return len(self.head) + self.spec.length + self.tail

    @classmethod
    def of(
        cls: type[Self],
        spec: CanarySpec,
        tokenizer: PreTrainedTokenizerFast,
        *,
        bos: int | None,
        sample: Sequence[str],
    ) -> Self:
        """Find the context and the pieces, and check them on sampled candidates.

        Args:
            spec: template and candidate space.
            tokenizer: any fast tokenizer whose tokens spell their text.
            bos: token that opens a record, or None.
            sample: candidates, the more the better; all must be spelt by the pieces.

        Raises:
            ModelError: a sampled candidate is not: its tokens are pieces of code points
                or stand for no text, or normalization changes symbols.
        """
        plain = plain_tokenizer(tokenizer)
        encoded = encode_secrets(spec, plain, sample, prefix=spec.prefix)
        shared, ends = encoded.num_shared, _context_end(spec, plain, encoded, sample[0])
        head, tail = spec.prefix[ends[0] :], ends[1] - len(spec.prefix) - spec.length
        spell = _choose(plain, spec, sample, encoded, head=head)
        pattern = [*head, *([spec.symbols] * spec.length), *spec.suffix]
        fitting = _fitting(plain, spell, pattern, len(head) + spec.length + tail)
        ids = tuple(np.array([i for i, _ in found], np.int64) for found in fitting)
        sizes = tuple(np.array([n for _, n in found], np.int64) for found in fitting)
        opening = () if bos is None else (bos,)
        return cls(
            spec=spec,
            tokenizer=plain,
            bos=bos,
            context=(*opening, *map(int, encoded.tokens[0, :shared])),
            head=head,
            tail=tail,
            pieces=ids,
            lengths=sizes,
            spell=spell,
        )

    def read(self: Self, path: Sequence[int]) -> str:
        """The secret that a complete path spells."""
        parts = [self.spell(self.tokenizer.id_to_token(token) or "") for token in path]
        return "".join(map(str, parts))[len(self.head) :][: self.spec.length]

    def tokens_of(self: Self, secret: str) -> tuple[int, ...]:
        """Tokens of a candidate behind the context, up to its last one that differs.

        Raises:
            ModelError: its context is another one.
        """
        return self.paths_of([secret])[0]

    def paths_of(self: Self, secrets: Sequence[str]) -> list[tuple[int, ...]]:
        """`tokens_of` for many candidates."""
        encoded = encode_secrets(
            self.spec,
            self.tokenizer,
            secrets,
            prefix=self.spec.prefix,
            tail=self.tail,
        )
        num = len(self.context) - (self.bos is not None)
        rows = [
            r[:n].tolist() for r, n in zip(encoded.tokens, encoded.last, strict=True)
        ]
        if any(tuple(r[:num]) != self.context[len(self.context) - num :] for r in rows):
            raise ModelError(
                "all candidates must share the tokens before the secret, and one "
                "does not. Put a space or a line end before {secret}."
            )
        return [tuple(row[num:]) for row in rows]


def _context_end(
    spec: CanarySpec, tokenizer: Tokenizer, encoded: Candidates, secret: str
) -> tuple[int, int]:
    """Code points that the shared tokens in front cover, and those up to the tail."""
    offsets = tokenizer.encode(spec.record(secret), add_special_tokens=False).offsets
    shared, end = encoded.num_shared, int(encoded.end[0])
    return int(offsets[shared - 1][1]) if shared else 0, int(offsets[end - 1][1])


def _tables(tokenizer: Tokenizer) -> tuple[Spell, ...]:
    """Ways to read a vocabulary entry as text."""
    added = {t.content for t in tokenizer.get_added_tokens_decoder().values()}

    def plain(entry: str) -> str | None:
        return entry

    def metaspace(entry: str) -> str | None:
        return entry if entry in added else entry.replace("▁", " ")

    def byte_level(entry: str) -> str | None:
        if entry in added:
            return entry
        try:
            return bytes(_bytes()[c] for c in entry).decode()
        except (KeyError, UnicodeDecodeError):
            return None

    return byte_level, metaspace, plain


@cache
def _bytes() -> dict[str, int]:
    """The printable character that byte-level vocabularies write for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


def _choose(
    tokenizer: Tokenizer,
    spec: CanarySpec,
    sample: Sequence[str],
    encoded: Candidates,
    *,
    head: str,
) -> Spell:
    """The way under which the tokens of every sampled candidate spell its text."""
    rows = [
        encoded.tokens[i, encoded.num_shared : end].tolist()
        for i, end in enumerate(encoded.end)
    ]
    for spell in _tables(tokenizer):
        texts = [[spell(tokenizer.id_to_token(t) or "") for t in row] for row in rows]
        wanted = [head + secret for secret in sample]
        if all(
            None not in parts
            and "".join(map(str, parts)).startswith(text)
            and (text + spec.suffix).startswith("".join(map(str, parts)))
            for parts, text in zip(texts, wanted, strict=True)
        ):
            return spell
    raise ModelError(
        "the tokenizer must spell secrets by tokens of whole code points, and it does "
        "not. Choose an alphabet that it knows, or a space that can be enumerated."
    )


def _fitting(
    tokenizer: Tokenizer, spell: Spell, pattern: Sequence[str], num_places: int
) -> list[list[tuple[int, int]]]:
    """Ids and lengths of the entries that fit at each place, by id.

    A vocabulary comes in another order in every process, and a seed must fix the draws.
    """
    allowed = set("".join(pattern))
    special = {i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}
    entries = sorted(
        (index, text)
        for entry, index in tokenizer.get_vocab(with_added_tokens=True).items()
        if index not in special and (text := spell(entry)) and set(text) <= allowed
    )
    return [
        [
            (index, len(text))
            for index, text in entries
            if len(text) <= len(pattern) - place
            and all(c in pattern[place + i] for i, c in enumerate(text))
        ]
        for place in range(num_places)
    ]
