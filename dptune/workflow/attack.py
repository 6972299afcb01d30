"""Attack a trained model and its base: exposure, membership, extraction, utility."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self, TypedDict

import numpy as np
import torch
from datasets import Dataset

from dptune.attacks.canaries import CanarySet
from dptune.attacks.exposure import exposure_report
from dptune.attacks.inference import Tell, unwatched
from dptune.attacks.membership import membership_report
from dptune.attacks.planting import planted_count
from dptune.attacks.settings import AttackSettings
from dptune.attacks.signals import HeldOut, held_out_losses, utility_report
from dptune.config import DetectionSettings, PerformanceSettings
from dptune.conversation import contents_only, scored
from dptune.data.records import Corpus
from dptune.detection.endpoint import NO_ACCESS, LlmAccess
from dptune.models.encode import record_tokens
from dptune.models.loading import LoadedModel, load_measured, load_saved
from dptune.models.source import ModelBundle
from dptune.precision import restore_rounded
from dptune.results import (
    ExposureReport,
    ExtractionReport,
    MembershipReport,
    Report,
    SamplesReport,
    TrainedCanaries,
    UtilityReport,
)
from dptune.workflow.canary_ranking import CanaryRanking, once
from dptune.workflow.detect import engine_of
from dptune.workflow.device import pick_device
from dptune.workflow.extracting import Extracting, nothing_to_extract
from dptune.workflow.members import HELD_OUT, TrainedRows, members_and_others
from dptune.workflow.samples import Masker, samples_report
from dptune.workflow.shadows import (
    attack_membership,
    measure_accuracy,
    opponent_of,
    shadow_training,
    unmeasurable_exposure,
)
from dptune.workflow.trained import most_trained


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """What the attacks found on one model."""

    exposure: ExposureReport
    membership: MembershipReport
    extraction: ExtractionReport
    utility: UtilityReport
    samples: SamplesReport

    @property
    def reports(self: Self) -> tuple[Report, ...]:
        """All that is measured."""
        return (self.exposure, self.membership, self.extraction, self.utility)

    def stamped(self: Self, at: datetime) -> Self:
        """Say in every report when it was measured."""
        when = {"measured_at": at}
        return replace(
            self,
            exposure=self.exposure.model_copy(update=when),
            membership=self.membership.model_copy(update=when),
            extraction=self.extraction.model_copy(update=when),
            utility=self.utility.model_copy(update=when),
        )


def attack_model(
    model: ModelBundle,
    base: ModelBundle,
    corpus: Corpus,
    canaries: CanarySet,
    *,
    trained: Sequence[TrainedCanaries],
    max_tokens: int,
    max_sequences_per_unit: int,
    attacks: AttackSettings,
    detection: DetectionSettings,
    performance: PerformanceSettings,
    cache: Path,
    access: LlmAccess = NO_ACCESS,
    say: Callable[[str], None] = lambda _: None,
    tell: Tell = unwatched,
) -> Leakage:
    """Attack a model every way, each beside the model before fine-tuning.

    Every report says when this began, and keeps saying so from a cache.

    Members are training records without canaries whose first sequence was trained on,
    non-members records of the test split whose text no training record has, one of each
    unit; both are
    cut to `max_tokens`, as training saw their first sequence.

    **Privacy**: a function of private records, outside any epsilon; the card says so.

    Args:
        model: after fine-tuning.
        base: before fine-tuning.
        corpus: the original view with canaries in its training split.
        canaries: what was planted, and controls.
        trained: which of them every stage trained on.
        max_tokens: longest sequence.
        max_sequences_per_unit: contribution bound that the stages were trained with.
        attacks: how many records, how many draws.
        detection: how texts that the model says are marked.
        performance: memory and speed.
        cache: folder for candidate tries, and for exposures and losses of base models.
        access: of the recognizer `llm`.
        say: called with a line before each attack.
        tell: told how much of each piece of work is done, and how much there is.

    Raises:
        DataError: there are no held-out records to compare with.
    """
    began, device = datetime.now(tz=UTC), pick_device(performance.device)
    start = load_saved(base.path, dtype=None)
    if start.class_names:
        restore_rounded(start.model)
        torch.nn.Module.float(start.model)
        return _attack_classifier(
            (model, load_saved(model.path)),
            (base, start),
            corpus,
            canaries,
            max_tokens=max_tokens,
            max_sequences_per_unit=max_sequences_per_unit,
            attacks=attacks,
            performance=performance,
            say=say,
            tell=tell,
        ).stamped(began)
    torch.nn.Module.to(start.model, device)  # before others read its memory
    attacking = _Attacking(
        model=(model, load_measured(model.path)),
        base=(base, start.read_only()),
        canaries=canaries,
        max_tokens=max_tokens,
        attacks=attacks,
        performance=performance,
        say=say,
        tell=tell,
    )
    exposure = attacking.exposure(corpus, trained, cache=cache)
    groups = members_and_others(
        corpus,
        canaries,
        trained=TrainedRows(
            loaded=attacking.model[1],
            max_tokens=max_tokens,
            max_sequences_per_unit=max_sequences_per_unit,
            folder=cache if cache.is_dir() else None,
        ),
        count=attacks.num_members,
    )
    return Leakage(
        exposure=exposure,
        membership=attacking.membership(start, *groups),
        extraction=attacking.extraction(*groups, detection=detection, access=access),
        samples=attacking.samples(
            groups[1],
            lambda: Masker.of(engine_of(detection, access), corpus.dataset, canaries),
        ),
        utility=attacking.utility(corpus, cache=cache),
    ).stamped(began)


@dataclass(frozen=True, kw_only=True)
class _Attacking:
    """A language model and its base, each loaded, and what the attacks want to know."""

    model: tuple[ModelBundle, LoadedModel]
    base: tuple[ModelBundle, LoadedModel]
    canaries: CanarySet
    max_tokens: int
    attacks: AttackSettings
    performance: PerformanceSettings
    say: Callable[[str], None]
    tell: Tell

    @property
    def device(self: Self) -> str:
        """Where models compute."""
        return pick_device(self.performance.device)

    @property
    def digests(self: Self) -> "_Digests":
        """Which weights were attacked."""
        return {
            "model_digest": self.model[0].digest,
            "base_model_digest": self.base[0].digest,
        }

    def exposure(
        self: Self,
        corpus: Corpus,
        trained: Sequence[TrainedCanaries],
        *,
        cache: Path,
    ) -> ExposureReport:
        """Rank every canary under the model, and under its base (once per base)."""
        self.say("exposure of every canary among all candidates")
        ranking = CanaryRanking(
            canaries=self.canaries,
            attacks=self.attacks,
            device=self.device,
            cache=cache,
        )
        return exposure_report(
            measured=ranking.measure(
                self.model[1], partial(self.tell, "exposure, model")
            ),
            base=ranking.measure_once(*self.base, partial(self.tell, "exposure, base")),
            canary_set=self.canaries,
            planted_found=planted_count(corpus.split("train")["text"], self.canaries),
            trained=most_trained(trained, num=len(self.canaries.planted)),
            scoring=self.attacks.scoring,
            **self.digests,
        )

    def membership(
        self: Self, start: LoadedModel, members: Dataset, outsiders: Dataset
    ) -> MembershipReport:
        """Tell members from others by every attack, beside the blind baseline."""
        self.say("membership of records, by losses, shadow models and a blind baseline")
        shadows = shadow_training(
            start,
            self.attacks,
            max_tokens=self.max_tokens,
            performance=self.performance,
            say=self.say,
            tell=self.tell,
        )
        groups = members, outsiders
        tokens = [_encode(rows, self.model[1], self.max_tokens) for rows in groups]
        texts = [list(map(contents_only, rows["text"])) for rows in groups]
        return membership_report(
            *tokens,
            member_texts=texts[0],
            non_member_texts=texts[1],
            opponent=opponent_of(
                self.base[0],
                [*tokens[0], *tokens[1]],
                [*texts[0], *texts[1]],
                max_tokens=self.max_tokens,
                attacks=self.attacks,
                performance=self.performance,
            ),
            model=self.model[1].model,
            base_model=self.base[1].model,
            batch_size=self.performance.evaluation_batch_size,
            device=self.device,
            num_resamples=self.attacks.num_bootstrap,
            train_shadow=shadows.train if shadows else None,
            num_shadows=shadows.settings.num_models if shadows else 0,
            tell=self.tell,
            **self.digests,
        )

    def extraction(
        self: Self,
        members: Dataset,
        outsiders: Dataset,
        *,
        detection: DetectionSettings,
        access: LlmAccess,
    ) -> ExtractionReport:
        """Draw from both models where the settings ask for it."""
        if self.attacks.extraction is None:
            return nothing_to_extract(**self.digests)
        self.say("extraction of canaries and endings of records by sampling")
        extracting = Extracting(
            canaries=self.canaries,
            members=members,
            outsiders=outsiders,
            max_tokens=self.max_tokens,
            settings=self.attacks.extraction,
            detection=detection,
            access=access,
            batch_size=self.performance.evaluation_batch_size,
            device=self.device,
            tell=self.tell,
        )
        return extracting.report(
            self.model[1], self.base[1], **self.digests, say=self.say
        )

    def samples(
        self: Self, prompts: Dataset, masker: Callable[[], Masker]
    ) -> SamplesReport:
        """Let both models complete held-out prompts, to be looked at, if asked for."""
        if not self.attacks.samples.num_prompts:
            return SamplesReport(**self.digests)
        self.say("completions of held-out prompts, masked")
        return samples_report(
            self.model[1],
            self.base[1],
            prompts,
            masker=masker(),
            settings=self.attacks.samples,
            max_tokens=self.max_tokens,
            device=self.device,
            on_progress=partial(self.tell, "completions to look at"),
            **self.digests,
        )

    def utility(self: Self, corpus: Corpus, *, cache: Path) -> UtilityReport:
        """Measure what both lose on held-out records."""
        self.say("perplexity on held-out records")
        return _utility(
            self.model,
            self.base,
            corpus,
            max_tokens=self.max_tokens,
            performance=self.performance,
            cache=cache,
            tell=self.tell,
        )


class _Digests(TypedDict):
    """Which weights a report is of."""

    model_digest: str
    base_model_digest: str


def _attack_classifier(
    model: tuple[ModelBundle, LoadedModel],
    base: tuple[ModelBundle, LoadedModel],
    corpus: Corpus,
    canaries: CanarySet,
    *,
    max_tokens: int,
    max_sequences_per_unit: int,
    attacks: AttackSettings,
    performance: PerformanceSettings,
    say: Callable[[str], None],
    tell: Tell,
) -> Leakage:
    """Attack a sequence classifier by the losses of its classes."""
    say("membership of records, by class losses, shadow models, a blind baseline")
    membership = attack_membership(
        model,
        base,
        corpus,
        canaries,
        max_tokens=max_tokens,
        max_sequences_per_unit=max_sequences_per_unit,
        attacks=attacks,
        speed=performance,
        say=say,
        tell=tell,
    )
    say("accuracy on held-out records")
    return Leakage(
        exposure=unmeasurable_exposure(model[0], base[0], canaries),
        membership=membership,
        extraction=nothing_to_extract(
            model_digest=model[0].digest, base_model_digest=base[0].digest
        ),
        utility=_utility(
            model,
            base,
            corpus,
            max_tokens=max_tokens,
            performance=performance,
            cache=None,
        ),
        samples=SamplesReport(
            model_digest=model[0].digest, base_model_digest=base[0].digest
        ),
    )


def measure_utility(
    model: ModelBundle,
    base: ModelBundle,
    corpus: Corpus,
    *,
    max_tokens: int,
    performance: PerformanceSettings,
    cache: Path | None = None,
) -> UtilityReport:
    """Measure the loss of any model on this corpus's held-out records.

    Args:
        model: to measure.
        base: before fine-tuning, beside it.
        corpus: whose test split is read.
        max_tokens: longest sequence.
        performance: memory and speed.
        cache: folder for what base models lose; None for none.
    """
    return _utility(
        (model, load_measured(model.path)),
        (base, load_measured(base.path)),
        corpus,
        max_tokens=max_tokens,
        performance=performance,
        cache=cache,
    )


def _utility(
    model: tuple[ModelBundle, LoadedModel],
    base: tuple[ModelBundle, LoadedModel],
    corpus: Corpus,
    *,
    max_tokens: int,
    performance: PerformanceSettings,
    cache: Path | None,
    tell: Tell = unwatched,
) -> UtilityReport:
    """Measure the loss on the held-out split, base beside it (once per base)."""
    if model[1].class_names:
        return measure_accuracy(
            model, base[1], corpus, max_tokens=max_tokens, speed=performance
        )
    sequences = _encode(corpus.split(HELD_OUT), model[1], max_tokens)

    def measured(name: str, one: LoadedModel) -> HeldOut:
        return held_out_losses(
            one.model,
            sequences,
            batch_size=performance.evaluation_batch_size,
            device=pick_device(performance.device),
            on_progress=partial(tell, f"losses of held-out records, {name}"),
        )

    def measured_base() -> HeldOut:
        of = base[0].digest, _digest(sequences)
        of_base = partial(measured, "base", base[1])
        nll, hits = once(cache, "base-losses", of, lambda: astuple(of_base()))
        return HeldOut(nll=tuple(nll), hits=hits)

    return utility_report(
        sequences,
        measure=partial(measured, "model", model[1]),
        measure_base=measured_base,
        model_digest=model[0].digest,
        corpus_fingerprint=corpus.fingerprint,
        split=HELD_OUT,
        units=corpus.split(HELD_OUT)["unit_id"][:],
    )


def _digest(sequences: Sequence[Sequence[int]]) -> str:
    """Hash token ids, and which of them have a loss."""
    found = hashlib.sha256()
    for sequence in sequences:
        row = np.array([len(sequence), *sequence, *scored(sequence)], np.int64)
        found.update(row.tobytes())
    return found.hexdigest()


def _encode(rows: Dataset, loaded: LoadedModel, max_tokens: int) -> list[list[int]]:
    """Encode each record as training does, first sequence only."""
    return [record_tokens(text, loaded.tokenizer)[:max_tokens] for text in rows["text"]]
