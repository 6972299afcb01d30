"""Attempts and losses stand in the log, are counted once, and cost nothing."""

from dptune.accounting.store.attempts import (
    Attempt,
    Loss,
    admit_loss,
    attempts_about,
    charges,
    continues,
    count_attempts,
    last_attempt,
    last_entry_at,
    losses,
    record_attempt,
)
from dptune.accounting.store.log import Head
from dptune.accounting.store.summaries import first_plan
from tests.budgets import cost, request

EVALUATION, REGISTRATION = Attempt.EVALUATION, Attempt.REGISTRATION


def evaluate(store, subject, *, data_set="people"):
    record_attempt(store, data_set=data_set, kind=EVALUATION, subject=subject)


def count(store, data_set="people"):
    return count_attempts(store, data_set=data_set, kind=EVALUATION)


def test_different_attempts_on_a_data_set_are_counted(store):
    for subject in ("a", "b", "b", "a"):
        evaluate(store, subject)
    evaluate(store, "c", data_set="others")
    record_attempt(store, data_set="people", kind=Attempt.DECISION, subject="d")
    assert (count(store), count(store, "others")) == (2, 1)


def test_the_newest_registration_of_a_version_is_known(store):
    def register(subject, about):
        record_attempt(
            store, data_set="people", kind=REGISTRATION, subject=subject, about=about
        )

    for subject, about in (("a", "v1"), ("b", "v2"), ("c", "v1"), ("a", "v1")):
        register(subject, about)

    def last(about):
        return last_attempt(store, data_set="people", kind=REGISTRATION, about=about)

    assert (last("v1"), last("v2"), last("v3")) == ("a", "b", None)


def test_reason_that_quotes_an_entry_counts_for_nothing(store):
    quote = '"kind":"attempt"'
    admit_loss(store, Loss(charges=3, heads=(), reason=quote))
    assert count(store) == 0
    assert [loss.reason for loss in losses(store)] == [quote]


def test_loss_keeps_its_heads(store):
    loss = Loss(charges=2, heads=(Head(sequence=4, hash="h"),), reason="disk")
    admit_loss(store, loss)
    assert losses(store) == [loss]


def test_log_continues_only_its_own_heads(store):
    assert last_entry_at(store) is None
    evaluate(store, "a")
    head = store.head()
    evaluate(store, "b")
    assert continues(store, head)
    assert not continues(store, Head(sequence=head.sequence, hash="0" * 64))
    assert not continues(store, Head(sequence=99, hash=head.hash))
    assert last_entry_at(store).tzinfo is not None


def test_charges_and_first_plan_are_those_of_the_run(store):
    held = store.reserve(request(range(5), "run", cost(4)))
    store.spend(held.id, cost(3), stage="private", num_steps=3)
    store.spend(held.id, cost(3), stage="private", num_steps=3)  # once too many
    assert charges(store) == [("private", 3)] * 2
    assert first_plan(store, held.id) == cost(4)
    assert first_plan(store, "f" * 32) is None


def test_attempts_about_a_version_are_told_in_order_with_their_kind(store):
    def record(kind, subject, about):
        record_attempt(
            store, data_set="people", kind=kind, subject=subject, about=about
        )

    assert attempts_about(store, "v1") == []
    record(REGISTRATION, "a", "v1")
    record(Attempt.DECISION, "b", "v2")
    record(Attempt.DECISION, "c", "v1")
    assert attempts_about(store, "v1") == [
        (REGISTRATION, "a"),
        (Attempt.DECISION, "c"),
    ]
