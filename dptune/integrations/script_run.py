"""One training of a script: its plan, what it pays, and what may be said of it.

```
output_dir/privacy/
├── run.json            id of the training, what it trains on, begins and ends with
├── plan.json           every number that the claim depends on
├── ledger.jsonl        the journal: blocks of steps, each before its noise
├── running.lock        held by the process that trains here
├── attempts/           one empty file per process start
├── paid.json           where the budget store's log ended when it paid last
├── budget.json         what all runs on the data set have spent, where it has a budget
├── certificate.json    what is guaranteed, after training
└── CARD.md             the same for people
output_dir/checkpoint-40/privacy.json    which training, and what its journal held
```

The plan, the entries, the journal, the budget and the certificate are those of
`run.py train`. A training that is started again in its folder goes on with its journal,
whatever the checkpoint that it starts from: what was paid stays counted.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from torch import nn

from dptune.accounting.assumptions import Assumption
from dptune.accounting.certificates import Certificate
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import LedgerEntry
from dptune.accounting.store.reservations import UnitSet
from dptune.accounting.store.store import Request
from dptune.accounting.store.tables import IdKind
from dptune.dpsgd.checkpoint import claim_attempt
from dptune.dpsgd.learnt import Learning
from dptune.errors import ArtifactError, PrivacyError
from dptune.files import alone_in, replacing
from dptune.integrations.arguments import PrivacyArguments, ScriptBudget
from dptune.integrations.card import script_card
from dptune.integrations.claims import check_payer, paying
from dptune.integrations.rows import UnitRows
from dptune.integrations.script_plan import RECIPE, recipe_of
from dptune.models.merging import base_digest
from dptune.planning import RunPlan
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import Recipe
from dptune.results import (
    BudgetReport,
    BudgetReservation,
    CorpusReport,
    DetectionReport,
    ValidationReport,
)
from dptune.stages import StagePlan
from dptune.workflow.attempts import refuse_lost_store
from dptune.workflow.budget import (
    hold,
    planned_costs,
    release_held,
    settle_budget,
    spender,
)
from dptune.workflow.charging import Spend, pay, stage_entry
from dptune.workflow.naming import records_digest
from dptune.workflow.respelled import as_known

NOTE: Final = "privacy.json"
_CERTIFICATE: Final = "certificate.json"
_CARD: Final = "CARD.md"
_NOTED: Final = ("digest", "num_units")
_STAYS_SPENT: Final = (
    "If it is lost for good, what was spent stays spent: grant so much less, and "
    "choose another output_dir."
)
_ADD_UP: Final = (
    "Train for all steps at once, resume in the output_dir of that training, begin "
    "with the model as it was before, or charge both to one ScriptBudget."
)


@dataclass(frozen=True, kw_only=True)
class ScriptRun:
    """A training of a script that may begin.

    Args:
        folder: `output_dir/privacy`.
        privacy: what the script asked for.
        plan: with its noise.
        rows: what it trains on. Private.
        digest: of model, data, plan and settings.
        budget: that it is charged to, if any.
        drops_rows: whether the trainer leaves rows out by what they hold.
    """

    folder: Path
    privacy: PrivacyArguments
    plan: RunPlan
    rows: UnitRows = field(repr=False)
    digest: str
    budget: ScriptBudget | None = None
    drops_rows: bool = False

    @property
    def stage(self) -> StagePlan:
        """The only stage."""
        return self.plan.stages[0]

    @property
    def recipe(self) -> Recipe:
        """The script as a recipe of one stage, with the noise that was found."""
        return recipe_of(self.stage.settings)

    @property
    def settled(self) -> BudgetReport | None:
        """What the data set had spent when the training ended; None without a budget.

        Raises:
            ArtifactError: the training was not settled.
        """
        if self.budget is None:
            return None
        file = self.folder / "budget.json"
        if not file.is_file():
            raise ArtifactError(
                "output_dir/privacy must hold budget.json, which is written when a "
                "training ends. Finish the training first."
            )
        try:
            return BudgetReport.model_validate_json(file.read_bytes())
        except ValidationError:
            raise _unlike_written(file) from None

    @property
    def id(self) -> str:
        """Which training this folder holds; empty before it begins."""
        return str(_read(self.folder / "run.json").get("run", ""))

    @property
    def weights(self) -> str:
        """Digest of the weights that the training ended with; empty before."""
        return str(_read(self.folder / "run.json").get("weights", ""))

    @property
    def began_with(self) -> str:
        """Digest of the weights that the first start began with, without adapters."""
        return str(_read(self.folder / "run.json").get("base", ""))

    @cached_property
    def journal(self) -> LedgerJournal:
        """What was paid, by every process start; it may not lose what it held."""
        return LedgerJournal(self.folder / "ledger.jsonl")

    @property
    def corpus(self) -> CorpusReport:
        """What an entry needs to know of the data: nothing was marked."""
        rows, owned = self.rows.data, self.rows.are_named
        drops_owners = self.drops_rows and owned and self.privacy.num_units is None
        copies = 0 if owned else len(self.rows.records) - rows.num_units
        return CorpusReport(
            source=RECIPE,
            fingerprint=self.rows.fingerprint,
            num_read=len(self.rows.records),
            num_records={"train": len(rows.sequences)},
            num_units={"train": rows.num_units},
            num_exact_duplicates=copies,
            num_near_duplicates=0,
            num_duplicates_across_units=0,
            num_characters=0,
            privacy_unit=self.privacy.privacy_unit,
            deduplicated=not owned,
            duplicates_are_free=True,
            assumes=(Assumption.REPLACEMENT_KEEPS_NUM_UNITS.value,) * drops_owners,
            validation=ValidationReport(view="original", success=True, expectations=()),
        )

    @property
    def detection(self) -> DetectionReport:
        """Say that nobody looked for personal data in the rows."""
        return DetectionReport(
            fingerprint=self.rows.fingerprint,
            tier="none",
            recognizers=(),
            num_records=len(self.rows.data.sequences),
            num_records_with_spans=0,
            num_spans={},
            masked_character_share=0.0,
        )

    def check_place(self, folder: Path) -> None:
        """Refuse to pay elsewhere for a model that has learnt from the data here.

        Args:
            folder: where its trainer would pay now.

        Raises:
            PrivacyError: it is another folder.
            ArtifactError: the journal has lost what it held.
        """
        if folder != self.folder:
            raise PrivacyError(
                "output_dir must stay what it was: the model has learnt from the data "
                "already, and what that cost is in the journal there. Make another "
                "trainer, with the model as it was before."
            )
        self.journal.read()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others from training here, until this process ends or is killed.

        Two would both pay, and overwrite each other's checkpoints.

        Raises:
            PrivacyError: another one trains here; nothing was charged.
        """
        with alone_in(self.folder, name="output_dir"):
            yield

    def begin(self, checkpoint: Path | None, model: nn.Module) -> int:
        """Check what was paid before, note this start, and number it.

        Args:
            checkpoint: that the training goes on from.
            model: as it is before that.

        Raises:
            ArtifactError: the checkpoint is no part of this training, or the journal
                is not the one that it was written with, or was tampered with.
            PrivacyError: the folder holds another training, or one that has ended, or
                the model has learnt from the rows where this journal does not count it.
        """
        known = _read(self.folder / "run.json", *_NOTED)
        started = known.get("digest") == self.digest
        if checkpoint is None and not started and not self.journal.read().entries:
            known = {}  # another start that was refused, or stopped before it paid
        self._check_folder(known, resumes=checkpoint is not None)
        check_payer(self.journal, budget=self.budget, has_ended=self.has_ended)
        if checkpoint is not None:
            note = _read(checkpoint / NOTE, "run", "num_entries", "paid")
            self._check_checkpoint(known, note)
            self._check_step(checkpoint)
        learning = self._learning(model)
        if self.privacy.seed is None:  # else nothing is claimed
            learning.check(way_out=_ADD_UP)
        if checkpoint is not None:
            learning.note()  # its weights come into the model
        if not known:
            run = {
                "run": secrets.token_hex(16),
                "digest": self.digest,
                "num_units": self.rows.data.num_units,
                "base": base_digest(model),
            }
            _write(self.folder / "run.json", json.dumps(run))
            _write(self.folder / "plan.json", self.plan.model_dump_json(indent=1))
        return claim_attempt(self.folder)

    def _learning(self, model: nn.Module) -> Learning:
        """Return what notes, and tells, which rows the model has learnt from."""
        return Learning(
            model=model,
            data=self.rows.data,
            journal=self.journal,
            adds_up=self.budget is not None,
        )

    def _check_folder(self, known: dict[str, Any], *, resumes: bool) -> None:
        """Refuse a folder of another training, or of one that has ended."""
        if not known:
            if self.journal.read().entries:
                raise ArtifactError(
                    "output_dir/privacy must hold run.json beside its ledger, got "
                    "none. Restore it, or choose another output_dir."
                )
            return
        now = self.rows.data.num_units
        if known["num_units"] != now:
            raise PrivacyError(
                f"train_dataset must have the {known['num_units']} units that this "
                f"output_dir was trained on, got {now}. Bring the same data, or choose "
                "another output_dir: other data make another training."
            )
        paid_for = {str(entry.privacy_unit) for entry in self.journal.read().entries}
        if paid_for - {str(self.privacy.privacy_unit)}:
            raise PrivacyError(
                f"privacy.privacy_unit must stay {', '.join(sorted(paid_for))}, whose "
                "steps were paid for here. Say so again, or choose another output_dir."
            )
        if known["digest"] != self.digest:
            raise PrivacyError(
                "output_dir must belong to this model, these data and these numbers, "
                "but another training has paid for steps in it. Choose another "
                "output_dir."
            )
        if not resumes and (self.folder / _CERTIFICATE).exists():
            raise PrivacyError(
                "output_dir must not hold a training that has ended: a second one "
                "would spend as much again. Choose another output_dir, or resume from "
                "a checkpoint."
            )

    def _check_checkpoint(self, known: dict[str, Any], note: dict[str, Any]) -> None:
        """Refuse a checkpoint whose charges are not in this folder."""
        if not note:
            raise ArtifactError(
                f"the checkpoint must hold {NOTE}, got none: it was not written by a "
                "private training, and nobody knows what it has learnt. Start anew."
            )
        if not known or note["run"] != known["run"]:
            raise ArtifactError(
                "the checkpoint must belong to the training in output_dir, whose "
                "ledger says what it has paid. Set output_dir to its own folder."
            )
        entries, wanted = self.journal.read().entries, note["num_entries"]
        if _digest_of(entries[:wanted]) != note["paid"]:
            raise ArtifactError(
                f"the ledger must begin with the {wanted} blocks that were paid when "
                f"the checkpoint was written, got {len(entries)} blocks, or others. "
                "Restore the ledger."
            )

    def _check_step(self, checkpoint: Path) -> None:
        """Refuse to take steps again of a training that has taken all of them."""
        last = self.stage.num_steps
        if self.has_ended and checkpoint.name != f"checkpoint-{last}":
            raise PrivacyError(
                f"output_dir must not hold a training that has ended: going on from "
                f"{checkpoint.name} would draw, and pay for, steps again. Resume from "
                f"checkpoint-{last}, which returns its model and its certificate."
            )

    @property
    def has_ended(self) -> bool:
        """Whether it has taken all steps, and was not stopped before."""
        known, last = _read(self.folder / "run.json"), self.stage.num_steps
        return bool(known.get("weights")) and known.get("steps", last) >= last

    def note_checkpoint(self, checkpoint: Path) -> None:
        """Tie a checkpoint to this training and to what it has paid so far."""
        run = _read(self.folder / "run.json")["run"]
        paid = self.journal.read().entries
        note = {"run": run, "num_entries": len(paid), "paid": _digest_of(paid)}
        _write(checkpoint / NOTE, json.dumps(note))

    @contextmanager
    def charging(self, model: nn.Module) -> Iterator[Callable[[int, int], None]]:
        """Hold the budget, and hand out what charges a block before its noise.

        Args:
            model: that notes what it learns.

        Raises:
            BudgetExceededError: the data set cannot pay for the whole training.
        """
        learning = self._learning(model)
        if self.budget is None:
            with paying(self), learning.noting_weights():
                yield self._charge_to(None, learning)
            return
        held = self._reserve(self.budget)
        with release_held(self.budget.url, held), paying(self):
            with learning.noting_weights():
                yield self._charge_to(spender(self.budget.url, held), learning)
            spent = settle_budget(
                self.budget.url, held, delta=self.privacy.target_delta
            )
            _write(self.folder / "budget.json", spent.model_dump_json(indent=1))

    def _charge_to(
        self, spend: Spend | None, learning: Learning
    ) -> Callable[[int, int], None]:
        """Charge blocks to the budget, then to the journal."""
        journal, corpus = self.journal, self.corpus

        def charge(first_step: int, num_steps: int) -> None:
            entry = stage_entry(
                corpus,
                self.stage,
                recipe=self.plan.recipe,
                first_step=first_step,
                num_steps=num_steps,
                fixed_seed=self.privacy.seed is not None,
            )
            pay(entry, journal, spend)
            for name in (_CERTIFICATE, _CARD):  # of a training that was stopped before
                (self.folder / name).unlink(missing_ok=True)
            learning.note()

        return charge

    def _request(self, budget: ScriptBudget) -> Request:
        """Ask for everything that the training will draw."""
        planned, spare = planned_costs(
            self.plan,
            self.corpus,
            redaction="",
            block_size=self.privacy.block_size,
            seeded=self.privacy.seed is not None,
        )
        ids = self.rows.unit_ids
        units = UnitSet.of(ids, key=budget.key, data_set=budget.data_set)
        if self.rows.are_named:
            units = as_known(budget.url, units, ids, key=budget.key)
        return Request(
            units=units,
            privacy_unit=PrivacyUnit(self.privacy.privacy_unit),
            id_kind=IdKind.SOURCE if self.rows.are_named else IdKind.POSITION,
            run_key=hashlib.sha256(f"{self.id} {self.digest}".encode()).hexdigest(),
            recipe=self.plan.recipe,
            planned=planned,
            spare=spare,
            purpose=budget.purpose,
            sweep=budget.sweep,
            required=budget.required,
        )

    def _reserve(self, budget: ScriptBudget) -> BudgetReservation:
        """Hold the cost of the whole training, in a store that knows what it paid."""
        refuse_lost_store(budget.url, runs=self.folder.parent, way_out=_STAYS_SPENT)
        texts = records_digest(self.rows.records, key=budget.key)
        return hold(budget.url, self._request(budget), texts=texts)

    def certificate(self, *, steps: int | None = None) -> Certificate:
        """State what is guaranteed after all that was paid: if it ends at `steps`, too.

        Raises:
            ArtifactError: the journal does not hold what this process has paid.
        """
        ledger, known = self.journal.read(), _read(self.folder / "run.json")
        if steps is None and known.get("num_entries") == len(ledger.entries):
            steps = known.get("steps")
        if steps is not None and steps < self.stage.num_steps:
            ledger = ledger.cut_short()
        return ledger.certificate(
            Notion.RECORD,
            delta=self.privacy.target_delta,
            relation=NeighboringRelation(self.privacy.relation),
        )

    def finish(self, weights: str, steps: int) -> None:
        """Write certificate, card, and whose weights they are about.

        Args:
            weights: digest of the weights that the training ended with.
            steps: that it has taken; fewer than planned where something stopped it,
                such as a callback. It may go on then.

        Raises:
            ArtifactError: the training ended before, with other weights.
        """
        found = self.certificate(steps=steps)
        known, paid = _read(self.folder / "run.json"), len(self.journal.read().entries)
        went_on = not self.has_ended and paid > known.get("num_entries", paid)
        if not went_on and self.weights not in {"", weights}:
            raise ArtifactError(
                "the last checkpoint must hold the weights that the training ended "
                "with, but holds others. Restore it: the certificate is not about them."
            )
        known |= {"weights": weights, "steps": steps, "num_entries": paid}
        _write(self.folder / "run.json", json.dumps(known))
        _write(self.folder / _CERTIFICATE, found.model_dump_json(indent=1))
        _write(self.folder / _CARD, script_card(found, self.plan))


def _digest_of(entries: Sequence[LedgerEntry]) -> str:
    """Tell entries of a journal from all others."""
    text = "\n".join(entry.model_dump_json() for entry in entries)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(file: Path, *names: str) -> dict[str, Any]:
    """Read a small JSON object that has all names, empty if there is no file."""
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not {"run", *names} <= found.keys():
        raise _unlike_written(file)
    return found


def _unlike_written(file: Path) -> ArtifactError:
    """Say that somebody else wrote a file."""
    return ArtifactError(f"{file.name} must be as it was written. Restore it.")


def _write(file: Path, text: str) -> None:
    """Replace a file as a whole."""
    with replacing(file) as half:
        half.write_text(text, encoding="utf-8")
