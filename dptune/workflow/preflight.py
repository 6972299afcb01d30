"""Everything that can go wrong before a run, checked before anything is created."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from dptune.accounting.ledger import PrivacyLedger
from dptune.accounting.store.reservations import KEY_BYTES
from dptune.config import DataSettings, PrivacySettings, TrainConfig
from dptune.data.records import Corpus
from dptune.detection.endpoint import NO_ACCESS, LlmAccess
from dptune.detection.languages.records import Languages
from dptune.detection.settings import UnknownLanguage
from dptune.errors import ConfigError, DptuneError, Problem, ProblemsError
from dptune.models.check import check_source
from dptune.planning import RunPlan, plan_run
from dptune.privacy import Mode, Notion
from dptune.recipes import Recipe, StageSettings
from dptune.results import CorpusReport
from dptune.review.store import ListsOfProject
from dptune.workflow.attempts import refuse_lost_store
from dptune.workflow.budget import check_budget, lacks_grant
from dptune.workflow.charging import HIDING_OPERATORS
from dptune.workflow.chats import check_chats, unread_keys
from dptune.workflow.detect import check_detector, check_languages
from dptune.workflow.device import place_processes
from dptune.workflow.expectation import check_gate, expected_ledger, gate_doubts
from dptune.workflow.ingest import read_corpus
from dptune.workflow.naming import known_elsewhere
from dptune.workflow.planned_units import PlannedUnits, check_bound, far_off, units_for
from dptune.workflow.power import canary_doubt, members_doubt
from dptune.workflow.public_texts import check_public_texts
from dptune.workflow.respelled import spelt_twice
from dptune.workflow.score import check_judge

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, kw_only=True)
class BudgetPlace:
    """Where a run's budget is kept.

    Args:
        url: of the budget store, which need not be there yet; may hold a password.
        key: secret that names privacy units; None where none was made yet.
        again: whether finished stages are trained again.
        runs: folder of earlier trainings, whose journals must be paid for there; None
            does not ask.
    """

    url: str = field(repr=False)
    key: bytes | None = field(repr=False)
    again: bool = False
    runs: Path | None = None

    def refuse_lost_store(self: Self) -> None:
        """Refuse a store that does not hold what journals were charged for.

        Raises:
            ArtifactError: it was deleted, exchanged or restored from an older copy.
        """
        if self.runs is not None and self.runs.is_dir():
            refuse_lost_store(self.url, runs=self.runs)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What the preflight learned.

    Args:
        fingerprint: of the corpus as it is now.
        source_fingerprint: of that and of units that deduplication dropped.
        num_units: privacy units that the run is planned for, canaries included.
        plan: noise and cost of every stage.
        ledger: that the run leaves if all goes as planned.
        num_records, units_by_split: of the corpus.
        warnings: for whoever runs it, about private figures: they leave no machine.
    """

    fingerprint: str
    source_fingerprint: str
    num_units: int
    plan: RunPlan
    ledger: PrivacyLedger
    num_records: dict[str, int] = field(default_factory=dict)
    units_by_split: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def check_run(
    config: TrainConfig,
    *,
    data_root: Path,
    budget: BudgetPlace | None = None,
    access: LlmAccess = NO_ACCESS,
    read: Callable[[DataSettings], Corpus] | None = None,
    validate: bool = True,
    gated: bool = False,
    accelerators: int | None = None,
    lists: ListsOfProject | None = None,
    folder: Path | None = None,
    keep: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Checked:
    """Check corpus, budget, detector and model of a run; no more than asked stays.

    Args:
        config: of the run.
        data_root: folder that relative paths start from.
        budget: where to look whether the data set can pay; None does not ask.
        access: of language models that the configuration names.
        read: reads the corpus; from the files by default.
        validate: ask Great Expectations about it too, as the run's first step does.
        gated: the run ends before its gate, which must be able to pass it.
        accelerators: of each machine that trains; None is this one, and its own.
        lists: review lists of the project, if there are any.
        folder: private folder for work files while a corpus is read; None reads it into
            memory.
        keep: leave the corpus there, for the first step of the run.
        on_progress: called with what is being done, records done, and about all.

    Raises:
        ConfigError, DataError: with all problems of all parts at once.
        DptuneError: a single problem, as it was raised.
    """
    errors: list[DptuneError] = []
    reader = read or partial(
        read_corpus,
        data_root=data_root,
        validate=validate,
        folder=folder,
        keep=keep,
        on_progress=on_progress,
    )
    corpus = _attempt(lambda: reader(config.data), errors)
    _check_parts(
        config,
        errors,
        data_root=data_root,
        access=access,
        accelerators=accelerators,
    )
    copied = _attempt(
        lambda: check_public_texts(
            config, corpus, data_root=data_root, validate=validate, folder=folder
        ),
        errors,
    )
    plan = cut = None
    if corpus is not None:
        units = units_for(config.data, config.canaries, corpus.report)
        plan = _attempt(
            lambda: plan_for(
                config.recipe,
                config.privacy,
                units=units,
                counts_noise_multiplier=config.scoring.noise_multiplier,
            ),
            errors,
        )
        _check_corpus(config, corpus, errors, units=units, tell=on_progress)
        cut = _attempt(lambda: check_chats(corpus, config, data_root=data_root), errors)
    if gated:
        _attempt(lambda: check_gate(config, plan), errors)
    if corpus is not None and plan is not None and budget is not None:
        _attempt(lambda: _check_budget(config, corpus, plan, budget), errors)
    if len(errors) == 1:
        raise errors[0]
    if errors or corpus is None or plan is None:
        raise ConfigError([p for error in errors for p in problems_of(error)])
    ledger = expected_ledger(config, plan, corpus.report, lists=lists)
    doubts = (
        [
            *gate_doubts(config, ledger),
            canary_doubt(config),
            members_doubt(config, corpus.report.num_units),
        ]
        if gated
        else []
    )
    if budget is not None:
        doubts += _budget_doubts(config, corpus, budget, gated=gated)
    return Checked(
        fingerprint=corpus.fingerprint,
        source_fingerprint=corpus.source_fingerprint,
        num_units=plan.num_units,
        plan=plan,
        ledger=ledger,
        num_records=corpus.report.num_records,
        units_by_split=corpus.report.num_units,
        warnings=(
            *far_off(config, corpus.report),
            *spelt_twice(config.data.source, corpus.source_units),
            *unread_keys(corpus.report),
            *(copied or ()),
            *(cut or ()),
            *filter(None, doubts),
        ),
    )


def _budget_doubts(
    config: TrainConfig, corpus: Corpus, budget: BudgetPlace, *, gated: bool
) -> Iterator[str]:
    """Say what the budget store knows that a run may not want."""
    if gated and (lacks := lacks_grant(budget.url, config)):
        yield lacks
    key = budget.key or secrets.token_bytes(KEY_BYTES)  # one that is made by the run
    if known := known_elsewhere(budget.url, config, corpus, key=key):
        yield known


def _check_corpus(
    config: TrainConfig,
    corpus: Corpus,
    errors: list[DptuneError],
    *,
    units: PlannedUnits,
    tell: Callable[[str, int, int], None] | None,
) -> None:
    """Check what the configuration says of a corpus; append all errors."""
    from dptune.workflow.members import (  # noqa: PLC0415 - transformers
        refuse_without_controls,
    )

    _attempt(lambda: refuse_without_controls(corpus), errors)
    _attempt(lambda: check_bound(config, units, corpus.report), errors)
    _attempt(lambda: check_selective(config, corpus.report), errors)
    _attempt(lambda: _check_labels(config, corpus), errors)
    if not config.data.corpus_is_public:
        _attempt(lambda: _check_languages(config, corpus, tell), errors)


def _check_languages(
    config: TrainConfig,
    corpus: Corpus,
    on_progress: Callable[[str, int, int], None] | None,
) -> None:
    """Read the languages of records where the run would refuse some."""
    settings, rows = config.detection, corpus.dataset
    if settings.unknown_language is not UnknownLanguage.REFUSE:
        return
    tell = on_progress or (lambda *_: None)
    languages = Languages.of(
        rows,
        num_processes=settings.num_processes,
        on_progress=lambda done: tell("tell languages", done, len(rows)),
    )
    check_languages(languages, settings)


def _check_processes(config: TrainConfig, *, accelerators: int | None = None) -> None:
    """Refuse processes that are not there, and several for what trains in one."""
    nodes = config.performance.nodes
    placement = place_processes(config.performance, accelerators=accelerators)
    if placement.num_processes == 1:
        return
    problems = [
        Problem(
            path=f"performance.{'nodes' if nodes > 1 else 'num_processes'}",
            message=f"must be 1 for stage {stage.name}, whose {reason}, got "
            f"{nodes if nodes > 1 else placement.num_processes}.",
            next_step=f"Set it to 1, or choose a recipe other than "
            f"{config.recipe.name}.",
        )
        for stage in config.recipe.stages
        for reason in _needs_one_process(stage, nodes=nodes)
    ]
    if problems:
        raise ConfigError(problems)


def _needs_one_process(stage: StageSettings, *, nodes: int) -> Iterator[str]:
    """Name what of a stage several processes, or machines, cannot share."""
    if stage.controller is not None:
        yield "controller lives in one process"
    if stage.clipping is not None and stage.clipping.transform is not None:
        yield "gradients are transformed in one process"
    if stage.tiers is not None:
        yield "units are in parts"
    if stage.local is not None and nodes > 1:
        yield "noised texts are trained on in one process"


def _check_labels(config: TrainConfig, corpus: Corpus) -> None:
    """Refuse what a classifier cannot be trained with.

    Raises:
        DataError: the corpus has labels that the configuration does not name.
        ConfigError: a stage weighs tokens, but a record has one loss, of its class.
    """
    _check_forward(config)
    if not config.model.class_names:
        return
    from dptune.models.encode import class_numbers  # noqa: PLC0415 - transformers

    class_numbers(corpus.dataset, class_names=config.model.class_names)
    problems = [
        Problem(
            path=f"stages.{stage.name}.{name}",
            message="must be null for sequence_classification: a record has one loss, "
            "that of its class.",
            next_step="Choose another recipe.",
        )
        for stage in config.recipe.stages
        for name in ("token_weights", "tiers")
        if getattr(stage, name) is not None
    ]
    if problems:
        raise ConfigError(problems)


def _check_forward(config: TrainConfig) -> None:
    """Refuse a recipe with forward noise where it has nothing to stand on."""
    stages = [s.local for s in config.recipe.stages if s.local is not None]
    wanted = {
        "model.task": config.model.task == "sequence_classification",
        "model.max_sequences_per_unit": config.model.max_sequences_per_unit == 1,
        "model.public_text": config.model.public_text is not None
        or not any(stage.autoencoder for stage in stages),
    }
    problems = [
        Problem(
            path=path,
            message=f"must fit recipe {config.recipe.name}, which adds noise to hidden "
            "states of one sequence per unit.",
            next_step="Set task sequence_classification, max_sequences_per_unit 1, and "
            "public_text where there is an autoencoder.",
        )
        for path, is_met in wanted.items()
        if stages and not is_met
    ]
    if problems:
        raise ConfigError(problems)


def _check_budget(
    config: TrainConfig, corpus: Corpus, plan: RunPlan, place: BudgetPlace
) -> None:
    """Ask the budget store, if there is one, and journals if there is none."""
    place.refuse_lost_store()
    check_budget(config, corpus, plan, url=place.url, key=place.key, again=place.again)


def check_selective(config: TrainConfig, corpus: CorpusReport) -> None:
    """Refuse to promise a selective epsilon that the data settings already spoil.

    Raises:
        ConfigError: original text decides which records stay or how they are known,
            while a stage trains on redacted text without noise.
    """
    recipe = config.recipe
    trusts = recipe.uses_redacted_view or recipe.uses_tiers
    if not trusts or config.privacy.notion is Notion.RECORD:
        return
    problems = []
    if recipe.uses_tiers and config.privacy.mode is Mode.SOUND:
        problems += _tier_problems(config)
    if corpus.deduplicated:
        problems.append(
            Problem(
                path="data.duplicates",
                message="must be keep for a selective guarantee: which records stay "
                "would depend on their secrets.",
                next_step="Set it to keep; or deduplicate the source on its redacted "
                "text.",
            )
        )
    operator = config.redaction.name
    if recipe.uses_redacted_view and operator not in HIDING_OPERATORS:
        problems.append(
            Problem(
                path="redaction.operator",
                message="must be mask or delete, one for all types, for a selective "
                "guarantee: whatever else is written, and which type has which "
                f"operator, is read off the secrets, got {operator}.",
                next_step="Use mask, whose loss is ignored, and no operators by type.",
            )
        )
    if corpus.ids_are_content_hashes:
        problems.append(
            Problem(
                path="data.source.id_column",
                message="must be set for a selective guarantee: a hash of the text as "
                "id makes the split depend on secrets.",
                next_step="Name a column with stable ids.",
            )
        )
    if problems:
        raise ConfigError(problems)


def _tier_problems(config: TrainConfig) -> list[Problem]:
    """Report where the tiers of secrets would depend on private counts."""
    if config.scoring.counts != "corpus" or config.data.corpus_is_public:
        return []
    return [
        Problem(
            path="scoring.counts",
            message="must be table or released for a recipe with tiers: which tier a "
            "secret is in would depend on the records of others.",
            next_step="Use table, or mode paper, which claims nothing.",
        )
    ]


def plan_for(
    recipe: Recipe,
    privacy: PrivacySettings,
    *,
    units: PlannedUnits,
    counts_noise_multiplier: float | None = None,
) -> RunPlan:
    """Fill in the noise of a recipe, beside that of released counts if there are."""
    return plan_run(
        recipe,
        num_units=units.number,
        units_from=units.origin,
        units_noise_multiplier=units.noise_multiplier,
        notion=privacy.notion,
        relation=privacy.relation,
        target_epsilon=privacy.target_epsilon if recipe.private else None,
        target_delta=privacy.target_delta,
        mode=privacy.mode,
        counts_noise_multiplier=counts_noise_multiplier,
    )


def _check_parts(
    config: TrainConfig,
    errors: list[DptuneError],
    *,
    data_root: Path,
    access: LlmAccess,
    accelerators: int | None,
) -> None:
    """Check what needs no corpus: detector, judge, models and processes."""
    _attempt(lambda: check_detector(config.detection, access), errors)
    if config.scoring.judge is not None:
        judge = config.scoring.judge
        _attempt(lambda: check_judge(judge, access), errors)
    _attempt(
        lambda: check_source(
            config.model.source,
            data_root=data_root,
            max_tokens=config.model.max_tokens,
            class_names=config.model.class_names,
        ),
        errors,
    )
    _attempt(lambda: _check_processes(config, accelerators=accelerators), errors)


def _attempt(call: Callable[[], ResultT], errors: list[DptuneError]) -> ResultT | None:
    """Call, and keep an error of ours for later."""
    try:
        return call()
    except DptuneError as error:
        errors.append(error)
        return None


def problems_of(error: DptuneError) -> tuple[Problem, ...]:
    """List the problems of any error of ours."""
    if isinstance(error, ProblemsError):
        return error.problems
    return (Problem(path="", message=str(error)),)
