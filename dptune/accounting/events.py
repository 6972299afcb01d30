"""Events: what a mechanism was, as data that outlives the program that ran it.

An event is a `dp_accounting.DpEvent` from the closed table below. It says nothing of
an epsilon: an accountant adds that later. The JSON form is versioned, is
canonical (equal events give equal text) and never names a class to import.

| type | mechanism | fields |
|---|---|---|
| `no_op` | nothing that touches private data | |
| `non_private` | a release with no guarantee, epsilon is infinite | |
| `gaussian` | sum of vectors of norm <= C, plus noise | `noise_multiplier` |
| `poisson_sampled` | every unit tosses a coin | `sampling_probability`, `event` |
| `truncated_subsampled_gaussian` | Poisson, cut at a public cap | four numbers |
| `self_composed` | the same again | `event`, `count` |
| `composed` | one after the other, adaptively | `events` |

No event says anything of a relation: an accountant is asked under one.

Meanings are frozen: a new mechanism gets a new type, a changed form a new version.
`laplace` and `renyi_filter` were types that no run ever wrote: do not use them again.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attr
import dp_accounting
from dp_accounting import DpEvent

from dptune.errors import ArtifactError, UnsupportedEventError
from dptune.privacy import NeighboringRelation

EVENT_VERSION: Final = 1
_MAX_DEPTH: Final = 32
_MAX_COUNT: Final = 10**12


_TYPES: Final[dict[str, tuple[type[DpEvent], dict[str, str]]]] = {
    "no_op": (dp_accounting.NoOpDpEvent, {}),
    "non_private": (dp_accounting.NonPrivateDpEvent, {}),
    "gaussian": (dp_accounting.GaussianDpEvent, {"noise_multiplier": "multiplier"}),
    "poisson_sampled": (
        dp_accounting.PoissonSampledDpEvent,
        {"sampling_probability": "probability", "event": "event"},
    ),
    "truncated_subsampled_gaussian": (
        dp_accounting.TruncatedSubsampledGaussianDpEvent,
        {
            "dataset_size": "count",
            "sampling_probability": "probability",
            "truncated_batch_size": "count",
            "noise_multiplier": "multiplier",
        },
    ),
    "self_composed": (
        dp_accounting.SelfComposedDpEvent,
        {"event": "event", "count": "count"},
    ),
    "composed": (dp_accounting.ComposedDpEvent, {"events": "events"}),
}
_NAMES: Final = {cls: name for name, (cls, _) in _TYPES.items()}


def event_to_dict(event: DpEvent) -> dict[str, Any]:
    """Describe an event as versioned plain data.

    Raises:
        UnsupportedEventError: a sub-event is outside the table; the message names it.
    """
    return {"version": EVENT_VERSION, "event": _encode(event, "event", 0)}


def event_to_json(event: DpEvent) -> str:
    """Describe an event as canonical JSON: equal events give equal text.

    Floats are written so that they read back to the same bits.

    Raises:
        UnsupportedEventError: a sub-event is outside the table; the message names it.
    """
    return _dumps(event_to_dict(event))


def event_from_json(text: str | Mapping[str, Any]) -> DpEvent:
    """Read what `event_to_json` or `event_to_dict` wrote.

    Raises:
        ArtifactError: not JSON, another version, missing, extra or impossible fields.
        UnsupportedEventError: a type outside the table; the message names it.
    """
    data = _loads(text) if isinstance(text, str) else text
    if not isinstance(data, Mapping) or set(data) != {"version", "event"}:
        raise ArtifactError(
            "event must be an object with 'version' and 'event'. "
            "Read only what event_to_json wrote."
        )
    if data["version"] != EVENT_VERSION:
        raise ArtifactError(
            f"event version must be {EVENT_VERSION}, got {data['version']!r}. "
            "Upgrade dptune to read newer ledgers."
        )
    return _decode(data["event"], "event", 0)


def check_event(event: DpEvent) -> DpEvent:
    """Return the event if every part of it is in the table, with plain numbers.

    Raises:
        UnsupportedEventError: a sub-event or a value is not supported.
    """
    return event_from_json(event_to_dict(event))


def mechanism_counts(event: DpEvent) -> tuple[tuple[DpEvent, int], ...]:
    """Flatten an event into its mechanisms and how often each ran, in canonical order.

    `NoOpDpEvent` vanishes, a `NonPrivateDpEvent` stays. Composition bounds do not
    depend on the order of mechanisms that were fixed in advance, so equal histories
    get equal answers.

    Raises:
        UnsupportedEventError: a sub-event is outside the table; the message names it.
    """
    counts: dict[str, int] = {}
    mechanisms: dict[str, DpEvent] = {}
    for mechanism, count in _flatten(check_event(event), 1):
        key = _dumps(_encode(mechanism, "event", 0))
        mechanisms[key] = mechanism
        counts[key] = counts.get(key, 0) + count
    return tuple((mechanisms[key], counts[key]) for key in sorted(counts))


def merge_events(events: Iterable[DpEvent]) -> DpEvent:
    """Compose events into one, equal mechanisms merged into counts.

    The result is `NoOpDpEvent` for nothing, a single mechanism or `SelfComposedDpEvent`
    for one kind, else a `ComposedDpEvent` in canonical order. Merging is idempotent
    and does not depend on the order of `events`.

    Raises:
        UnsupportedEventError: a sub-event is outside the table; the message names it.

    >>> step = dp_accounting.GaussianDpEvent(2.0)
    >>> merged = merge_events([step, dp_accounting.NoOpDpEvent(), step])
    >>> merged == dp_accounting.SelfComposedDpEvent(step, 2)
    True
    """
    parts = [
        mechanism
        if count == 1
        else dp_accounting.SelfComposedDpEvent(event=mechanism, count=count)
        for mechanism, count in mechanism_counts(
            dp_accounting.ComposedDpEvent(events=list(events))
        )
    ]
    if not parts:
        return dp_accounting.NoOpDpEvent()
    return parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(events=parts)


def before_and_after(
    event: DpEvent, relation: NeighboringRelation
) -> tuple[DpEvent, ...]:
    """Return what a bound must hold for: the event, and that on one unit more.

    Truncated batches alone know how many units there are. Their dominating pair, at
    size n, is that of data sets of n - 1 and n units: a claim about n units that one
    may leave *or join* needs the pair at n + 1 as well.
    """
    counts = mechanism_counts(event)
    truncated = dp_accounting.TruncatedSubsampledGaussianDpEvent
    if relation is NeighboringRelation.REPLACE_ONE or not any(
        isinstance(mechanism, truncated) for mechanism, _ in counts
    ):
        return (event,)
    larger = merge_events(
        dp_accounting.SelfComposedDpEvent(
            attr.evolve(mechanism, dataset_size=mechanism.dataset_size + 1)
            if isinstance(mechanism, truncated)
            else mechanism,
            count,
        )
        for mechanism, count in counts
    )
    return event, larger


def is_non_private(event: DpEvent) -> bool:
    """Whether some part of the event releases private data without noise.

    A mechanism with `noise_multiplier` 0 that touches at least one unit counts.

    >>> is_non_private(dp_accounting.GaussianDpEvent(1.0))
    False
    >>> is_non_private(dp_accounting.GaussianDpEvent(0.0))
    True
    """
    return any(_releases_raw(mechanism) for mechanism, _ in mechanism_counts(event))


def _releases_raw(mechanism: DpEvent) -> bool:
    """Whether one flat mechanism gives no guarantee at all."""
    if isinstance(mechanism, dp_accounting.NonPrivateDpEvent):
        return True
    if isinstance(mechanism, dp_accounting.PoissonSampledDpEvent):
        drawn: float = mechanism.sampling_probability
        return drawn > 0 and _releases_raw(mechanism.event)
    if isinstance(mechanism, dp_accounting.TruncatedSubsampledGaussianDpEvent):
        drawn = mechanism.sampling_probability
        return drawn > 0 and float(mechanism.noise_multiplier) == 0
    return getattr(mechanism, "noise_multiplier", None) == 0


def _flatten(event: DpEvent, count: int) -> Iterator[tuple[DpEvent, int]]:
    """Yield every mechanism below compositions, with the product of the counts."""
    if isinstance(event, dp_accounting.NoOpDpEvent):
        return
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        yield from _flatten(event.event, count * event.count)
    elif isinstance(event, dp_accounting.ComposedDpEvent):
        for part in event.events:
            yield from _flatten(part, count)
    else:
        yield event, count


def _encode(event: object, path: str, depth: int) -> dict[str, Any]:
    """Encode one event of the table; `path` names it in errors."""
    name = _NAMES.get(type(event))
    if name is None or depth > _MAX_DEPTH:
        raise _unsupported(type(event).__name__, path)
    _check_parts(event, path)
    fields = {
        field: _encode_value(getattr(event, field), kind, f"{path}.{field}", depth)
        for field, kind in _TYPES[name][1].items()
    }
    return {"type": name, **fields}


def _encode_value(value: object, kind: str, path: str, depth: int) -> object:
    """Encode one field, refusing numbers that no mechanism can have."""
    if kind == "event":
        return _encode(value, path, depth + 1)
    if kind == "events":
        return [
            _encode(part, f"{path}[{index}]", depth + 1)
            for index, part in enumerate(_items(value))
        ]
    try:
        return _NUMBERS[kind](value)
    except (TypeError, ValueError, OverflowError):
        raise UnsupportedEventError(
            f"{path} must be {_CONSTRAINTS[kind]}, got {value!r}. "
            "No accountant knows such a mechanism."
        ) from None


def _decode(data: object, path: str, depth: int) -> DpEvent:
    """Decode one event of the table; `path` names it in errors."""
    if not isinstance(data, Mapping) or not isinstance(data.get("type"), str):
        raise ArtifactError(f"{path} must be an object with a 'type'.")
    if data["type"] not in _TYPES or depth > _MAX_DEPTH:
        raise _unsupported(data["type"], path)
    cls, fields = _TYPES[data["type"]]
    if set(data) != {"type", *fields}:
        raise ArtifactError(
            f"{path} of type {data['type']!r} must have exactly the fields "
            f"{sorted(fields)}."
        )
    values = {
        field: _decode_value(data[field], kind, f"{path}.{field}", depth)
        for field, kind in fields.items()
    }
    event = cls(**values)
    _check_parts(event, path)
    return event


def _decode_value(value: object, kind: str, path: str, depth: int) -> object:
    """Decode one field."""
    if kind == "event":
        return _decode(value, path, depth + 1)
    if kind == "events":
        return [
            _decode(part, f"{path}[{index}]", depth + 1)
            for index, part in enumerate(_items(value))
        ]
    return _encode_value(value, kind, path, depth)


def _check_parts(event: object, path: str) -> None:
    """Refuse fields that do not go together.

    Several releases from one sample are not several samples: accountants that
    agree on them are few, so the table leaves them out.
    """
    if isinstance(event, dp_accounting.PoissonSampledDpEvent) and not isinstance(
        event.event, dp_accounting.GaussianDpEvent
    ):
        raise _unsupported(type(event.event).__name__, f"{path}.event")


def _items(value: object) -> list[Any]:
    """Return the members of a list or tuple, else refuse."""
    if not isinstance(value, list | tuple):
        raise UnsupportedEventError("events must be a list of events.")
    return list(value)


def _unsupported(name: str, path: str) -> UnsupportedEventError:
    """Name the sub-event that no accountant here knows."""
    return UnsupportedEventError(
        f"{path} must be one of {', '.join(sorted(_TYPES))}, got {name}. "
        "Poisson sampling takes a Gaussian event only. Describe the "
        "mechanism by these, or as non_private if it has no guarantee."
    )


def _multiplier(value: Any) -> float:  # noqa: ANN401 - numbers of any library
    """Read a finite noise multiplier >= 0."""
    number = float(value)
    if isinstance(value, bool | str) or not (number >= 0 and math.isfinite(number)):
        raise ValueError
    return number


def _probability(value: Any) -> float:  # noqa: ANN401 - numbers of any library
    """Read a probability in [0, 1]."""
    number = float(value)
    if isinstance(value, bool | str) or not 0 <= number <= 1:
        raise ValueError
    return number


def _count(value: Any) -> int:  # noqa: ANN401 - numbers of any library
    """Read an integer >= 1, never a truth value."""
    number = int(value)
    if isinstance(value, bool | str) or number != value:
        raise ValueError
    if not 1 <= number <= _MAX_COUNT:
        raise ValueError
    return number


_NUMBERS: Final[dict[str, Callable[[Any], object]]] = {
    "multiplier": _multiplier,
    "probability": _probability,
    "count": _count,
}
_CONSTRAINTS: Final = {
    "multiplier": "a finite number >= 0",
    "probability": "in [0, 1]",
    "count": f"an integer in [1, {_MAX_COUNT}]",
}


def _dumps(data: object) -> str:
    """Write canonical JSON: sorted keys, no spaces, floats that read back exactly."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _loads(text: str) -> object:
    """Read JSON, refusing NaN and infinity."""
    try:
        return json.loads(text, parse_constant=lambda _: math.nan)
    except (json.JSONDecodeError, RecursionError):
        raise ArtifactError("event must be JSON, got text that is not.") from None
