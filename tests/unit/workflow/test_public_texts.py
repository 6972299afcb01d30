"""Private text is not learnt as public under another name."""

import gzip
import json
import textwrap
import unicodedata

import pytest

from dptune.configfile import load_train_config
from dptune.errors import ConfigError
from dptune.workflow import public_texts
from dptune.workflow.ingest import read_corpus
from dptune.workflow.preflight import check_run
from dptune.workflow.public_texts import check_public_texts, share_told
from tests.unit.workflow.test_preflight import REPOSITORY, TINY

PRETRAINING = "model.pretraining.source="
TOKENIZER = "model.source.tokenizer="
OTHERS = [
    f"the weather of day {i} was fine, as it is here in most years" for i in range(900)
]


def config(*overrides):
    return load_train_config(
        TINY, configs=REPOSITORY / "configs", overrides=list(overrides)
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return read_corpus(
        config().data, data_root=tmp_path_factory.mktemp("none"), validate=False
    )


@pytest.fixture
def texts(corpus):
    return list(corpus.values("text"))


def jsonl(texts):
    return "".join(
        json.dumps({"text": t, "id": str(i)}) + "\n" for i, t in enumerate(texts)
    )


def check(corpus, folder, *overrides):
    return check_public_texts(
        config(*overrides), corpus, data_root=folder, validate=False
    )


def wrapped(texts):
    return [line for t in texts for line in textwrap.wrap(" ".join(t.split()), 40)]


def test_invented_public_text_is_taken(corpus, tmp_path):
    assert check(corpus, tmp_path) == ()


def test_few_private_records_in_public_text_are_told(corpus, texts, tmp_path):
    (tmp_path / "public.txt").write_text("\n".join([*OTHERS, texts[0]]))
    (told,) = check(corpus, tmp_path, PRETRAINING + "{kind: text, path: public.txt}")
    assert f"source holds {1 / len(texts):.2%} of the private records" in told


COPIES = {
    "in another order": ("a.jsonl", lambda texts: jsonl(texts[::-1])),
    "among others": ("a.jsonl", lambda texts: jsonl(OTHERS + texts)),
    "a tenth of it": ("a.jsonl", lambda texts: jsonl(OTHERS + texts[::10])),
    "in capitals": ("a.jsonl", lambda texts: jsonl([t.upper() for t in texts])),
    "as lines": ("a.txt", "\n".join),
    "each on one line": (
        "a.txt",
        lambda texts: "\n".join(" ".join(t.split()) for t in texts),
    ),
    "five on a line": (
        "a.txt",
        lambda texts: "\n".join(
            " ".join(" ".join(texts[i : i + 5]).split())
            for i in range(0, len(texts), 5)
        ),
    ),
    "wrapped": ("a.txt", lambda texts: "\n".join(wrapped(texts))),
    "wrapped as records": ("a.jsonl", lambda texts: jsonl(wrapped(texts))),
    "with more around": (
        "a.jsonl",
        lambda texts: jsonl(
            ["Customer: " + " ".join(t.split()) + " (end)" for t in texts]
        ),
    ),
    "as lines of JSON": ("a.txt", jsonl),
    "cut in two": (
        "a.jsonl",
        lambda texts: jsonl(
            [half for t in texts for half in (t[: len(t) // 2], t[len(t) // 2 :])]
        ),
    ),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("way", ["pretraining", "tokenizer", "public_text"])
def test_copy_of_the_private_data_is_no_public_text(corpus, texts, tmp_path, name, way):
    path, write = COPIES[name]
    (tmp_path / path).write_text(write(texts), encoding="utf-8")
    kind = {"jsonl": {"kind": "jsonl", "id_column": "id"}, "txt": {"kind": "text"}}
    source = kind[path.partition(".")[2]] | {"path": path}
    overrides = {
        "pretraining": f"{PRETRAINING}{json.dumps(source)}",
        "public_text": f"model.public_text={json.dumps(source)}",
        "tokenizer": TOKENIZER + json.dumps({"kind": "trained", "public_text": [path]}),
    }
    with pytest.raises(ConfigError, match=f"{way}.*must be public text, but holds"):
        check(corpus, tmp_path, overrides[way])


def test_compressed_copy_is_refused_before_a_run(texts, tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(jsonl(texts))
    source = {"kind": "jsonl", "path": "a.jsonl.gz", "id_column": "id"}
    made = config(PRETRAINING + json.dumps(source))
    with pytest.raises(ConfigError, match=r"holds 100.0% of the private records"):
        check_run(made, data_root=tmp_path, validate=False)


def test_text_of_the_same_kind_is_public(corpus, texts, tmp_path):
    """Names are others, and all that is said beside them is the same."""
    others = [
        " ".join(f"{word}s" if word.istitle() else word for word in t.split())
        for t in texts
    ]
    (tmp_path / "a.jsonl").write_text(jsonl(others), encoding="utf-8")
    source = {"kind": "jsonl", "path": "a.jsonl", "id_column": "id"}
    check(corpus, tmp_path, PRETRAINING + json.dumps(source))


FRENCH = "Née à Béziers, Zoë dîne chez François à Noël avec une nièce âgée de {} ans"
JAPANESE = "田中さんは{}番の駅で友達に会い、一緒に古いお寺を見に行きました。"


@pytest.mark.parametrize("said", [FRENCH, JAPANESE], ids=["French", "Japanese"])
@pytest.mark.parametrize(
    "spelt",
    [
        lambda text: text,
        lambda text: unicodedata.normalize("NFD", text),
        lambda text: text.replace(" ", "\u00a0"),
        lambda text: "".join(chr(ord(c) + 0xFEE0) if c.isdigit() else c for c in text),
        "\u200b".join,
        json.dumps,
        lambda text: json.dumps(json.dumps(text)),
        lambda text: text.encode("ascii", "xmlcharrefreplace").decode(),
    ],
    ids=["as it is", "apart", "blanks", "wide", "between", "JSON", "twice", "HTML"],
)
def test_other_spellings_of_unicode_are_the_same_text(said, spelt):
    own = [said.format(i) for i in range(100)]
    assert share_told(own, map(spelt, own)) == 1
    others = [t.translate({ord("e"): "o", ord("駅"): "森"}) for t in own]
    assert share_told(own, map(spelt, others)) == 0


def test_run_across_two_readings_is_seen(monkeypatch):
    own = [f"record {i} says what nobody else says at all, {i}" for i in range(100)]
    monkeypatch.setattr(public_texts, "_WORDS_AT_ONCE", 7)
    assert share_told(own, " ".join(own).split(" ")) == 1


def test_of_very_many_records_some_are_looked_at(corpus, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(public_texts, "_MOST_RECORDS", 20)
    looked_at = []
    monkeypatch.setattr(
        public_texts, "share_told", lambda own, _: looked_at.append(own) or 0
    )
    check(corpus, tmp_path)
    assert looked_at[0] == texts[::13]


def test_one_record_in_a_hundred_may_be_told_by_chance():
    own = [f"record {i} says what nobody else says at all, {i}" for i in range(100)]
    assert share_told(own, own[:1]) == 0.01
    assert share_told(own, []) == 0


def test_what_many_people_write_is_no_copy():
    assert (
        share_told(["Thank you very much for that."], ["thank you very much for that"])
        == 0
    )
