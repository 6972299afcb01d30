"""What the detector misses and masks in each language, against a policy.

A rate over all records hides a language of few: a detector that reads nothing of one
record in twenty may still miss little overall, or mask that one whole.
"""

from dptune.gates.criterion import Criterion, Verdict, any_nan, broken, missing
from dptune.gates.evidence import Evidence
from dptune.gates.policy import GatePolicy
from dptune.results import LanguageShare
from dptune.rounding import percent_at_most


def languages(evidence: Evidence, policy: GatePolicy) -> list[Criterion]:
    """Judge the languages that a policy asks about: what is missed, what is masked."""
    return [_missed(evidence, policy), _masked(evidence, policy)]


def _judged(evidence: Evidence, policy: GatePolicy) -> list[LanguageShare]:
    """Return the languages of enough records."""
    found = evidence.detection.languages if evidence.detection else ()
    least = policy.min_language_share * sum(share.num_records for share in found)
    return [share for share in found if share.num_records >= max(least, 1)]


def _missed(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """The upper bound of the missing rate must be small in every language."""
    name, limit = "language_missing_rate", policy.max_language_missing_rate
    if limit is None:
        return _not_asked(name)
    judged = _judged(evidence, policy)
    if not judged:
        return missing(name, "detection report by language")
    rates = {
        share.language: (share.missing_rate, share.missing_rate_interval.high)
        for share in judged
        if share.missing_rate is not None
        and share.missing_rate_interval is not None
        and share.missing_rate_texts > 0
    }
    unknown = sorted({share.language for share in judged} - rates.keys())
    if unknown:
        return missing(name, f"measured missing rate in {', '.join(unknown)}")
    if any(
        any_nan(pair) or not 0 <= pair[0] <= pair[1] <= 1 for pair in rates.values()
    ):
        return broken(name, "A missing rate is not a rate below its bound.")
    worst = max(rates, key=lambda code: (rates[code][1], code))
    rate, upper = rates[worst]
    verdict = Verdict.PASS
    if upper > limit:
        above = any(rate > limit for rate, _ in rates.values())
        verdict = Verdict.BLOCK if above else Verdict.INCONCLUSIVE
    return Criterion(
        name=name,
        verdict=verdict,
        measured=upper,
        threshold=limit,
        reason=f"In {worst} the detector misses {rate:.2%} of all words, at most "
        f"{percent_at_most(upper)}; no other language has more.",
        what_would_change_it=""
        if verdict is Verdict.PASS
        else "Review a larger sample, or give the language a recognizer of its own: "
        "detection.spacy_pipelines.",
    )


def _masked(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """No language may be masked away: that is deletion, not detection."""
    name, limit = "language_masked_share", policy.max_language_masked_share
    if limit is None:
        return _not_asked(name)
    judged = _judged(evidence, policy)
    if not judged:
        return missing(name, "detection report by language")
    if any_nan([share.masked_character_share for share in judged]):
        return broken(name, "A masked share is NaN.")
    worst = max(
        judged, key=lambda share: (share.masked_character_share, share.language)
    )
    within = worst.masked_character_share <= limit
    return Criterion(
        name=name,
        verdict=Verdict.PASS if within else Verdict.BLOCK,
        measured=worst.masked_character_share,
        threshold=limit,
        reason=f"In {worst.language} {worst.masked_character_share:.1%} of the "
        "characters are masked; no other language has more.",
        what_would_change_it=""
        if within
        else "Give the language a recognizer of its own, or leave it out: "
        "data.languages.",
    )


def _not_asked(name: str) -> Criterion:
    return Criterion(
        name=name,
        verdict=Verdict.NOT_APPLICABLE,
        reason="The policy does not ask about single languages.",
    )
