"""One name for the same texts: a budget belongs to data, not to what they are called.

The store's log notes under which data set, and to which units, the texts of a corpus
were charged first; the same texts under another name, or with other ids, are refused:
each would buy a budget anew. Texts of which one differs are other texts:
docs/THREATS.md says who is trusted with that. Copies that deduplication dropped are no
texts of the corpus, and whose they are may change.
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import islice
from typing import Final, Self

import numpy as np

from dptune.accounting.store.attempts import Attempt, attempts_with, record_attempt
from dptune.accounting.store.reservations import Reservation, UnitSet, locate
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import key_checks
from dptune.config import TrainConfig
from dptune.conversation import without_training
from dptune.data.records import Corpus
from dptune.data.source import SyntheticSource
from dptune.errors import PrivacyError
from dptune.workflow.respelled import Respelled, find_respelled, ways_to_spell

_UNITS_ASKED_FOR: Final = 10_000
_MOST: Final = 0.5


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


@dataclass(frozen=True, kw_only=True)
class Charged:
    """Whom a run is charged to, as the store knows them.

    Args:
        units: all that were read.
        owners: digest of those of which a record is left, see `owners_of`.
    """

    units: UnitSet
    owners: str

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        corpus: Corpus,
        *,
        key: bytes,
        store: BudgetStore | None,
    ) -> Self:
        """Name the units of a corpus, those with respelled ids as before.

        Args:
            config: of the run.
            corpus: as it was ingested, before canaries.
            key: secret that names the units.
            store: that knows those of earlier runs; None where there is none yet.
        """
        name, ids = config.budget.data_set, corpus.source_units
        units = UnitSet.of(ids, key=key, data_set=name)
        respelled = Respelled()
        if store is not None and not corpus.report.units_are_content_hashes:
            spell = ways_to_spell(config.data.source)
            respelled = find_respelled(
                store, units, corpus.source_units, key=key, spell=spell
            )
        owners = respelled.among(owners_of(corpus, units, key=key))
        return cls(units=respelled.among(units), owners=owners.digest)


def owners_of(corpus: Corpus, units: UnitSet, *, key: bytes) -> UnitSet:
    """Return the units of which a record is left: not those that only had copies.

    Args:
        corpus: as it was ingested, before canaries.
        units: all that were read of it.
        key: that names units.
    """
    if not corpus.dropped_units:
        return units
    dropped = UnitSet.of(corpus.dropped_units, key=key, data_set=units.data_set)
    places, _ = locate(units.names, dropped.names)
    return replace(units, names=np.delete(units.names, places))


def known_elsewhere(
    url: str, config: TrainConfig, corpus: Corpus, *, key: bytes
) -> str:
    """Say which data set has charged the people of one that is new: a name mistyped.

    Args:
        url: of the budget store, which need not be there yet.
        config: of the run.
        corpus: as it was ingested, before canaries.
        key: that names units.

    Returns:
        Two sentences; empty where the name is known, or most of the units are not and
        nothing is hidden by another key.
    """
    store, name = BudgetStore.find(url), config.budget.data_set
    if store is None or isinstance(config.data.source, SyntheticSource):
        return ""
    with store:
        is_new = name not in store.data_sets()
        ids = list(islice(corpus.source_units, _UNITS_ASKED_FOR))
        found, hidden = [], []
        for other, key_check in key_checks(store).items() if is_new else ():
            units = UnitSet.of(ids, key=key, data_set=other)
            known = store.known(units)
            if units.key_check != key_check:
                hidden.append(other)
            elif known is not None and known.mean() >= _MOST:
                alike = SequenceMatcher(a=name, b=other).ratio()
                found.append((known.mean(), alike, other))
    if not found and hidden:
        return (
            f"data set {name!r} is new, and the units of {', '.join(hidden[:3])} were "
            "named by another key: nobody can tell whether these are the same people, "
            "who would have a fresh budget. Let DPTUNE_BUDGET_KEY_FILE name the key "
            "that belongs to the store."
        )
    if not found:
        return ""
    *_, other = max(found)
    return (
        f"data set {name!r} is new, but most of its units have ids that data set "
        f"{other!r} was charged for. If these are the same people, set "
        f"budget.data_set to {other!r}: under a new name they have a fresh budget."
    )


def claim_digest(
    store: BudgetStore,
    units: UnitSet,
    digest: str,
    *,
    reservation: Reservation,
    owners: str = "",
) -> None:
    """Note whose records these are, before anything is drawn on them.

    Args:
        store: where it is noted.
        units: of the data set, which they are charged to.
        digest: of its records.
        reservation: released where the records are those of others.
        owners: digest of the units that the records are of; empty for all units.

    Raises:
        PrivacyError: another run gave the records another name, or other ids, at this
            moment.
    """
    known = attempts_with(store, kind=Attempt.READING, subject=digest)
    if not any(noted for _, noted in known):  # stores from before noted no units
        record_attempt(
            store,
            data_set=units.data_set,
            kind=Attempt.READING,
            subject=digest,
            about=owners or units.digest,
        )
    try:
        check_digest(store, units, digest, owners=owners)
    except PrivacyError:
        if not reservation.found_open:
            store.release(reservation.id)
        raise


def check_digest(
    store: BudgetStore, units: UnitSet, digest: str, *, owners: str = ""
) -> None:
    """Refuse records that another data set, or other units, have paid for.

    Nothing is written. Arguments are those of `claim_digest`.

    Raises:
        PrivacyError: naming the data set, or that the ids are others.
    """
    known = attempts_with(store, kind=Attempt.READING, subject=digest)
    if not known:
        return
    name = known[0][0]
    if name != units.data_set:
        raise PrivacyError(
            f"budget.data_set must be {name!r}, under which these texts were charged "
            f"and counted before, got {units.data_set!r}. Change the name back."
        )
    noted = next((noted for _, noted in known if noted), units.digest)
    if noted not in {owners, units.digest}:  # stores of before noted all units
        raise PrivacyError(
            "the ids of these texts must be those that they were charged under before, "
            "but they come with others, such as from a file or folder that was moved "
            "below data_root, from renumbered rows, from copies that stand before the "
            "records they copy, or by another privacy_unit: new ids would buy a "
            "budget anew. Restore path and ids, or take the copies out."
        )
