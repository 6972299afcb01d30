"""Step: draw canaries and plant them after deduplication, before detection."""

from typing import Annotated

from zenml import step

from dptune.attacks.canaries import CanarySet, CanarySpec, draw_canaries
from dptune.attacks.planting import plant, plant_assumes
from dptune.data.records import Corpus
from steps._caching import BY_CONTENT


@step(enable_cache=True, cache_policy=BY_CONTENT)
def plant_canaries(
    corpus: Corpus,
    spec: CanarySpec,
    seed: int | None,
    repetition: int,  # noqa: ARG001 - of the cache's key
) -> tuple[Annotated[Corpus, "planted_corpus"], Annotated[CanarySet, "canaries"]]:
    """Return the corpus with canaries in its training split, and the canaries.

    The draw is secret unless a seed is given; cached, so that every recipe that is
    compared on one corpus meets the same canaries. A repetition draws its own: a draw
    that a base model happens to know would otherwise speak in each of them.
    """
    canaries = draw_canaries(spec, seed=seed)
    planted = corpus.with_dataset(plant(corpus.dataset, canaries))
    return planted.assuming(*plant_assumes(spec)), canaries
