"""Sees every draw of noise in a training pod, kills the first pod once, plants bugs.

A pod has a file of its own, with a line before noise is drawn, so that no draw is
missing, and after it a digest of that noise. The first pod that draws for the
`KILL_AT`-th time is killed right after that, within a block: like a node that is lost.
"""

import hashlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILL_AT = 7


@dataclass(frozen=True, kw_only=True)
class Draws:
    """What all pods of one run drew.

    Args:
        counts: draws of each pod, in the order of their starts.
        digests: of the noise of all draws that ended.
    """

    counts: tuple[int, ...]
    digests: tuple[str, ...]

    @property
    def reused(self) -> bool:
        """Whether any noise was drawn twice."""
        return len(set(self.digests)) < len(self.digests)


def read_draws(folder: Path) -> Draws:
    """Read what was witnessed in a folder."""
    files = sorted(folder.glob("*.draws"), key=lambda f: f.stat().st_ctime_ns)
    texts = [file.read_text("ascii").splitlines() for file in files]
    return Draws(
        counts=tuple(lines.count("draw") for lines in texts),
        digests=tuple(d for lines in texts for d in lines if d != "draw"),
    )


def watch(folder: Path, *, twin: str) -> None:
    """Watch this process.

    Args:
        folder: of the run.
        twin: name of a bug to plant; empty for none.
    """
    import torch  # noqa: PLC0415 - only pods that train

    from dptune.dpsgd.noise import IndependentNoise  # noqa: PLC0415
    from dptune.workflow import whitebox  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    if twin:
        TWINS[twin]()
    add = IndependentNoise.add
    file = folder / f"{os.environ['FAKE_POD']}.draws"

    def witnessed(self: IndependentNoise, sums: Any, *, step: int) -> None:
        _tell(file, "draw")
        some = max(sums.values(), key=torch.numel).flatten()[:64]
        before = some.clone()
        add(self, sums, step=step)
        coarse = torch.round((some - before) * 1e3).to(torch.int32)  # noise alone
        _tell(file, hashlib.sha256(coarse.numpy().tobytes()).hexdigest())
        if file.read_text("ascii").count("draw") == KILL_AT:
            die_once(folder / "killed")

    audit = whitebox.audit_stage

    def rehearse(*arguments: Any, **keywords: Any) -> Any:
        IndependentNoise.add = add  # draws noise that nobody is shown
        return audit(*arguments, **keywords)

    IndependentNoise.add = witnessed
    whitebox.audit_stage = rehearse


def _tell(file: Path, line: str) -> None:
    with file.open("a") as sink:
        sink.write(f"{line}\n")


def die_once(marker: Path) -> None:
    """End like a pod whose node is lost, unless another one did."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _anew() -> None:
    """Open a reservation at every start, in place of the run's own."""
    from dptune.workflow import budget  # noqa: PLC0415

    spender = budget.spender

    def twin(url: str, reservation: Any) -> Callable[..., None]:
        other = _reserve_again(url, reservation.id)
        return spender(url, reservation.model_copy(update={"id": other}))

    budget.spender = twin


def _reserve_again(url: str, identifier: str) -> str:
    """Make a reservation like another one, for the same computation."""
    from dptune.accounting.store.reservations import UnitSet  # noqa: PLC0415
    from dptune.accounting.store.store import BudgetStore, Request  # noqa: PLC0415
    from dptune.accounting.store.summaries import history  # noqa: PLC0415
    from dptune.accounting.store.tables import IdKind  # noqa: PLC0415
    from dptune.privacy import PrivacyUnit  # noqa: PLC0415

    store = BudgetStore.open(url)
    (held,) = (made for made in history(store) if made.id == identifier)
    key = bytes.fromhex(os.environ["DPTUNE_BUDGET_KEY"])
    request = Request(
        units=UnitSet.of([os.environ["FAKE_POD"]], key=key, data_set=held.data_set),
        privacy_unit=PrivacyUnit.RECORD,
        id_kind=IdKind.SOURCE,
        run_key=held.run_key,
        recipe=held.recipe,
        planned=held.planned,
    )
    return store.reserve(request, again=True).id


def _replay() -> None:
    """Give every start the same number, and noise that follows from it."""
    from dptune.dpsgd import trainer  # noqa: PLC0415

    trainer.claim_attempt = lambda _folder: 0


def _unpaid() -> None:
    """Take what was paid by an earlier start for paid, though it is drawn again."""
    from dptune.workflow import shared_job  # noqa: PLC0415

    honest = shared_job.charge_to

    def twin(journal: Any, *arguments: Any, **keywords: Any) -> Callable[..., None]:
        charge = honest(journal, *arguments, **keywords)
        paid = sum(entry.num_steps for entry in journal.read().entries)

        def pay(first_step: int, num_steps: int) -> None:
            if first_step + num_steps > paid:
                charge(first_step, num_steps)

        return pay

    shared_job.charge_to = twin


TWINS = {"anew": _anew, "replay": _replay, "unpaid": _unpaid}
