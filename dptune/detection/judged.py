"""Recognizer of names by lexicon and tagger: each reads what the other cannot.

The lexicon marks whatever is unknown or has a capital in mid-sentence; the tagger marks
names in any case that read like names (`ask mark`), and takes back what the lexicon
marks by form alone where it sees no sign of a name (`Privacy Policy`, `timeout`).

**What a claim rests on.** Nothing here is proved: a taken mark is one fewer word that a
claim covers. It is taken only in the entity tiers, only where the tagger's score is
below a threshold that was set on gold text for names, never where a text introduces a
name (`my name is`, `Dr.`), and never where the same word is marked elsewhere in the
record. The recognizer `lexicon` beside it keeps every mark.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence

from dptune.detection import words as w
from dptune.detection.features import TokenizedTexts
from dptune.detection.kinds import is_people
from dptune.detection.lexicon import MODULES, LexiconRecognizer
from dptune.detection.names import INTRODUCED, PARTICLES, Word, split_words
from dptune.detection.recognizer import Tier, code_digest, fingerprint_of
from dptune.detection.tagger import TYPES, IntArray, Tagger, load_tagger
from dptune.text import Span

_BATCH = 64
_PART = re.compile(r"[A-Z][a-z]+|[A-Z]+(?![a-z])|[a-z]+")
_NAMES = w.GIVEN_NAME | w.PERSONAL
_KINDS = {"PERSON": "PERSON", "PLACE": "GPE", "ORG": "ORG", "NORP": "NORP"}


class TaggerRecognizer:
    """Finds names with the lexicon and the tagger.

    Args:
        tier: in the contextual tiers no mark is taken back.
        is_english: tells which texts the tagger may read; it is silent on others, and
            the lexicon's marks stand. None lets it read all.
        tagger: another one than the package's.
    """

    name = "tagger"

    def __init__(
        self,
        *,
        tier: Tier,
        is_english: Callable[[str], bool] | None = None,
        tagger: Tagger | None = None,
    ) -> None:
        self._tier = tier
        self._is_english = is_english
        self._tagger = load_tagger() if tagger is None else tagger
        self._lexicon = LexiconRecognizer(tier=tier, name=self.name)
        self.fingerprint = fingerprint_of(
            (
                self._lexicon.fingerprint,
                self._tagger.fingerprint,
                hashlib.sha256(" ".join(sorted(w.public_words())).encode()).hexdigest(),
                code_digest("judged", *MODULES),
            )
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text, disjoint and sorted."""
        found: list[list[Span]] = []
        for first in range(0, len(texts), _BATCH):
            found += self._recognize_batch(texts[first : first + _BATCH])
        return found

    def _recognize_batch(self, texts: Sequence[str]) -> list[list[Span]]:
        asked = self._is_english
        mine = [n for n, t in enumerate(texts) if asked is None or asked(t)]
        tokens, scores = self._tagger.score([texts[number] for number in mine])
        place_of = dict(zip(mine, range(len(mine)), strict=True))
        return [
            self._spans(text, place_of[number], tokens, scores)
            if number in place_of
            else self._lexicon.spans(text, split_words(text))
            for number, text in enumerate(texts)
        ]

    def _spans(
        self, text: str, number: int, tokens: TokenizedTexts, scores: IntArray
    ) -> list[Span]:
        first = tokens.first_places[number]
        part = slice(first, first + tokens.num_tokens[number])
        strings = tokens.tokens[part]
        words = split_words(text, zip(tokens.starts[part], strings, strict=True))
        is_word = [string[0].isalpha() for string in strings]
        rows = scores[part][is_word].tolist()
        return self._lexicon.spans(
            text, words, lambda words: self._judge(text, words, rows)
        )

    def _judge(self, text: str, words: list[Word], scores: list[list[int]]) -> None:
        """Mark more words, and take marks back."""
        limits = self._tagger.thresholds
        keeps_all = self._tier.is_contextual
        is_low = self._tier is Tier.LOW_ENTITY
        doubted, seen = [], set()
        for position, (word, row) in enumerate(zip(words, scores, strict=True)):
            score = row[0]
            is_seen = score >= limits[_limit_to_add(word)] and not _is_label(word)
            if is_seen:
                seen.add(position)
            if not word.entity_type:
                if is_seen:
                    best = row[2:].index(max(row[2:]))
                    word.entity_type = _KINDS[TYPES[best]]
            elif not keeps_all:
                limit = limits[_limit_of(text, word)]
                is_doubted = score < limit and (is_low or row[1] < limit)
                if is_doubted and not _is_certain(text, words, position):
                    doubted.append(position)
        for position in _whole_names(text, words, doubted, seen):
            words[position].entity_type = ""


def _whole_names(
    text: str, words: Sequence[Word], doubted: Sequence[int], seen: set[int]
) -> list[int]:
    """Return the doubted words that stand in no run of capitals that is a name.

    A name is not halved: one word that the network sees, or one that names a company's
    kind, keeps the run.
    """
    taken: list[int] = []
    left = set(doubted)
    for run in _runs(text, words, doubted):
        is_company = any(words[n].reading & w.ORGANIZATION for n in run)
        if seen.isdisjoint(run) and (len(run) == 1 or not is_company):
            taken += left.intersection(run)
    return taken


def _runs(
    text: str, words: Sequence[Word], positions: Sequence[int]
) -> Iterator[list[int]]:
    """Yield each run of adjacent marked words with a capital around some positions."""

    def goes_on(first: int) -> bool:
        pair = words[first : first + 2]
        return (
            first >= 0
            and len(pair) == 2
            and all(word.entity_type and word.capital for word in pair)
            and text[pair[0].end : pair[1].start] in {" ", "-"}
        )

    end = -1
    for position in positions:
        if position <= end:
            continue
        first = end = position
        while goes_on(first - 1):
            first -= 1
        while goes_on(end):
            end += 1
        yield list(range(first, end + 1))


def _is_label(word: Word) -> bool:
    """Tell whether a word says what a value is, or whose turn it is: `SSN`, `USR:`."""
    is_speaker = word.reading & w.SPEAKER and word.reading & w.CLOSED
    return bool(word.reading & w.LABEL or is_speaker)


def _is_certain(text: str, words: Sequence[Word], position: int) -> bool:
    """Tell whether a mark stands whatever the network says.

    The text introduces the name, it is a country's or a people's, digits touch it (a
    code or an account), a small particle stands before it, or it holds a name as a
    user's name does (`xXLindaXx`).
    """
    word = words[position]
    if word.confidence >= INTRODUCED or word.reading & w.PLACE:
        return True
    if is_people(word.lower):
        return True
    if (
        text[word.end : word.end + 1].isdigit()
        or text[max(0, word.start - 1) : word.start].isdigit()
    ):
        return True
    before = words[position - 1].lower if position else ""
    if word.capital and before in PARTICLES:
        return True
    parts = _PART.findall(text, word.start, word.end)
    return len(parts) > 1 and any(w.reading_of(p.lower()) & _NAMES for p in parts)


def _limit_to_add(word: Word) -> str:
    """Name the threshold from which a word is a name that the lexicon does not mark."""
    if word.reading & w.CLOSED:
        return "add_closed"
    return "term" if word.lower in w.public_words() else "add"


def _limit_of(text: str, word: Word) -> str:
    """Name the threshold below which a mark of the lexicon is taken back.

    A term of medicine or computing is easily taken back; what English does not know is
    more often a rare name, most of all with a capital.
    """
    if word.lower in w.public_words():
        return "term"
    if word.reading & w.LEXICAL:
        return "keep_known"
    has_capital = not text[word.start : word.end].islower()
    return "keep_capital" if has_capital else "keep_unknown"
