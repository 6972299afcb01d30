"""The tagger: exact arithmetic, company, judging, tables of names and near misses."""

import re
from itertools import pairwise

import numpy as np
import pytest

from dptune.detection import names as rules
from dptune.detection import tagger
from dptune.detection.engine import build_engine
from dptune.detection.features import NUM_PADS
from dptune.detection.lexicon import LexiconRecognizer
from dptune.detection.recognizer import Tier
from dptune.detection.tagger import (
    LAYERS,
    Network,
    Tagger,
    TaggerRecognizer,
    load_tagger,
)
from dptune.errors import ArtifactError
from tests import detection_gold as gold

LABELS = (
    "IBAN", "SSN", "DOB", "MRN", "Name", "Full Name", "First Name", "Last Name",
    "Phone", "Phone Number", "Email", "Address", "Account Number", "Date of Birth",
    "Policy Number", "Customer ID", "Order ID", "Password", "PIN", "ZIP", "VAT",
    "Zip Code", "Username", "Patient Name", "Emergency Contact", "Claim Number",
    "Routing Number", "Tax ID", "Employee ID", "Passport Number", "Card Number",
)  # fmt: skip
FRAMES = ("{}:", "{}: ", "- {}:", "{}\n", "Your {} is required.", "Enter the {}:\n")
LOW = build_engine(tier=Tier.LOW_ENTITY)


def lines(name):
    return (gold.TABLES / f"{name}.txt").read_text("utf8").splitlines()


def read(line):
    """Return the text of a line and the ranges of its bracketed names."""
    text, names = "", []
    for part in re.split(r"(\[[^\]]*\])", line):
        start = len(text)
        text += part.strip("[]")
        if part.startswith("["):
            names.append((start, len(text)))
    return text, names


def masked(text, spans):
    marks = {i for span in spans for i in range(span.start, span.end)}
    words = [match.span() for match in re.finditer(r"\w+", text)]
    return words, [not marks.isdisjoint(range(*word)) for word in words]


def found_share(detect):
    rows = [read(line) for line in lines("names_found")]
    hits = []
    for (text, names), spans in zip(rows, detect([t for t, _ in rows]), strict=True):
        words, flags = masked(text, spans)
        hits += [
            flag
            for (start, end), flag in zip(words, flags, strict=True)
            if any(a <= start and end <= b for a, b in names)
        ]
    return sum(hits) / len(hits)


def test_names_in_any_case_are_found():
    assert found_share(LOW.detect) >= 0.95


def test_names_in_any_case_are_missed_by_the_lexicon_alone():
    alone = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns", "lexicon"))
    assert found_share(alone.detect) < 0.85


def test_near_misses_stay():
    assert gold.share_of_words_masked(lines("names_near"), LOW.detect) <= 0.05


def test_clean_text_stays():
    texts = gold.clean_text()
    assert len(texts) > 600
    assert gold.share_of_words_masked(texts, LOW.detect) <= 0.05
    products = gold.clean_text("products")
    assert gold.share_of_words_masked(products, LOW.detect) <= 0.12
    others = gold.clean_text("others")
    assert gold.share_of_words_masked(others, LOW.detect) <= 0.05


def test_words_of_wordnet_are_taken_for_names_where_they_are_no_terms(monkeypatch):
    texts = gold.clean_text("others")
    monkeypatch.setattr("dptune.detection.words.public_words", frozenset)
    assert gold.share_of_words_masked(texts, LOW.detect) > 0.05


@pytest.mark.parametrize(
    "text",
    [
        "Can you ask {mark} about it?",
        "My boss {frank} fired me.",
        "She lives with {hunter} now.",
        "Tell {penny} I said hi.",
        "She lives with {rose} now.",
        "Tell {art} I said hi.",
        "so i told {chase} to leave. He did.",
    ],
)
def test_small_names_are_found_where_capitals_are_kept(text):
    low, high = text.index("{"), text.index("}") - 1
    plain = text.replace("{", "").replace("}", "")
    (spans,) = LOW.detect([plain])
    assert any(span.start <= low and high <= span.end for span in spans)


@pytest.mark.parametrize(
    "text",
    [
        "The toddler threw up in the car and then fell asleep.",
        "Your complaint has been passed on to the responsible department.",
    ],
)
def test_small_words_stay_where_capitals_are_kept(text):
    assert LOW.detect([text]) == [()]


@pytest.mark.parametrize(
    "text",
    [
        "Tighten the nut with 9.5 Nm and the cap with 11 Nm.",
        "The pump draws 638 mA and needs 90 kPa.",
        "The gasket AX-2207 fits the model GK-118.",
    ],
)
def test_units_and_codes_of_things_stay(text):
    (spans,) = LOW.detect([text])
    found = " ".join(text[s.start : s.end] for s in spans)
    assert not any(word in found for word in ("Nm", "mA", "kPa", "2207", "118"))


@pytest.mark.parametrize(
    "text",
    [
        "Does it charge at 65 W or do I need more?",
        "Preheat the oven to 180C, fold 200 g flour into the butter.",
        "Upgrade from 3.11.4 to 3.12.0rc2 and clear the build folder.",
        "Turbines turn slowly here.",
        "Sourdough needs a day.",
    ],
)
def test_units_versions_and_words_that_open_a_sentence_stay(text):
    assert LOW.detect([text]) == [()]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Cricket told me to wait.", "Cricket"),
        ("Rose left at noon, she said.", "Rose"),
        ("I am in room 4, V. Patel is my name.", "V. Patel"),
    ],
)
def test_names_that_are_words_or_letters_are_found(text, value):
    (spans,) = LOW.detect([text])
    assert any(value in text[s.start : s.end] for s in spans)


@pytest.mark.parametrize(
    "text",
    [
        "I live at 5 N, ask for Chidi.",
        "He took part, 0161 496 0118 is his number.",
        "She is a model, badge AX-220714 on her shirt.",
    ],
)
def test_values_beside_things_are_found(text):
    (spans,) = LOW.detect([text])
    found = " ".join(text[s.start : s.end] for s in spans)
    values = ("Chidi", "0161 496 0118", "220714")
    assert any(value in found for value in values)


def test_twin_that_takes_every_text_for_careless_masks_them(monkeypatch):
    monkeypatch.setattr(tagger, "_keeps_case", lambda text: False)
    texts = gold.clean_text("others")
    low = build_engine(tier=Tier.LOW_ENTITY)
    assert gold.share_of_words_masked(texts, low.detect) > 0.05


def test_and_between_two_names_is_no_part_of_one():
    found = {
        text: [text[s.start : s.end] for s in LOW.detect([text])[0]]
        for text in (
            "Farouk Zhao and Odette Mbeki left.",
            "He runs Zhao Bank and Trust.",
        )
    }
    assert [*found.values()] == [
        ["Farouk Zhao", "Odette Mbeki"],
        ["Zhao Bank and Trust"],
    ]


@pytest.mark.parametrize("frame", FRAMES)
def test_labels_of_values_stay(frame):
    for name in ("tagger", "lexicon"):
        detect = build_engine(tier=Tier.LOW_ENTITY, recognizers=(name,)).detect
        texts = [frame.format(label) for label in LABELS]
        assert [t for t, s in zip(texts, detect(texts), strict=True) if s] == []


def slow_scores(network, sums, is_real):
    """Score with Python's own integers, place by place."""
    places = range(len(sums))
    state = [[int(x) for x in row] for row in sums]
    seen = []
    for (weight, bias, scale), offsets in zip(network._layers, LAYERS, strict=True):
        made = []
        for place in places:
            total = [int(x) for x in bias]
            for matrix, offset in zip(weight, offsets, strict=True):
                if 0 <= place + offset < len(state):
                    row = state[place + offset]
                    for i, x in enumerate(row):
                        if x:
                            total = [
                                t + x * int(w)
                                for t, w in zip(total, matrix[i], strict=True)
                            ]
            shift = round(-np.log2(scale))
            real = int(is_real[place])
            made.append([real * max(0, min(255, t >> shift)) for t in total])
        state = made
        seen.append(made)
    weight, bias = network._scores
    rows = [[x for layer in seen for x in layer[place]] for place in places]
    return [
        [int(b) + sum(x * int(w) for x, w in zip(row, column, strict=True))
         for b, column in zip(bias, weight.T, strict=True)]
        for row in rows
    ]  # fmt: skip


def some_sums(size=9):
    draw = np.random.default_rng(0)
    width = load_tagger()._network.table.shape[1]
    return draw.integers(-200, 200, (size, width)), np.arange(size) != 4


def test_scores_equal_those_of_integers():
    network = load_tagger()._network
    sums, is_real = some_sums()
    fast = network.scores(sums.astype(np.float32), is_real)
    assert fast.tolist() == slow_scores(network, sums, is_real)


def test_scores_with_a_rounded_scale_are_caught():
    network = load_tagger()._network
    sums, is_real = some_sums()
    weight, bias, scale = network._layers[0]
    twin = Network.__new__(Network)
    twin.__dict__.update(network.__dict__)
    twin._layers = [(weight, bias, np.float32(scale * 1.01)), *network._layers[1:]]
    fast = twin.scores(sums.astype(np.float32), is_real)
    assert fast.tolist() != slow_scores(network, sums, is_real)


def test_network_beyond_exact_sums_is_refused():
    network = load_tagger()._network
    tensors = {
        "table": network.table,
        "scores.weight": network._scores[0],
        "scores.bias": network._scores[1],
    }
    for number, (weight, bias, scale) in enumerate(network._layers):
        tensors[f"layer{number}.weight"] = weight
        tensors[f"layer{number}.bias"] = bias
        tensors[f"layer{number}.shift"] = np.array([round(-np.log2(scale))])
    Network(tensors)
    with pytest.raises(ArtifactError, match="sums below"):
        Network({**tensors, "layer1.weight": tensors["layer1.weight"] * 100})


def scores_of(reader, texts):
    tokens, scores = reader.score(texts)
    return [
        scores[first : first + count].tolist()
        for first, count in zip(tokens.first_places, tokens.num_tokens, strict=True)
    ]


TEXTS = [line for name in ("names_found", "clean_products") for line in lines(name)]


def fresh():
    loaded = load_tagger()
    return Tagger(loaded._network, thresholds=loaded.thresholds, digest="")


def test_scores_of_a_text_do_not_depend_on_its_company(monkeypatch):
    alone = [scores_of(fresh(), [text])[0] for text in TEXTS[:20]]
    assert scores_of(fresh(), TEXTS)[:20] == alone
    monkeypatch.setattr(tagger, "_BLOCK", 7)
    assert scores_of(fresh(), TEXTS)[:20] == alone
    monkeypatch.setattr(tagger, "_MAX_TOKENS", 400)
    forgetful = fresh()
    assert [scores_of(forgetful, [text])[0] for text in TEXTS[:20]] == alone


@pytest.mark.parametrize("bug", ["no neighbors of a block", "no empty places"])
def test_texts_that_see_each_other_are_caught(bug, monkeypatch):
    alone = [scores_of(fresh(), [text])[0] for text in TEXTS[:20]]
    if bug == "no empty places":
        monkeypatch.setattr("dptune.detection.features.NUM_PADS", 0)
    else:
        monkeypatch.setattr(tagger, "_BLOCK", 7)
        monkeypatch.setattr(tagger, "_REACH", 0)
    assert scores_of(fresh(), TEXTS)[:20] != alone
    assert max(max(offsets) for offsets in LAYERS) <= NUM_PADS


def characters(spans):
    return {i for span in spans for i in range(span.start, span.end)}


def test_contextual_tiers_keep_every_mark_of_the_lexicon():
    for tier in (Tier.LOW_CONTEXTUAL, Tier.HIGH_CONTEXTUAL):
        both = zip(
            LexiconRecognizer(tier=tier).recognize(TEXTS),
            TaggerRecognizer(tier=tier).recognize(TEXTS),
            strict=True,
        )
        assert all(characters(a) <= characters(b) for a, b in both)


def test_tiers_contain_each_other():
    tiers = (Tier.LOW_ENTITY, Tier.HIGH_ENTITY, Tier.LOW_CONTEXTUAL)
    found = [TaggerRecognizer(tier=tier).recognize(TEXTS) for tier in tiers]
    for smaller, larger in pairwise(found):
        for a, b in zip(smaller, larger, strict=True):
            assert characters(a) <= characters(b)


class TakesAllBack(Tagger):
    """A judge that calls nothing a name."""

    def __init__(self):
        loaded = load_tagger()
        limits = dict.fromkeys(loaded.thresholds, 10**9)
        super().__init__(loaded._network, thresholds=limits, digest="")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("my name is norman bouchard", "norman bouchard"),
        ("my name is Xu", "Xu"),
        ("we met mr. Elliott there", "mr. Elliott"),
        ("Dear Wendla, thanks", "Wendla"),
        ("I asked Dr. Quillfeather", "Dr. Quillfeather"),
    ],
)
def test_introduced_names_are_never_taken_back(text, name):
    recognizer = TaggerRecognizer(tier=Tier.LOW_ENTITY, tagger=TakesAllBack())
    spans = recognizer.recognize([text])[0]
    assert name in [text[s.start : s.end] for s in spans]


def test_judge_before_introductions_are_read_is_caught(monkeypatch):
    def judge_first(text, words, judge):
        rules._mark_by_form(text, words)
        judge(words)
        rules._mark_introduced(text, words)
        rules._propagate(words)
        return list(rules._join(text, words))

    monkeypatch.setattr("dptune.detection.lexicon.find_names", judge_first)
    recognizer = TaggerRecognizer(tier=Tier.LOW_ENTITY, tagger=TakesAllBack())
    assert recognizer.recognize(["Dear Wendla, thanks"]) == [[]]


def test_text_of_another_language_is_left_to_the_lexicon():
    texts = ["hi this is grace", "je suis grace et le kubelet"]
    asked = []
    recognizer = TaggerRecognizer(
        tier=Tier.LOW_ENTITY,
        is_english=lambda text: asked.append(text) or text == texts[0],
    )
    english, other = recognizer.recognize(texts)
    assert asked == texts
    assert [texts[0][s.start : s.end] for s in english] == ["grace"]
    alone = LexiconRecognizer(tier=Tier.LOW_ENTITY).recognize(texts)[1]
    assert [(s.start, s.end) for s in other] == [(s.start, s.end) for s in alone]


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "12", ".", "a", "\u0301", "x" * 5000]
)
def test_degenerate_texts_are_read(text):
    TaggerRecognizer(tier=Tier.LOW_ENTITY).recognize([text, text, "mike said no"])


def test_no_texts_give_no_spans():
    assert TaggerRecognizer(tier=Tier.LOW_ENTITY).recognize([]) == []


@pytest.mark.parametrize(
    "speaker", ["USR", "SYS", "ACT", "agent", "Customer", "Q", "A"]
)
def test_speakers_stay(speaker):
    text = f"{speaker}: it does not fit\n{speaker}: ok"
    assert TaggerRecognizer(tier=Tier.LOW_ENTITY).recognize([text]) == [[]]


INITIALS = "**J. P. Hallstrom**"


def test_initials_and_the_word_behind_them_stay_one_name():
    assert covered_words(INITIALS) == {"J", "P", "Hallstrom"}


def test_twin_without_initials_halves_the_name(monkeypatch):
    monkeypatch.setattr(tagger, "_has_initial", lambda _text, _word: False)
    assert covered_words(INITIALS) < {"J", "P", "Hallstrom"}


STRANGERS = (
    "Driver Fatoumata Diallo asked twice.",
    "Fatoumata Diallo, policy number PX-4471, asked twice.",
    "Signatory Fatoumata Diallo was late.",
)


@pytest.mark.parametrize("text", STRANGERS)
def test_two_words_that_english_does_not_know_are_a_name(text):
    assert covered_words(text) >= {"Fatoumata", "Diallo"}


def test_twin_that_knows_no_strangers_takes_a_whole_name_back(monkeypatch):
    monkeypatch.setattr(tagger, "_is_strange", lambda _word: False)
    assert not all(covered_words(text) >= {"Fatoumata", "Diallo"} for text in STRANGERS)


def covered_words(text):
    """Return the words of a text that the recognizer marks."""
    spans = TaggerRecognizer(tier=Tier.LOW_ENTITY).recognize([text])[0]
    marked = " ".join(text[span.start : span.end] for span in spans)
    return set(marked.replace(".", " ").split())
