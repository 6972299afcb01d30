"""Completions that people look at: beside each other, and masked."""

import re
from types import SimpleNamespace

import pytest
from datasets import Dataset

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.settings import SampleSettings
from dptune.conversation import Turn, join_turns
from dptune.models.loading import LoadedModel
from dptune.reports.html import render_fragment
from dptune.text import Span
from dptune.workflow import samples
from dptune.workflow.samples import Masker, samples_report
from tests.support.chats import chat_tokenizer
from tests.unit.attacks.conftest import make_model, make_tokenizer
from tests.unit.reports import samples as made

CANARIES = draw_canaries(CanarySpec(length=6, num_planted=3, num_held_out=3), seed=4)
SECRET = CANARIES.planted[0]


class Finds:
    """A detector that knows one word."""

    def __init__(self, word):
        self.word = word

    def detect(self, texts):
        return [
            [
                Span(start=m.start(), end=m.end(), entity_type="PERSON")
                for m in re.finditer(re.escape(self.word), text)
            ]
            for text in texts
        ]


def masker(*, word="Miller", values=(), canaries=CANARIES):
    texts = [f"It was {value} again." for value in values]
    spans = [[{"start": 7, "end": 7 + len(value)}] for value in values]
    rows = Dataset.from_dict({"text": texts or ["a"], "spans": spans or [[]]})
    return Masker.of(Finds(word), rows, canaries)


SPELLINGS = (
    SECRET,
    f"my access code is {SECRET}, remember",
    " ".join(SECRET),
    "-".join(SECRET),
    f"{SECRET[:3]} {SECRET[3:]}",
    *(
        "".join(chr(z + int(symbol)) for symbol in SECRET)
        for z in (0xFF10, 0x660, 0x966)
    ),
    SECRET[:4],
    SECRET[2:],
    f"x{SECRET}y",
)


def digits_left(text):
    return "".join(str(int(c)) for c in text if c.isdecimal())


def shows_half(shown):
    left = digits_left(shown)
    return any(SECRET[k : k + 3] in left for k in range(4))


@pytest.mark.parametrize("text", SPELLINGS)
def test_half_of_a_secret_is_never_shown_however_it_is_spelled(text):
    assert not any(map(shows_half, masker().masked(["It said: ", text])))
    blind = masker(canaries=CANARIES.model_copy(update={"planted": (), "held_out": ()}))
    assert any(map(shows_half, blind.masked(["It said: ", text])))


def test_value_over_the_border_of_two_parts_is_masked_in_both():
    shown = masker().masked(["call Mil", "ler now"])
    assert "Mil" not in shown[0]
    assert shown[1].endswith(" now")
    assert not shown[1].startswith("ler")


def test_value_of_the_corpus_is_masked_though_the_detector_misses_it_here():
    shown = masker(values=("Zanzibar",)).masked(["off to ZANZIBAR and back"])
    assert "zanzibar" not in shown[0].casefold()
    assert shown[0].endswith("and back")
    twin = masker().masked(["off to ZANZIBAR and back"])
    assert "zanzibar" in twin[0].casefold()


@pytest.mark.parametrize(
    ("value", "text", "shown"),
    [
        ("张伟", "请问张伟在吗", "请问<mask>在吗"),
        ("林", "森林里", "森林里"),
        ("Bo", "ask BO, or Bob", "ask <mask>, or Bob"),
        ("42", "room 42, not 142", "room <mask>, not 142"),
    ],
)
def test_short_value_of_the_corpus_is_masked_as_a_word(value, text, shown):
    assert masker(values=(value,)).masked([text]) == [shown]


VALUES = (
    ("Weiß", "Weiß", "WEISS", "weiẞ"),
    ("Strauß GmbH", "Strauß GmbH", "STRAUSS GMBH"),
    ("İpek", "İpek", "IPEK", "ipek"),
    ("Jose\u0301 Ruiz", "Jose\u0301 Ruiz", "José Ruiz", "JOSE RUIZ"),
    ("Zoë", "Zoe\u0308", "Zo\u200bë"),
    ("a+b=c", "A+b=c"),
    ("ﬁnn", "Finn"),
)


@pytest.mark.parametrize(
    ("value", "text"), [(v, text) for v, *texts in VALUES for text in texts]
)
@pytest.mark.parametrize("before", ["Heute kam ", "Groß, İ und ﬃ: ", "e\u0301 "])
def test_value_is_masked_whatever_its_letters_become_without_case(value, text, before):
    (shown,) = masker(values=(value,)).masked([f"{before}{text} noch"])
    assert shown == f"{before}<mask> noch"


def test_twin_that_lowers_case_alone_shows_values(monkeypatch):
    monkeypatch.setattr(
        samples, "_plain", lambda text: (text.lower(), list(range(len(text) * 3)))
    )
    shown = [
        masker(values=(v,)).masked([f"Groß: {t}."]) for v, *ts in VALUES for t in ts
    ]
    assert sum("<mask>" not in text for (text,) in shown) >= 6


def report_of(loaded, texts, said, monkeypatch, **changes):
    """Completions by a model that says what we want."""
    encoded = loaded.tokenizer(said, add_special_tokens=False)["input_ids"]
    asked = []

    def says(_, context, **__):
        asked.append(list(context))
        return [encoded]

    monkeypatch.setattr(samples, "sample_continuations", says)
    rows = Dataset.from_dict({"text": texts})
    values = {
        "masker": masker(),
        "settings": SampleSettings(num_prompts=2),
        "max_tokens": 256,
        "model_digest": "m",
        "base_model_digest": "b",
        "device": "cpu",
    }
    return samples_report(loaded, loaded, rows, **values | changes), asked


def plain():
    tokenizer = make_tokenizer(individual_digits=True)
    texts = [
        f"Miller wrote that {SECRET} is the code, and so on, number {n}" for n in "ab"
    ]
    return LoadedModel(model=None, tokenizer=tokenizer), texts


def chats():
    tokenizer = chat_tokenizer("chatml")
    asked = Turn(role="user", content=f"I am Miller, {SECRET}.")
    answered = Turn(role="assistant", content="Well, that is so.", trained=True)
    return LoadedModel(model=None, tokenizer=tokenizer), [
        join_turns([asked, answered])
    ] * 2


@pytest.mark.parametrize("make", [plain, chats])
def test_report_and_page_show_no_canary_and_no_detected_value(make, monkeypatch):
    loaded, texts = make()
    found, _ = report_of(loaded, texts, f" Miller has {SECRET}", monkeypatch)
    kept = found.model_dump_json() + render_fragment(found)
    assert len(found.completions) == 2
    assert "Miller" not in kept
    assert not any(shows_half(c.base + c.model) for c in found.completions)
    assert SECRET not in kept
    # a twin that forgets the canaries
    monkeypatch.setattr(Masker, "_of_canaries", lambda *_: ())
    twin, _ = report_of(loaded, texts, f" Miller has {SECRET}", monkeypatch)
    assert SECRET in twin.model_dump_json()


NAME = "\u738b\u5c0f\u660e"
"""Of three letters, each of which is three tokens of bytes."""


@pytest.mark.parametrize("before", range(7))
def test_prompt_ends_where_a_letter_does_so_that_values_stay_whole(before, monkeypatch):
    loaded, _ = plain()
    text = "a" * before + NAME
    shown = shown_of(loaded, text, monkeypatch)
    assert NAME not in "".join(shown)
    assert not set(NAME) & set("".join(shown))


def test_twin_that_ends_a_prompt_inside_a_letter_shows_parts_of_a_value(monkeypatch):
    loaded, _ = plain()
    monkeypatch.setattr(samples, "_NO_CHARACTER", "no text ends with this")
    shown = [shown_of(loaded, "a" * n + NAME, monkeypatch) for n in range(7)]
    assert any(set(NAME) & set("".join(one)) for one in shown)


def test_twin_that_masks_a_prompt_by_itself_shows_parts_of_a_value(monkeypatch):
    loaded, _ = plain()
    monkeypatch.setattr(
        Masker, "masked_before", lambda self, text, _: self.masked([text])[0]
    )
    shown = [shown_of(loaded, "a" * n + NAME, monkeypatch) for n in range(7)]
    assert any(set(NAME) & set("".join(one)) for one in shown)


def shown_of(loaded, text, monkeypatch):
    """What is shown where a model knows a record by heart: prompt and completion."""
    known = samples.record_tokens(text, loaded.tokenizer)

    def goes_on(_, context, **__):
        assert known[: len(context)] == context
        return [known[len(context) :]]

    monkeypatch.setattr(samples, "sample_continuations", goes_on)
    found = samples_report(
        loaded,
        loaded,
        Dataset.from_dict({"text": [text]}),
        masker=masker(values=(NAME,)),
        settings=SampleSettings(num_prompts=1),
        max_tokens=256,
        model_digest="m",
        base_model_digest="b",
        device="cpu",
    )
    return [s for c in found.completions for s in (c.prompt, c.model)]


def test_prompt_of_a_conversation_ends_where_the_template_lets_the_role_answer(
    monkeypatch,
):
    loaded, texts = chats()
    found, asked = report_of(loaded, texts, "Yes.", monkeypatch)
    own = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": f"I am Miller, {SECRET}."}],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert asked[0] == own
    assert found.completions[0].prompt.startswith("user: I am ")
    assert found.completions[0].model == "Yes."


def test_completion_ends_where_the_model_ends_its_turn(monkeypatch):
    loaded, texts = chats()
    said = "Yes.<|im_end|>\n<|im_start|>user\nand more"
    found, _ = report_of(loaded, texts, said, monkeypatch)
    assert found.completions[0].model == "Yes."


def test_prompts_that_leave_no_room_are_left_out(monkeypatch):
    loaded, texts = plain()
    found, _ = report_of(loaded, texts, "x", monkeypatch, max_tokens=34)
    assert found.completions == ()


def test_comparison_shows_every_model_beside_its_base_but_not_to_trackers():
    def cell(label, says):
        found = made.samples_report().completions[0].model_copy(update={"model": says})
        update = {"label": label, "samples": made.samples_report(completions=(found,))}
        return made.cell_result().model_copy(update=update)

    cells = (cell("no_dp", "open sesame"), cell("best", "<b>open</b> door"))
    report = made.comparison_report().model_copy(update={"cells": cells})
    shown = render_fragment(report)
    assert [shown.count(t) for t in ("open sesame", "&lt;b&gt;open", "Hello.")] == [
        1,
        1,
        1,
    ]
    hidden = render_fragment(report.without_samples())
    assert "sesame" not in hidden
    assert "Hello." not in hidden


def test_real_model_completes_with_seeded_draws():
    tokenizer = make_tokenizer(individual_digits=True)
    model = make_model("gpt2", vocab_size=len(tokenizer)).eval()
    rows = Dataset.from_dict({"text": ["my access code is here and there"]})
    settings = SampleSettings(num_prompts=1, max_new_tokens=6, decoding={})
    common = SimpleNamespace(
        masker=masker(),
        settings=settings,
        max_tokens=60,
        model_digest="m",
        base_model_digest="b",
        device="cpu",
    )
    loaded = LoadedModel(model=model, tokenizer=tokenizer)
    first, again = (
        samples_report(loaded, loaded, rows, **vars(common)) for _ in range(2)
    )
    assert first == again
    assert first.completions[0].base == first.completions[0].model != ""
