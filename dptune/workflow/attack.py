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


class _Cut(TypedDict):
    """What most attacks want to know."""

    max_tokens: int
    performance: PerformanceSettings


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
    cut = _Cut(max_tokens=max_tokens, performance=performance)
    if start.class_names:
        restore_rounded(start.model)
        torch.nn.Module.float(start.model)
        return _attack_classifier(
            (model, load_saved(model.path)),
            (base, start),
            corpus,
            canaries,
            **cut,
            max_sequences_per_unit=max_sequences_per_unit,
            attacks=attacks,
            say=say,
            tell=tell,
        ).stamped(began)
    torch.nn.Module.to(start.model, device)  # before others read its memory
    loaded, loaded_base = load_measured(model.path), start.read_only()
    of_both = (model, loaded), (base, loaded_base)
    say("exposure of every canary among all candidates")
    exposure = _exposure(
        *of_both,
        corpus,
        canaries,
        trained,
        attacks=attacks,
        device=device,
        cache=cache,
        tell=tell,
    )
    members, outsiders = members_and_others(
        corpus,
        canaries,
        trained=TrainedRows(
            loaded=loaded,
            max_tokens=max_tokens,
            max_sequences_per_unit=max_sequences_per_unit,
            folder=cache if cache.is_dir() else None,
        ),
        count=attacks.num_members,
    )
    say("membership of records, by losses, shadow models and a blind baseline")
    membership = _membership(
        *of_both, start, members, outsiders, **cut, attacks=attacks, say=say, tell=tell
    )
    digests = {"model_digest": model.digest, "base_model_digest": base.digest}
    extraction = nothing_to_extract(**digests)
    if attacks.extraction is not None:
        say("extraction of canaries and endings of records by sampling")
        extracting = Extracting(
            canaries=canaries,
            members=members,
            outsiders=outsiders,
            max_tokens=max_tokens,
            settings=attacks.extraction,
            detection=detection,
            access=access,
            batch_size=performance.evaluation_batch_size,
            device=device,
            tell=tell,
        )
        extraction = extracting.report(loaded, loaded_base, **digests, say=say)
    samples = SamplesReport(**digests)
    if attacks.samples.num_prompts:
        say("completions of held-out prompts, masked")
        masker = Masker.of(engine_of(detection, access), corpus.dataset, canaries)
        samples = _samples(
            *of_both, outsiders, masker, **cut, attacks=attacks, tell=tell
        )
    say("perplexity on held-out records")
    utility = _utility(*of_both, corpus, **cut, cache=cache, tell=tell)
    return Leakage(
        exposure=exposure,
        membership=membership,
        extraction=extraction,
        utility=utility,
        samples=samples,
    ).stamped(began)


def _membership(
    of_model: tuple[ModelBundle, LoadedModel],
    of_base: tuple[ModelBundle, LoadedModel],
    start: LoadedModel,
    members: Dataset,
    outsiders: Dataset,
    *,
    max_tokens: int,
    attacks: AttackSettings,
    performance: PerformanceSettings,
    say: Callable[[str], None],
    tell: Tell,
) -> MembershipReport:
    """Tell members from others by every attack, beside the blind baseline."""
    (model, loaded), (base, loaded_base) = of_model, of_base
    shadows = shadow_training(
        start,
        attacks,
        max_tokens=max_tokens,
        performance=performance,
        say=say,
        tell=tell,
    )
    tokens = [_encode(rows, loaded, max_tokens) for rows in (members, outsiders)]
    texts = [list(map(contents_only, rows["text"])) for rows in (members, outsiders)]
    return membership_report(
        *tokens,
        member_texts=texts[0],
        non_member_texts=texts[1],
        opponent=opponent_of(
            base,
            [*tokens[0], *tokens[1]],
            [*texts[0], *texts[1]],
            max_tokens=max_tokens,
            attacks=attacks,
            performance=performance,
        ),
        model=loaded.model,
        base_model=loaded_base.model,
        model_digest=model.digest,
        base_model_digest=base.digest,
        batch_size=performance.evaluation_batch_size,
        device=pick_device(performance.device),
        num_resamples=attacks.num_bootstrap,
        train_shadow=shadows.train if shadows else None,
        num_shadows=shadows.settings.num_models if shadows else 0,
        tell=tell,
    )


def _samples(
    of_model: tuple[ModelBundle, LoadedModel],
    of_base: tuple[ModelBundle, LoadedModel],
    prompts: Dataset,
    masker: Masker,
    *,
    max_tokens: int,
    attacks: AttackSettings,
    performance: PerformanceSettings,
    tell: Tell,
) -> SamplesReport:
    """Let both models complete held-out prompts, to be looked at."""
    (model, loaded), (base, loaded_base) = of_model, of_base
    return samples_report(
        loaded,
        loaded_base,
        prompts,
        masker=masker,
        settings=attacks.samples,
        max_tokens=max_tokens,
        model_digest=model.digest,
        base_model_digest=base.digest,
        device=pick_device(performance.device),
        on_progress=partial(tell, "completions to look at"),
    )


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


def _exposure(
    model: tuple[ModelBundle, LoadedModel],
    base: tuple[ModelBundle, LoadedModel],
    corpus: Corpus,
    canaries: CanarySet,
    trained: Sequence[TrainedCanaries],
    *,
    attacks: AttackSettings,
    device: str,
    cache: Path,
    tell: Tell,
) -> ExposureReport:
    """Rank every canary under the model, and under its base (once per base)."""
    ranking = CanaryRanking(
        canaries=canaries, attacks=attacks, device=device, cache=cache
    )
    return exposure_report(
        measured=ranking.measure(model[1], partial(tell, "exposure, model")),
        base=ranking.measure_once(*base, partial(tell, "exposure, base")),
        canary_set=canaries,
        model_digest=model[0].digest,
        base_model_digest=base[0].digest,
        planted_found=planted_count(corpus.split("train")["text"], canaries),
        trained=most_trained(trained, num=len(canaries.planted)),
        scoring=attacks.scoring,
    )


def _encode(rows: Dataset, loaded: LoadedModel, max_tokens: int) -> list[list[int]]:
    """Encode each record as training does, first sequence only."""
    return [record_tokens(text, loaded.tokenizer)[:max_tokens] for text in rows["text"]]
