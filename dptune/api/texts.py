"""Find personal data in texts, and replace them."""

from collections.abc import Sequence
from functools import lru_cache

from dptune.api.arguments import Arguments
from dptune.detection.engine import DetectionEngine, build_engine
from dptune.detection.recognizer import Tier
from dptune.redaction.engine import redact_text
from dptune.redaction.operators import KEYED, Operator
from dptune.text import Span


def detect(
    texts: Sequence[str], *, tier: Tier | str = Tier.HIGH_CONTEXTUAL
) -> list[tuple[Span, ...]]:
    """Find what is sensitive in texts.

    By rules, word lists and a small network that come with the package: nothing is
    fetched or sent. What they miss is measured in docs/DETECTION.md; measure it on your
    own text with `dptune review`. Other detectors go into a configuration.

    Args:
        texts: whole records; names are followed through one text only.
        tier: `low_entity`, `high_entity`, `low_contextual` or `high_contextual`: how
            much counts as sensitive, each more than the one before.

    Returns:
        For each text its spans, disjoint and sorted: `start` and `end` in code points,
        and `entity_type`.

    Raises:
        ConfigError: `texts` is one text, or the tier is none.

    >>> (found,) = detect(["write to grace.hill@example.org"], tier="low_entity")
    >>> [(span.start, span.end, span.entity_type) for span in found]
    [(9, 31, 'EMAIL')]
    """
    given = Arguments()
    given.texts("texts", texts)
    chosen = given.choice("tier", tier, list(Tier))
    given.check()
    return _engine(Tier(chosen)).detect(texts)


def redact(
    texts: Sequence[str],
    *,
    operator: Operator | str = Operator.MASK,
    tier: Tier | str = Tier.HIGH_CONTEXTUAL,
) -> list[str]:
    """Find what is sensitive in texts, and replace it.

    **Formal guarantee**: with `mask` and `delete`, a result depends on nothing that was
    found but where it stood. What the detector missed is in it still, so that redaction
    alone proves nothing about a text.

    Args:
        texts: whole records.
        operator: `mask` (`<mask>`), `typed` (`<PERSON>`), `numbered` (`<PERSON_1>`),
            `keep` or `delete`. Those with a key go into a configuration, which says
            whose it is.
        tier: see `detect`.

    Raises:
        ConfigError: `texts` is one text, or tier or operator cannot be used here.

    >>> redact(["write to grace.hill@example.org"], operator="typed", tier="low_entity")
    ['write to <EMAIL>']
    """
    given = Arguments()
    given.texts("texts", texts)
    known = [one.value for one in Operator if one not in {*KEYED, Operator.PARTIAL}]
    way = (
        "Those that need a key or settings go into redaction.operators of a "
        "configuration."
    )
    chosen = Operator(given.choice("operator", operator, known, next_step=way))
    given.choice("tier", tier, list(Tier))
    given.check()
    found = detect(texts, tier=tier)
    return [
        redact_text(text, spans, chosen).text
        for text, spans in zip(texts, found, strict=True)
    ]


@lru_cache(maxsize=len(Tier))
def _engine(tier: Tier) -> DetectionEngine:
    """Build an engine once for each tier."""
    return build_engine(tier=tier)
