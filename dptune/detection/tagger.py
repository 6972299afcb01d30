"""A small network that tells from a word and its neighbors whether it is a name.

It reads English of any case and quality: rows of `features.py` are summed, three layers
look at the neighbors, a last one scores. How it was trained, and what it reaches, says
docs/TAGGER.md.

**Formal guarantee.** Scores depend on the text alone, on every machine. Weights and
activations are integers, and every sum of products stays below 2**24, which is checked
when the file is read; so arithmetic in float32 is exact, whatever order a library adds
in, and whatever else is in the batch.

**The recognizer** has the lexicon beside it: each reads what the other cannot. The
lexicon marks whatever is unknown or has a capital in mid-sentence; the network marks
names in any case that read like names (`ask mark`), and takes back what the lexicon
marks by form alone where it sees no sign of a name (`Privacy Policy`, `timeout`).

**What a claim rests on.** Nothing here is proved: a taken mark is one fewer word that a
claim covers. It is taken only in the entity tiers, only where the network's score is
below a threshold that was set on gold text for names, never where a text introduces a
name (`my name is`, `Dr.`), and never where the same word is marked elsewhere in the
record. The recognizer `lexicon` beside it keeps every mark.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from dptune.detection import words as w
from dptune.detection.features import (
    PADDING,
    TokenizedTexts,
    describe,
    rows_by_place,
    tokenize,
)
from dptune.detection.kinds import is_people
from dptune.detection.lexicon import MODULES, LexiconRecognizer
from dptune.detection.names import INTRODUCED, PARTICLES, Word, split_words
from dptune.detection.recognizer import Tier, code_digest, fingerprint_of
from dptune.errors import ArtifactError
from dptune.text import Span

LAYERS = ((-2, -1, 0, 1, 2), (-2, -1, 0, 1, 2), (-4, -2, 0, 2, 4))
"""Where each layer looks, in tokens."""
TYPES = ("PERSON", "PLACE", "ORG", "NORP")
LARGEST_SUM = 1023
LARGEST_ACTIVATION = 255
_EXACT = 2**24
_BLOCK = 8192
_REACH = sum(max(offsets) for offsets in LAYERS)
_MAX_TOKENS = 1 << 16
FILE = "tagger.safetensors"

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


class Network:
    """The integer network.

    Args:
        tensors: `table` (rows, width); for each layer `weight` (looks, inputs,
            outputs), `bias` (outputs,) and `shift` (1,); `scores.weight`, `.bias`.

    Raises:
        ArtifactError: a sum could leave the exact range of float32.
    """

    def __init__(self, tensors: dict[str, npt.NDArray[Any]]) -> None:
        self.table = tensors["table"].astype(np.int16)
        self._layers = [
            (
                tensors[f"layer{n}.weight"].astype(np.float32),
                tensors[f"layer{n}.bias"].astype(np.float32),
                np.float32(2.0 ** -int(tensors[f"layer{n}.shift"][0])),
            )
            for n in range(len(LAYERS))
        ]
        self._scores = (
            tensors["scores.weight"].astype(np.float32),
            tensors["scores.bias"].astype(np.float32),
        )
        largest = LARGEST_SUM
        for weight, bias, _ in self._layers:
            _check_exact(weight, bias, largest)
            largest = LARGEST_ACTIVATION
        _check_exact(*self._scores, largest)

    def scores(self, state: FloatArray, is_real: npt.NDArray[np.bool_]) -> IntArray:
        """Return scores of places.

        Args:
            state: sums of rows, shape (places, width).
            is_real: False at empty places.

        Returns:
            Integers of shape (places, 2 + types): name, name that is no personal data,
            and each of `TYPES`.
        """
        outputs = []
        real = is_real.astype(np.float32)[:, None]
        for (weight, bias, scale), offsets in zip(self._layers, LAYERS, strict=True):
            total = np.tile(bias, (len(state), 1))
            for matrix, offset in zip(weight, offsets, strict=True):
                low, high = max(0, -offset), len(state) - max(0, offset)
                if low < high:
                    total[low:high] += state[low + offset : high + offset] @ matrix
            state = np.floor(total * scale).clip(0, LARGEST_ACTIVATION) * real
            outputs.append(state)
        weight, bias = self._scores
        return (np.concatenate(outputs, axis=1) @ weight + bias).astype(np.int64)


def _check_exact(weight: FloatArray, bias: FloatArray, largest: int) -> None:
    inputs = np.abs(weight).reshape(-1, weight.shape[-1]).sum(axis=0)
    bound = float((inputs * largest + np.abs(bias)).max())
    if not bound < _EXACT:
        raise ArtifactError(
            f"weights must keep sums below {_EXACT}, got a bound of {bound:.0f}. "
            "Round them to fewer levels."
        )


class Tagger:
    """Scores the tokens of texts; remembers what it read off token strings.

    Args:
        network: the weights.
        thresholds: what `tagger.safetensors` says of its scores.
        digest: changes whenever a score may change.
    """

    def __init__(
        self, network: Network, *, thresholds: dict[str, int], digest: str
    ) -> None:
        self.thresholds = thresholds
        self.fingerprint = digest
        self._network = network
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Leave what was read off tokens behind: processes read their own."""
        kept = ("thresholds", "fingerprint", "_network")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        width = self._network.table.shape[1]
        self._ids: dict[str, int] = {}
        self._sums = np.zeros((_MAX_TOKENS, width), dtype=np.int16)
        self._cases = np.zeros(_MAX_TOKENS, dtype=np.int64)
        self._closed = np.zeros(_MAX_TOKENS, dtype=np.bool_)
        self._ends = np.zeros(_MAX_TOKENS, dtype=np.bool_)

    def score(self, texts: Sequence[str]) -> tuple[TokenizedTexts, IntArray]:
        """Score every token of some texts.

        Returns:
            The tokens, and their scores of shape (places, 2 + types).
        """
        tokens = tokenize(texts)
        ids = self._ids_of(tokens.tokens)
        capitals, glue = rows_by_place(
            tokens, self._cases[ids], self._closed[ids], self._ends[ids]
        )
        blocks = [
            self._score_block(ids, capitals, glue, first)
            for first in range(0, len(ids), _BLOCK)
        ]
        return tokens, np.concatenate(blocks)

    def _ids_of(self, tokens: list[str]) -> IntArray:
        """Return the number of each token string; new ones are read."""
        ids = self._ids
        new = [t for t in dict.fromkeys(tokens) if t not in ids]
        if len(ids) + len(new) > _MAX_TOKENS:
            self._forget()
            ids, new = self._ids, list(dict.fromkeys(tokens))
        for token in new:
            number = ids[token] = len(ids)
            seen = describe(token)
            self._sums[number] = self._network.table[list(seen.rows)].sum(axis=0)
            self._cases[number] = seen.case
            self._closed[number] = seen.is_closed
            self._ends[number] = seen.ends_sentence
        return np.fromiter(map(ids.__getitem__, tokens), np.int64, len(tokens))

    def _score_block(
        self, ids: IntArray, capitals: IntArray, glue: IntArray, first: int
    ) -> IntArray:
        """Score one block, with as many neighbors as the layers can see."""
        low = max(0, first - _REACH)
        high = min(len(ids), first + _BLOCK + _REACH)
        part = slice(low, high)
        table = self._network.table
        sums = self._sums[ids[part]] + table[capitals[part]] + table[glue[part]]
        state = sums.clip(-LARGEST_SUM, LARGEST_SUM).astype(np.float32)
        scores = self._network.scores(state, capitals[part] != PADDING)
        return scores[first - low : min(first + _BLOCK, len(ids)) - low]


@lru_cache(maxsize=1)
def load_tagger() -> Tagger:
    """Read the tagger that ships with the package."""
    data = resources.files("dptune.detection").joinpath(FILE).read_bytes()
    return read_tagger(data)


def read_tagger(data: bytes) -> Tagger:
    """Read a tagger from the bytes of its file."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])["__metadata__"]
    thresholds = {name: int(value) for name, value in header.items()}
    code = code_digest("features", "names", "words", "tagger")
    digest = fingerprint_of((hashlib.sha256(data).hexdigest(), code))
    tensors = safetensors.numpy.load(data)
    return Tagger(Network(tensors), thresholds=thresholds, digest=digest)


_BATCH = 64
_PART = re.compile(r"[A-Z][a-z]+|[A-Z]+(?![a-z])|[a-z]+")
_INITIAL = re.compile(r"(?<!\w)[^\W\d_a-z]\. $")
_AFTER_INITIAL = re.compile(r"\. (?:[^\W\d_a-z]\. ){0,2}([^\W\d_a-z][^\W\d_]{1,30})")
_NAMES = w.GIVEN_NAME | w.PERSONAL
_UNIT_BEHIND = re.compile(
    r"\d ?(?:[kM]N|Nm|mA|[mkM]V|[kM]W|[kMG]Hz|[kM]?Pa|kWh|dB|IU|ppm|rpm|µ[glm]|m?mol"
    r"|[KMGT]i?[Bb](?:ps)?|mAh|Wh|fps)\Z"
    r"|(?<![\w-])(?<!\b[A-Z]{2} )(?<!\b[A-Z]{3} )(?:[1-9]\d\d ?[CF]|\d{1,4}[KVW])\Z"
    r"|\.\d{1,3}(?:a|b|rc|alpha|beta|dev|post)\d{0,3}\Z"
)
_LETTER_BEHIND = re.compile(r"\d [KLVWm](?![\w.'’&]| [^\W\d_a-z])")
_OPENS = re.compile(r"(?:\A|[.!?…]\s|\n)['\"“‘(]?\Z")
_GOES_ON = re.compile(
    r"[ ,]{1,2}(?!(?:of|and|said|says|told|tells|wrote|writes|rang|rings|thought|knew"
    r"|(?:ask|call|text|phon|email|repli|answer|think|know|want|owe|love|hate)"
    r"(?:s|d|e[ds]))\b)[a-z]{2}"
)
_FIRST_LETTER = re.compile(r"[^\W\d_]")
_CARELESS = re.compile(
    r"[.!?…]['\"”’)]?[ \n]{1,2}(?:(?![\w&]{1,3}\.)[a-z])|\bi\b(?!\.)"
)
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
                code_digest("tagger", *MODULES),
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
        doubted, seen, keeps_case = [], set(), _keeps_case(text)
        for position, (word, row) in enumerate(zip(words, scores, strict=True)):
            if not keeps_all and _is_unit(text, word):
                word.entity_type = ""
                continue
            score = row[0]
            opens = keeps_case and _opens(text, word)
            limit = limits[_limit_to_add(word, keeps_case=keeps_case, opens=opens)]
            is_seen = score >= limit and not _is_label(word)
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

    A name is not halved: one word that the network sees or a given name that it does
    not doubt keeps the run, and so does one that names a company's kind. Two words that
    English does not know are a name from elsewhere: `Fatoumata Diallo`.
    """
    taken: list[int] = []
    left = set(doubted)
    for run in _runs(text, words, doubted):
        is_company = any(words[n].reading & w.ORGANIZATION for n in run)
        is_given = any(words[n].reading & _NAMES and n not in left for n in run)
        is_strange = sum(map(_is_strange, (words[n] for n in run))) > 1
        is_kept = is_given or (len(run) > 1 and (is_company or is_strange))
        if seen.isdisjoint(run) and not is_kept:
            taken += left.intersection(run)
    return taken


def _is_strange(word: Word) -> bool:
    """Tell whether neither English nor a list of terms knows a word."""
    return not word.reading & w.LEXICAL and word.lower not in w.public_words()


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


def _is_unit(text: str, word: Word) -> bool:
    """Tell whether a word counts what a number before it says, or ends a version."""
    first = max(0, word.start - 5)
    return (
        _UNIT_BEHIND.search(text, first, word.end) is not None
        or _LETTER_BEHIND.match(text, max(0, word.start - 2)) is not None
    )


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
    if word.capital and (before in PARTICLES or _has_initial(text, word)):
        return True
    parts = _PART.findall(text, word.start, word.end)
    return len(parts) > 1 and any(w.reading_of(p.lower()) & _NAMES for p in parts)


def _has_initial(text: str, word: Word) -> bool:
    """Tell whether an initial and a word that English does not know are one name."""
    if len(word.lower) == 1:
        after = _AFTER_INITIAL.match(text, word.end)
        return after is not None and not w.reading_of(after[1].lower()) & w.LEXICAL
    if word.reading & w.LEXICAL:
        return False
    return _INITIAL.search(text, max(0, word.start - 6), word.start) is not None


def _keeps_case(text: str) -> bool:
    """Tell whether a text gives every sentence its capital, and `I` one.

    Whoever writes so gives names theirs, most of the time.
    """
    first = _FIRST_LETTER.search(text)
    is_begun = first is not None and first.group().isupper()
    return is_begun and _CARELESS.search(text) is None


def _opens(text: str, word: Word) -> bool:
    """Tell whether a word has its capital because it opens a sentence."""
    before = _OPENS.search(text, max(0, word.start - 3), word.start)
    return before is not None and _GOES_ON.match(text, word.end) is not None


def _limit_to_add(word: Word, *, keeps_case: bool, opens: bool) -> str:
    """Name the threshold from which a word is a name that the lexicon does not mark.

    A small word that no list calls a name is seldom one where capitals are kept, and no
    more is a plain one that has its capital because it opens a sentence.
    """
    if word.reading & w.CLOSED:
        return "add_closed"
    if word.lower in w.public_words():
        return "term"
    is_plain = word.reading & w.KNOWN and not word.reading & w.PROPER_TOO
    may_be_small = not word.capital or (opens and is_plain)
    is_small = may_be_small and not word.reading & (_NAMES | w.PLACE)
    return "add_small" if keeps_case and is_small else "add"


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
