"""Draw canaries, endings of records and personal data out of a model and its base."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from datasets import Dataset

from dptune.attacks.canaries import CanarySet
from dptune.attacks.decoding import Decoding
from dptune.attacks.extraction import (
    SamplingSettings,
    discoverable,
    record_chances,
    sample_canaries,
    secret_chances,
)
from dptune.attacks.inference import Tell, unwatched
from dptune.attacks.personal_data import (
    MarkedText,
    PersonalDataSettings,
    Target,
    personal_data_shares,
)
from dptune.attacks.settings import ExtractionSettings
from dptune.config import DetectionSettings
from dptune.conversation import is_conversation, learnt_spans
from dptune.detection.endpoint import LlmAccess
from dptune.errors import ModelError
from dptune.models.chat import ChatFormat
from dptune.models.encode import record_tokens
from dptune.models.loading import LoadedModel
from dptune.results import CanarySampling, ExtractionReport, PersonalDataShare
from dptune.text import Span
from dptune.workflow.chats import written_canaries
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
        tell: told how much of each attack is done.
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
    tell: Tell = unwatched

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
        asked = written_canaries(self.canaries, model.tokenizer)
        planted, held_out = secret_chances(
            model.model,
            asked.tokenizer,
            asked.canaries,
            bos=asked.bos,
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
                on_progress=partial(self.tell, f"endings of {name}"),
            )
            for name, rows in (
                ("training records", self.members),
                ("held-out records", self.outsiders),
            )
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
            sampling=self._sampling(model, "model"),
            base_sampling=self._sampling(base, "base"),
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

    def _sampling(self: Self, loaded: LoadedModel, name: str) -> CanarySampling | None:
        """Ask for a canary."""
        spec = self.canaries.spec
        if not self.settings.num_trials or not spec.num_planted:
            return None
        asked = written_canaries(self.canaries, loaded.tokenizer)
        return sample_canaries(
            loaded.model,
            asked.tokenizer,
            asked.canaries,
            bos=asked.bos,
            stops=asked.stops,
            settings=SamplingSettings(
                num_trials=self.settings.num_trials,
                max_new_tokens=self.settings.max_new_tokens,
                decoding=self._decoding(),
                seed=0,
            ),
            device=self.device,
            on_progress=partial(self.tell, f"trials to draw a canary, {name}"),
        )

    def _context(self: Self, text: str, loaded: LoadedModel) -> list[int]:
        """Tokens of a text that is to go on.

        A template may write a conversation and refuse its beginning, such as one whose
        last turn is a user's: what comes next is then asked for without it.
        """
        try:
            return record_tokens(text, loaded.tokenizer, open_ended=True)
        except ModelError:
            return self._opening(loaded)

    @property
    def _is_chat(self: Self) -> bool:
        """Whether records are conversations."""
        return any(map(is_conversation, self.members["text"][:1]))

    def _opening(self: Self, loaded: LoadedModel) -> list[int]:
        """Tokens behind which a model speaks by itself: of a chat, as an assistant."""
        if self._is_chat:
            return ChatFormat.of(loaded.tokenizer).opening()
        tokenizer = loaded.tokenizer
        start = tokenizer.bos_token_id
        if start is None:
            start = tokenizer.eos_token_id
        return [start if isinstance(start, int) else 0]

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
            open_ended=lambda text: self._context(text, loaded)[-limit // 2 :],
            opening=self._opening(loaded),
            stops=ChatFormat.of(loaded.tokenizer).stops if self._is_chat else (),
            device=self.device,
            batch_size=self.batch_size,
            tell=self.tell,
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
    """Records with their spans, of conversations in turns that were to be learnt."""
    return [
        MarkedText(
            text=row["text"],
            spans=learnt_spans(map(Span.from_row, row["spans"] or ()), row["text"]),
        )
        for row in rows
    ]
