"""What a script asks for in privacy, and the plan, charges and claim that follow."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dptune.accounting.calibration import calibrate_noise_multiplier
from dptune.accounting.certificates import Certificate
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import DataView, LedgerEntry, PrivacyLedger
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.plan import GradientPlan
from dptune.errors import ConfigError, PrivacyError, Problem
from dptune.privacy import (
    NeighboringRelation,
    Notion,
    PrivacyBudget,
    PrivacyUnit,
    UnitsFrom,
)
from dptune.workflow.charging import ABOUT_NUM_UNITS, ALWAYS

Spend = Callable[[LedgerEntry], None]


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

    def plan(self, data: UnitDataset, *, before: PrivacyLedger) -> GradientPlan:
        """Find the noise for which all of it, with what was spent before, costs that.

        Args:
            data: by privacy unit.
            before: what the journal holds already.

        Raises:
            ConfigError: numbers are impossible; all at once.
            InfeasibleBudgetError: no noise is enough.
        """
        num_units = self.public_units or data.num_units
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
class Account:
    """Charges blocks of one training to a journal, before their noise is drawn.

    Args:
        target: what was asked.
        plan: that trains; the events are its own.
        journal: where charges are kept.
        fingerprint: of the data.
        spend: charges each block elsewhere too, before the journal; raises to refuse.
        fixed_seed: whether randomness is known, which voids every claim.
        stage: names the training in the journal.
    """

    target: PrivacyTarget
    plan: GradientPlan
    journal: LedgerJournal
    fingerprint: str
    spend: Spend | None
    fixed_seed: bool
    stage: str

    def charge(self, first_step: int, num_steps: int) -> None:
        """Charge a block; when this returns its noise may be drawn."""
        units = (
            UnitsFrom.EXACT if self.target.public_units is None else UnitsFrom.DECLARED
        )
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
            assumptions=(*ALWAYS, *ABOUT_NUM_UNITS[units]),
            fixed_seed=self.fixed_seed,
        )
        if self.spend is not None:
            self.spend(entry)
        self.journal.charge(entry)

    def certificate(self) -> Certificate:
        """State what all that the journal holds guarantees."""
        return self.journal.read().certificate(
            Notion.RECORD,
            delta=self.target.target_delta,
            relation=self.target.relation,
        )


def unit_of(target: PrivacyTarget) -> PrivacyUnit:
    """Return what one neighbor changes: all rows of an owner, or one row."""
    return PrivacyUnit.USER if target.owned else PrivacyUnit.RECORD


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
