"""One name for the same texts: a budget belongs to data, not to what they are called.

The store's log notes under which data set the texts of a corpus were charged first; the
same texts under another name are refused. Texts of which one differs are other texts:
docs/THREATS.md says who is trusted with that.
"""

import hashlib
import hmac
from collections.abc import Iterable

import numpy as np

from dptune.accounting.store.attempts import Attempt, first_data_set, record_attempt
from dptune.accounting.store.store import BudgetStore
from dptune.conversation import without_training
from dptune.data.records import Corpus
from dptune.errors import PrivacyError


def texts_digest(corpus: Corpus, *, key: bytes) -> str:
    """Name the texts of a corpus, in any order, whatever their ids, owners and splits.

    Which turns of a conversation are learnt is no part of it: the same chats with
    another `train_on` are the same data.

    Args:
        corpus: as it was ingested, before canaries.
        key: without which nobody can try texts of his own.
    """
    texts = map(without_training, corpus.values("text"))
    return records_digest((text.encode() for text in texts), key=key)


def records_digest(records: Iterable[bytes], *, key: bytes) -> str:
    """Name records in any order, so that nobody without the key can try his own."""
    hashes = bytearray()
    for record in records:
        hashes += hashlib.sha256(record).digest()
    np.frombuffer(hashes, "S32").sort()  # as bytes are ordered, all being as long
    return hmac.new(key, hashes, hashlib.sha256).hexdigest()


def claim_digest(
    store: BudgetStore, name: str, digest: str, *, reservation: str
) -> None:
    """Note whose records these are, before anything is drawn on them.

    Args:
        store: where it is noted.
        name: of the data set.
        digest: of its records.
        reservation: id; released where the records are another data set's.

    Raises:
        PrivacyError: another run gave the records another name at this moment.
    """
    if first_data_set(store, kind=Attempt.READING, subject=digest) is None:
        record_attempt(store, data_set=name, kind=Attempt.READING, subject=digest)
    try:
        check_digest(store, name, digest)
    except PrivacyError:
        store.release(reservation)
        raise


def check_digest(store: BudgetStore, name: str, digest: str) -> None:
    """Refuse records that another data set has paid for; writes nothing.

    Raises:
        PrivacyError: naming the data set.
    """
    first = first_data_set(store, kind=Attempt.READING, subject=digest)
    if first not in (None, name):
        raise PrivacyError(
            f"budget.data_set must be {first!r}, under which these texts were charged "
            f"and counted before, got {name!r}. Change the name back."
        )
