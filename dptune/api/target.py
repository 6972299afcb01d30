"""What a script asks for in privacy, and the plan, charges and claim that follow."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from dptune.accounting.assumptions import Assumption
from dptune.accounting.calibration import calibrate_noise_multiplier
from dptune.accounting.certificates import Certificate
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import DataView, LedgerEntry, PrivacyLedger
from dptune.api.arguments import Arguments
from dptune.api.rows import check_rows, units_of
from dptune.data.collated import Rows
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.learnt import Learning
from dptune.dpsgd.plan import GradientPlan
from dptune.errors import ArtifactError, ConfigError, PrivacyError, Problem
from dptune.privacy import (
    NeighboringRelation,
    Notion,
    PrivacyBudget,
    PrivacyUnit,
    UnitsFrom,
)
from dptune.workflow.charging import ABOUT_NUM_UNITS, ALWAYS

Spend = Callable[[LedgerEntry], None]
_OF_TARGET = (
    *("target_epsilon", "target_delta", "num_steps", "expected_batch_size"),
    *("max_grad_norm", "relation", "public_units"),
)
ADD_UP = (
    "Plan all steps at once, go on with the journal or folder of that training, begin "
    "with the model as it was before, or let `spend` charge both to one BudgetStore."
)


@dataclass(frozen=True, kw_only=True)
class PrivacyTarget:
    """What a script asks for; see `dptune.make_private` for each."""

    target_epsilon: float
    target_delta: float
    num_steps: int
    expected_batch_size: int
    max_grad_norm: float
    relation: NeighboringRelation
    public_units: int | None
    owned: bool

    @classmethod
    def asked(
        cls,
        given: Arguments,
        *,
        target_epsilon: object,
        target_delta: object,
        num_steps: object,
        expected_batch_size: object,
        max_grad_norm: object,
        relation: object,
        public_units: object,
        owned: bool,
    ) -> "PrivacyTarget":
        """Read what a script asks for, and note in `given` what is wrong with it."""
        chosen = given.choice("relation", relation, list(NeighboringRelation))
        return cls(
            target_epsilon=given.number("target_epsilon", target_epsilon, above=0),
            target_delta=given.number("target_delta", target_delta, above=0, below=1),
            num_steps=given.whole("num_steps", num_steps, least=1),
            expected_batch_size=given.whole(
                "expected_batch_size", expected_batch_size, least=1
            ),
            max_grad_norm=given.number("max_grad_norm", max_grad_norm, above=0),
            relation=NeighboringRelation(chosen),
            public_units=given.public_units(public_units),
            owned=owned,
        )

    def plan(self, data: UnitDataset, *, before: PrivacyLedger) -> GradientPlan:
        """Find the noise for which all of it, with what was spent before, costs that.

        Args:
            data: by privacy unit.
            before: what the journal holds already.

        Raises:
            ConfigError: numbers are impossible; all at once.
            InfeasibleBudgetError: no noise is enough.
        """
        num_units = self._num_units(data)
        self._check(num_units)
        budget = PrivacyBudget(
            target_epsilon=self.target_epsilon, target_delta=self.target_delta
        )
        rate = self.expected_batch_size / num_units

        def at(noise_multiplier: float) -> GradientPlan:
            return GradientPlan(
                noise_multiplier=noise_multiplier,
                sample_rate=rate,
                max_grad_norm=self.max_grad_norm,
                expected_batch_size=self.expected_batch_size,
            )

        at(1.0)  # impossible numbers are told before a search
        found = calibrate_noise_multiplier(
            lambda noise: at(noise).dp_event(self.num_steps),
            budget=budget,
            relation=self.relation,
            prior=before.event(Notion.RECORD) if before.entries else None,
        )
        return at(found)

    def epoch_steps(self, data: UnitDataset) -> int:
        """Return the steps in which each unit joins once, in expectation.

        Where a body saves or lowers its rate shows them, so that they follow from the
        number of units that the plan follows from, never from rows.
        """
        return math.ceil(self._num_units(data) / self.expected_batch_size)

    def _num_units(self, data: UnitDataset) -> int:
        """Return the number of units that is public, or taken for it."""
        return self.public_units or data.num_units

    def _check(self, num_units: int) -> None:
        """Report all numbers that no plan can be made of."""
        most = 1 / num_units
        least_and_most = {
            "num_steps": (self.num_steps >= 1, "must be at least 1", self.num_steps),
            "expected_batch_size": (
                1 <= self.expected_batch_size <= num_units,
                f"must be in [1, number of privacy units] = [1, {num_units}]",
                self.expected_batch_size,
            ),
            "target_delta": (
                0 < self.target_delta < most,
                f"must be in (0, 1 / number of privacy units) = (0, {most:.3g})",
                self.target_delta,
            ),
        }
        problems = [
            Problem(path=name, message=f"{what}, got {value:g}.")
            for name, (is_fine, what, value) in least_and_most.items()
            if not is_fine
        ]
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers that cannot change what is claimed; see `dptune.make_private`."""

    max_tokens: int
    pad_token_id: int
    max_rows_per_unit: int
    physical_batch_size: int
    block_size: int
    seed: int | None

    @classmethod
    def asked(cls, given: Arguments, *, seed: object, **sizes: object) -> "Sizes":
        """Read them, and note in `given` what is wrong with them."""
        found = {
            name: given.whole(name, value, least=0 if name == "pad_token_id" else 1)
            for name, value in sizes.items()
        }
        drawn = None if seed is None else given.whole("seed", seed, most=2**64 - 1)
        return cls(seed=drawn, **found)

    def units(
        self,
        data: Rows,
        owners: Sequence[str | int] | None,
        *,
        model: nn.Module,
        own_loss: bool,
    ) -> UnitDataset:
        """Group rows within these bounds; see `units_of` and `check_rows`."""
        units = units_of(
            data,
            owners=owners,
            max_rows_per_unit=self.max_rows_per_unit,
            max_tokens=self.max_tokens,
        )
        check_rows(units, model, own_loss=own_loss)
        return units


def asked(
    given: Arguments, *, owned: bool, seed: object, **values: object
) -> tuple[PrivacyTarget, Sizes]:
    """Read the numbers of a script; note in `given` what is wrong with them.

    Args:
        given: notes problems.
        owned: whether the rows have owners.
        seed: None, or known randomness.
        values: the fields of `PrivacyTarget` and `Sizes`, by name.
    """
    of_target = {name: values.pop(name) for name in _OF_TARGET}
    return (
        PrivacyTarget.asked(given, owned=owned, **of_target),
        Sizes.asked(given, seed=seed, **values),
    )


@dataclass(frozen=True, kw_only=True)
class Account:
    """Charges blocks of one training to a journal, before their noise is drawn.

    Args:
        target: what was asked.
        plan: that trains; the events are its own.
        journal: where charges are kept.
        learning: the model and its rows.
        fingerprint: of the data.
        spend: charges each block elsewhere too, before the journal; raises to refuse.
        fixed_seed: whether randomness is known, which voids every claim.
        stage: names the training in the journal.
    """

    target: PrivacyTarget
    plan: GradientPlan
    journal: LedgerJournal
    learning: Learning
    fingerprint: str
    spend: Spend | None
    fixed_seed: bool
    stage: str

    @classmethod
    def opened(
        cls,
        path: Path,
        units: UnitDataset,
        target: PrivacyTarget,
        sizes: Sizes,
        *,
        model: nn.Module,
        spend: Spend | None,
        stage: str | None = None,
    ) -> tuple["Account", PrivacyLedger]:
        """Open a journal, and plan what it leaves of the target.

        Args:
            path: of the journal.
            units: that are trained on.
            target: what is asked for.
            sizes: with the seed, if the randomness is known.
            model: that is trained.
            spend: see `Account`.
            stage: of the one training that the journal is of, which may go on. None
                begins another, that has what earlier ones left.

        Returns:
            The account, and what the journal holds.

        Raises:
            PrivacyError, ArtifactError: see `open_journal` and `Learning.check`.
            ConfigError, InfeasibleBudgetError: see `PrivacyTarget.plan`.
        """
        fingerprint = units.digest()
        journal, before = open_journal(path, fingerprint=fingerprint, target=target)
        learning = Learning(
            model=model, data=units, journal=journal, adds_up=spend is not None
        )
        if sizes.seed is None:  # else nothing is claimed
            learning.check(way_out=ADD_UP)
        spent = before if stage is None else PrivacyLedger()
        account = cls(
            target=target,
            plan=target.plan(units, before=spent),
            journal=journal,
            learning=learning,
            fingerprint=fingerprint,
            spend=spend,
            fixed_seed=sizes.seed is not None,
            stage=stage or f"loop_{len(before.entries)}",
        )
        return account, before

    def charge(self, first_step: int, num_steps: int) -> None:
        """Charge a block; when this returns its noise may be drawn."""
        units = (
            UnitsFrom.EXACT if self.target.public_units is None else UnitsFrom.DECLARED
        )
        about = ABOUT_NUM_UNITS[units]
        if units is UnitsFrom.EXACT and not self.target.owned:  # copies are left out
            about = (*about, Assumption.REPLACEMENT_KEEPS_NUM_UNITS)
        entry = LedgerEntry(
            stage=self.stage,
            recipe="",
            data_fingerprint=self.fingerprint,
            privacy_unit=unit_of(self.target),
            view=DataView.ORIGINAL,
            dp_event=self.plan.dp_event(num_steps, first_step=first_step),
            num_steps=num_steps,
            sample_rate=self.plan.sample_rate,
            noise_multiplier=self.plan.noise_multiplier,
            max_grad_norm=self.plan.max_grad_norm,
            assumptions=(*ALWAYS, *about),
            fixed_seed=self.fixed_seed,
        )
        if self.spend is not None:
            self.spend(entry)
        self.journal.charge(entry)
        self.learning.note()

    def certificate(self, *, is_cut_short: bool = False) -> Certificate:
        """State what all that the journal holds guarantees, if it ends here early."""
        ledger = self.journal.read()
        return (ledger.cut_short() if is_cut_short else ledger).certificate(
            Notion.RECORD,
            delta=self.target.target_delta,
            relation=self.target.relation,
        )


def unit_of(target: PrivacyTarget) -> PrivacyUnit:
    """Return what one neighbor changes: all rows of an owner, or one row."""
    return PrivacyUnit.USER if target.owned else PrivacyUnit.RECORD


def refuse_lost_charges(account: Account, before: PrivacyLedger, steps: int) -> None:
    """Refuse a checkpoint that has taken steps which its journal has not paid for.

    Args:
        account: of the training.
        before: what its journal holds.
        steps: that the checkpoint has taken.

    Raises:
        ArtifactError: charges are missing, or are of another plan.
    """
    plan = account.plan
    paid = sum(
        entry.num_steps
        for entry in before.entries
        if (entry.sample_rate, entry.noise_multiplier)
        == (plan.sample_rate, plan.noise_multiplier)
    )
    if paid < steps:
        raise ArtifactError(
            f"{account.journal.path.name} must hold the {steps} steps that the "
            f"checkpoint beside it has taken, got {paid} of this plan. Restore it, or "
            "name a new folder."
        )


def open_journal(
    path: Path, *, fingerprint: str, target: PrivacyTarget
) -> tuple[LedgerJournal, PrivacyLedger]:
    """Open a journal and what it holds, which must be about the same data.

    Raises:
        PrivacyError: it is about other data, or other units.
        ArtifactError: it was tampered with.
    """
    journal = LedgerJournal(path)
    before = journal.read() if path.exists() else PrivacyLedger()
    others = {
        (entry.data_fingerprint, entry.privacy_unit) for entry in before.entries
    } - {(fingerprint, unit_of(target))}
    if others:
        raise PrivacyError(
            f"{path.name} must hold charges of these rows and units only, got others. "
            "Name a new file; what is spent on data that change, a BudgetStore adds up."
        )
    return journal, before
