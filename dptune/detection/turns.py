"""Marks of conversations: recognizers read contents, roles decide what counts."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain

import datasets

from dptune.conversation import (
    Role,
    contents_only,
    is_conversation,
    turns_of,
    within_contents,
)
from dptune.detection.filters import is_demanded
from dptune.detection.labels import without_labels
from dptune.detection.recognizer import (
    HIGH_ENTITY_TYPES,
    SpanFilter,
    Tier,
    code_digest,
    entity_types,
    fingerprint_of,
)
from dptune.detection.union import unite, unite_kept
from dptune.text import Span

_TIERED = HIGH_ENTITY_TYPES | frozenset(["PRON", "PROPN", "NOUN", "VERB"])


def unite_turns(
    found: Iterable[Iterable[Span]], text: str, span_filter: SpanFilter | None
) -> tuple[Span, ...]:
    """Unite what recognizers found in the contents of a text; none holds a role.

    Args:
        found: of each recognizer, spans of `contents_only(text)`.
        text: the record.
        span_filter: takes spans back; it sees who says what.
    """
    if not is_conversation(text):
        return unite_kept(found, text, span_filter)
    seen = contents_only(text)
    spans = within_contents(without_labels(chain.from_iterable(found), seen), text)
    kept = spans if span_filter is None else span_filter.keep(spans, text)
    return within_contents(unite(kept, seen), text)


def only_contents(dataset: datasets.Dataset) -> datasets.Dataset:
    """Return a corpus whose texts have no roles, for what knows nothing of them."""
    texts = list(dataset["text"])
    if not any(map(is_conversation, texts)):
        return dataset
    column = datasets.Dataset.from_dict({"text": list(map(contents_only, texts))})
    rest = dataset.remove_columns("text")
    return datasets.concatenate_datasets([rest, column], axis=1)


def cut_at_turns(
    dataset: datasets.Dataset, spans: datasets.Dataset
) -> datasets.Dataset:
    """Cut the column `spans` at the roles of a corpus; as it is for plain text."""
    texts = list(dataset["text"])
    if not any(map(is_conversation, texts)):
        return spans
    rows = [
        within_contents(map(Span.from_row, row), text)
        for row, text in zip(spans["spans"], texts, strict=True)
    ]
    columns = {"spans": [[asdict(span) for span in row] for row in rows]}
    return datasets.Dataset.from_dict(columns, features=spans.features)


class RoleTiers:
    """Takes back marks in turns of roles of which less counts as sensitive.

    **Formal guarantee.** What a list, a known value or a recognizer that could not
    judge demands stays, and so do types that no tier knows.

    Args:
        tiers: by role; turns of others keep all marks.
    """

    def __init__(self, tiers: Mapping[Role, Tier]) -> None:
        self._off: dict[str, frozenset[str]] = {
            r: _TIERED - entity_types(tier) for r, tier in tiers.items()
        }
        parts = [f"{role}={tier}" for role, tier in sorted(tiers.items())]
        self.fingerprint = fingerprint_of((code_digest("turns"), *parts))

    def keep(self, spans: Sequence[Span], text: str) -> list[Span]:
        """Return the spans that stay."""
        turns = turns_of(text)
        starts = [turn.start for turn in turns]

        def is_off(span: Span) -> bool:
            """Whether the turn that a span lies in takes no such marks."""
            turn = turns[max(0, bisect_right(starts, span.start) - 1)]
            types = self._off.get(turn.role, ())
            inside = turn.start <= span.start
            inside &= span.end <= turn.start + len(turn.content)
            return inside and span.entity_type in types

        return [
            span for span in spans if not turns or is_demanded(span) or not is_off(span)
        ]
