"""Checks of a whole comparison before its first cell: every plan, and what all cost."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from dptune.accounting.accountants import epsilon
from dptune.accounting.store.allowances import total
from dptune.accounting.store.reservations import KEY_BYTES
from dptune.accounting.store.store import BudgetStore, Request
from dptune.config import DataSettings, TrainConfig
from dptune.data.records import Corpus
from dptune.detection.endpoint import NO_ACCESS, LlmAccess
from dptune.errors import ConfigError, DptuneError, Problem
from dptune.workflow.budget import budget_request, run_key
from dptune.workflow.ingest import read_corpus
from dptune.workflow.naming import Charged
from dptune.workflow.preflight import (
    BudgetPlace,
    Checked,
    check_run,
    problems_of,
)


@dataclass(frozen=True, kw_only=True)
class CheckedComparison:
    """What the preflight of a comparison learned.

    Args:
        cells: by name of the cell.
        total_epsilon: of all cells together, under the first cell's claim; infinite
            where one trains on the original without noise.
        private_epsilon: of the cells with noise together.
    """

    cells: Mapping[str, Checked]
    total_epsilon: float
    private_epsilon: float


def check_comparison(
    cells: Mapping[str, TrainConfig],
    *,
    data_root: Path,
    budget: BudgetPlace,
    access: LlmAccess = NO_ACCESS,
    folder: Path | None = None,
    accelerators: int | None = None,
) -> CheckedComparison:
    """Check every cell and what all of them cost together; nothing is written.

    The corpus is read once for all cells that read the same.

    Args:
        cells: configurations by name of the cell.
        data_root: folder that relative paths start from.
        budget: where to look whether the data set can pay for all of them.
        access: of language models that a configuration names.
        folder: private folder for work files while a corpus is read, see
            `build_corpus`.
        accelerators: of each machine that trains; None is this one.

    Raises:
        ConfigError: with every problem of every cell.
        BudgetExceededError: the data set cannot pay for all of them together.
    """
    read = _Reader(data_root, folder)
    found: dict[str, Checked] = {}
    known: dict[str, Checked | DptuneError] = {}
    faults: dict[Problem, list[str]] = {}
    check = partial(
        check_run,
        data_root=data_root,
        budget=budget,
        access=access,
        read=read,
        accelerators=accelerators,
    )
    for name, config in cells.items():
        key = config.model_dump_json(exclude={"repetition"})
        if key not in known:
            known[key] = _check(config, check)
        checked = known[key]
        if isinstance(checked, Checked):
            found[name] = checked
            continue
        for problem in problems_of(checked):
            faults.setdefault(problem, []).append(name)
    if faults:
        raise ConfigError([_of_cells(p, who, len(cells)) for p, who in faults.items()])
    store = BudgetStore.find(budget.url)
    with store or nullcontext():
        requests = _requests(cells, found, budget, read=read, store=store)
        if store is not None:
            store.preview_all(list(requests.values()), again=budget.again)
    return _priced(cells, found, requests)


class _Reader:
    """Reads a corpus, or remembers it."""

    def __init__(self: Self, data_root: Path, folder: Path | None) -> None:
        self._data_root = data_root
        self._folder = folder
        self._known: dict[str, Corpus] = {}

    def __call__(self: Self, data: DataSettings) -> Corpus:
        """Return the corpus of these settings."""
        key = data.model_dump_json()
        if key not in self._known:
            self._known[key] = read_corpus(
                data, data_root=self._data_root, folder=self._folder
            )
        return self._known[key]


def _check(
    config: TrainConfig, check: Callable[[TrainConfig], Checked]
) -> Checked | DptuneError:
    """Check one cell, and keep what is wrong with it."""
    try:
        return check(config)
    except DptuneError as error:
        return error


def _of_cells(problem: Problem, who: Sequence[str], count: int) -> Problem:
    """Say which cells a problem speaks of, unless it is all of them."""
    if len(who) == count > 1:
        return problem
    more = f" and {len(who) - 2} more" if len(who) > 2 else ""
    return Problem(
        path=f"{problem.path} ({'; '.join(who[:2])}{more})".lstrip(),
        message=problem.message,
        next_step=problem.next_step,
    )


def _requests(
    cells: Mapping[str, TrainConfig],
    found: Mapping[str, Checked],
    budget: BudgetPlace,
    *,
    read: _Reader,
    store: BudgetStore | None,
) -> dict[str, Request]:
    """Say what every cell will draw; repetitions draw the same."""
    secret = budget.key or secrets.token_bytes(KEY_BYTES)
    known: dict[str, Request] = {}
    made = {}
    for name, config in cells.items():
        key = config.model_dump_json(exclude={"repetition"})
        corpus, plan = read(config.data), found[name].plan
        if key not in known:
            charged = Charged.of(config, corpus, key=secret, store=store)
            known[key] = budget_request(config, corpus, plan, units=charged.units)
        same = run_key(config, corpus.fingerprint)
        made[name] = replace(known[key], run_key=same)
    return made


def _priced(
    cells: Mapping[str, TrainConfig],
    found: Mapping[str, Checked],
    requests: Mapping[str, Request],
) -> CheckedComparison:
    """Compose what all cells cost, under the claim of the first."""
    privacy = next(iter(cells.values())).privacy

    def spent(names: Sequence[str]) -> float:
        cost = total([requests[name].planned for name in names])
        return epsilon(
            cost.event(privacy.notion),
            delta=privacy.target_delta,
            relation=privacy.relation,
        )

    noisy = [name for name, config in cells.items() if config.recipe.private]
    return CheckedComparison(
        cells=found,
        total_epsilon=spent(list(cells)),
        private_epsilon=spent(noisy),
    )
