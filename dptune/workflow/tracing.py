"""A stage measured while it trains: utility and exposure at a few steps of it."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from pydantic import ValidationError

from dptune.attacks.canaries import CanarySet
from dptune.attacks.classification import class_log_probs
from dptune.attacks.settings import AttackSettings
from dptune.attacks.signals import token_signals
from dptune.config import PerformanceSettings
from dptune.conversation import ScoredTokens
from dptune.data.records import Corpus
from dptune.detection.union import character_marks
from dptune.models.encode import encode_corpus
from dptune.models.loading import LoadedModel, load_measured, save_model
from dptune.results import CanaryExposure, TracePoint
from dptune.stages import StagePlan
from dptune.text import Span
from dptune.workflow.canary_ranking import CanaryRanking
from dptune.workflow.device import pick_device, place_processes
from dptune.workflow.members import HELD_OUT, sample_rows
from dptune.workflow.shadows import labelled

_MOST_RECORDS = 256
_SCRUB_CHECKPOINTS = 3


@dataclass(frozen=True, kw_only=True)
class Tracer:
    """Measures a copy of the model at some steps, once each, and keeps the figures.

    **Privacy**: figures of private records and planted canaries, outside any epsilon.
    They decide nothing about the training.

    Args:
        plan: of the stage.
        corpus: the original view with its labels and canaries.
        canaries: what was planted, and controls.
        attacks: `num_checkpoints` of the stage are measured, the last at its end, and
            the start of a stage that weighs tokens.
        max_tokens: longest sequence.
        performance: memory and speed.
        file: where the figures are kept, beside the stage's checkpoint.
        cache: folder for candidate tries.
        enter: called before each measurement, so that nobody sees one uncounted.
    """

    plan: StagePlan
    corpus: Corpus = field(repr=False)
    canaries: CanarySet = field(repr=False)
    attacks: AttackSettings
    max_tokens: int
    performance: PerformanceSettings
    file: Path
    cache: Path
    enter: Callable[[], None] = field(repr=False)

    @property
    def steps(self: Self) -> frozenset[int]:
        """Steps that are measured; none where another process holds the model."""
        scrubs = self.plan.settings.token_weights is not None
        count = self.attacks.num_checkpoints
        if count is None:
            count = _SCRUB_CHECKPOINTS if scrubs else 0
        alone = place_processes(self.performance).num_processes == 1
        if not count or not alone or self.plan.settings.local is not None:
            return frozenset()
        total = self.plan.num_steps
        first = 0 if scrubs else 1  # a scrub is compared with what it started from
        return frozenset(
            math.ceil(total * part / count) for part in range(first, count + 1)
        )

    def points(self: Self) -> tuple[TracePoint, ...]:
        """Read what was measured, step by step; the last of a step that ran twice.

        A line that a kill cut short is none: its step is measured again.
        """
        found = []
        lines = self.file.read_bytes().splitlines() if self.file.is_file() else ()
        for line in lines:
            with suppress(ValidationError):
                found.append(TracePoint.model_validate_json(line))
        return tuple({p.step: p for p in sorted(found, key=lambda p: p.step)}.values())

    def watch(self: Self, step: int, loaded: LoadedModel) -> None:
        """Measure the model after `step` steps, if that is one of them."""
        if step not in self.steps:
            return
        self.enter()
        with TemporaryDirectory() as folder:
            save_model(loaded.model, loaded.tokenizer, Path(folder) / "model")
            point = self._measure(step, load_measured(Path(folder) / "model"))
        self.keep(point)

    def keep(self: Self, point: TracePoint) -> None:
        """Write a point down, on a line of its own."""
        with self.file.open("ab") as sink:
            sink.write(b"\n" + point.model_dump_json().encode())

    def _measure(self: Self, step: int, loaded: LoadedModel) -> TracePoint:
        """Return one point of the trace."""
        stage = self.plan.settings.name
        rows = sample_rows(self.corpus.split(HELD_OUT), _MOST_RECORDS)
        if loaded.class_names:
            accuracy = self._accuracy(rows, loaded)
            return TracePoint(stage=stage, step=step, accuracy=accuracy)
        losses, marks = self._losses(rows, loaded)
        planted, controls = self._exposures(loaded)
        return TracePoint(
            stage=stage,
            step=step,
            perplexity=_perplexity(losses),
            sensitive_perplexity=_perplexity(losses[marks]),
            ordinary_perplexity=_perplexity(losses[~marks]),
            exposure=_mean(planted),
            held_out_exposure=_mean(controls),
        )

    def _losses(
        self: Self, rows: Dataset, loaded: LoadedModel
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the loss of every token, and whether it is part of a marked span."""
        encoded = encode_corpus(
            rows,
            loaded.tokenizer,
            max_tokens=self.max_tokens,
            long_records="truncate",
            with_offsets=True,
        )
        signals = token_signals(
            loaded.model,
            [_scored(row) for row in encoded],
            batch_size=self.performance.evaluation_batch_size,
            device=pick_device(self.performance.device),
        )
        marks = [
            _sensitive(record, row) for record, row in zip(rows, encoded, strict=True)
        ]
        losses = [-one.log_probs for one in signals]
        return np.concatenate(losses), np.concatenate(marks)

    def _accuracy(self: Self, rows: Dataset, loaded: LoadedModel) -> float:
        """Return the share of records whose class is the likeliest."""
        records = labelled(rows, loaded, max_tokens=self.max_tokens)
        found = class_log_probs(
            loaded.model,
            records.tokens,
            batch_size=self.performance.evaluation_batch_size,
            device=pick_device(self.performance.device),
        )
        return float((found.argmax(1) == np.array(records.labels)).mean())

    def _exposures(
        self: Self, loaded: LoadedModel
    ) -> tuple[list[CanaryExposure], list[CanaryExposure]]:
        """Rank planted and held-out canaries; nothing where there are none."""
        if not self.canaries.spec.num_planted:
            return [], []
        ranking = CanaryRanking(
            canaries=self.canaries,
            attacks=self.attacks,
            device=pick_device(self.performance.device),
            cache=self.cache,
        )
        found = ranking.measure(loaded).canaries
        return [c for c in found if c.planted], [c for c in found if not c.planted]


def _sensitive(record: dict[str, Any], row: dict[str, Any]) -> NDArray[np.bool_]:
    """Tell which tokens of a row that have a loss touch a span."""
    spans = [Span.from_row(s) for s in record["spans"] or ()]
    marks = character_marks(len(record["text"]), spans)
    before = np.concatenate(([0], np.cumsum(marks)))
    starts, ends = np.asarray(row["token_starts"]), np.asarray(row["token_ends"])
    touched = np.asarray(before[ends] > before[starts])
    return np.asarray(touched[np.array(_scored(row).scored)])


def _scored(row: dict[str, Any]) -> ScoredTokens:
    """Return the tokens of an encoded row, which know what has a loss."""
    return ScoredTokens(row["input_ids"], [w > 0 for w in row["loss_weights"]])


def _perplexity(losses: NDArray[np.float64]) -> float | None:
    """Return the exponential of the mean; None without tokens or past the range."""
    if not len(losses):
        return None
    mean = float(losses.mean())
    return math.exp(mean) if mean < 700 else None


def _mean(canaries: Sequence[CanaryExposure]) -> float | None:
    """Return the mean exposure; None for no canaries."""
    if not canaries:
        return None
    return sum(c.exposure for c in canaries) / len(canaries)
