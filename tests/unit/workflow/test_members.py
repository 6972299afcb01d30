"""Whom attacks tell apart: no record that no stage trained on is a member."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.planting import plant
from dptune.attacks.roc import RocSettings, blind_signal
from dptune.attacks.settings import AttackSettings
from dptune.config import DetectionSettings
from dptune.configfile import load_train_config
from dptune.conversation import Turn, join_turns
from dptune.data.draws import seeded_fractions
from dptune.dpsgd.dataset import UnitDataset
from dptune.errors import DataError, DptuneError
from dptune.models.encode import encode_corpus, record_tokens
from dptune.models.loading import load_saved
from dptune.workflow import members as module
from dptune.workflow.attack import attack_model
from dptune.workflow.members import (
    TrainedRows,
    members_and_others,
    refuse_without_controls,
)
from dptune.workflow.preflight import check_run

from .conftest import PERFORMANCE

MAX_TOKENS, BOUND = 24, 4
REPOSITORY = Path(__file__).resolve().parents[3]
TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
NONE = CanarySpec(num_planted=0, num_held_out=0)
WORDS = ("amber", "brook", "cedar", "delta", "ember", "fjord", "grove", "heath")


def text_of(number, words=3):
    return " ".join([str(number), *(WORDS[(number + i) % 8] for i in range(words))])


def row_of(number, *, split="train", unit=None, text=None):
    return {
        "id": str(number),
        "text": text or text_of(number),
        "unit_id": unit or str(number),
        "split": split,
    }


@pytest.fixture
def of_rows(corpus):
    """Corpora of rows."""
    return lambda rows: corpus.with_dataset(
        Dataset.from_list([{"spans": None, **row} for row in rows])
    )


@pytest.fixture
def users(of_rows):
    """Records of ten users of which the bound keeps some; every third is long."""
    rows = [
        row_of(n, unit=f"user {n % 10}", text=text_of(n, 20 if n % 3 == 0 else 3))
        for n in range(120)
    ]
    return of_rows(rows + [row_of(n, split="test") for n in range(120, 180)])


@pytest.fixture
def trained(bundle):
    loaded = load_saved(bundle.path)
    return TrainedRows(
        loaded=loaded, max_tokens=MAX_TOKENS, max_sequences_per_unit=BOUND
    )


def drawn(corpus, trained, *, canaries=None, count=1000):
    canaries = canaries or draw_canaries(NONE, seed=1)
    return members_and_others(corpus, canaries, trained=trained, count=count)


def num_untrained(corpus, trained, rows):
    """Count members whose first sequence is none that a stage trains on."""
    tokenizer = trained.loaded.tokenizer
    data = UnitDataset.from_encoded(
        encode_corpus(corpus.split("train"), tokenizer, max_tokens=MAX_TOKENS),
        max_sequences_per_unit=BOUND,
        folder=None,
    )
    seen = {tuple(tokens.tolist()) for tokens in data.sequences}
    firsts = [record_tokens(t, tokenizer)[:MAX_TOKENS] for t in rows["text"]]
    return sum(tuple(first) not in seen for first in firsts)


class EveryRow(TrainedRows):
    """Takes every training record for one that was trained on."""

    def of(self, rows):
        return np.arange(len(rows))


class WholeRecords(TrainedRows):
    """Counts records against the bound, which is of sequences."""

    def of(self, rows):
        return self._kept(rows["unit_id"])


def twin(kind, trained):
    return kind(
        loaded=trained.loaded, max_tokens=MAX_TOKENS, max_sequences_per_unit=BOUND
    )


def test_members_are_of_exactly_the_records_that_training_keeps(users, trained):
    members, _ = drawn(users, trained)
    assert num_untrained(users, trained, members) == 0
    everything = users.split("train")
    kept = len(everything) - num_untrained(users, trained, everything)
    assert len(trained.of(everything)) == kept < len(everything)
    assert sorted(members["unit_id"]) == sorted(f"user {n}" for n in range(10))


@pytest.mark.parametrize("kind", [EveryRow, WholeRecords])
def test_twins_that_draw_untrained_members_are_caught(users, trained, kind):
    members, _ = drawn(users, twin(kind, trained))
    assert num_untrained(users, trained, members) > 0


def test_tokens_on_disk_keep_the_same_records(users, trained, tmp_path):
    rows = users.split("train")
    on_disk = replace(trained, folder=tmp_path).of(rows)
    np.testing.assert_array_equal(on_disk, trained.of(rows))
    assert not list(tmp_path.iterdir())


def test_canaries_use_up_their_units_bound_and_are_no_members(of_rows, trained):
    few = replace(trained, max_sequences_per_unit=1)
    spec = CanarySpec(num_planted=4, num_held_out=4, insertions=1)
    canaries = draw_canaries(spec, seed=1)
    plain = [row_of(n) for n in range(30)] + [row_of(30, split="test")]
    corpus = of_rows(plain)
    members, _ = drawn(
        corpus.with_dataset(plant(corpus.dataset, canaries)), few, canaries=canaries
    )
    assert members["id"] == [str(n) for n in range(30)]


@pytest.fixture
def copied(of_rows):
    """Records of which some held-out ones are copies of trained ones."""
    rows = [row_of(n) for n in range(40)]
    rows += [row_of(n, split="test", text=text_of(n % 40)) for n in range(40, 50)]
    return of_rows(rows + [row_of(n, split="test") for n in range(50, 70)])


def num_copies(corpus, rows, *, of="train"):
    return sum(text in set(corpus.split(of)["text"]) for text in rows["text"])


def test_copies_of_trained_texts_are_no_non_members(copied, trained):
    _, others = drawn(copied, trained)
    assert num_copies(copied, others) == 0
    assert others["id"] == [str(n) for n in range(50, 70)]


def test_texts_of_both_sides_are_no_members(copied, trained):
    members, _ = drawn(copied, trained)
    assert num_copies(copied, members, of="test") == 0
    assert members["id"] == [str(n) for n in range(10, 40)]


def test_twin_that_lets_copies_stay_is_caught(copied, trained, monkeypatch):
    monkeypatch.setattr(module, "repeated_texts", lambda *_: np.empty(0))
    members, others = drawn(copied, trained)
    assert num_copies(copied, others) == 10
    assert num_copies(copied, members, of="test") == 10


TRAINED = [row_of(n) for n in range(8)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (TRAINED, "test split"),
        (
            [*TRAINED, row_of(9, split="test", text="a"), row_of(10, text="a")],
            "got 8 and 0",
        ),
        (
            [*TRAINED, *(row_of(n, split="test", text="a") for n in (10, 11))],
            "got 8 and 0",
        ),
        (
            [row_of(1, text="a"), row_of(2, text="a"), row_of(3, split="test")],
            "got 0 and 1",
        ),
        ([*TRAINED, *(row_of(n, split="test") for n in range(9, 13))], "8 and 4"),
        (
            [*TRAINED, *(row_of(n, split="test", unit="u") for n in range(9, 30))],
            "8 and 1",
        ),
    ],
)
def test_corpus_without_controls_is_refused_before_anything_is_spent(
    of_rows, rows, says
):
    """The run had paid for all of its noise when the attacks found nobody."""
    read = partial(load_train_config, TINY, configs=REPOSITORY / "configs")
    with pytest.raises(DptuneError, match=says):
        check_run(read(), data_root=REPOSITORY, read=lambda _: of_rows(rows))


def rows_around(middle):
    """Rows of both splits at either end that some of other units repeat."""
    splits = ["train", "test"] * 8
    ends = [row_of(n, split=split) for n, split in enumerate(splits)]
    copies = [{**row, "id": f"c{n}", "unit_id": f"c{n}"} for n, row in enumerate(ends)]
    return [*ends[:8], *middle, *copies, *ends[8:]]


def test_copies_far_from_the_ends_of_a_corpus_are_seen(of_rows, monkeypatch):
    monkeypatch.setattr(module, "_HEAD", 8)
    with pytest.raises(DataError, match="got 0 and 0"):
        refuse_without_controls(of_rows(rows_around([])))
    alone = [row_of(n, split="test" if n % 2 else "train") for n in range(50, 60)]
    refuse_without_controls(of_rows(rows_around(alone)))
    with pytest.raises(DataError, match="got 5 and 4"):
        refuse_without_controls(of_rows(rows_around(alone[:-1])))


@pytest.fixture
def phrased(of_rows):
    """Records of which every fifth says the same."""
    said = ["we answer within two days" if n % 5 == 0 else None for n in range(400)]
    rows = [row_of(n, text=text) for n, text in enumerate(said)]
    return of_rows(
        [{**r, "split": "train" if int(r["id"]) % 3 else "test"} for r in rows]
    )


def blind_p_value(members, others):
    settings = RocSettings(num_resamples=100)
    return blind_signal(members["text"], others["text"], settings=settings).p_value


def test_phrase_of_many_does_not_tell_the_sides_apart_by_itself(phrased, trained):
    assert blind_p_value(*drawn(phrased, trained)) > 0.05


def test_twin_that_drops_shared_texts_on_one_side_is_told_apart(phrased, trained):
    _, others = drawn(phrased, trained)
    assert blind_p_value(phrased.split("train"), others) < 0.001


@pytest.fixture
def spoken_often(of_rows):
    """Every second text is that of three units; two of three units are trained on."""
    coins = np.random.default_rng(0)
    texts = [text_of(n) for n in range(600)]
    rows = [row_of(n, text=text) for n, text in enumerate(texts + 2 * texts[::2])]
    sides = np.where(coins.random(len(rows)) < 2 / 3, "train", "test")
    return of_rows([{**r, "split": str(s)} for r, s in zip(rows, sides, strict=True)])


def test_texts_of_several_units_of_one_side_do_not_tell_the_sides_apart(
    spoken_often, trained
):
    sides = drawn(spoken_often, trained)
    assert blind_p_value(*sides) > 0.05
    every = [*sides[0]["text"], *sides[1]["text"]]
    assert sorted(every) == sorted(text_of(n) for n in range(600) if n % 2)


def test_texts_of_one_unit_alone_are_attacked_however_often_it_has_them(
    of_rows, trained
):
    rows = [row_of(n, unit="ann", text=text_of(7)) for n in range(3)]
    members, _ = drawn(of_rows([*rows, row_of(9, split="test")]), trained)
    assert members["text"] == [text_of(7)]


def test_twin_that_drops_texts_of_both_sides_alone_is_told_apart(
    spoken_often, trained, monkeypatch
):
    """As it was: what is left of copies is all on one side, mostly that of members."""

    def of_both(held_out, rows, *_):
        shared = set(held_out["text"]) & set(rows["text"])
        return seeded_fractions(shared, seed=0, purpose="copies")

    monkeypatch.setattr(module, "repeated_texts", of_both)
    assert blind_p_value(*drawn(spoken_often, trained)) < 0.01


@pytest.fixture
def habits(of_rows):
    """Ten records of each of 100 users, who begin half of them in their own way."""
    rows = [
        row_of(
            10 * user + n,
            unit=f"user {user}",
            split="test" if user % 2 else "train",
            text=f"{f'hi{user} ' * (n % 2)}{text_of(10 * user + n)}",
        )
        for user in range(100)
        for n in range(10)
    ]
    return of_rows(rows)


def test_habits_of_users_do_not_tell_the_sides_apart(habits, trained):
    sides = drawn(habits, replace(trained, max_sequences_per_unit=10))
    assert [len(set(rows["unit_id"])) for rows in sides] == [50, 50]
    assert [len(rows) for rows in sides] == [50, 50]
    assert blind_p_value(*sides) > 0.01


def test_twin_that_takes_all_records_of_a_user_is_told_apart(
    habits, trained, monkeypatch
):
    monkeypatch.setattr(module, "one_of_each_unit", lambda rows: rows)
    sides = drawn(habits, replace(trained, max_sequences_per_unit=10))
    assert blind_p_value(*sides) < 0.0005


def test_record_of_a_unit_is_drawn_by_ids_alone(habits):
    rows = habits.split("train")
    known = module.one_of_each_unit(rows)["id"]
    fewer = rows.select([i for i, u in enumerate(rows["unit_id"]) if u != "user 0"])
    assert module.one_of_each_unit(fewer)["id"] == known[1:]
    assert len({int(number) % 10 for number in known}) > 5


def test_copies_of_conversations_are_known_whatever_is_learnt(of_rows, bundle):
    def said(number, *, learnt):
        asked = Turn(role="user", content=text_of(number))
        return join_turns(
            [asked, Turn(role="assistant", content="Yes", trained=learnt)]
        )

    held_out = [row_of(n, split="test", text=said(n - 1, learnt=False)) for n in (2, 9)]
    corpus = of_rows([row_of(1, text=said(1, learnt=True)), *held_out])
    test = corpus.split("test")
    repeated = module.repeated_texts(test, corpus.split("train"), {})
    assert module.without_texts(test, repeated)["id"] == ["9"]
    assert not len(module.without_texts(corpus.split("train"), repeated))


def test_copies_of_hosts_of_canaries_are_copies(of_rows, trained):
    spec = CanarySpec(num_planted=4, num_held_out=4, placement="appended")
    canaries = draw_canaries(spec, seed=1)
    rows = [row_of(n) for n in range(5 * spec.insertions)]
    rows += [{**row, "id": f"copy {row['id']}", "split": "test"} for row in rows]
    own = [
        row_of(split, split=split, text=f"own {split}") for split in ("train", "test")
    ]
    corpus = of_rows([*rows, *own])
    planted = corpus.with_dataset(plant(corpus.dataset, canaries))
    _, others = drawn(planted, trained, canaries=canaries)
    assert others["id"] == ["test"]


def test_held_out_records_that_are_all_copies_are_refused(of_rows, trained):
    corpus = of_rows([row_of(1), row_of(2, split="test", text=text_of(1))])
    with pytest.raises(DataError, match="got 0 and 0 to attack"):
        drawn(corpus, trained)
    with pytest.raises(DataError, match="must have a test split"):
        drawn(of_rows([row_of(1)]), trained)


def test_report_counts_records_that_were_trained_on(users, trained, bundle, tmp_path):
    found = attack_model(
        bundle,
        bundle,
        users,
        draw_canaries(NONE, seed=1),
        trained=(),
        max_tokens=MAX_TOKENS,
        max_sequences_per_unit=BOUND,
        attacks=AttackSettings(
            num_bootstrap=100, shadows=None, samples={"num_prompts": 0}
        ),
        detection=DetectionSettings(),
        performance=PERFORMANCE,
        cache=tmp_path,
    )
    members, others = drawn(users, trained)
    counts = len(members), len(others)
    of_membership = found.membership.num_members, found.membership.num_non_members
    of_endings = found.extraction.num_members, found.extraction.num_non_members
    assert of_membership == of_endings == counts
    assert len(members) < len(users.split("train")) / 2
