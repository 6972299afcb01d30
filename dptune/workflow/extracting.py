"""Draw canaries, endings of records and personal data out of a model and its base."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from datasets import Dataset

from dptune.attacks.canaries import CanarySet
from dptune.attacks.extraction import (
    SamplingSettings,
    discoverable,
    record_chances,
    sample_canaries,
    secret_chances,
)
from dptune.attacks.inference import Decoding
from dptune.attacks.personal_data import (
    MarkedText,
    PersonalDataSettings,
    Target,
    personal_data_shares,
)
from dptune.attacks.settings import ExtractionSettings
from dptune.config import DetectionSettings
from dptune.detection.endpoint import LlmAccess
from dptune.models.encode import record_tokens
from dptune.models.loading import LoadedModel
from dptune.results import CanarySampling, ExtractionReport, PersonalDataShare
from dptune.text import Span
from dptune.workflow.detect import engine_of


@dataclass(frozen=True, kw_only=True)
class Extracting:
    """What is drawn, whatever the model.

    Args:
        canaries: planted secrets and controls.
        members: training records without canaries, with their spans.
        outsiders: held-out records.
        max_tokens: longest sequence.
        settings: how much is drawn.
        detection: how drawn texts are marked.
        access: of the recognizer `llm`.
        batch_size: records forwarded at once.
        device: where to run.
    """

    canaries: CanarySet
    members: Dataset
    outsiders: Dataset
    max_tokens: int
    settings: ExtractionSettings
    detection: DetectionSettings
    access: LlmAccess
    batch_size: int
    device: str

    def report(
        self: Self,
        model: LoadedModel,
        base: LoadedModel,
        *,
        model_digest: str,
        base_model_digest: str,
        say: Callable[[str], None],
    ) -> ExtractionReport:
        """Attack the model, and its base where the model alone would say little."""
        decoding = self._decoding()
        planted, held_out = secret_chances(
            model.model,
            model.tokenizer,
            self.canaries,
            bos=model.tokenizer.bos_token_id,
            decoding=decoding,
            device=self.device,
        )
        members, outsiders = (
            record_chances(
                model.model,
                self._encode(rows["text"], model),
                ending_tokens=self.settings.ending_tokens,
                decoding=decoding,
                batch_size=self.batch_size,
                device=self.device,
            )
            for rows in (self.members, self.outsiders)
        )
        if self.settings.personal_data:
            say("extraction, reconstruction and inference of personal data")
        return ExtractionReport(
            model_digest=model_digest,
            base_model_digest=base_model_digest,
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            num_planted=len(planted),
            num_held_out=len(held_out),
            num_members=len(members),
            num_non_members=len(outsiders),
            sampling=self._sampling(model),
            base_sampling=self._sampling(base),
            canaries=discoverable(planted, held_out) if len(planted) else (),
            records=discoverable(members, outsiders),
            personal_data=self._personal_data(model),
            base_personal_data=self._personal_data(base),
        )

    def _decoding(self: Self) -> Decoding:
        """How tokens are drawn."""
        chosen = self.settings.decoding
        return Decoding(
            temperature=chosen.temperature, top_k=chosen.top_k, top_p=chosen.top_p
        )

    def _encode(
        self: Self, texts: Sequence[str], loaded: LoadedModel
    ) -> list[list[int]]:
        """Encode each record as training does, first sequence only."""
        return [record_tokens(t, loaded.tokenizer)[: self.max_tokens] for t in texts]

    def _sampling(self: Self, loaded: LoadedModel) -> CanarySampling | None:
        """Ask for a canary."""
        spec = self.canaries.spec
        if not self.settings.num_trials or not spec.num_planted:
            return None
        return sample_canaries(
            loaded.model,
            loaded.tokenizer,
            self.canaries,
            bos=loaded.tokenizer.bos_token_id,
            settings=SamplingSettings(
                num_trials=self.settings.num_trials,
                max_new_tokens=self.settings.max_new_tokens,
                decoding=self._decoding(),
                seed=0,
            ),
            device=self.device,
        )

    def _personal_data(
        self: Self, loaded: LoadedModel
    ) -> tuple[PersonalDataShare, ...] | None:
        """Ask for personal data, if that was wanted."""
        wanted = self.settings.personal_data
        if wanted is None:
            return None
        engine = engine_of(self.detection, self.access)
        limit = self.max_tokens
        target = Target(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            encode=lambda text: record_tokens(text, loaded.tokenizer)[:limit],
            open_ended=lambda text: record_tokens(
                text, loaded.tokenizer, open_ended=True
            )[-limit // 2 :],
            device=self.device,
            batch_size=self.batch_size,
        )
        return personal_data_shares(
            target,
            _marked(self.members),
            _marked(self.outsiders),
            find=engine.detect,
            settings=PersonalDataSettings(**wanted.model_dump()),
        )


def nothing_to_extract(
    *, model_digest: str, base_model_digest: str
) -> ExtractionReport:
    """Say that nothing was drawn: a classifier writes no text, or nobody asked."""
    return ExtractionReport(
        model_digest=model_digest,
        base_model_digest=base_model_digest,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_planted=0,
        num_held_out=0,
        num_members=0,
        num_non_members=0,
    )


def _marked(rows: Dataset) -> list[MarkedText]:
    """Records with the spans that detection gave them."""
    return [
        MarkedText(
            text=row["text"],
            spans=tuple(Span.from_row(s) for s in row["spans"] or ()),
        )
        for row in rows
    ]
