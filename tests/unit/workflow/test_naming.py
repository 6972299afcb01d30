"""A budget belongs to data: the same texts under another name are refused."""

import hashlib
import hmac
import json

import pytest

from dptune.accounting.store.allowances import Cost
from dptune.accounting.store.attempts import (
    Attempt,
    count_attempts,
    record_attempt,
)
from dptune.accounting.store.reservations import UnitSet
from dptune.accounting.store.store import BudgetStore, Request
from dptune.accounting.store.summaries import history
from dptune.accounting.store.tables import IdKind
from dptune.accounting.store.verify import verify
from dptune.conversation import Turn, join_turns
from dptune.data.building import build_corpus
from dptune.data.source import JsonlSource, SyntheticSource, TextSource
from dptune.data.splitting import SplitSettings
from dptune.errors import PrivacyError
from dptune.privacy import PrivacyUnit
from dptune.workflow import naming
from dptune.workflow.naming import owners_of, records_digest, texts_digest

KEY = b"k" * 32


@pytest.fixture
def store(sqlite_budget):
    made = BudgetStore.open(sqlite_budget())
    yield made
    assert verify(made).success
    made.engine.dispose()


def units_of(name, corpus):
    return UnitSet.of(corpus.source_units, key=KEY, data_set=name)


def hold(store, name, corpus):
    request = Request(
        units=units_of(name, corpus),
        privacy_unit=PrivacyUnit.RECORD,
        id_kind=IdKind.SOURCE,
        run_key="run",
        recipe="r",
        planned=Cost(),
    )
    return store.reserve(request)


def check(store, name, corpus):
    units = units_of(name, corpus)
    owners = owners_of(corpus, units, key=KEY).digest
    texts = texts_digest(corpus, key=KEY)
    naming.check_digest(store, units, texts, owners=owners)


def claim(store, name, corpus):
    check(store, name, corpus)
    note(store, name, corpus, hold(store, name, corpus))


def note(store, name, corpus, held):
    digest, units = texts_digest(corpus, key=KEY), units_of(name, corpus)
    owners = owners_of(corpus, units, key=KEY).digest
    naming.claim_digest(store, units, digest, reservation=held, owners=owners)


def test_same_texts_under_another_name_are_refused(store, corpus):
    claim(store, "people", corpus)
    claim(store, "people", corpus)
    with pytest.raises(PrivacyError, match=r"budget\.data_set must be 'people'"):
        check(store, "fresh", corpus)
    assert count_attempts(store, data_set="fresh", kind=Attempt.READING) == 0


@pytest.mark.parametrize("way", ["a folder down", "one line's name"])
def test_same_texts_with_other_ids_buy_no_budget(store, tmp_path, way):
    """A file that moves below the data root names its lines anew."""
    lines = [f"note {i} about person {i * 7}" for i in range(30)]
    place = tmp_path / "letters" / "notes.txt"
    place.parent.mkdir()
    place.write_text("\n".join(lines))
    down = build_corpus(
        TextSource(path="notes.txt", position_ids=True),
        privacy_unit=PrivacyUnit.RECORD,
        data_root=place.parent,
    )
    claim(store, "letters", down)
    claim(store, "letters", down)
    if way == "a folder down":
        up = build_corpus(
            TextSource(path="letters/notes.txt", position_ids=True),
            privacy_unit=PrivacyUnit.RECORD,
            data_root=tmp_path,
        )
    else:
        (first, *_) = down.source_units
        names = {first: "another"}
        up = down.with_dataset(
            down.dataset.map(
                lambda row: {"unit_id": names.get(row["unit_id"], row["unit_id"])}
            )
        )
    assert texts_digest(up, key=KEY) == texts_digest(down, key=KEY)
    with pytest.raises(PrivacyError, match="ids of these texts"):
        check(store, "letters", up)
    held = hold(store, "letters", up)
    with pytest.raises(PrivacyError, match="ids of these texts"):
        note(store, "letters", up, held)
    assert [run.status.value for run in history(store, data_set="letters")].count(
        "released"
    ) == 1


TEXTS = [(f"r{i}", f"note {i} about person {i * 7}") for i in range(30)]
COPIES = [(f"copy-{name}", text) for name, text in TEXTS[:3]]


@pytest.fixture
def read(tmp_path):
    def made(rows):
        lines = [json.dumps({"id": name, "text": text}) for name, text in rows]
        (tmp_path / "rows.jsonl").write_text("\n".join(lines))
        return build_corpus(
            JsonlSource(path="rows.jsonl", id_column="id"),
            privacy_unit=PrivacyUnit.RECORD,
            splits=SplitSettings(validation=0.0, test=0.0),
            data_root=tmp_path,
        )

    return made


def test_copies_that_are_dropped_make_no_other_ids_and_are_charged(store, read):
    """A source that grew by copies alone was refused."""
    claim(store, "people", read(TEXTS))
    claim(store, "people", read(TEXTS + COPIES))
    assert [run.num_units for run in history(store, data_set="people")] == [30, 33]
    claim(store, "people", read(TEXTS + COPIES[1:]))


def test_copies_that_take_the_place_of_what_they_copy_buy_no_budget(store, read):
    claim(store, "people", read(TEXTS + COPIES))
    with pytest.raises(PrivacyError, match="ids of these texts"):
        check(store, "people", read(TEXTS[3:] + COPIES))
    with pytest.raises(PrivacyError, match="ids of these texts"):
        check(store, "people", read(COPIES + TEXTS))


def test_store_that_noted_units_of_copies_too_takes_the_same_source(store, read):
    corpus = read(TEXTS + COPIES)
    record_attempt(
        store,
        data_set="people",
        kind=Attempt.READING,
        subject=texts_digest(corpus, key=KEY),
        about=units_of("people", corpus).digest,
    )
    claim(store, "people", corpus)


def test_store_that_noted_no_units_notes_those_of_the_next_run(store, corpus):
    digest = texts_digest(corpus, key=KEY)
    record_attempt(store, data_set="people", kind=Attempt.READING, subject=digest)
    claim(store, "people", corpus)
    claim(store, "people", corpus)
    moved = corpus.dataset.map(lambda row: {"unit_id": f"up/{row['unit_id']}"})
    with pytest.raises(PrivacyError, match="ids of these texts"):
        check(store, "people", corpus.with_dataset(moved))


def test_names_of_ids_splits_and_order_make_no_other_texts(store, corpus):
    claim(store, "people", corpus)
    data = corpus.dataset.select(list(reversed(range(len(corpus.dataset)))))
    data = data.map(lambda row: {"id": f"n{row['id']}", "split": "test"})
    with pytest.raises(PrivacyError):
        check(store, "fresh", corpus.with_dataset(data))


def test_chats_of_which_other_turns_are_learnt_are_the_same_texts(store, corpus):
    def chats(learnt):
        def chat(row):
            answer = Turn(role="assistant", content=row["text"], trained=learnt)
            return {"text": join_turns([Turn(role="user", content="Hi"), answer])}

        return corpus.with_dataset(corpus.dataset.map(chat))

    claim(store, "people", chats(learnt=True))
    with pytest.raises(PrivacyError):
        check(store, "fresh", chats(learnt=False))


def test_texts_of_which_one_differs_are_other_texts(store, corpus):
    claim(store, "people", corpus)
    fewer = corpus.with_dataset(corpus.dataset.select(range(len(corpus.dataset) - 1)))
    claim(store, "fresh", fewer)


def test_texts_twice_are_not_the_texts_once(corpus):
    twice = corpus.with_dataset(corpus.dataset.select([*range(len(corpus.dataset)), 0]))
    assert texts_digest(twice, key=KEY) != texts_digest(corpus, key=KEY)


def test_digest_is_that_of_the_sorted_hashes_that_stores_know():
    records = [b"record %d" % number for number in range(2_000)]
    hashes = sorted(hashlib.sha256(record).digest() for record in records)
    assert any(found.endswith(b"\0") for found in hashes)
    known = hmac.new(KEY, b"".join(hashes), hashlib.sha256).hexdigest()
    assert records_digest(records, key=KEY) == known
    assert records_digest(reversed(records), key=KEY) == known
    assert records_digest([], key=KEY) == hmac.new(KEY, b"", "sha256").hexdigest()


def test_digest_without_the_key_cannot_be_tried(store, corpus):
    claim(store, "people", corpus)
    assert texts_digest(corpus, key=b"o" * 32) != texts_digest(corpus, key=KEY)


def test_two_names_at_once_keep_the_first_and_hold_nothing_of_the_second(
    store, corpus, monkeypatch
):
    """Both checked before either had noted; the second is refused when it notes."""
    seen = []

    def first_of_two(*arguments, **keywords):
        seen.append(keywords)
        return [] if len(seen) == 1 else found(*arguments, **keywords)

    claim(store, "people", corpus)
    held = hold(store, "fresh", corpus)
    found = naming.attempts_with
    monkeypatch.setattr(naming, "attempts_with", first_of_two)
    with pytest.raises(PrivacyError):
        note(store, "fresh", corpus, held)
    (run,) = history(store, data_set="fresh")
    assert run.status.value == "released"


def test_twin_that_trusts_the_name_lets_a_budget_begin_anew(store, corpus, monkeypatch):
    claim(store, "people", corpus)
    monkeypatch.setattr(naming, "check_digest", lambda *_, **__: None)
    claim(store, "fresh", corpus)


def test_other_texts_have_their_own_name(store, corpus):
    claim(store, "people", corpus)
    other = build_corpus(
        SyntheticSource(num_records=40, seed=3), privacy_unit=PrivacyUnit.RECORD
    )
    claim(store, "others", other)
