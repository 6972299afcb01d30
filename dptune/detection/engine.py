"""Builds recognizers from names and settings, and unites what they find in a text."""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dptune.conversation import contents_only
from dptune.detection.escapes import EscapeReader
from dptune.detection.known_values import NAME as KNOWN_VALUES
from dptune.detection.known_values import (
    KnownValuesRecognizer,
    read_values,
)
from dptune.detection.languages.recognizer import LanguageRecognizer
from dptune.detection.languages.routing import languages_read, routed
from dptune.detection.lexicon import LexiconRecognizer
from dptune.detection.own_rules import (
    DENY_LISTS,
    PATTERNS,
    DenyListRecognizer,
    OwnPatternRecognizer,
    OwnRulesFilter,
)
from dptune.detection.patterns import PatternRecognizer
from dptune.detection.recognizer import (
    DEFAULT_RECOGNIZERS,
    HIGH_ENTITY_TYPES,
    UNAVAILABLE,
    Recognizer,
    SpanFilter,
    Tier,
    chained,
    fingerprint_of,
)
from dptune.detection.scoring import known_types
from dptune.detection.settings import (
    KnownValuesSettings,
    OwnRules,
    TokenClassifierSettings,
    UnknownLanguage,
)
from dptune.detection.tagger import TaggerRecognizer
from dptune.detection.union import RoleTiers, union_fingerprint, unite_turns
from dptune.errors import ConfigError
from dptune.text import Span

if TYPE_CHECKING:
    from dptune.detection.endpoint import Endpoint

ENTRY_POINTS = "dptune.recognizers"
_LONE = re.compile("[\ud800-\udfff]")
READ_ONE_TEXT = frozenset(
    {
        *("patterns", "lexicon", "tagger", "languages", "spacy", "presidio"),
        "gliner",
        *("token_classifier", PATTERNS, DENY_LISTS),
    }
)
"""Recognizers whose marks of a text follow from that text and public files alone.

`token_classifier` only where it computes every text by itself (`batch_size: 1`).
What `known_values` marks follows from a text, and from a file that is private unless it
was declared public, or from columns of the record's own unit.
"""


class DetectionEngine:
    """Unites what several recognizers find.

    Args:
        tier: what counts as sensitive.
        recognizers: at least one; order decides nothing.
        span_filter: takes spans back before they are united; None keeps all.
        rules: what the filter was made of; for reports.
        num_allowed: phrases of all allow lists that the filter knows; for reports.
    """

    def __init__(
        self,
        *,
        tier: Tier,
        recognizers: Sequence[Recognizer],
        span_filter: SpanFilter | None = None,
        rules: OwnRules | None = None,
        num_allowed: int = 0,
    ) -> None:
        if not recognizers:
            raise ConfigError(
                "recognizers must hold at least one name, got none. Use "
                f"recognizers={DEFAULT_RECOGNIZERS}."
            )
        self.tier = tier
        self.rules = rules or OwnRules()
        self.num_allowed = num_allowed
        self.span_filter = span_filter
        self._recognizers = tuple(recognizers)

    @property
    def recognizers(self) -> tuple[str, ...]:
        """Names of the recognizers."""
        return tuple(recognizer.name for recognizer in self._recognizers)

    @property
    def parts(self) -> tuple[Recognizer, ...]:
        """The recognizers themselves."""
        return self._recognizers

    @property
    def taken_back(self) -> tuple[str, ...]:
        """What is left unmarked although a recognizer found it, in words."""
        types = sorted(self.rules.entity_types.items())
        off = [f"{kind} is off" for kind, value in types if value is False]
        least = [
            f"{kind} below confidence {value:g}"
            for kind, value in types
            if not isinstance(value, bool)
        ]
        allowed = f"{self.num_allowed:,} phrases of allow lists"
        return (*off, *least, *([allowed] if self.num_allowed else ()))

    @property
    def fingerprint(self) -> str:
        """Digest that changes whenever the spans of some text may change."""
        parts = [f"{r.name}:{r.fingerprint}" for r in self._recognizers]
        if self.span_filter is not None:
            parts.append(f"filter:{self.span_filter.fingerprint}")
        return fingerprint_of((union_fingerprint(), self.tier, *sorted(parts)))

    def detect(self, texts: Sequence[str]) -> list[tuple[Span, ...]]:
        """Find the sensitive spans of each text.

        Args:
            texts: whole records; names are followed through one text only. Of
                conversations contents are read, and no span reaches out of one.
                A lone surrogate is read as a sign without width.

        Returns:
            For each text, spans that are disjoint, sorted, and cover exactly what the
            recognizers cover together, less what the filter takes back.
        """
        texts = [_LONE.sub("\u00ad", text) for text in texts]
        seen = list(map(contents_only, texts))
        found = [recognizer.recognize(seen) for recognizer in self._recognizers]
        return [
            unite_turns(per_text, text, self.span_filter)
            for text, *per_text in zip(texts, *found, strict=True)
        ]


def build_engine(
    *,
    tier: Tier,
    recognizers: Sequence[str] = DEFAULT_RECOGNIZERS,
    spacy_pipeline: str | None = None,
    spacy_pipelines: Mapping[str, str] = MappingProxyType({}),
    gliner_model: str | None = None,
    gliner_threshold: float = 0.3,
    llm_endpoint: "Endpoint | None" = None,
    token_classifier: TokenClassifierSettings | None = None,
    known_values: KnownValuesSettings | None = None,
    rules: OwnRules | None = None,
    known_languages: Sequence[str] = (),
    unknown_language: UnknownLanguage = UnknownLanguage.REFUSE,
) -> DetectionEngine:
    """Build an engine from names.

    Args:
        tier: what counts as sensitive.
        recognizers: of `patterns`, `lexicon`, `tagger` (the lexicon's rules
            with a small network beside them), `languages`, `spacy`, `presidio`,
            `gliner`, `token_classifier` and `llm`, or of a package's own under the
            entry point group `dptune.recognizers`: a function that takes `tier` and
            returns a `Recognizer`.
        spacy_pipeline: name or local folder of a spaCy pipeline; if given, `spacy` is
            added to the recognizers.
        spacy_pipelines: name or folder of a pipeline by language (ISO 639-1), which
            reads text in that language alone.
        gliner_model: local folder of a GLiNER model; likewise adds `gliner`.
        gliner_threshold: least score of its hits, in (0, 1).
        llm_endpoint: whom `llm` asks; likewise adds `llm`, which sees only what
            the others left.
        token_classifier: a model; likewise adds `token_classifier`.
        known_values: a file of values that are marked in every text.
        rules: patterns and lists of a configuration, and which types count.
        known_languages: that the recognizers read besides, on your word.
        unknown_language: `mask` covers texts in a language that nobody reads, `keep`
            leaves them as they are; `refuse` is up to who reads a corpus.

    Raises:
        ConfigError: an unknown name, no name, or a recognizer without what it needs.
        DependencyError: a package, a pipeline or the English lexicon is not installed.
    """
    tier, names = Tier(tier), list(dict.fromkeys(recognizers))
    given: dict[str, Any] = {
        "spacy": spacy_pipeline,
        "gliner": gliner_model,
        "llm": llm_endpoint,
        "token_classifier": token_classifier,
    }
    names += [name for name in given if given[name] is not None and name not in names]
    missing = [name for name in names if name in given and given[name] is None]
    if missing:
        raise ConfigError(
            f"{_SETTINGS[missing[0]]} must be given for recognizer={missing[0]}, got "
            "None. Set it, or leave the recognizer out."
        )
    given["gliner_threshold"] = gliner_threshold
    rules = rules or OwnRules()
    read = languages_read(
        names,
        spacy_pipeline=spacy_pipeline,
        spacy_pipelines=spacy_pipelines,
        declared=known_languages,
    )
    given |= {"known": read, "unknown": UnknownLanguage(unknown_language)}
    built = routed(
        [_build(name, tier, given) for name in names if name != "llm"],
        tier=tier,
        known=read,
        unknown=given["unknown"],
        spacy_pipeline=spacy_pipeline,
        spacy_pipelines=spacy_pipelines,
    )
    built += _build_from_rules(rules, known_values)
    built = list(map(EscapeReader, built))
    span_filter: SpanFilter | None = None
    if rules.entity_types or rules.allow_list:
        _check_types(rules, built)
        span_filter = OwnRulesFilter(
            entity_types=rules.entity_types, allow_list=rules.allow_list
        )
    if rules.role_tiers:
        _check_roles(rules, tier)
        span_filter = chained(span_filter, RoleTiers(rules.role_tiers))
    if llm_endpoint is not None:
        from dptune.detection.llm import LlmRecognizer  # noqa: PLC0415  # an extra

        asking = LlmRecognizer(endpoint=llm_endpoint, tier=tier, known=built)
        built = [*built, asking]
    return DetectionEngine(
        tier=tier,
        recognizers=built,
        span_filter=span_filter,
        rules=rules,
        num_allowed=len(rules.allow_list),
    )


def _check_types(rules: OwnRules, built: Sequence[Recognizer]) -> None:
    """Refuse to switch types that no recognizer finds, which is a slip of the pen.

    Models and packages may bring types of their own, and known values theirs.
    """
    own = {"token_classifier", KNOWN_VALUES}
    if any(r.name in own or r.name not in READ_ONE_TEXT for r in built):
        return
    known = HIGH_ENTITY_TYPES | set(known_types()) | rules.own_types
    unknown = sorted(set(rules.entity_types) - (known - {UNAVAILABLE}))
    if unknown:
        message = f"must name types that a recognizer finds, got {', '.join(unknown)}."
        step = "Own types come from own_patterns and deny_lists."
        raise ConfigError.at("detection.entity_types", message, step)


def _check_roles(rules: OwnRules, tier: Tier) -> None:
    """Refuse tiers of roles that hold more than was looked for."""
    wider = [r for r, own in rules.role_tiers.items() if _ORDER[own] > _ORDER[tier]]
    if wider:
        raise ConfigError.at(
            "detection.role_tiers",
            "must name tiers that detection.tier contains, got more "
            f"than {tier} for {', '.join(wider)}.",
            "Set detection.tier to the widest, and lower the others.",
        )


_ORDER = {tier: number for number, tier in enumerate(Tier)}


def _build_from_rules(
    rules: OwnRules, known_values: KnownValuesSettings | None
) -> list[Recognizer]:
    """Build what a configuration's own patterns, lists and values ask for."""
    built: list[Recognizer] = []
    if rules.own_patterns:
        built.append(OwnPatternRecognizer(rules.own_patterns))
    if rules.deny_lists:
        built.append(DenyListRecognizer(rules.deny_lists))
    if known_values is not None:
        built.append(KnownValuesRecognizer(read_values(known_values)))
    return built


_SETTINGS = {
    "spacy": "spacy_pipeline",
    "gliner": "gliner_model",
    "llm": "llm_endpoint",
    "token_classifier": "token_classifier",
}


_BUILT_IN: Mapping[str, Callable[..., Recognizer]] = {
    "patterns": PatternRecognizer,
    "lexicon": LexiconRecognizer,
    "tagger": TaggerRecognizer,
}


def _build(  # noqa: PLR0911  # one for each
    name: str, tier: Tier, given: Mapping[str, Any]
) -> Recognizer:
    """Build one recognizer; heavy or optional packages are imported only here."""
    if name in _BUILT_IN:
        return _BUILT_IN[name](tier=tier)
    if name == "languages":
        return LanguageRecognizer(
            tier=tier, known=given["known"], unknown=given["unknown"]
        )
    if name == "spacy":
        from dptune.detection.third_party import SpacyRecognizer  # noqa: PLC0415

        return SpacyRecognizer(pipeline=given["spacy"], tier=tier)
    if name == "presidio":
        from dptune.detection.third_party import PresidioRecognizer  # noqa: PLC0415

        return PresidioRecognizer(tier=tier)
    if name == "gliner":
        from dptune.detection.third_party import GlinerRecognizer  # noqa: PLC0415

        return GlinerRecognizer(
            model=given["gliner"], tier=tier, threshold=given["gliner_threshold"]
        )
    if name == "token_classifier":
        from dptune.detection.token_classifier import (  # noqa: PLC0415
            TokenClassifierRecognizer,
        )

        return TokenClassifierRecognizer(given[name], tier=tier)
    return _build_from_entry_point(name, tier)


def _build_from_entry_point(name: str, tier: Tier) -> Recognizer:
    """Build a recognizer that another package offers."""
    offered = {e.name: e for e in entry_points(group=ENTRY_POINTS)}
    if name not in offered:
        own = ", ".join(sorted(offered)) or "none installed"
        raise ConfigError(
            "recognizers must be of patterns, lexicon, tagger, languages, spacy, "
            "presidio, "
            f"gliner, token_classifier, llm or of the entry points {ENTRY_POINTS} "
            f"({own}), got {name!r}. Correct the name, or install the package."
        )
    recognizer: Recognizer = offered[name].load()(tier=tier)
    return recognizer
