"""Completions of held-out prompts, masked before anybody sees them."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from datasets import Dataset

from dptune.attacks.canaries import CanarySet
from dptune.attacks.decoding import Decoding, sample_continuations
from dptune.attacks.inference import OnProgress, unwatched
from dptune.attacks.settings import SampleSettings
from dptune.conversation import contents_only, is_conversation, turns_of
from dptune.detection.engine import DetectionEngine
from dptune.letters import is_unspaced
from dptune.models.chat import ChatFormat
from dptune.models.encode import record_tokens
from dptune.models.loading import LoadedModel
from dptune.redaction.engine import redact_text
from dptune.redaction.operators import Operator
from dptune.results import Completions, SamplesReport
from dptune.spellings import folded
from dptune.text import Span

_PROMPT_TOKENS = 32
_LONGEST_PROMPT = 400
_SHORTEST_VALUE = 2
_SHORTEST_PART = 3
"""Shorter values are whole words only, but where words have no blanks between them."""
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""What decoding writes for bytes that are a part of one."""
_UNSEEN = frozenset(["Mn", "Mc", "Me", "Cf"])
"""Categories of characters that belong to the letter before, or to none."""


@dataclass(frozen=True, kw_only=True)
class Masker:
    """Masks what a text must not show.

    Args:
        engine: the run's detector.
        values: what it marked anywhere in the corpus, as `_plain` writes it.
        secrets: of canaries, planted or not.
    """

    engine: DetectionEngine
    values: frozenset[str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(
        cls: type[Self], engine: DetectionEngine, corpus: Dataset, canaries: CanarySet
    ) -> Self:
        """Collect the values of a corpus with spans, and the secrets of a set."""
        values = {
            _plain(row["text"][span["start"] : span["end"]])[0]
            for row in corpus.select_columns(["text", "spans"])
            for span in row["spans"] or ()
        }
        return cls(
            engine=engine,
            values=frozenset(v for v in values if len(v) >= _SHORTEST_VALUE),
            secrets=(*canaries.planted, *canaries.held_out),
        )

    def masked(self: Self, parts: Sequence[str]) -> list[str]:
        """Mask parts of one text, which are read together and shown apart."""
        hidden = self._hidden("".join(parts))
        shown, begin = [], 0
        for part in parts:
            shown.append(_without(part, hidden[begin : begin + len(part)]))
            begin += len(part)
        return shown

    def masked_before(self: Self, text: str, ends: Sequence[str]) -> str:
        """Mask a text by itself and before each of its ends: one may end a value."""
        found = [self._hidden(text + end)[: len(text)] for end in ("", *ends)]
        return _without(text, np.any(found, axis=0))

    def _hidden(self: Self, text: str) -> np.ndarray:
        """Which characters of a text nobody may see, `(characters,)`."""
        hidden = np.zeros(len(text), np.bool_)
        (spans,) = self.engine.detect([text])
        for start, end in (
            *((span.start, span.end) for span in spans),
            *self._known(text),
            *self._of_canaries(text),
        ):
            hidden[start:end] = True
        return hidden

    def _known(self: Self, text: str) -> Iterator[tuple[int, int]]:
        """Where values stand that the detector marked elsewhere."""
        plain, places = _plain(text)
        for value in self.values:
            start = plain.find(value)
            while start >= 0:
                end = places[start + len(value) - 1] + 1
                while end < len(text) and not _plain(text[end])[0]:
                    end += 1  # what belongs to the last letter
                if _counts(value, plain, start):
                    yield places[start], end
                start = plain.find(value, start + 1)

    def _of_canaries(self: Self, text: str) -> Iterator[tuple[int, int]]:
        """Where half of a secret stands, however it is spelled or cut."""
        known = {symbol for secret in self.secrets for symbol in secret}
        places = [
            (number, str(unicodedata.decimal(one)) if one.isdecimal() else one)
            for number, character in enumerate(text)
            for one in unicodedata.normalize("NFKC", character).upper()
            if one.isalnum() or one in known
        ]
        plain = "".join(one for _, one in places)
        windows = {
            secret[first : first + size]
            for secret in self.secrets
            for size in [-(-len(secret) // 2)]
            for first in range(len(secret) - size + 1)
        }
        for window in windows:
            start = plain.find(window)
            while start >= 0:
                yield places[start][0], places[start + len(window) - 1][0] + 1
                start = plain.find(window, start + 1)


def _counts(value: str, plain: str, start: int) -> bool:
    """Whether letters are the value, and not some of a longer word that has them."""
    if len(value) >= _SHORTEST_PART or is_unspaced(value[0]):
        return True
    beside = plain[max(0, start - 1) : start] + plain[start + len(value) :][:1]
    return not any(map(str.isalnum, beside))


def _plain(text: str) -> tuple[str, list[int]]:
    """Write text and values alike, without case and accents, and the place of each.

    Letters may become several (`ß`), which all stand where the one stood.
    """
    pieces = [
        folded(one)[0] or ("" if unicodedata.category(one) in _UNSEEN else one)
        for one in text
    ]
    places = [place for place, piece in enumerate(pieces) for _ in piece]
    return "".join(pieces), places


def _without(text: str, hidden: np.ndarray) -> str:
    """Mask what is hidden."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], hidden, [0]))))
    runs = [
        Span(start=int(start), end=int(end), entity_type="MASKED")
        for start, end in edges.reshape(-1, 2)
    ]
    return redact_text(text, runs, Operator.MASK).text


@dataclass(frozen=True, kw_only=True)
class _Prompt:
    """What a model reads, what a person does, and how the record goes on."""

    tokens: list[int] = field(repr=False)
    text: str = field(repr=False)
    rest: str = field(repr=False)


def samples_report(
    model: LoadedModel,
    base: LoadedModel,
    outsiders: Dataset,
    *,
    masker: Masker,
    settings: SampleSettings,
    max_tokens: int,
    model_digest: str,
    base_model_digest: str,
    device: str,
    on_progress: OnProgress = unwatched,
) -> SamplesReport:
    """Let a model and its base go on where held-out records begin.

    Of plain text the prompt is the first half, of a conversation all before the first
    turn that is learnt, up to where the template lets that role answer.

    **Privacy**: completions may be training text and prompts are records: what is not
    masked is not covered by anything. Show it to whom you would show the data.

    Args:
        model: after fine-tuning.
        base: before.
        outsiders: held-out records, of which the first are taken.
        masker: hides values before anything is kept.
        settings: how many prompts, and how they are completed.
        max_tokens: longest sequence, prompt and completion together.
        model_digest: of the model.
        base_model_digest: of the base.
        device: where to run.
        on_progress: told how many completions there are.
    """
    room = max_tokens - settings.max_new_tokens
    prompts = list(_prompts(outsiders["text"], model, room=room))[
        : settings.num_prompts
    ]
    found = []
    for number, prompt in enumerate(prompts):
        answers = []
        for place, one in enumerate((base, model)):
            answers.append(_completed(one, prompt, settings, device=device))
            on_progress(2 * number + place + 1, 2 * len(prompts))
        # each beside the prompt: a value may begin in one and end in the other
        shown = [masker.masked([prompt.text, answer]) for answer in answers]
        hidden = masker.masked_before(prompt.text, [prompt.rest, *answers])
        found.append(
            Completions(
                prompt=hidden[-_LONGEST_PROMPT:], base=shown[0][1], model=shown[1][1]
            )
        )
    return SamplesReport(
        model_digest=model_digest,
        base_model_digest=base_model_digest,
        decoding=settings.words,
        completions=tuple(found),
    )


def _prompts(
    texts: Iterable[str], loaded: LoadedModel, *, room: int
) -> Iterator[_Prompt]:
    """Beginnings that leave room for a completion."""
    for text in texts:
        tokens = record_tokens(text, loaded.tokenizer)
        rest = ""
        if is_conversation(text):
            known = getattr(tokens, "scored", [])
            start = known.index(True) if True in known else 0
            turns = turns_of(text)
            first = next((n for n, t in enumerate(turns) if t.trained), 0)
            shown = "\n".join(f"{t.role}: {t.said()[0]}" for t in turns[:first]) + "\n"
        else:
            start = _first_half(tokens, loaded)
            shown = _decoded(tokens[:start], loaded)
            rest = _decoded(tokens, loaded)[len(shown) :]
        if 0 < start <= room:
            yield _Prompt(
                tokens=list(tokens[:start]),
                text=contents_only(shown),
                rest=rest[:_LONGEST_PROMPT],
            )


def _first_half(tokens: Sequence[int], loaded: LoadedModel) -> int:
    """Return how many tokens a prompt has, whose last one ends a character.

    A value that a prompt breaks inside a character is one that no masker knows.
    """
    start = min(len(tokens) // 2, _PROMPT_TOKENS)
    while _decoded(tokens[:start], loaded).endswith(_NO_CHARACTER):
        start -= 1
    return start


def _decoded(tokens: Sequence[int], loaded: LoadedModel) -> str:
    """Text of tokens, as they stand, without special ones."""
    return str(
        loaded.tokenizer.decode(
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    )


def _completed(
    loaded: LoadedModel, prompt: _Prompt, settings: SampleSettings, *, device: str
) -> str:
    """What one model says next, up to where it ends."""
    tokenizer = loaded.tokenizer
    (drawn,) = sample_continuations(
        loaded.model,
        prompt.tokens,
        count=1,
        max_new_tokens=settings.max_new_tokens,
        decoding=Decoding(**settings.decoding.model_dump())
        if settings.decoding
        else Decoding(top_k=1),
        generator=torch.Generator().manual_seed(0),
        device=device,
    )
    stops = {tokenizer.eos_token_id}
    if getattr(tokenizer, "chat_template", None):
        stops |= set(ChatFormat.of(tokenizer).stops)
    ends = (place for place, token in enumerate(drawn) if token in stops)
    said = drawn[: next(ends, len(drawn))]
    before = _decoded(prompt.tokens, loaded)
    return _decoded([*prompt.tokens, *said], loaded)[len(before) :]
