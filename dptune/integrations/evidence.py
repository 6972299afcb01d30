"""What a script's model leaks and promises, in the form that the gate decides on.

```python
trainer.train()
dossier = measure(
    trainer, Path("notes-private"), base_model=base, others=test_rows, canaries=drawn
)
decision, card = decide_on(dossier, "notes-private", policy=policy, budget_url=url)
```

The folder is written by `measure`, so that the evidence is about these bytes;
`decide_on` compares them. `dptune register` takes both into the registries, where
`dptune gate` and `dptune promote` treat the version like any other.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Self, cast

from pydantic import ValidationError
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dptune.accounting.store.attempts import (
    Attempt,
    broken_log,
    clock_behind,
    record_attempt,
)
from dptune.accounting.store.store import BudgetStore
from dptune.attacks.canaries import CanarySet, CanarySpec, draw_canaries
from dptune.attacks.exposure import exposure_report
from dptune.attacks.inference import Tell, unwatched
from dptune.attacks.membership import membership_report
from dptune.attacks.planting import planted_count
from dptune.attacks.settings import AttackSettings
from dptune.attacks.signals import HeldOut, held_out_losses, utility_report
from dptune.config import PerformanceSettings
from dptune.conversation import ScoredTokens
from dptune.data.collated import Rows
from dptune.errors import (
    ArtifactError,
    ConfigError,
    MalformedEvidenceError,
    of_other_kinds,
)
from dptune.gates.decision import GateDecision, decide
from dptune.gates.evidence import AttemptsEvidence, FileEvidence, OriginEvidence
from dptune.gates.manifest import read_manifest
from dptune.gates.policy import GatePolicy
from dptune.integrations.measurable import measurable, refuse_trained_controls
from dptune.integrations.private_training import PrivateTraining
from dptune.integrations.rows import (
    one_of_each_unit,
    owners_of_rows,
    repeated_rows,
    scored_rows,
)
from dptune.integrations.script_plan import STAGE
from dptune.integrations.script_run import ScriptRun
from dptune.models.digest import model_digest, weights_digest
from dptune.models.loading import LoadedModel, load_measured, save_model
from dptune.models.source import ModelBundle
from dptune.reports.card.statements import PrivacyCard
from dptune.results import (
    ChampionReport,
    ExposureReport,
    MembershipReport,
    RedactionReport,
    RegisteredVersion,
    UtilityReport,
    ValidationReport,
)
from dptune.workflow.assess import contradictions, unpaid
from dptune.workflow.attempts import attempts_on, is_recorded, record_evaluation
from dptune.workflow.canary_ranking import CanaryRanking
from dptune.workflow.device import pick_device
from dptune.workflow.dossier import Dossier, RunResults
from dptune.workflow.shadows import shadow_training
from dptune.workflow.trained import opens_with_bos, trained_canaries

HELD_OUT: Final = "others"
_NO_CANARIES: Final = "The script planted no canaries."


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A model that is measured, what it came from, and what it is measured on.

    Args:
        model: as it was saved.
        digest: of its folder.
        start: before training, in the types that it was given in; shadows begin there.
        base: the same weights, computed with in float32.
        members: sequences that were trained on, canaries left out, one of each unit.
        non_members: sequences that were not, one of each unit.
        others: all of those.
        owners: the number of the unit of each of them.
        longest: tokens.
    """

    model: LoadedModel
    digest: str
    start: LoadedModel
    base: LoadedModel
    members: list[ScoredTokens]
    non_members: list[ScoredTokens]
    others: list[ScoredTokens]
    owners: list[int]
    longest: int
    attacks: AttackSettings
    performance: PerformanceSettings

    @property
    def device(self: Self) -> str:
        """Where it is measured."""
        return pick_device(self.performance.device)

    @property
    def digests(self: Self) -> tuple[str, str]:
        """Of the model and its base."""
        return self.digest, weights_digest(self.start.model)


def measure(
    trainer: PrivateTraining,
    folder: Path | str,
    *,
    base_model: PreTrainedModel,
    others: Rows,
    policy: GatePolicy,
    canaries: CanarySet | None = None,
    champion: Path | None = None,
    attacks: AttackSettings | None = None,
    performance: PerformanceSettings | None = None,
    say: Callable[[str], None] = lambda _: None,
    tell: Tell = unwatched,
) -> Dossier:
    """Save what a script trained, attack it every way, and say what it promises.

    Members are drawn from the rows that were trained on, one of each unit; where a row
    has tokens without a loss, no attack looks at them. `others` that were trained on
    too are left out.
    Canaries count as planted where their tokens were trained on. With a `ScriptBudget`,
    the whole dossier is noted in its store, by its digest.

    **Privacy**: a function of private records, outside any epsilon; the card says so.
    The dossier holds losses of held-out records and no text: keep it inside the trust
    boundary.

    Args:
        trainer: that has trained a causal language model.
        folder: absent or empty; gets the model, adapters merged, and its tokenizer.
        base_model: loaded again, as it was before training; its weights are compared.
        others: rows of the same law that were not trained on, of which one of each
            unit is a non-member. Without the column that names owners, each row counts
            for a unit of its own.
        policy: that this is measured for.
        canaries: drawn by `dptune.canaries`; those planted are rows of `train_dataset`.
        champion: folder of the version in production, measured beside it.
        attacks: how many records, how many draws; shadow models are trained by default.
        performance: memory and device.
        say: called with a line before each attack.
        tell: told how much of each piece of work is done, and how much there is.

    Raises:
        ConfigError: the training has not ended, or is none that can be measured, or an
            argument is not what it must be; all at once.
        DataError: canaries are no rows of their own, held-out ones were trained on, or
            a group is too small.
        ArtifactError: the folder has files already.
    """
    run, tokenizer = measurable(
        trainer, base_model, policy=policy, canaries=canaries, champion=champion
    )
    attacks, folder = attacks or AttackSettings(), Path(folder)
    drawn = canaries or draw_canaries(CanarySpec(num_planted=0, num_held_out=0))
    opened = opens_with_bos(run.rows.data, drawn, tokenizer)
    held_out = trainer.read_held_out(others)
    trained, untrained = scored_rows(run.rows.data), scored_rows(held_out.data)
    unseen = [row for row, one in enumerate(untrained) if not run.rows.holds(one)]
    owners = owners_of_rows(held_out.data)
    texts = _decoded(trained, tokenizer)
    refuse_trained_controls(texts, drawn)
    own = {row for row, text in enumerate(texts) if not planted_count([text], drawn)}
    known = {row for row in own if not held_out.holds(trained[row])}
    members, non_members = (
        one_of_each_unit(data, fitting - repeated_rows(data), attacks.num_members)
        for data, fitting in ((run.rows.data, known), (held_out.data, {*unseen}))
    )
    began, performance = datetime.now(tz=UTC), performance or PerformanceSettings()
    nn.Module.to(base_model.train(mode=False), pick_device(performance.device))
    start = LoadedModel(model=base_model, tokenizer=tokenizer)
    digest = save_model(cast("PreTrainedModel", trainer.model), tokenizer, folder)
    manifest = read_manifest(folder)  # now: what is laid beside it later is no part
    subject = _Subject(
        model=load_measured(folder),
        digest=digest,
        start=start,
        base=start.read_only(),
        members=[trained[row] for row in members],
        non_members=[untrained[row] for row in non_members],
        others=[untrained[row] for row in unseen],
        owners=[owners[row] for row in unseen],
        longest=max(map(len, trained)),
        attacks=attacks,
        performance=performance,
    )
    say("exposure of every canary among all candidates")
    exposure = _exposure(subject, run, drawn, opened=opened, texts=texts, tell=tell)
    membership = _membership(subject, say=say, tell=tell)
    say("perplexity on rows that were not trained on")
    utility = _utility(subject, held_out.fingerprint, tell=tell)
    dossier = Dossier.of(
        RunResults(
            plan=run.plan,
            ledger=run.journal.read(),
            corpus=run.corpus,
            detection=run.detection,
            redaction=_unredacted(),
            exposure=exposure.model_copy(update={"measured_at": began}),
            membership=membership.model_copy(update={"measured_at": began}),
            utility=utility.model_copy(update={"measured_at": began}),
            champion=_champion(champion, subject, held_out.fingerprint),
            budget=run.settled,
        ),
        model_digest=digest,
        base_model=f"model with weights {subject.digests[1][:16]}",
        recipe=run.recipe,
        planned_for=policy.reference,
    ).model_copy(update={"manifest": manifest})
    if run.budget is not None:
        record_evaluation(run.budget.url, [dossier], data_set=run.budget.data_set)
    return dossier


def decide_on(
    dossier: Dossier,
    folder: Path | str,
    *,
    policy: GatePolicy,
    budget_url: str | None = None,
    champion: Dossier | None = None,
) -> tuple[GateDecision, PrivacyCard]:
    """Decide on a measured model, and on the bytes that lie in its folder now.

    Nobody but the caller says that the dossier is what was measured: to have it signed,
    logged and compared with what was noted, register it.

    Args:
        dossier: by `measure`.
        folder: that `measure` wrote.
        policy: what it must show.
        budget_url: of the store that paid, which counts attempts; None where none did.
        champion: of the version in production; by default the one measured beside it.

    Returns:
        The decision with every criterion, and the privacy card.

    Raises:
        ConfigError: an argument is not what it must be; all at once.
        MalformedEvidenceError: the dossier is of several units or models, so that it
            has no card.
    """
    wanted = {
        "dossier": (dossier, Dossier),
        "folder": (folder, Path | str),
        "policy": (policy, GatePolicy),
        "champion": (champion, Dossier | None),
    }
    if problems := list(of_other_kinds(wanted)):
        raise ConfigError(problems)
    folder = Path(folder)
    digest = hashlib.sha256(dossier.model_dump_json().encode()).hexdigest()
    faults, attempts = [*contradictions(dossier)], None
    if budget_url is not None:
        subject = hashlib.sha256(f"{digest} {policy.digest}".encode()).hexdigest()
        paid, attempts = _asked_store(dossier, budget_url, subject=subject)
        faults += paid
    origin = OriginEvidence(
        digest=digest,
        signer="unsigned",
        is_verified=False,
        faults=tuple(faults),
    )
    evidence = dossier.evidence(
        champion,
        decided_at=datetime.now(tz=UTC),
        files=_files(dossier, folder),
        origin=origin,
        attempts=attempts,
    )
    beside = dossier.champion
    if champion is None and beside.utility is not None:
        update = {
            "champion_digest": beside.model_digest,
            "champion_utility": beside.utility,
        }
        evidence = evidence.model_copy(update=update)
    decision = decide(evidence, policy)
    version = RegisteredVersion(
        model_name=folder.name,
        version="not registered",
        model_digest=dossier.model_digest,
        model_uri="",
        recipe=dossier.recipe.name,
    )
    try:
        return decision, dossier.card(version, decision)
    except ValidationError:
        raise MalformedEvidenceError(
            "the dossier must be as `measure` made it, but its parts are not about one "
            "model and one privacy unit. Measure again."
        ) from None


def _decoded(
    sequences: Iterable[list[int]], tokenizer: PreTrainedTokenizerFast
) -> list[str]:
    """Texts of sequences, for what looks at texts alone. Private."""
    return [str(tokenizer.decode(one, skip_special_tokens=True)) for one in sequences]


def _exposure(
    subject: _Subject,
    run: ScriptRun,
    drawn: CanarySet,
    *,
    opened: bool,
    texts: Sequence[str],
    tell: Tell,
) -> ExposureReport:
    """Rank canaries under the model and its base, as their rows were tokenized."""
    ranking = CanaryRanking(
        canaries=drawn,
        attacks=subject.attacks,
        device=subject.device,
        cache=None,
        opened=opened,
    )
    trained = trained_canaries(
        run.rows.data, drawn, subject.model.tokenizer, stage=STAGE
    )
    model_digest, base_digest = subject.digests
    found = exposure_report(
        measured=ranking.measure(subject.model, partial(tell, "exposure, model")),
        base=ranking.measure(subject.base, partial(tell, "exposure, base")),
        canary_set=drawn,
        model_digest=model_digest,
        base_model_digest=base_digest,
        planted_found=planted_count(texts, drawn),
        trained=trained.copies,
        scoring=subject.attacks.scoring,
    )
    if drawn.planted or drawn.held_out:
        return found
    return found.model_copy(update={"not_measurable": _NO_CANARIES})


def _membership(
    subject: _Subject, *, say: Callable[[str], None], tell: Tell
) -> MembershipReport:
    """Tell members from others by every attack, beside the blind baseline."""
    say("membership of rows, by losses, shadow models and a blind baseline")
    shadows = shadow_training(
        subject.start,
        subject.attacks,
        max_tokens=subject.longest,
        performance=subject.performance,
        say=say,
        tell=tell,
    )
    others = subject.non_members
    model_digest, base_digest = subject.digests
    return membership_report(
        subject.members,
        others,
        member_texts=_decoded(subject.members, subject.model.tokenizer),
        non_member_texts=_decoded(others, subject.model.tokenizer),
        model=subject.model.model,
        base_model=subject.base.model,
        model_digest=model_digest,
        base_model_digest=base_digest,
        batch_size=subject.performance.evaluation_batch_size,
        device=subject.device,
        num_resamples=subject.attacks.num_bootstrap,
        train_shadow=shadows.train if shadows else None,
        num_shadows=shadows.settings.num_models if shadows else 0,
        tell=tell,
    )


def _utility(
    subject: _Subject,
    fingerprint: str,
    *,
    tell: Tell = unwatched,
    of: LoadedModel | None = None,
    digest: str = "",
) -> UtilityReport:
    """Loss on rows that were not trained on, of the model or of another."""

    def measured(name: str, one: LoadedModel) -> HeldOut:
        return held_out_losses(
            one.model,
            subject.others,
            batch_size=subject.performance.evaluation_batch_size,
            device=subject.device,
            on_progress=partial(tell, f"losses of held-out records, {name}"),
        )

    return utility_report(
        subject.others,
        measure=partial(measured, "model", of or subject.model),
        measure_base=partial(measured, "base", subject.base),
        model_digest=digest or subject.digest,
        corpus_fingerprint=fingerprint,
        split=HELD_OUT,
        units=subject.owners,
    )


def _champion(
    champion: Path | None, subject: _Subject, fingerprint: str
) -> ChampionReport:
    """Measure the version in production on the same rows."""
    if champion is None:
        return ChampionReport()
    bundle = ModelBundle(path=champion, digest=model_digest(champion))
    loaded = load_measured(champion)
    found = _utility(subject, fingerprint, of=loaded, digest=bundle.digest)
    return ChampionReport(model_digest=bundle.digest, utility=found)


def _unredacted() -> RedactionReport:
    """Say that nothing was redacted."""
    return RedactionReport(
        operator="none",
        masked_character_share=0.0,
        validation=ValidationReport(view="original", success=True, expectations=()),
    )


def disowned(dossier: Dossier, store: BudgetStore | None) -> tuple[str, ...]:
    """Name what a budget store contradicts of a script's evidence.

    The dossier was noted as a whole when it was made, so that whatever was edited, or
    put together of two trainings, shows.

    Args:
        dossier: by `measure`, of a training with a `ScriptBudget`.
        store: that paid for it; None where there is none.
    """
    faults = unpaid(dossier, store)
    if store is None or dossier.budget is None:
        return faults
    data_set = dossier.budget.data_set
    if is_recorded(store, [dossier], data_set=data_set):
        return faults
    return (*faults, "The evidence is not what was noted when it was measured.")


def _asked_store(
    dossier: Dossier, url: str, *, subject: str
) -> tuple[tuple[str, ...], AttemptsEvidence | None]:
    """Name what the store that paid contradicts, and count attempts, this one too."""
    store = BudgetStore.find(url)
    with store or nullcontext():
        faults = disowned(dossier, store)
        if store is None or dossier.budget is None:
            return faults, None
        told = [broken_log(store), clock_behind(store, datetime.now(tz=UTC))]
        faults += tuple(filter(None, told))
        data_set, kind = dossier.budget.data_set, Attempt.DECISION
        record_attempt(store, data_set=data_set, kind=kind, subject=subject)
        return faults, attempts_on(store, data_set)


def _files(dossier: Dossier, folder: Path) -> FileEvidence:
    """Read what lies in the folder now; what cannot be read is said, never raised."""
    known = FileEvidence(
        registry_digest=dossier.model_digest,
        registry_manifest=dossier.manifest.digest if dossier.manifest else "",
    )
    try:
        known = known.model_copy(update={"stored": read_manifest(folder)})
        return known.model_copy(update={"model_digest": model_digest(folder)})
    except ArtifactError:
        return known.model_copy(update={"fault": "they are no complete model."})
