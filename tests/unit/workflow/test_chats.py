"""Canaries and attacks of conversations: in the template, where a loss is."""

import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.decoding import Decoding, sample_continuations
from dptune.attacks.extraction import record_chances
from dptune.attacks.membership import membership_scores
from dptune.attacks.planting import plant, planted_count, secret_place
from dptune.attacks.settings import AttackSettings
from dptune.attacks.signals import held_out_losses, token_signals, utility_report
from dptune.conversation import (
    ROLES,
    ScoredTokens,
    Turn,
    join_turns,
    scored,
    turns_of,
)
from dptune.data.messages import read_conversation
from dptune.data.source import JsonlSource
from dptune.detection.engine import build_engine
from dptune.detection.recognizer import Tier
from dptune.dpsgd.dataset import UnitDataset
from dptune.errors import ConfigError, ModelError
from dptune.models.chat import ChatFormat
from dptune.models.encode import encode_corpus, record_tokens
from dptune.models.loading import LoadedModel
from dptune.models.source import PathSource
from dptune.recipes import View
from dptune.redaction.engine import redact_text
from dptune.redaction.operators import Operator, RedactionSettings
from dptune.workflow.canary_ranking import CanaryRanking
from dptune.workflow.chats import check_chats, written_canaries
from dptune.workflow.extracting import Extracting, _marked
from dptune.workflow.trained import refuse_untrained, trained_canaries
from tests.support.chats import chat_tokenizer
from tests.unit.attacks.conftest import make_model

FAMILIES = ("chatml", "llama_3", "gemma", "mistral", "phi_3")


def canaries(**changes):
    values = {
        "template": "my code is {secret}.",
        "length": 2,
        "num_planted": 3,
        "num_held_out": 3,
        "role": "assistant",
    }
    return draw_canaries(CanarySpec(**values | changes), seed=1)


def corpus(count=6):
    turns = [
        [
            Turn(role="user", content=f"Why {n}?"),
            Turn(role="assistant", content=f"So {n}.", trained=True),
        ]
        for n in range(count)
    ]
    names = [f"r{n}" for n in range(count)]
    return Dataset.from_dict(
        {
            "id": names,
            "unit_id": names,
            "text": list(map(join_turns, turns)),
            "split": ["train"] * count,
        }
    )


def messages(text):
    return [{"role": t.role, "content": t.said()[0]} for t in turns_of(text)]


def units(rows, tokenizer, *, max_tokens=64):
    encoded = encode_corpus(rows, tokenizer, max_tokens=max_tokens)
    return UnitDataset.from_columns(
        encoded["input_ids"],
        encoded["loss_weights"],
        encoded["unit_id"],
        max_sequences_per_unit=1,
    )


def loaded(name):
    tokenizer = chat_tokenizer(name)
    return LoadedModel(
        model=make_model("gpt2", vocab_size=len(tokenizer)).eval(), tokenizer=tokenizer
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_canaries_are_ranked_inside_the_template_as_brute_force_ranks_them(
    name, tmp_path
):
    one, drawn = loaded(name), canaries()
    spec = drawn.spec
    rows = [
        list(
            one.tokenizer.apply_chat_template(
                messages(spec.record(spec.secret_at(index))), tokenize=True
            )["input_ids"]
        )
        for index in range(spec.space_size)
    ]
    width = min(map(len, rows))
    shared = next(i for i in range(width) if len({row[i] for row in rows}) > 1)
    tail = next(i for i in range(1, width) if len({row[-i] for row in rows}) > 1) - 1
    longest = max(map(len, rows))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        every = one.model(padded).logits.log_softmax(-1)
    nll = [
        -sum(float(logs[i - 1, row[i]]) for i in range(shared, len(row) - tail))
        for row, logs in zip(rows, every, strict=True)
    ]
    ranking = CanaryRanking(
        canaries=drawn, attacks=AttackSettings(), device="cpu", cache=tmp_path
    )
    found = ranking.measure(one).canaries
    for canary, secret in zip(found, (*drawn.planted, *drawn.held_out), strict=True):
        own = nll[spec.index_of(secret)]
        assert canary.nll == pytest.approx(own, abs=1e-3)
        better = sum(value < own - 1e-3 for value in nll)
        assert better < canary.rank <= 1 + sum(value <= own + 1e-3 for value in nll)


def test_rank_check_catches_canaries_without_their_template(tmp_path):
    one, drawn = loaded("chatml"), canaries()
    bare = drawn.model_copy(
        update={"spec": drawn.spec.model_copy(update={"role": None})}
    )
    settings = {"attacks": AttackSettings(), "device": "cpu", "cache": tmp_path}
    inside, outside = (
        CanaryRanking(canaries=c, **settings).measure(one).canaries
        for c in (drawn, bare)
    )
    assert all(abs(a.nll - b.nll) > 1e-3 for a, b in zip(inside, outside, strict=True))


@pytest.mark.parametrize("role", ["assistant", "user"])
@pytest.mark.parametrize("name", FAMILIES)
def test_canaries_of_a_role_are_counted_by_their_tokens(name, role):
    drawn = canaries(role=role, insertions=2)
    planted = plant(corpus(), drawn)
    tokenizer = chat_tokenizer(name)
    assert planted_count(planted["text"], drawn) == drawn.num_expected == 6
    found = trained_canaries(units(planted, tokenizer), drawn, tokenizer, stage="s")
    assert found.copies == (2, 2, 2)
    text = planted["text"][-1]
    start, end = secret_place(text, drawn.spec)
    assert text[start:end] == drawn.planted[-1]
    assert turns_of(text)[-1].role == role


def test_canaries_that_are_cut_off_or_not_learnt_are_refused_not_counted():
    drawn, tokenizer = canaries(), chat_tokenizer("chatml")
    planted = plant(corpus(), drawn)
    whole = units(planted, tokenizer)
    longest = max(map(len, whole.sequences))
    cut = units(planted, tokenizer, max_tokens=longest - 6)
    unlearnt = units(
        planted.map(lambda row: {"text": row["text"].replace("\ufdd1", "\ufdd0")}),
        tokenizer,
    )
    plan = SimpleNamespace(settings=SimpleNamespace(view=View.ORIGINAL, screened=None))
    for data, expected in ((whole, (1, 1, 1)), (cut, (0, 0, 0)), (unlearnt, (0, 0, 0))):
        found = trained_canaries(data, drawn, tokenizer, stage="s")
        assert found.copies == expected
        if any(expected):
            refuse_untrained(found, plan, max_tokens=64)
        else:
            with pytest.raises(ConfigError, match="reaches a loss"):
                refuse_untrained(found, plan, max_tokens=64)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"placement": "appended"}, "own_record"),
        ({"role": "user", "opening": "Hi"}, "opening must be set only"),
        ({"role": None, "opening": "Hi"}, "opening must be set only"),
        ({"opening": "{secret}"}, "one secret"),
        ({"template": "\ufdd1user\ufdd2{secret}"}, "must hold text"),
    ],
)
def test_canary_settings_that_no_conversation_has_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        canaries(**changes)


def test_canary_that_the_template_does_not_take_is_refused():
    with pytest.raises(ModelError, match="refuses system"):
        written_canaries(canaries(role="system"), chat_tokenizer("gemma"))


def chat_config(tokenizer, folder, *, operator=Operator.MASK, max_tokens=64):
    tokenizer.save_pretrained(folder / "m")
    return SimpleNamespace(
        model=SimpleNamespace(
            source=PathSource(kind="path", path="m"), max_tokens=max_tokens
        ),
        canaries=canaries().spec,
        data=SimpleNamespace(source=JsonlSource(path="x", messages_column="m")),
        redaction=RedactionSettings(operator=operator),
        recipe=SimpleNamespace(uses_redacted_view=True),
    )


def test_length_that_cuts_off_all_that_is_learnt_is_told_before_a_run(tmp_path):
    tokenizer, rows = chat_tokenizer("chatml"), corpus()
    first = ChatFormat.of(tokenizer).encode(rows["text"][0])
    start = int(np.flatnonzero(first.learnt)[0])
    check = partial(check_chats, data_root=tmp_path)
    for size in (start, start + 1):
        config = chat_config(tokenizer, tmp_path, max_tokens=size)
        if size == start:
            with pytest.raises(ConfigError, match="must leave something to learn"):
                check(SimpleNamespace(dataset=rows), config)
        else:
            assert check(SimpleNamespace(dataset=rows), config) == ()
    longer = rows.map(
        lambda row, place: {"text": row["text"].replace("Why", "W" * (40 * place))},
        with_indices=True,
    )
    (warning,) = check(SimpleNamespace(dataset=longer), config)
    assert "of 5 of 6 conversations" in warning


@pytest.mark.parametrize(
    ("operator", "is_refused"), [(Operator.DELETE, True), (Operator.MASK, False)]
)
def test_template_that_drops_what_deletion_empties_is_refused_before_a_run(
    operator, is_refused, tmp_path
):
    tokenizer = chat_tokenizer("chatml")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "in messages", "in messages if message.content"
    )
    config = chat_config(tokenizer, tmp_path, operator=operator)
    rows = SimpleNamespace(dataset=corpus())
    if is_refused:
        with pytest.raises(ModelError, match=r"record 8: .* drops or changes"):
            check_chats(rows, config, data_root=tmp_path)
    else:
        check_chats(rows, config, data_root=tmp_path)


EVERYTHING = (
    "{% for m in messages %}<|im_start|>{% for k, v in m.items() if k != 'content' %}"
    "{{ v }} {% endfor %}{{ tools }}{{ documents }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}"
)
"""A template that writes every key of a message."""


def planted_chats(count=200):
    """Conversations with mails in contents and everywhere else, and those mails."""
    source = random.Random(11)  # noqa: S311 - a test's draw

    def mail():
        return "".join(source.choices("bcdfghjkmnpqrstvwxz", k=9)) + "@web.de"

    shapes = ("{}", "I am {}.", "<mask>{}", "<|im_end|>{}", "[INST] {} [/INST]", " {} ")
    keys = ("name", "metadata", "id", "x", "tool_calls", "reasoning", "documents")
    for _ in range(count):
        messages, values = [], []
        for role in ("user", "assistant") * source.randint(1, 3):
            values.append(mail())
            content = source.choice(shapes).format(values[-1])
            messages.append({"role": role, "content": content})
            if source.random() < 0.25:
                values.append(mail())
                said = source.choice(
                    (values[-1], [values[-1]], [{"function": {"to": values[-1]}}])
                )
                messages[-1][source.choice(keys)] = said
        yield messages, values


def test_nothing_of_a_message_reaches_the_tokens_but_what_detection_read():
    engine = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns",))
    tokenizers = [chat_tokenizer(name) for name in ("chatml", "llama_3")]
    tokenizers[0].chat_template = EVERYTHING
    for tokenizer in tokenizers:
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
    read = leaked = 0
    for chat, values in planted_chats():
        text = read_conversation(chat, learnt=ROLES).text
        twin = tokenizers[0].apply_chat_template(chat)["input_ids"]
        leaked += any(value in tokenizers[0].decode(twin) for value in values)
        if text is None:
            continue
        read += 1
        (spans,) = engine.detect([text])
        redacted = redact_text(text, spans, Operator.MASK).text
        for tokenizer in tokenizers:
            said = tokenizer.decode(list(record_tokens(redacted, tokenizer)))
            assert not any(value in said or value[:9] in said for value in values)
            got = ChatFormat.of(tokenizer).encode(text)
            free = [
                token
                for token, (low, high) in zip(got.ids, got.spans, strict=True)
                if not any(low < span.end and span.start < high for span in spans)
            ]
            rest = tokenizer.decode(free)
            assert not any(value[:9] in rest for value in values)
    assert read > 80
    assert leaked == 200  # the twin hands whole messages to the template


def test_template_that_writes_the_place_of_a_secret_is_refused():
    tokenizer = chat_tokenizer("chatml")
    tokenizer.chat_template = "{{ '{secret}' }}" + tokenizer.chat_template
    with pytest.raises(ModelError, match="which is where a canary"):
        written_canaries(canaries(), tokenizer)


def test_beginning_that_the_template_refuses_is_asked_for_without_it():
    one = loaded("mistral")  # writes a system's turn beside a last turn of a user
    turns = [
        Turn(role="system", content="SYS"),
        Turn(role="user", content="one"),
        Turn(role="assistant", content="my name is", trained=True),
    ]
    rows = Dataset.from_dict({"text": [join_turns(turns)]})
    asking = SimpleNamespace(members=rows, _is_chat=True)
    asking._opening = lambda model: Extracting._opening(asking, model)
    beginning = join_turns(turns)
    with pytest.raises(ModelError):
        record_tokens(beginning, one.tokenizer, open_ended=True)
    found = Extracting._context(asking, beginning, one)
    assert one.tokenizer.decode(found).split() == ["<s>[INST]", "Hello[/INST]"]
    whole = Extracting._context(asking, join_turns(turns[1:]), one)
    assert one.tokenizer.decode(whole).endswith("my name is")


def test_plain_canaries_stay_as_they_were():
    spec = CanarySpec(num_planted=1, num_held_out=1)
    assert spec.record("1") == spec.template.replace("{secret}", "1")
    assert not {"role", "opening"} & spec.model_dump().keys()
    drawn = draw_canaries(spec, seed=0)
    tokenizer = chat_tokenizer("chatml")
    asked = written_canaries(drawn, tokenizer)
    assert asked.canaries is drawn
    assert asked.tokenizer is tokenizer


# other attacks score what is learnt


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_end_where_the_template_ends_turns(name):
    tokenizer = chat_tokenizer(name)
    ends = {"chatml": "<|im_end|>", "llama_3": "<|eot_id|>", "gemma": "<end_of_turn>"}
    ends |= {"mistral": "</s>", "phi_3": "<|end|>"}
    wanted = {ends[name], tokenizer.eos_token}
    stops = written_canaries(canaries(), tokenizer).stops
    assert set(tokenizer.convert_ids_to_tokens(stops)) == wanted
    one = loaded(name)
    drawn = {
        stop: sample_continuations(
            one.model,
            [1],
            count=40,
            max_new_tokens=9,
            decoding=Decoding(temperature=1.0, top_k=0, top_p=1.0),
            generator=torch.Generator().manual_seed(0),
            stop=stop,
        )
        for stop in (None, (5, 7, 9), 5)
    }
    for whole, cut, first in zip(*drawn.values(), strict=True):
        places = [i for i, token in enumerate(whole) if token in (5, 7, 9)]
        assert cut == whole[: places[0] if places else None]
        assert first == whole[: whole.index(5) if 5 in whole else None]


def test_personal_data_is_asked_for_in_turns_that_are_learnt():
    text = corpus(1)["text"][0]
    spans = [
        {"start": t.start, "end": t.start + 2, "entity_type": "PERSON"}
        for t in turns_of(text)
    ]
    rows = [{"text": text, "spans": spans}, {"text": "Ann", "spans": spans[:1]}]
    chat, plain = _marked(rows)
    assert [text[s.start : s.end] for s in chat.spans] == ["So"]
    assert len(plain.spans) == 1


def test_signals_of_a_conversation_are_those_of_what_is_learnt():
    one = loaded("chatml")
    texts = corpus(3)["text"]
    sequences = [record_tokens(text, one.tokenizer) for text in texts]
    assert all(isinstance(sequence, ScoredTokens) for sequence in sequences)
    own = token_signals(one.model, sequences, moments=True)
    every = token_signals(one.model, [list(s) for s in sequences], moments=True)
    for sequence, some, full in zip(sequences, own, every, strict=True):
        places = np.flatnonzero(scored(sequence)[1:])
        assert 0 < len(places) < len(sequence) - 1
        for part in ("log_probs", "hits", "means", "stddevs"):
            np.testing.assert_allclose(
                getattr(some, part), getattr(full, part)[places], atol=1e-5
            )
    scores = membership_scores(own, own, texts)
    assert all(np.isfinite(values).all() for values in scores.values())
    report = utility_report(
        sequences,
        measure=partial(held_out_losses, one.model, sequences),
        measure_base=partial(held_out_losses, one.model, sequences),
        model_digest="m",
        corpus_fingerprint="c",
        split="test",
    )
    assert report.num_tokens == sum(sum(scored(s)) for s in sequences)


def test_endings_of_a_conversation_are_those_of_its_last_learnt_turn():
    one = loaded("chatml")
    text = join_turns(
        [
            Turn(role="user", content="Hi"),
            Turn(role="assistant", content="0123456789", trained=True),
            Turn(role="user", content="thanks " * 5),
        ]
    )
    sequence = record_tokens(text, one.tokenizer)
    places = np.flatnonzero(scored(sequence))
    start = places[0] + len(places) // 2
    plain = Decoding(temperature=1.0, top_k=0, top_p=1.0)
    (found,) = record_chances(one.model, [sequence], decoding=plain)
    with torch.no_grad():
        logs = one.model(torch.tensor([list(sequence)])).logits[0].log_softmax(-1)
    wanted = sum(float(logs[i - 1, sequence[i]]) for i in range(start, places[-1] + 1))
    assert found == pytest.approx(wanted, abs=1e-3)
