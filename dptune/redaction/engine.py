"""Replaces sensitive spans in texts and corpora."""

import unicodedata
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Final

import datasets
import pyarrow as pa

from dptune.conversation import AS_TYPED, is_conversation, without_empty_targets
from dptune.errors import ConfigError, DetectionError
from dptune.parts import fresh_name
from dptune.redaction.forms import form_of
from dptune.redaction.in_json import Bare, as_value, in_strings, json_places
from dptune.redaction.operators import KEYED, Operator, OperatorSettings, Replace
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.text import MASK, Span

_NO_TYPES: Mapping[str, OperatorSettings] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """One replacement: `[start, end)` became `[new_start, new_end)`.

    Args:
        entity_type: type of the first span that the edit replaced.
    """

    start: int
    end: int
    new_start: int
    new_end: int
    entity_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Redaction:
    """A redacted text and how it came about, hidden from `repr`.

    Args:
        text: the text after replacement.
        edits: what was replaced, in order; between edits nothing changed.
    """

    text: str = field(repr=False)
    edits: tuple[Edit, ...]


def redact_text(
    text: str,
    spans: Sequence[Span],
    operator: Operator,
    *,
    by_type: Mapping[str, OperatorSettings] = _NO_TYPES,
    merge_adjacent: bool = True,
    pseudonyms: Pseudonyms | None = None,
    unit_id: str | None = None,
) -> Redaction:
    """Replace the spans of one text.

    **Formal guarantee.** With `MASK` or `DELETE` for every type the result depends on
    the text outside of spans and on where they are, on nothing in them. With others no
    code point of a span is copied but what `operators` says: pseudonyms keep signs,
    blanks, case and titles, `PARTIAL` and `KEEP` what they are told to. A text that is
    left empty or blank becomes one mask, so that no record vanishes.

    | case | result |
    |---|---|
    | no spans | the text itself, no edits |
    | `MASK`, only blanks between | one mask, unless `merge_adjacent` is off |
    | everything deleted | `<mask>`, one edit over the whole text |
    | `DELETE` in a conversation | no mask comes of what stood around the span |
    | a learnt turn of a conversation is left blank | it is read and not learnt |
    | part of a number of JSON | the number is a string, unless a number is left |
    | part of a string of JSON | read without its escapes, and written with them |

    >>> name = Span(start=5, end=9, entity_type="PERSON")
    >>> redact_text("call Anna now", [name], Operator.TYPED).text
    'call <PERSON> now'

    Args:
        text: the text.
        spans: disjoint spans of the text, in any order.
        operator: what to put in their place.
        by_type: other operators, by entity type.
        merge_adjacent: join masks that only blanks part, not line ends. Off keeps
            one mask per span, so that texts of equal shape keep equal numbers of masks.
        pseudonyms: keys, for operators that cannot do without.
        unit_id: whose text it is, for pseudonyms that hold within a unit.

    Returns:
        The redacted text with its edits.

    Raises:
        ConfigError: an operator without the key or the unit that it needs.
        DetectionError: spans overlap or end after the text.
    """
    default = OperatorSettings(operator=operator)
    rules = {
        settings: replacement(settings, pseudonyms=pseudonyms, unit_id=unit_id)
        for settings in (default, *by_type.values())
    }
    spans = sorted(spans)
    places = json_places(text, spans)
    if places.strings:
        rules = {
            key: rule if key.operator is Operator.KEEP else in_strings(rule, places)
            for key, rule in rules.items()
        }
    nothing = AS_TYPED if is_conversation(text) else ""
    masked = False  # whether the last edit is a mask that another one may join
    pieces: list[str] = []
    edits: list[Edit] = []
    position = length = 0
    for span in spans:
        if span.start < position or span.end > len(text):
            raise DetectionError(
                "spans must be disjoint and inside the text, got "
                f"start={span.start}, end={span.end} after end={position}, "
                f"num_characters={len(text)}. Redact what DetectionEngine.detect "
                "returned for the same text."
            )
        gap = text[position : span.start]
        position = span.end
        settings = by_type.get(span.entity_type, default)
        joins = masked
        masked = merge_adjacent and settings.operator is Operator.MASK
        if joins and masked and edits and not gap.strip(" \t"):
            edits[-1] = replace(edits[-1], end=span.end)
            continue
        new = rules[settings](span, text[span.start : span.end]) or nothing
        pieces += (gap, new)
        first, length = length + len(gap), length + len(gap) + len(new)
        edits.append(
            Edit(
                start=span.start,
                end=span.end,
                new_start=first,
                new_end=length,
                entity_type=span.entity_type,
            )
        )
    pieces.append(text[position:])
    if places.bare:
        pieces, edits = _as_values(edits, pieces, text, places.bare)
    redacted = without_empty_targets("".join(pieces))
    if edits and (not redacted or redacted.isspace()):
        whole = replace(
            edits[0], start=0, end=len(text), new_start=0, new_end=len(MASK)
        )
        return Redaction(text=MASK, edits=(whole,))
    return Redaction(text=redacted, edits=tuple(edits))


def _as_values(
    edits: Sequence[Edit], pieces: Sequence[str], text: str, places: Sequence[Bare]
) -> tuple[list[str], list[Edit]]:
    """Quote what replaced parts of bare values of JSON and made no value of them.

    Args:
        edits: of the text, in order.
        pieces: what stands before the first of them, its replacement, and so on.
        text: as it was.
        places: bare values that hold spans, in order.

    Returns:
        Pieces and edits; a value that is quoted is one edit.
    """
    news = pieces[1::2]
    made: list[tuple[Edit, str]] = []
    done = 0
    for bare in places:
        low = bisect_left(edits, bare.start, done, key=_start)
        done_before, done = done, bisect_left(edits, bare.end, low, key=_start)
        made += zip(edits[done_before:low], news[done_before:low], strict=True)
        group = list(zip(edits[low:done], news[low:done], strict=True))
        parts: list[str] = []
        position = bare.start
        for edit, new in group:
            parts += (text[position : edit.start], new)
            position = edit.end
        new = "".join([*parts, text[position : bare.end]])
        value = as_value(new, bare.depth)
        if group and value != new:
            group = [(replace(edits[low], start=bare.start, end=bare.end), value)]
        made += group
    made += zip(edits[done:], news[done:], strict=True)
    written: list[str] = []
    position = length = 0
    for number, (edit, new) in enumerate(made):
        gap = text[position : edit.start]
        position = edit.end
        written += (gap, new)
        first, length = length + len(gap), length + len(gap) + len(new)
        made[number] = (replace(edit, new_start=first, new_end=length), new)
    return [*written, text[position:]], [edit for edit, _ in made]


def _start(edit: Edit) -> int:
    return edit.start


def redact_dataset(
    dataset: datasets.Dataset,
    *,
    operator: Operator,
    by_type: Mapping[str, OperatorSettings] = _NO_TYPES,
    merge_adjacent: bool = True,
    pseudonyms: Pseudonyms | None = None,
) -> datasets.Dataset:
    """Replace the spans of every record of a corpus, or of a part of it, in memory.

    Rows stay in number and order, so that the redacted corpus is aligned with the
    original; every column stays except `spans`, which no longer fits.

    Args:
        dataset: columns `text` and `spans`, and any others; `unit_id` for pseudonyms
            that hold within a unit.
        operator: what to put in the place of spans.
        by_type: other operators, by entity type.
        merge_adjacent: as in `redact_text`.
        pseudonyms: as in `redact_text`.

    Returns:
        The redacted corpus.

    Raises:
        ConfigError: as `redact_text`.
        DetectionError: the corpus has no `spans`, or spans do not fit their text.
    """
    if "spans" not in dataset.column_names:
        raise DetectionError(
            "dataset must have the column spans, got columns "
            f"{', '.join(dataset.column_names)}. Run detection first."
        )
    units = dataset["unit_id"][:] if "unit_id" in dataset.column_names else repeat(None)
    rows = zip(dataset["text"][:], dataset["spans"][:], units, strict=False)
    texts = [
        redact_text(
            text,
            [Span.from_row(span) for span in row],
            operator,
            by_type=by_type,
            merge_adjacent=merge_adjacent,
            pseudonyms=pseudonyms,
            unit_id=unit,
        ).text
        for text, row, unit in rows
    ]
    kept = dataset.remove_columns("spans")
    table = kept.with_format("arrow")[:]
    place = table.column_names.index("text")
    column = pa.array(texts, table.schema.field(place).type)
    table = table.set_column(place, table.schema.field(place), column)
    return datasets.Dataset(table, info=kept.info, fingerprint=fresh_name())


def replacement(
    settings: OperatorSettings | Operator,
    *,
    pseudonyms: Pseudonyms | None = None,
    unit_id: str | None = None,
) -> Replace:
    """Return the replacement rule of an operator for one record.

    Call it once per record: `NUMBERED` counts from 1 in each.

    Raises:
        ConfigError: an operator without the key that it needs.
    """
    if isinstance(settings, Operator):
        settings = OperatorSettings(operator=settings)
    operator = settings.operator
    if operator in KEYED:
        if pseudonyms is None:
            raise ConfigError(
                f"pseudonyms must be given for operator={operator}, got None. Pass "
                "Pseudonyms(key=...) with a secret key."
            )
        return pseudonyms.replacement(
            unit_id, operator=operator, max_days=settings.max_days
        )
    if operator is Operator.NUMBERED:
        return _numbered()
    if operator is Operator.PARTIAL:
        return _partial(settings)
    return _STATELESS[operator]


_STATELESS: dict[Operator, Replace] = {
    Operator.MASK: lambda _span, _value: MASK,
    Operator.TYPED: lambda span, _value: f"<{span.entity_type}>",
    Operator.DELETE: lambda _span, _value: "",
    Operator.KEEP: lambda _span, value: value,
}


def _numbered() -> Replace:
    """Number the values of each type in order of appearance."""
    numbers: dict[str, dict[str, int]] = {}

    def replace(span: Span, value: str) -> str:
        seen = numbers.setdefault(span.entity_type, {})
        number = seen.setdefault(form_of(span.entity_type, value), len(seen) + 1)
        return f"<{span.entity_type}_{number}>"

    return replace


_SAYING: Final = frozenset(["Mn", "Mc", "Me", "So", "Cf", "Cs", "Co"])


def _partial(settings: OperatorSettings) -> Replace:
    """Leave some letters and digits at the ends; signs and blanks stay."""

    def replace(_span: Span, value: str) -> str:
        places = [i for i, character in enumerate(value) if _is_said(character)]
        most = len(places) // 2
        last = min(settings.keep_last, most)
        first = min(settings.keep_first, most - last)
        hidden = set(places[first : len(places) - last])
        return "".join(
            settings.character if i in hidden else character
            for i, character in enumerate(value)
        )

    return replace


def _is_said(character: str) -> bool:
    """Whether a character says something: letters, digits, marks on them, pictures."""
    return character.isalnum() or unicodedata.category(character) in _SAYING
