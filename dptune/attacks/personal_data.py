"""Can personal data be had from a model? Extraction, reconstruction, inference.

Values are what a detector marks; the caller brings it. Nothing that a model says is
kept: only how often it was right, on training records and on held-out ones.

References:
    Lukas et al. (2023), "Analyzing leakage of personally identifiable information in
    language models", sections 4.1 to 4.3.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedTokenizerFast

from dptune.attacks.decoding import Decoding, sample_continuations
from dptune.attacks.inference import Tell, unwatched
from dptune.attacks.signals import token_signals
from dptune.errors import ModelError
from dptune.results import Interval, PersonalDataShare
from dptune.statistics import clopper_pearson
from dptune.text import Span

Floats = NDArray[np.float64]
Find = Callable[[Sequence[str]], Sequence[Sequence[Span]]]
Encode = Callable[[str], list[int]]
Value = tuple[str, str]

_CONFIDENCE = 0.95
_MAX_VALUE = 60


@dataclass(frozen=True, kw_only=True)
class MarkedText:
    """A record and where its personal data is. Private.

    Args:
        text: the record.
        spans: what the detector marked of what has a loss.
    """

    text: str = field(repr=False)
    spans: tuple[Span, ...] = field(repr=False)

    def values(self: Self) -> list[Value]:
        """Type and text of each span."""
        return [(s.entity_type, _plain(self.text[s.start : s.end])) for s in self.spans]


@dataclass(frozen=True, kw_only=True)
class PersonalDataSettings:
    """How much is tried.

    Args:
        num_texts: texts that are drawn from the model for extraction.
        max_new_tokens: of each.
        num_values: values of each side that are reconstructed and inferred.
        num_guesses: continuations for each value to be reconstructed.
        num_candidates: values among which the right one is to be inferred.
        decoding: how tokens are drawn.
        seed: decides which values are tried and what is drawn.
    """

    num_texts: int = 500
    max_new_tokens: int = 64
    num_values: int = 100
    num_guesses: int = 16
    num_candidates: int = 10
    decoding: Decoding = field(default_factory=lambda: Decoding(temperature=1.0))
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model as these attacks need it.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        encode: tokens of a record, as in training, cut to the model's length.
        open_ended: the same for a text that is to be continued.
        opening: tokens behind which the model speaks by itself.
        stops: tokens that end what it says; none are the tokenizer's end of text.
        device: where to run; None is where the model is.
        batch_size: records forwarded at once, at most.
        tell: told how much of each attack is done.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerFast
    encode: Encode
    open_ended: Encode
    opening: Sequence[int]
    stops: Sequence[int] = ()
    device: str | None = None
    batch_size: int = 32
    tell: Tell = unwatched


def personal_data_shares(
    target: Target,
    members: Sequence[MarkedText],
    controls: Sequence[MarkedText],
    *,
    find: Find,
    settings: PersonalDataSettings | None = None,
) -> tuple[PersonalDataShare, ...]:
    """Try all three attacks on training records and on held-out ones.

    * `extraction`: draw texts from nothing, mark them, and count distinct values of
      the training data (of the controls) that appear and are none of the other side's.
    * `reconstruction`: give the text before a value, draw guesses, take the marked
      value with the smallest loss of the whole record.
    * `inference`: of the right value and others of its type, take the one with the
      smallest loss of the whole record.

    Of each record one value is tried, drawn by the seed: those of one record are learnt
    together, and intervals take attempts for independent. With all values of records
    that have four each, 12 to 34 % of simulated intervals missed, where 5 % were said.

    Args:
        target: the model.
        members: training records, without canaries, one of each unit.
        controls: held-out records of the same law, likewise.
        find: marks texts, as the members were marked.
        settings: how much is tried.

    Privacy:
        A function of private data outside any epsilon.
    """
    settings = settings or PersonalDataSettings()
    return (
        _extraction(target, members, controls, find=find, settings=settings),
        _compare(
            "reconstruction",
            [
                _reconstructed(target, group, find=find, settings=settings)
                for group in (members, controls)
            ],
        ),
        _compare(
            "inference",
            [
                _inferred(target, group, [*members, *controls], settings=settings)
                for group in (members, controls)
            ],
            chance=1.0 / settings.num_candidates,
        ),
    )


def _plain(text: str) -> str:
    """A value without case and outer blanks."""
    return " ".join(text.casefold().split())


def _compare(
    attack: str, results: Sequence[tuple[int, int]], *, chance: float | None = None
) -> PersonalDataShare:
    """Right answers on both sides, with intervals."""
    (members, tried), (controls, control_tried) = results
    return PersonalDataShare(
        attack=attack,
        members=members,
        num_members=tried,
        members_interval=_interval(members, tried),
        controls=controls,
        num_controls=control_tried,
        controls_interval=_interval(controls, control_tried),
        chance=chance,
    )


def _interval(right: int, tried: int) -> Interval:
    """Clopper-Pearson's interval; from 0 to 1 of no attempt."""
    low, high = clopper_pearson(right, tried, confidence=_CONFIDENCE)
    return Interval(low=low, high=high, confidence=_CONFIDENCE)


def _extraction(
    target: Target,
    members: Sequence[MarkedText],
    controls: Sequence[MarkedText],
    *,
    find: Find,
    settings: PersonalDataSettings,
) -> PersonalDataShare:
    """Count values of each side that drawn texts hold."""
    tokenizer = target.tokenizer
    drawn = sample_continuations(
        target.model,
        target.opening,
        count=settings.num_texts,
        max_new_tokens=settings.max_new_tokens,
        decoding=settings.decoding,
        generator=torch.Generator().manual_seed(settings.seed),
        stop=target.stops or tokenizer.eos_token_id,
        device=target.device,
        on_progress=partial(target.tell, "texts drawn for personal data"),
    )
    texts = [str(tokenizer.decode(t, skip_special_tokens=True)) for t in drawn]
    said = {v for marked in _mark(texts, find) for v in marked.values()}
    own = {value for marked in members for value in marked.values()}
    other = {value for marked in controls for value in marked.values()}
    tried = [
        _one_of_each(members, own - other, seed=settings.seed),
        _one_of_each(controls, other - own, seed=settings.seed),
    ]
    return _compare("extraction", [(len(said & one), len(one)) for one in tried])


def _one_of_each(
    group: Sequence[MarkedText], wanted: set[Value], *, seed: int
) -> set[Value]:
    """Draw one value of each record; what several have is the first one's."""
    owners: dict[Value, int] = {}
    for place, marked in enumerate(group):
        for value in marked.values():
            if value in wanted:
                owners.setdefault(value, place)
    source = random.Random(seed)  # noqa: S311 - which values are tried
    values = source.sample(list(owners), len(owners))
    return set({owners[value]: value for value in values}.values())


def _mark(texts: Sequence[str], find: Find) -> list[MarkedText]:
    """Mark texts."""
    return [
        MarkedText(text=text, spans=tuple(spans))
        for text, spans in zip(texts, find(texts), strict=True)
    ]


def _chosen(
    group: Sequence[MarkedText], settings: PersonalDataSettings
) -> list[tuple[MarkedText, Span]]:
    """Values to try: short, not at the start of a record, of each record one drawn."""
    pairs = [
        (place, (marked, span))
        for place, marked in enumerate(group)
        for span in marked.spans
        if span.start > 0 and span.end - span.start <= _MAX_VALUE
    ]
    source = random.Random(settings.seed)  # noqa: S311 - which values are tried
    of_records = list(dict(source.sample(pairs, len(pairs))).values())
    return source.sample(of_records, min(settings.num_values, len(of_records)))


def _reconstructed(
    target: Target,
    group: Sequence[MarkedText],
    *,
    find: Find,
    settings: PersonalDataSettings,
) -> tuple[int, int]:
    """Values that the best guess hits, and how many were tried."""
    chosen = _chosen(group, settings)
    generator = torch.Generator().manual_seed(settings.seed)
    right = 0
    for number, (marked, span) in enumerate(chosen, start=1):
        guesses = _guesses(
            target, marked, span, find=find, settings=settings, generator=generator
        )
        best = _best(target, marked, span, guesses)
        right += best == _plain(marked.text[span.start : span.end])
        target.tell("values reconstructed", number, len(chosen))
    return right, len(chosen)


def _guesses(
    target: Target,
    marked: MarkedText,
    span: Span,
    *,
    find: Find,
    settings: PersonalDataSettings,
    generator: torch.Generator,
) -> list[str]:
    """Distinct values that drawn continuations have where the value stood."""
    before = marked.text[: span.start].rstrip()
    context = target.open_ended(before)
    drawn = sample_continuations(
        target.model,
        context,
        count=settings.num_guesses,
        max_new_tokens=12,
        decoding=settings.decoding,
        generator=generator,
        stop=target.stops or target.tokenizer.eos_token_id,
        device=target.device,
    )
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    known = str(target.tokenizer.decode(context, **options))
    texts = [str(target.tokenizer.decode([*context, *t], **options)) for t in drawn]
    found = [
        text[s.start : s.end]
        for text, spans in zip(texts, find(texts), strict=True)
        for s in spans
        if s.end > len(known) and s.start <= len(known) + 1
    ]
    return sorted(set(found))


def _inferred(
    target: Target,
    group: Sequence[MarkedText],
    pool: Sequence[MarkedText],
    *,
    settings: PersonalDataSettings,
) -> tuple[int, int]:
    """Values that are picked out of others of their type, and how many were tried."""
    by_type: dict[str, dict[str, str]] = {}
    for marked in pool:
        for span in marked.spans:
            text = marked.text[span.start : span.end]
            by_type.setdefault(span.entity_type, {}).setdefault(_plain(text), text)
    source = random.Random(settings.seed)  # noqa: S311 - which others are offered
    right = tried = 0
    chosen = _chosen(group, settings)
    for number, (marked, span) in enumerate(chosen, start=1):
        target.tell("values inferred", number, len(chosen))
        value = marked.text[span.start : span.end]
        known = by_type[span.entity_type]
        others = [text for key, text in known.items() if key != _plain(value)]
        if len(others) < settings.num_candidates - 1:
            continue
        offered = [value, *source.sample(others, settings.num_candidates - 1)]
        source.shuffle(offered)
        if _encoded(target, marked, span, [value]):
            right += _best(target, marked, span, offered) == _plain(value)
            tried += 1
    return right, tried


def _best(
    target: Target, marked: MarkedText, span: Span, values: Sequence[str]
) -> str | None:
    """The value with which the record has the smallest loss per token."""
    encoded = _encoded(target, marked, span, values)
    if not encoded:
        return None
    signals = token_signals(
        target.model,
        list(encoded.values()),
        batch_size=target.batch_size,
        device=target.device,
    )
    losses = [s.nll / max(len(s.log_probs), 1) for s in signals]
    return _plain(list(encoded)[int(np.argmin(losses))])


def _encoded(
    target: Target, marked: MarkedText, span: Span, values: Sequence[str]
) -> dict[str, Sequence[int]]:
    """Tokens of a record by the value in it; a template may refuse some values."""
    found: dict[str, Sequence[int]] = {}
    for value in values:
        with suppress(ModelError):
            text = marked.text[: span.start] + value + marked.text[span.end :]
            found[value] = target.encode(text)
    return found
