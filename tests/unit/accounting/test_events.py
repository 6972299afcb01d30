"""Events survive a trip through JSON bit by bit, and nothing unknown gets through."""

import json

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.accounting.events import (
    check_event,
    event_from_json,
    event_to_dict,
    event_to_json,
    is_non_private,
    mechanism_counts,
    merge_events,
)
from dptune.errors import ArtifactError, UnsupportedEventError

MULTIPLIERS = st.floats(min_value=0, max_value=1e6, allow_nan=False)
PROBABILITIES = st.floats(min_value=0, max_value=1)
COUNTS = st.integers(min_value=1, max_value=10**9)
SUMS = MULTIPLIERS.map(dpa.GaussianDpEvent)
MECHANISMS = (
    st.just(dpa.NoOpDpEvent())
    | st.just(dpa.NonPrivateDpEvent())
    | SUMS
    | st.builds(dpa.PoissonSampledDpEvent, PROBABILITIES, SUMS)
    | st.builds(
        dpa.TruncatedSubsampledGaussianDpEvent,
        COUNTS,
        PROBABILITIES,
        COUNTS,
        MULTIPLIERS,
    )
)
EVENTS = st.recursive(
    MECHANISMS,
    lambda inner: (
        st.builds(dpa.SelfComposedDpEvent, inner, st.integers(1, 1000))
        | st.lists(inner, max_size=4).map(dpa.ComposedDpEvent)
    ),
    max_leaves=6,
)
LAWS = settings(derandomize=True, deadline=None, max_examples=100)


def step(rate=0.02, noise=1.0):
    return dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))


@LAWS
@given(EVENTS)
def test_event_to_json_any_event_round_trips_exactly(event):
    assert event_from_json(event_to_json(event)) == event
    assert event_from_json(json.loads(json.dumps(event_to_dict(event)))) == event


def test_event_to_json_is_frozen():
    """The stored form never changes sense: this text must be readable for ever."""
    text = (
        '{"event":{"count":250,"event":{"event":{"noise_multiplier":1.37,'
        '"type":"gaussian"},"sampling_probability":0.02,"type":"poisson_sampled"},'
        '"type":"self_composed"},"version":1}'
    )
    assert event_to_json(dpa.SelfComposedDpEvent(step(0.02, 1.37), 250)) == text
    assert event_from_json(text) == dpa.SelfComposedDpEvent(step(0.02, 1.37), 250)


def test_event_to_json_numpy_numbers_become_plain():
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(np.float32(0.5)), np.int64(3))
    assert event_from_json(event_to_json(event)) == dpa.SelfComposedDpEvent(
        dpa.GaussianDpEvent(0.5), 3
    )


@pytest.mark.parametrize(
    ("event", "path"),
    [
        (dpa.UnsupportedDpEvent(), "event must"),
        (dpa.ZCDpEvent(0.1), "ZCDpEvent"),
        (dpa.LaplaceDpEvent(1.0), "LaplaceDpEvent"),
        (
            dpa.ComposedDpEvent(
                [step(), dpa.SelfComposedDpEvent(dpa.ZCDpEvent(0.1), 2)]
            ),
            r"event\.events\[1\]\.event",
        ),
        (
            dpa.PoissonSampledDpEvent(0.1, dpa.SelfComposedDpEvent(step().event, 2)),
            "SelfComposedDpEvent",
        ),
        (dpa.PoissonSampledDpEvent(0.1, dpa.NonPrivateDpEvent()), "NonPrivateDpEvent"),
        ("a string", "str"),
        (None, "NoneType"),
    ],
)
def test_check_event_unknown_sub_event_is_named(event, path):
    with pytest.raises(UnsupportedEventError, match=path):
        check_event(event)


@pytest.mark.parametrize(
    "event",
    [
        dpa.GaussianDpEvent(float("nan")),
        dpa.GaussianDpEvent(float("inf")),
        dpa.GaussianDpEvent(-1.0),
        dpa.GaussianDpEvent("1.0"),
        dpa.GaussianDpEvent(None),
        dpa.PoissonSampledDpEvent(1.5, dpa.GaussianDpEvent(1.0)),
        dpa.PoissonSampledDpEvent(float("nan"), dpa.GaussianDpEvent(1.0)),
        dpa.SelfComposedDpEvent(step(), 0),
        dpa.SelfComposedDpEvent(step(), -3),
        dpa.SelfComposedDpEvent(step(), 2.5),
        dpa.SelfComposedDpEvent(step(), True),
        dpa.ComposedDpEvent(step()),
    ],
)
def test_check_event_impossible_number_is_refused(event):
    with pytest.raises(UnsupportedEventError):
        check_event(event)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"version":2,"event":{"type":"no_op"}}',
        '{"version":1}',
        '{"version":1,"event":{"type":"no_op"},"more":1}',
        '{"version":1,"event":{"type":"gaussian"}}',
        '{"version":1,"event":{"type":"no_op","noise_multiplier":1}}',
        '{"version":1,"event":"no_op"}',
        '{"version":1,"event":{"type":["no_op"]}}',
    ],
)
def test_event_from_json_broken_text_is_refused(text):
    with pytest.raises(ArtifactError):
        event_from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"version":1,"event":{"type":"dp_accounting.GaussianDpEvent"}}',
        '{"version":1,"event":{"type":"gaussian","noise_multiplier":NaN}}',
        '{"version":1,"event":{"type":"composed","events":{}}}',
    ],
)
def test_event_from_json_unknown_content_is_refused(text):
    with pytest.raises(UnsupportedEventError):
        event_from_json(text)


def test_event_from_json_deep_nesting_is_refused():
    event = {"type": "no_op"}
    for _ in range(40):
        event = {"type": "composed", "events": [event]}
    with pytest.raises(UnsupportedEventError):
        event_from_json({"version": 1, "event": event})


@LAWS
@given(st.lists(EVENTS, max_size=4), st.randoms(use_true_random=False))
def test_merge_events_ignores_order_and_keeps_counts(events, random):
    merged = merge_events(events)
    shuffled = list(events)
    random.shuffle(shuffled)
    assert merge_events(shuffled) == merged
    assert merge_events([merged]) == merged
    assert mechanism_counts(merged) == mechanism_counts(dpa.ComposedDpEvent(events))


def test_merge_events_equal_mechanisms_become_counts():
    blocks = [dpa.SelfComposedDpEvent(step(), 10) for _ in range(3)]
    assert merge_events(blocks) == dpa.SelfComposedDpEvent(step(), 30)
    assert merge_events([]) == dpa.NoOpDpEvent()
    assert merge_events([step()]) == step()
    nested = dpa.SelfComposedDpEvent(dpa.ComposedDpEvent([step(), *blocks]), 2)
    assert merge_events([nested]) == dpa.SelfComposedDpEvent(step(), 62)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (dpa.NonPrivateDpEvent(), True),
        (dpa.ComposedDpEvent([step(), dpa.NonPrivateDpEvent()]), True),
        (step(noise=0.0), True),
        (dpa.GaussianDpEvent(0.0), True),
        (dpa.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 0.0), True),
        (step(rate=0.0, noise=0.0), False),
        (dpa.TruncatedSubsampledGaussianDpEvent(100, 0.0, 20, 0.0), False),
        (step(), False),
        (dpa.NoOpDpEvent(), False),
    ],
)
def test_is_non_private_any_raw_release_counts(event, expected):
    assert is_non_private(event) is expected
