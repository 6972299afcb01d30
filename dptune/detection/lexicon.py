"""Recognizer without a model: capitals, unknown words, readings of an English lexicon.

It finds a superset of what a trained pipeline would: a word is a name if it is
capitalized in mid-sentence or unknown to the lexicon; in the contextual tiers a word
stays public only if its class is closed or it has no reading as a noun (high: or verb).

No parser runs. A word with a noun reading counts as a subject or an object unless the
words next to it say otherwise: an adjective or a compound part stands before a noun, a
verb stands after `to`, a modal or a pronoun, a determiner stands before a noun.
"""

import re
from collections.abc import Callable, Sequence

from dptune.detection import words as w
from dptune.detection.names import Word, find_names, split_words
from dptune.detection.recognizer import Tier, code_digest, fingerprint_of
from dptune.detection.words import load_lexicon
from dptune.text import Span

_BE = w.word_set(
    "am is are was were be been being 's 're 'm ’s ’re ’m isn't aren't wasn't "
    "weren't isn’t aren’t wasn’t weren’t i'm you're we're they're he's she's it's "
    "i’m you’re we’re they’re he’s she’s it’s im"
)
_HAVE_OR_DO = w.word_set(
    "have has had having do does did doing done don't doesn't didn't haven't hasn't "
    "hadn't don’t doesn’t didn’t haven’t hasn’t hadn’t dont didnt doesnt"
)
_MODAL = w.word_set(
    "will would can could may might must shall should cannot wo ca n't not won't "
    "can't couldn't wouldn't shouldn't don't doesn't didn't won’t can’t couldn’t "
    "wouldn’t shouldn’t don’t doesn’t didn’t dont didnt doesnt cant wont please let's "
    "let’s gonna wanna gotta 'll ’ll i'll you'll we'll they'll he'll she'll it'll "
    "i’ll you’ll we’ll they’ll i'd you'd we'd they'd he'd she'd do does did"
)
_SUBJECT = w.word_set("i you we they who he she it people ppl")
_DETERMINER = w.word_set(
    "this that these those all any some other more most much many few several such "
    "another both each"
)
_SINGULAR = frozenset(["this"])
_DEMONSTRATIVE = w.word_set("this these those")
_PREPOSITION = w.word_set("at by for from of on in than with about into")
_OPENS_COPULA = w.word_set("here how where")
_INTERJECTION = w.word_set("hi hello hey yes no ok okay nope yeah yep sure")
_ARTICLE = w.word_set(
    "a an the my your his her its our their this that these those every each no some "
    "any another"
)
_SKIPPED = w.word_set(
    "not n't never always also just only still already really even ever so very "
    "too quite pretty recently actually probably definitely"
)


def contextual_type(
    text: str, words: Sequence[Word], position: int, *, is_high: bool
) -> str:
    """Return PRON, NOUN (may be subject or object), VERB (high only), or nothing.

    Args:
        text: the text.
        words: all its words.
        position: of the word that is asked about.
        is_high: verbs and roots count too.
    """
    word = words[position]
    before = _neighbor(text, words, position, -1)
    after = _neighbor(text, words, position, 1)
    reading = word.reading
    if is_high and _is_verbal(text, words, position, before, after):
        return "VERB"
    if reading & w.PRONOUN:
        return "" if _is_determiner(word, before, after) else "PRON"
    if _is_nominal(word, before, after):
        return "NOUN"
    if reading & w.CLOSED:
        return ""
    if word.capital or not reading & w.LEXICAL:
        return "NOUN"
    return "NOUN" if _may_be_noun(word, before, after, is_high=is_high) else ""


def _may_be_noun(
    word: Word, before: Word | None, after: Word | None, *, is_high: bool
) -> bool:
    """Tell whether a known word may be a subject or an object here."""
    if not word.reading & w.NOUN:
        return False
    if _stands_before_noun(word, after) and (is_high or word.reading & w.ADJECTIVE):
        may_be_verb = word.reading & w.VERB and not word.reading & w.ADJECTIVE
        return is_high and bool(may_be_verb)
    return is_high or not _is_verb_here(word, before, after)


def _is_nominal(word: Word, before: Word | None, after: Word | None) -> bool:
    """Tell whether an adjective stands where a noun does: `the same`, `my own`."""
    if before is None:
        return False
    is_open = after is None or bool(after.reading & w.CLOSED)
    if before.lower in _PREPOSITION and word.lower not in _PREPOSITION:
        is_gerund = word.lower.endswith("ing") and is_open
        return is_gerund or (after is None and not word.reading & w.AUXILIARY)
    if before.lower not in _ARTICLE:
        return False
    if after is None:
        return not word.reading & w.AUXILIARY
    is_content = word.reading & (w.ADJECTIVE | w.VERB)
    return bool(is_open and is_content and not word.reading & w.CLOSED)


def _neighbor(
    text: str, words: Sequence[Word], position: int, step: int
) -> Word | None:
    """Return the next word to one side if only blanks part the two."""
    other = position + step
    if not 0 <= other < len(words):
        return None
    first, second = sorted((words[position], words[other]), key=lambda x: x.start)
    gap = text[first.end : second.start]
    return words[other] if gap.strip(" \t") == "" or gap[:1] in "'’" else None


def _is_determiner(word: Word, before: Word | None, after: Word | None) -> bool:
    """Tell whether `this`, `all`, `that` and the like stand before their noun."""
    if word.lower not in _DETERMINER or after is None:
        return False
    reading = after.reading
    if word.lower == "that" and before is not None:
        opens_clause = after.lower in _SUBJECT or after.lower in _ARTICLE
        if opens_clause and not before.reading & w.NOUN:
            return True
    if reading & w.CLOSED or after.lower in _BE:
        return False
    if reading & w.VERB and not after.capital:
        ends_in_s = after.lower.endswith("s")
        agrees = ends_in_s if word.lower in _SINGULAR else not ends_in_s
        if word.lower == "that" or (agrees and word.lower in _DEMONSTRATIVE):
            return False
    return bool(reading & (w.NOUN | w.ADJECTIVE) or after.capital)


def _stands_before_noun(word: Word, after: Word | None) -> bool:
    """Tell whether a word is an adjective or a compound part before its noun."""
    if after is None or after.reading & w.CLOSED:
        return False
    is_noun = after.reading & w.NOUN or not after.reading & w.LEXICAL
    if word.reading & w.ADJECTIVE:
        return bool(is_noun or after.reading & w.ADJECTIVE)
    return (
        bool(after.reading & w.NOUN and not after.reading & (w.VERB | w.ADJECTIVE))
        and not after.capital
    )


def _is_verb_here(word: Word, before: Word | None, after: Word | None) -> bool:
    """Tell whether a word that may be a noun follows what only verbs follow."""
    if not word.reading & w.VERB:
        return False
    if before is None:
        return (
            word.starts_sentence
            and after is not None
            and (after.lower in _ARTICLE or after.lower in {"me", "us", "it", "them"})
        )
    return before.lower in _MODAL or before.lower in _SUBJECT


def _is_verbal(
    text: str,
    words: Sequence[Word],
    position: int,
    before: Word | None,
    after: Word | None,
) -> bool:
    """Tell whether a word is a main verb, or the predicate of a clause without one."""
    word = words[position]
    if word.lower in _BE:
        near = words[max(0, position - 3) : position + 2]  # `there is`, `is there`
        return any(word.lower == "there" for word in near)
    if word.lower in _OPENS_COPULA:
        return after is not None and after.lower in _BE
    if word.lower in _HAVE_OR_DO:
        return not _is_auxiliary(text, words, position)
    if word.reading & w.CLOSED and not word.reading & w.MAIN_VERB:
        return word.lower in _INTERJECTION and word.starts_sentence
    if word.reading & w.VERB and not word.reading & w.NOUN:
        return True
    is_adjective = word.reading & w.ADJECTIVE and not _stands_before_noun(word, after)
    is_predicate = bool(is_adjective) and _is_predicate(text, words, position)
    return is_predicate or _is_verb_here(word, before, after)


def _is_auxiliary(text: str, words: Sequence[Word], position: int) -> bool:
    """Tell whether a form of `have` or `do` has its verb behind it."""
    for step in range(1, 4):
        if position + step >= len(words):
            return False
        word = words[position + step]
        gap = text[words[position + step - 1].end : word.start]
        if gap.strip(" \t") and gap[:1] not in "'’n":
            return False
        if word.lower in _SUBJECT or word.lower in _SKIPPED:
            continue
        if word.lower in {"been", "to"}:
            return word.lower == "been"
        return bool(word.reading & w.VERB) and not word.reading & w.CLOSED
    return False


def _is_predicate(text: str, words: Sequence[Word], position: int) -> bool:
    """Tell whether an adjective follows a form of `be`, or opens a verbless clause."""
    for step in range(1, 4):
        if position - step < 0:
            return True
        word = words[position - step]
        gap = text[word.end : words[position - step + 1].start]
        if word.lower in _BE:
            return True
        if "\n" in gap or any(c in ".!?;:" for c in gap):
            return True
        if word.reading & w.LEXICAL and not word.reading & (w.CLOSED | w.ADVERB):
            return False
    return False


MODULES = ("kinds", "lexicon", "names", "words")
_WORD_CONFIDENCE = 0.4
_HOLDS_DIGIT = re.compile(r"\b\w{0,40}\d\w{0,40}")


class LexiconRecognizer:
    """Finds names, and in contextual tiers the words around them.

    Names that a text introduces (`my name is ...`, `Dr. ...`) and members of
    capitalized runs are sensitive everywhere in the same text.

    Args:
        tier: both entity tiers behave alike.
        name: of the recognizer that says so.
    """

    name = "lexicon"

    def __init__(self, *, tier: Tier, name: str = name) -> None:
        self.name = name
        self._tier = tier
        self.fingerprint = fingerprint_of(
            (self.name, tier, load_lexicon().digest, code_digest(*MODULES))
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text, disjoint and sorted."""
        return [self.spans(text, split_words(text)) for text in texts]

    def spans(
        self,
        text: str,
        words: list[Word],
        judge: Callable[[list[Word]], None] | None = None,
    ) -> list[Span]:
        """Return the spans of one text.

        Args:
            text: the text.
            words: its words.
            judge: see `find_names`.
        """
        if not words:
            return []
        spans = [self._span(*name) for name in find_names(text, words, judge)]
        if self._tier.is_contextual:
            is_high = self._tier is Tier.HIGH_CONTEXTUAL
            spans += [
                self._span(word.start, word.end, kind, _WORD_CONFIDENCE)
                for position, word in enumerate(words)
                if not word.entity_type
                and (kind := contextual_type(text, words, position, is_high=is_high))
            ]
            spans += [
                self._span(*match.span(), "CARDINAL", _WORD_CONFIDENCE)
                for match in _HOLDS_DIGIT.finditer(text)
            ]
            spans.sort()
        return spans

    def _span(self, start: int, end: int, entity_type: str, confidence: float) -> Span:
        return Span(
            start=start,
            end=end,
            entity_type=entity_type,
            recognizer=self.name,
            confidence=confidence,
        )
