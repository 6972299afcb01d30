"""How many privacy units a run is planned for, and how they are counted under noise."""

import hashlib
import json
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.accounting.store.log import Head
from dptune.accounting.store.store import BudgetStore, Request
from dptune.accounting.store.tables import IdKind
from dptune.attacks.canaries import CanarySpec
from dptune.config import DataSettings, TrainConfig
from dptune.data.public_units import ReleasedUnits, round_units
from dptune.data.records import Corpus
from dptune.errors import ConfigError, Problem
from dptune.files import locked
from dptune.planning import RunPlan
from dptune.privacy import PrivacyUnit, UnitsFrom
from dptune.results import CorpusReport
from dptune.workflow.budget import budget_cost
from dptune.workflow.charging import RELEASED_UNITS, pay, release_entry
from dptune.workflow.naming import (
    Charged,
    check_digest,
    claim_digest,
    texts_digest,
)


@dataclass(frozen=True, kw_only=True)
class PlannedUnits:
    """The number of privacy units that a run is planned for.

    Args:
        number: of the training split, canaries included; each canary copy is one.
        origin: where it comes from.
        noise_multiplier: of its release, if it was released.
    """

    number: int
    origin: UnitsFrom = UnitsFrom.EXACT
    noise_multiplier: float | None = None


def units_for(
    data: DataSettings, canaries: CanarySpec, corpus: CorpusReport
) -> PlannedUnits:
    """Say how many units a run is planned for: the public number, if there is one.

    **Privacy**: the exact number is read only where no public one is given, and what
    follows from it is then named by every claim.
    """
    public, new = data.public_units, canaries.num_new_units
    if isinstance(public, ReleasedUnits):
        return PlannedUnits(
            number=public.number + new,
            origin=UnitsFrom.RELEASED,
            noise_multiplier=public.noise_multiplier,
        )
    if public is not None:
        return PlannedUnits(number=public + new, origin=UnitsFrom.DECLARED)
    return PlannedUnits(number=corpus.num_units["train"] + new)


def check_bound(config: TrainConfig, units: PlannedUnits, corpus: CorpusReport) -> None:
    """Refuse more units than a truncated batch was accounted for.

    That a run was refused tells who sees it that there are more.
    """
    actual = corpus.num_units["train"] + config.canaries.num_new_units
    cut = [s.name for s in config.recipe.stages if s.sampling.max_batch_size]
    if cut and actual > units.number:
        raise ConfigError(
            [
                Problem(
                    path="data.public_units",
                    message="must be an upper bound where batches are truncated, as in "
                    f"{', '.join(cut)}, got fewer than the training split has.",
                    next_step="Raise it: too large a bound costs nothing but rate.",
                )
            ]
        )


def far_off(config: TrainConfig, corpus: CorpusReport) -> tuple[str, ...]:
    """Say where the public number of units is off by more than a factor of two.

    Whoever runs it is told, and nothing is refused: the guarantee holds for any number,
    and a refusal would be seen by others.
    """
    public, actual = config.data.public_units, corpus.num_units["train"]
    number = public.number if isinstance(public, ReleasedUnits) else public
    if number is None or actual / 2 <= number <= actual * 2:
        return ()
    warning = (
        f"data.public_units is {number:,}, and the training split has {actual:,} "
        "units: batches and epochs will be off by as much. The guarantee holds."
    )
    return (warning,)


def release_units(
    config: TrainConfig,
    corpus: Corpus,
    *,
    noise_multiplier: float,
    folder: Path,
    url: str,
    key: bytes,
    generator: random.Random | None = None,
) -> ReleasedUnits:
    """Count the units of the training split under Gaussian noise, and round.

    **Formal guarantee**: one unit that joins or leaves moves the count by 1, so that
    the event is a Gaussian of this noise multiplier; rounding is post-processing. It is
    charged to the budget store and to a journal before the noise is drawn. A number
    that was released is answered from its folder: nothing is drawn, nothing charged.
    One whose process was killed is drawn, and charged, again.

    **Privacy**: the result may be released. Every run that is planned with it has the
    release in its ledger, see `ledger_of`.

    Args:
        config: whose data are counted, and whose budget pays.
        corpus: as it was ingested, before canaries.
        noise_multiplier: stddev of the noise.
        folder: home of all runs.
        url: of the budget store, which is created if need be.
        key: that names the units there.
        generator: for tests; a missing one means entropy of the operating system.
    """
    name = _key(config, corpus, noise_multiplier)
    home = folder / f"units-{name[:24]}"
    found = home / "units.json"
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / ".lock"):  # of two commands at once, one pays
        if not found.is_file():
            entry = _entry(corpus.report, noise_multiplier=noise_multiplier)
            spend = partial(_charge, config, corpus, url=url, key=key, run_key=name)
            pay(entry, LedgerJournal(home / "ledger.jsonl"), spend)
            draw = random.SystemRandom() if generator is None else generator
            noisy = corpus.report.num_units["train"] + draw.gauss(0.0, noise_multiplier)
            half = found.with_suffix(".half")
            half.write_text(json.dumps(round_units(noisy)), encoding="utf-8")
            half.rename(found)
    number = json.loads(found.read_text(encoding="utf-8"))
    return ReleasedUnits(number=number, noise_multiplier=noise_multiplier)


def ledger_of(plan: RunPlan, corpus: CorpusReport) -> PrivacyLedger:
    """Return the ledger that a run starts with: what its plan already used."""
    if plan.units_noise_multiplier is None:
        return PrivacyLedger()
    entry = _entry(
        corpus, noise_multiplier=plan.units_noise_multiplier, recipe=plan.recipe
    )
    return PrivacyLedger(entries=(entry,))


def _entry(
    corpus: CorpusReport, *, noise_multiplier: float, recipe: str = ""
) -> LedgerEntry:
    """Describe the release."""
    return release_entry(
        corpus,
        recipe=recipe,
        noise_multiplier=noise_multiplier,
        fixed_seed=False,
        what=RELEASED_UNITS,
    )


def _charge(
    config: TrainConfig,
    corpus: Corpus,
    entry: LedgerEntry,
    *,
    url: str,
    key: bytes,
    run_key: str,
) -> Head:
    """Spend from the data set's budget, before the noise is drawn."""
    hashed = corpus.report.units_are_content_hashes
    cost, texts = budget_cost(entry), texts_digest(corpus, key=key)
    with BudgetStore.open(url) as store:
        charged = Charged.of(config, corpus, key=key, store=store)
        units, owners = charged.units, charged.owners
        check_digest(store, units, texts, owners=owners)
        held = store.reserve(
            Request(
                units=units,
                privacy_unit=PrivacyUnit(corpus.report.privacy_unit),
                id_kind=IdKind.CONTENT_HASH if hashed else IdKind.SOURCE,
                run_key=run_key,
                recipe=RELEASED_UNITS,
                planned=cost,
                required=config.budget.required,
            )
        )
        claim_digest(store, units, texts, reservation=held, owners=owners)
        store.spend(held.id, cost, stage=entry.stage, num_steps=1)
        return store.settle(held.id)


def _key(config: TrainConfig, corpus: Corpus, noise_multiplier: float) -> str:
    """Name this release: equal keys share a finished one."""
    values = [RELEASED_UNITS, config.budget.data_set, corpus.fingerprint]
    text = json.dumps([*values, noise_multiplier])
    return hashlib.sha256(text.encode()).hexdigest()
