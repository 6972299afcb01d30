"""Rank canaries under a model, and under a base model once for all beside it."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from dptune.attacks.canaries import CanarySet
from dptune.attacks.exposure import Measured, measure_exposure
from dptune.attacks.inference import OnProgress, unwatched
from dptune.attacks.large_spaces import (
    LargeSpaceSettings,
    measure_large_space,
    measure_with_intervals,
)
from dptune.attacks.settings import AttackSettings
from dptune.attacks.trie import load_or_build, trie_key
from dptune.files import replacing
from dptune.models.loading import LoadedModel
from dptune.models.source import ModelBundle
from dptune.results import CanaryExposure
from dptune.workflow.chats import WrittenCanaries, written_canaries


@dataclass(frozen=True, kw_only=True)
class CanaryRanking:
    """How canaries are ranked, whatever the model.

    Args:
        canaries: what was planted, and controls.
        attacks: how they are ranked.
        device: where.
        cache: folder for candidate tries and exposures of base models; None for none.
        opened: whether records open with the tokenizer's BOS, as training encodes text.
    """

    canaries: CanarySet
    attacks: AttackSettings
    device: str
    cache: Path | None
    opened: bool = True

    def measure(
        self: Self, loaded: LoadedModel, on_progress: OnProgress = unwatched
    ) -> Measured:
        """Rank among all candidates, or search where they are too many."""
        if not self.canaries.planted and not self.canaries.held_out:
            return Measured(canaries=(), num_token_forwards=0)
        asked = self._written(loaded)
        if self.canaries.spec.space_size > self.attacks.max_candidates:
            return measure_large_space(
                loaded.model,
                asked.tokenizer,
                asked.canaries,
                bos=asked.bos,
                scoring=self.attacks.scoring,
                settings=LargeSpaceSettings(max_nodes=self.attacks.max_nodes),
                device=self.device,
                on_progress=on_progress,
            )
        trie = load_or_build(
            asked.canaries.spec, asked.tokenizer, bos=asked.bos, folder=self.cache
        )
        measure = measure_exposure
        if sampled := self.attacks.sampled_candidates:
            measure = partial(measure_with_intervals, num_sampled=sampled)
        return measure(
            loaded.model,
            trie,
            asked.canaries,
            device=self.device,
            scoring=self.attacks.scoring,
            on_progress=on_progress,
        )

    def _written(self: Self, loaded: LoadedModel) -> WrittenCanaries:
        """Write canaries as training did."""
        asked = written_canaries(self.canaries, loaded.tokenizer)
        return asked if self.opened else replace(asked, bos=None)

    def measure_once(
        self: Self,
        bundle: ModelBundle,
        loaded: LoadedModel,
        on_progress: OnProgress = unwatched,
    ) -> Measured:
        """Rank under a base model, or read the ranks measured before."""
        settings, asked = self.attacks, self._written(loaded)
        key = trie_key(asked.canaries.spec, asked.tokenizer, bos=asked.bos)
        how = f"{settings.scoring} {settings.max_candidates} {settings.max_nodes}"
        if settings.sampled_candidates:
            how += f" {settings.sampled_candidates}"
        of = bundle.digest, key, self.canaries.digest, how
        forwards = 0  # those that were made before are not made again

        def measured() -> list[dict[str, Any]]:
            nonlocal forwards
            found = self.measure(loaded, on_progress)
            forwards = found.num_token_forwards
            return [one.model_dump(mode="json") for one in found.canaries]

        rows = once(self.cache, "base-exposure", of, measured)
        known = tuple(CanaryExposure.model_validate(row) for row in rows)
        return Measured(canaries=known, num_token_forwards=forwards)


def once(
    cache: Path | None, kind: str, of: Sequence[str], measure: Callable[[], Any]
) -> Any:  # noqa: ANN401 - JSON
    """Measure something of a base model, or read what was measured before.

    Args:
        cache: folder where it is kept; None keeps nothing.
        kind: of what is measured, the beginning of a file's name.
        of: what it follows from.
        measure: returns JSON values.
    """
    if cache is None:
        return measure()
    digest = hashlib.sha256("\n".join(of).encode()).hexdigest()[:24]
    file = cache / f"{kind}-{digest}.json"
    if file.is_file():
        with suppress(ValueError):  # a damaged one is measured anew
            return json.loads(file.read_text(encoding="utf-8"))
    found = measure()
    with replacing(file) as half:
        half.write_text(json.dumps(found), encoding="utf-8")
    return found
