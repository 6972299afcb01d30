"""Union of spans that loses no coverage, and their exact map to token labels.

Of conversations recognizers read contents, and roles decide what counts.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import datasets
import numpy as np
import numpy.typing as npt

from dptune.conversation import (
    Role,
    contents_only,
    is_conversation,
    turns_of,
    within_contents,
)
from dptune.detection.escapes import escapes_of, in_place, whole_escapes
from dptune.detection.frames import within_values
from dptune.detection.labels import LABELS, without_labels
from dptune.detection.recognizer import (
    HIGH_ENTITY_TYPES,
    PLACEHOLDER,
    SpanFilter,
    Tier,
    code_digest,
    entity_types,
    fingerprint_of,
    is_demanded,
)
from dptune.detection.tools import without_names_of_tools
from dptune.errors import DetectionError
from dptune.text import Span

_LONGEST_GAP = 4
_OF_ADDRESS = frozenset(["ADDRESS", "GPE", "LOC", "FAC", "ZIP", "UNKNOWN"])
_MAYBE_OF_ADDRESS = frozenset(["PERSON", "ORG", "ENTITY", "ID", "LICENSE"])
_IS_SURE = 0.7
_NAMES = frozenset(["PERSON", "ENTITY", "UNKNOWN"])
_PARTICLE = re.compile(
    r"(?i:(?<![\w-])(?:van|von|vom|zu|zur|ter|ten|tot|de|del|della|dello|der|den|di|da"
    r"|das|dos|du|des|la|las|los|le|el|al|bin|ibn|bint|abu|af|av|ben|san|santa|st"
    r"|['’]t)"
    r"[ \t\u00a0]{1,2}){1,3}$"
)
_INITIALS = re.compile(r"(?<![\w.])(?:[^\W\d_a-z]\. ?){1,3}$")
_LONGEST_PARTICLES = 24
# Letters that need no blank between two words: Thai to Lao, Burmese, Khmer, Han, kana.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_MARKS = frozenset(["Mn", "Mc", "Me", "Cf"])


def union_fingerprint() -> str:
    """Return a digest that changes whenever the same marks may unite otherwise."""
    modules = ("engine", "recognizer", "union", "labels", "escapes", "frames", "tools")
    return fingerprint_of((code_digest(*modules, "../json_places"), LABELS))


def unite_kept(
    found: Iterable[Iterable[Span]], text: str, span_filter: SpanFilter | None
) -> tuple[Span, ...]:
    """Unite what recognizers found, less labels and what a filter takes back."""
    seen = in_place(text, escapes_of(text))
    spans: Sequence[Span] = list(without_labels(chain.from_iterable(found), seen))
    return unite(spans if span_filter is None else span_filter.keep(spans, text), text)


def unite(spans: Iterable[Span], text: str) -> tuple[Span, ...]:
    r"""Make spans disjoint, sorted and whole; what was covered stays so, but for masks.

    Where spans overlap, the one with more confidence, then the longer, keeps its range;
    the others keep what is left of them. What is left without any letter or digit joins
    its neighbor.

    No run of letters and digits is covered by half: what is left of one is a part of
    the secret, `1962` of `Linda1962`. One `_` between two of them joins them. Combining
    marks and characters without width belong to the run around them, and an escape
    (`\u00e9`) is the letter that it stands for, covered whole. Where a script writes no
    blanks between words, a run is one letter with its marks. The particles of a name
    (`van`, `de la`) are its part.

    What is added besides holds no letter or digit: the blanks and commas between the
    lines of an address, which becomes one span, and the blank between a date and its
    time. Whether a secret holds a comma is part of the secret. Signs of JSON between
    its values and keys are nobody's, and stay.

    >>> street = Span(start=0, end=9, entity_type="ADDRESS")
    >>> town = Span(start=11, end=17, entity_type="GPE")
    >>> [(s.start, s.end) for s in unite([town, street], "12 Elm St, Oxford")]
    [(0, 17)]

    Args:
        spans: spans of one text, in any order.
        text: the text they belong to.

    Returns:
        Disjoint spans, sorted by start.
    """
    escapes, written = escapes_of(text), text
    if escapes:
        spans, text = whole_escapes(spans, escapes), in_place(text, escapes)
    cluster: list[Span] = []
    united: list[Span] = []
    reach = 0
    for span in sorted(spans):
        if cluster and span.start >= reach:
            united += _resolve(cluster, reach, text)
            cluster = []
        cluster.append(span)
        reach = max(reach, span.end)
    if cluster:
        united += _resolve(cluster, reach, text)
    whole = _whole(united, text)
    if escapes:
        whole = whole_escapes(whole, escapes)
    found = list(within_values(list(_join_parts(list(whole), text)), written))
    return tuple(_without_placeholders(found, written))


def _without_placeholders(spans: Sequence[Span], text: str) -> Iterator[Span]:
    """Cut spans at what redaction wrote, so that a second one changes nothing there."""
    places = [m.span() for m in PLACEHOLDER.finditer(text)] if "<" in text else []
    ends = [end for _, end in places]
    for span in spans:
        start = span.start
        for low, high in places[bisect_right(ends, start) :]:
            if low >= span.end:
                break
            if _says_more(text, start, low):
                yield replace(span, start=start, end=low)
            start = high
        if start == span.start:
            yield span
        elif _says_more(text, start, span.end):
            yield replace(span, start=start)


def _says_more(text: str, start: int, end: int) -> bool:
    """Tell whether letters or digits stand between two places."""
    return any(map(str.isalnum, text[start:end]))


def _whole(spans: Sequence[Span], text: str) -> Iterator[Span]:
    """Extend spans over the rest of the runs that they cut, and names over particles.

    Each gap between spans is walked at most twice, however long the runs are.
    """
    last = 0
    for number, span in enumerate(spans):
        limit = spans[number + 1].start if number + 1 < len(spans) else len(text)
        start, end = span.start, span.end
        while start > last and _goes_on(text, start):
            start -= 1
        if span.entity_type in _NAMES:
            start = _before_particles(text, start, last)
        while end < limit and _goes_on(text, end):
            end += 1
        last = end
        yield (
            span
            if (start, end) == (span.start, span.end)
            else replace(span, start=start, end=end)
        )


def _goes_on(text: str, position: int) -> bool:
    """Tell whether the characters on both sides of a position are of one run."""
    before, after = text[position - 1], text[position]
    if after == "_":
        return before.isalnum() and text[position + 1 : position + 2].isalnum()
    if before == "_":
        return after.isalnum() and text[position - 2 : position - 1].isalnum()
    if before.isascii() and after.isascii():
        return before.isalnum() and after.isalnum()
    if not (_is_inner(before) and _is_inner(after)):
        return False
    if unicodedata.category(after) in _MARKS:
        return True
    return not (_UNSPACED.match(before) or _UNSPACED.match(after))


def _is_inner(mark: str) -> bool:
    """Tell whether a character may stand within a run of letters and digits."""
    return mark.isalnum() or unicodedata.category(mark) in _MARKS


def _before_particles(text: str, start: int, last: int) -> int:
    """Return where particles and initials before a name start, else where it does."""
    low = max(last, start - _LONGEST_PARTICLES)
    if start - low < 3 or text[start - 1] not in " \t\u00a0":
        return start
    found = _PARTICLE.search(text, low, start)
    start = start if found is None else found.start()
    initials = _INITIALS.search(text, low, start) if text[start].islower() else None
    return start if initials is None else initials.start()


def _join_parts(spans: Sequence[Span], text: str) -> Iterator[Span]:
    """Close the gaps inside of addresses and between dates and times."""
    last: Span | None = None
    for span in spans:
        if last is None:
            last = span
            continue
        gap = text[last.end : span.start]
        if _is_address(last, span, gap):
            last = replace(last, end=span.end)
            continue
        if gap == " " and (last.entity_type, span.entity_type) == ("DATE", "TIME"):
            last = replace(last, end=span.start)
        yield last
        last = span
    if last is not None:
        yield last


def _is_address(last: Span, span: Span, gap: str) -> bool:
    """Tell whether a span goes on an address behind a comma or on a new line."""
    return (
        last.entity_type == "ADDRESS"
        and (
            span.entity_type in _OF_ADDRESS
            # nothing but a guess says that the span is no place
            or (span.entity_type in _MAYBE_OF_ADDRESS and span.confidence < _IS_SURE)
        )
        and 0 < len(gap) <= _LONGEST_GAP
        and not gap.strip(",. \t\n")
        and "\n\n" not in gap
    )


def _rank(span: Span) -> tuple[float, int, int, str, str]:
    """Order spans from strong to weak; ties are broken by what the span says."""
    length = span.start - span.end
    return -span.confidence, length, span.start, span.entity_type, span.recognizer


def _resolve(cluster: list[Span], end: int, text: str) -> list[Span]:
    """Make one chain of overlapping spans disjoint."""
    if len(cluster) == 1:
        return cluster
    start = cluster[0].start
    ranked = sorted(cluster, key=_rank)
    if ranked[0].start == start and ranked[0].end == end:
        return [ranked[0]]
    owner = [-1] * (end - start)
    for rank, span in enumerate(ranked):
        for position in range(span.start - start, span.end - start):
            if owner[position] < 0:
                owner[position] = rank
    return list(_pieces(owner, ranked, start, text))


def _pieces(
    owner: list[int], ranked: list[Span], start: int, text: str
) -> Iterator[Span]:
    """Cut a chain where the owner changes; pieces without a letter or digit join."""
    pieces: list[tuple[int, int, int]] = []  # (first, last, rank)
    first = 0
    for position in range(1, len(owner) + 1):
        if position < len(owner) and owner[position] == owner[first]:
            continue
        piece = text[start + first : start + position]
        if pieces and not any(map(str.isalnum, piece)):
            pieces[-1] = (pieces[-1][0], position, pieces[-1][2])
        elif pieces and pieces[-1][2] == owner[first]:
            pieces[-1] = (pieces[-1][0], position, owner[first])
        else:
            pieces.append((first, position, owner[first]))
        first = position
    for low, high, rank in pieces:
        yield replace(ranked[rank], start=start + low, end=start + high)


BoolArray = npt.NDArray[np.bool_]


def character_marks(num_characters: int, spans: Iterable[Span]) -> BoolArray:
    """Mark every code point that at least one span covers.

    Args:
        num_characters: length of the text, in code points.
        spans: spans of that text, in any order; they may overlap.

    Returns:
        Booleans of shape (num_characters,).

    Raises:
        DetectionError: a span ends after the text.
    """
    changes = np.zeros(num_characters + 1, dtype=np.int64)
    for span in spans:
        if span.end > num_characters:
            raise DetectionError(
                f"span must end inside the text, got end={span.end}, "
                f"num_characters={num_characters}. Detect on the tokenized text."
            )
        changes[span.start] += 1
        changes[span.end] -= 1
    return np.cumsum(changes[:num_characters]) > 0


def token_labels(
    offsets: npt.ArrayLike, num_characters: int, spans: Iterable[Span]
) -> BoolArray:
    """Label the tokens that hold at least one sensitive code point.

    Token `[a, b)` is sensitive if and only if `b > a` and `[a, b)` meets a span.

    **Formal guarantee.** Every sensitive code point that a token covers lies in a
    labelled token, and every labelled token covers a sensitive code point. Special and
    padding tokens have `a == b` and are never labelled.

    >>> name = Span(start=5, end=9, entity_type="PERSON")
    >>> token_labels([(0, 0), (0, 4), (4, 9), (9, 13)], 13, [name]).tolist()
    [False, False, True, False]

    Args:
        offsets: pairs `[a, b)` from a fast tokenizer, shape (tokens, 2), in code points
            of the original text.
        num_characters: length of the text.
        spans: spans of that text.

    Returns:
        Booleans of shape (tokens,).

    Raises:
        DetectionError: an offset or a span lies outside the text.
    """
    pairs = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    if pairs.size and (pairs.min() < 0 or pairs.max() > num_characters):
        raise DetectionError(
            f"offsets must lie in [0, {num_characters}], got [{pairs.min()}, "
            f"{pairs.max()}]. Pass offsets of the text that was detected."
        )
    marks = character_marks(num_characters, spans)
    before = np.concatenate(([0], np.cumsum(marks)))
    labels: BoolArray = before[pairs[:, 1]] > before[pairs[:, 0]]
    return labels


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
    marks = without_labels(chain.from_iterable(found), seen)
    spans = without_names_of_tools(within_contents(marks, text), text)
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
        self.fingerprint = fingerprint_of((code_digest("union"), *parts))

    def keep(self, spans: Sequence[Span], text: str) -> list[Span]:
        """Return the spans that stay."""
        turns = turns_of(text)
        starts = [turn.start for turn in turns]

        def is_off(span: Span) -> bool:
            """Whether the turn that a span lies in takes no such marks."""
            turn = turns[max(0, bisect_right(starts, span.start) - 1)]
            types = self._off.get(turn.speaker, ())
            inside = turn.start <= span.start
            inside &= span.end <= turn.start + len(turn.content)
            return inside and span.entity_type in types

        return [
            span for span in spans if not turns or is_demanded(span) or not is_off(span)
        ]
