"""Parts of a corpus, read apart, make what one reader makes, or are refused."""

from dataclasses import replace

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune import parts
from dptune.detection.engine import build_engine
from dptune.detection.labelling import detect_dataset, detect_shard, merge_shards
from dptune.detection.recognizer import Tier
from dptune.errors import ArtifactError

LINES = (
    "My name is Chloe Zhang and my access code is 341752.",
    "how can i help you?",
    "mail chloe@example.org",
    "",
)


@pytest.fixture(autouse=True, scope="module")
def small_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_ROWS", 2)
        yield


@pytest.fixture(scope="module")
def engine():
    return build_engine(tier=Tier.LOW_ENTITY)


def corpus(size):
    texts = [f"{LINES[i % 4]} {i}" for i in range(size)]
    return datasets.Dataset.from_dict(
        {"id": list(map(str, range(size))), "text": texts}
    )


def swapped(shards):
    first, second, *others = shards
    return [replace(second, index=0), replace(first, index=1), *others]


def shards_of(dataset, engine, count):
    return [
        detect_shard(dataset, engine, index=i, num_shards=count) for i in range(count)
    ]


@given(size=st.integers(1, 9), count=st.integers(1, 6), order=st.randoms())
@settings(max_examples=12, deadline=None)
def test_parts_in_any_order_make_the_whole(engine, size, count, order):
    dataset = corpus(size)
    shards = shards_of(dataset, engine, count)
    order.shuffle(shards)
    merged = merge_shards(dataset, engine, shards)
    whole = detect_dataset(dataset, engine)
    assert merged.to_list() == whole.to_list()
    assert merged.features == whole.features
    assert merged._fingerprint == whole._fingerprint


def test_progress_counts_the_part(engine):
    seen = []
    detect_shard(corpus(9), engine, index=1, num_shards=2, on_progress=seen.append)
    assert seen[-1] == 5  # two parts of two records are the first shard's


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda s: s[:2], "0 of 3, 1 of 3"),
        (lambda s: [*s, s[0]], "0 of 3, 0 of 3"),
        (lambda s: [s[0], s[1], replace(s[2], num_shards=4)], "2 of 4"),
        (lambda s: [s[0], s[2], replace(s[1], index=2)], "every part"),
        (
            lambda s: [replace(s[1], index=0), replace(s[0], index=1), s[2]],
            "other texts",
        ),
        (lambda s: [replace(s[0], texts="0"), s[1], s[2]], "shard 0 must be of this"),
        (lambda s: [s[0], replace(s[1], spans=s[2].spans.select([])), s[2]], "shard 1"),
        (lambda s: [s[0], s[1], replace(s[2], detector="other")], "got other"),
    ],
)
def test_what_does_not_fit_is_refused_and_quotes_nothing(engine, broken, says):
    dataset = corpus(9)
    shards = broken(shards_of(dataset, engine, 3))
    with pytest.raises(ArtifactError, match=says) as refusal:
        merge_shards(dataset, engine, shards)
    assert "Chloe" not in str(refusal.value)
    assert "Chloe" not in repr(shards)
