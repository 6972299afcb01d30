"""Deduplication against the slow and honest way."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from dptune.conversation import Turn, is_conversation, join_turns
from dptune.data.deduplication import deduplicate
from dptune.data.duplicates import Duplicates
from dptune.data.engine import open_engine
from dptune.data.shingles import shingle, text_shingles
from tests.support.sources import written_table


def record(text, number, *, split=None, unit=None):
    return str(number), text, unit or str(number), split


def records(*texts, **settings):
    return [record(text, i, **settings) for i, text in enumerate(texts)]


def grams(text):
    words = text.split()
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def brute_force(texts, threshold):
    kept, near = [], 0
    for text in texts:
        own = grams(text)
        if any(len(own & o) / len(own | o) >= threshold for o in kept):
            near += 1
        else:
            kept.append(own)
    return near


@dataclass
class Found:
    kept: tuple[int, ...]
    num_exact: int
    num_near: int
    num_across_units: int


def drop(rows, duplicates, *, threshold=None, folder=None):
    is_chat = any(is_conversation(text) for _, text, _, _ in rows)
    with open_engine(folder) as engine:
        table = written_table(engine, rows, is_chat=is_chat)
        found = deduplicate(
            table,
            np.maximum(table.splits, 0),
            duplicates=duplicates,
            near_duplicate_threshold=threshold,
            folder=folder,
        )
    kept = tuple(np.flatnonzero(found.kept).tolist())
    return Found(kept, found.num_exact, found.num_near, found.num_across_units)


def test_deduplicate_exact_copies_keeps_first():
    found = drop(records("a b", "c", " a\n b ", "A b", "c", "a b"), Duplicates.EXACT)
    assert found.kept == (0, 1, 2, 3)  # other blanks are another text
    assert (found.num_exact, found.num_near, found.num_across_units) == (2, 0, 2)


def test_deduplicate_within_one_unit_is_not_across():
    rows = [*records("a", "a", unit="u"), record("a", 2, unit="v")]
    within = drop(rows, Duplicates.WITHIN_UNITS)
    assert (within.kept, within.num_exact, within.num_across_units) == ((0, 2), 2, 0)
    across = drop(rows, Duplicates.EXACT)
    assert (across.kept, across.num_across_units) == ((0,), 1)


def test_deduplicate_lets_nothing_held_out_decide_what_is_trained_on():
    rows = [
        record("x", 0, split="test"),
        record("x", 1, split="validation"),
        record("x", 2, split="train"),
        record("y", 3, split="test"),
    ]
    assert drop(rows, Duplicates.EXACT).kept == (2, 3)


def test_deduplicate_drops_held_out_chats_of_which_other_turns_are_learnt():
    said, read = (
        join_turns([Turn(role="user", content="Hello there", trained=learnt)])
        for learnt in (True, False)
    )
    rows = [
        record(said, 0, split="train"),
        record(read, 1, split="train"),  # two texts, each a unit's own
        record(read, 2, split="test"),
        record("Hello there", 3, split="test"),
    ]
    found = drop(rows, Duplicates.EXACT)
    assert (found.kept, found.num_exact) == ((0, 1, 3), 1)
    only = drop([rows[0], rows[2]], Duplicates.EXACT)
    assert only.kept == (0,)


def test_deduplicate_counting_only_keeps_all():
    found = drop(records("a", "a"), Duplicates.KEEP)
    assert found.kept == (0, 1)
    assert (found.num_exact, found.num_across_units) == (1, 0)


@pytest.mark.parametrize("threshold", [0.6, 0.85, 1.0])
def test_deduplicate_near_agrees_with_brute_force(threshold, tmp_path):
    source = np.random.default_rng(0)
    words = [f"w{i}" for i in range(500)]
    texts = []
    for _ in range(120):
        text = [*source.choice(words, 40)]
        for changes in (0, 1, 2, 5, 20):
            copy = list(text)
            for place in source.choice(40, changes, replace=False):
                copy[place] = source.choice(words)
            texts.append(" ".join(copy))
    expected = brute_force(texts, threshold)
    found = drop(records(*texts), Duplicates.NEAR, threshold=threshold)
    assert found == drop(
        records(*texts), Duplicates.NEAR, threshold=threshold, folder=tmp_path
    )
    # MinHash may miss a pair at the very threshold, never invent one.
    assert expected - 3 <= found.num_near <= expected
    assert len(found.kept) == len(texts) - found.num_near - found.num_exact
    assert expected == 0 if threshold == 1.0 else expected > 100


def test_deduplicate_of_short_and_empty_words_does_not_fail():
    found = drop(records("!", "?", "a", "a b"), Duplicates.NEAR, threshold=0.85)
    assert found.kept == (0, 1, 2, 3)


def test_deduplicate_keeps_near_copies_by_default():
    text = " ".join(f"w{i}" for i in range(100))
    rows = records(text, f"{text} more")
    assert drop(rows, Duplicates.EXACT, threshold=0.85).kept == (0, 1)
    found = drop(rows, Duplicates.NEAR, threshold=0.85)
    assert (found.kept, found.num_near, found.num_across_units) == ((0,), 1, 1)


def test_shingles_of_many_texts_are_those_of_each():
    """Words of all kinds, beside the slow and honest way: text by text."""
    source = np.random.default_rng(1)
    words = [*"abcdefg", "Two2", "x_y", "it's", "Straße", "日本", "a" * 90, "\u0130"]
    chat = join_turns([Turn(role="user", content="Say it, again and again")])
    texts = ["!", "a", "a b", "ß", chat, *(" ".join(words) for _ in range(2))]
    texts += [" ".join(source.choice(words, n)) for n in range(1, 60)]
    plain = [text for text in texts if text.isascii()]
    for part in (texts, plain, ["!?"], ["a", "b"]):
        hashes, offsets = shingle(pa.array(["first", *part])[1:])
        assert [hashes[start:end].tolist() for start, end in pairwise(offsets)] == [
            text_shingles(text) for text in part
        ]
