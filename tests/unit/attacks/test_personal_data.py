"""Extraction, reconstruction and inference of names that a model learnt by heart."""

import itertools
import re
from types import SimpleNamespace

import pytest

from dptune.attacks import personal_data
from dptune.attacks.personal_data import (
    MarkedText,
    PersonalDataSettings,
    Target,
    personal_data_shares,
)
from dptune.text import Span

from .test_exposure import train

NAMES = ["Ada", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jon"]
ROOMS = ["red", "blue", "green", "white", "black"]


def find(texts):
    return [
        [
            Span(start=m.start(), end=m.end(), entity_type="PERSON")
            for m in re.finditer("|".join(NAMES), text)
        ]
        for text in texts
    ]


def marked(texts):
    return [
        MarkedText(text=t, spans=tuple(s))
        for t, s in zip(texts, find(texts), strict=True)
    ]


def shares_of(make_model, tokenizer, *, steps):
    members = [f"the {c} room is of {n}" for c, n in zip(ROOMS, NAMES, strict=False)]
    controls = [
        f"the {c} hall is of {n}" for c, n in zip(ROOMS, NAMES[5:], strict=True)
    ]

    def encode(text):
        return [0, *tokenizer(text)["input_ids"]]

    model = make_model("gpt2", vocab_size=len(tokenizer))
    for _ in range(steps):
        for text in members:
            train(model, [encode(text)], steps=1)
    target = Target(
        model=model,
        tokenizer=tokenizer,
        encode=encode,
        open_ended=encode,
        opening=[0],
    )
    found = personal_data_shares(
        target,
        marked(members),
        marked(controls),
        find=find,
        settings=PersonalDataSettings(
            num_texts=60,
            max_new_tokens=30,
            num_values=5,
            num_guesses=8,
            num_candidates=5,
        ),
    )
    return {share.attack: share for share in found}


@pytest.fixture(scope="module")
def learnt(make_model, merging_tokenizer):
    return shares_of(make_model, merging_tokenizer, steps=25)


def test_personal_data_learnt_by_heart_is_had(learnt):
    assert learnt["reconstruction"].members >= 4
    assert learnt["inference"].members >= 4
    assert learnt["extraction"].members >= 2
    assert learnt["extraction"].controls == 0
    for share in learnt.values():
        assert share.members_interval.low > 0 or share.attack == "extraction"
        assert share.controls < share.members


def test_personal_data_untrained_twin_has_nothing(make_model, merging_tokenizer):
    found = shares_of(make_model, merging_tokenizer, steps=0)
    assert found["extraction"].members == found["reconstruction"].members == 0
    assert found["inference"].members <= 3
    assert found["inference"].chance == pytest.approx(0.2)


def test_personal_data_is_hidden(learnt):
    text = repr(marked(["the red room is of Ada"])[0])
    assert "Ada" not in text
    for share in learnt.values():
        assert not any(name in share.model_dump_json() for name in NAMES)


def test_of_each_record_one_value_is_tried(monkeypatch):
    """Else values that are learnt together would count as so many attempts."""
    members = marked([f"of {a}, {b} and Jon" for a, b in itertools.pairwise(NAMES[:5])])
    controls = marked(["a hall of Jon and Ida and Hal", "a hall of Gus"])
    said = ", ".join(NAMES)
    monkeypatch.setattr(
        personal_data, "sample_continuations", lambda *_, **__: [[0], [1]]
    )
    target = SimpleNamespace(
        model=None,
        tokenizer=SimpleNamespace(decode=lambda *_, **__: said, eos_token_id=0),
        opening=[0],
        stops=(),
        device=None,
        tell=lambda *_: None,
    )
    settings = PersonalDataSettings(seed=1)
    share = personal_data._extraction(
        target, members, controls, find=find, settings=settings
    )
    # Jon is on both sides, and what two records have is the first one's
    assert (share.members, share.num_members) == (4, 4)
    assert (share.controls, share.num_controls) == (2, 2)
    for group, num in ((members, 4), (controls, 2)):
        chosen = personal_data._chosen(group, settings)
        assert len(chosen) == len({marked.text for marked, _ in chosen}) == num


def test_every_value_of_a_record_can_be_the_one():
    members = marked(["of Ada, Bob and Cleo"])
    chosen = {
        members[0].text[span.start : span.end]
        for seed in range(30)
        for _, span in personal_data._chosen(members, PersonalDataSettings(seed=seed))
    }
    assert chosen == {"Ada", "Bob", "Cleo"}
