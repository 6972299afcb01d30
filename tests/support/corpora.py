"""Small corpora of every kind of source, sound and broken, always the same."""

import csv
import gzip
import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dptune.conversation import contents_only
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.splitting import SplitSettings
from dptune.errors import ProblemsError
from dptune.privacy import PrivacyUnit
from tests.support.sources import parse_source

_DRAW = random.Random(5)  # noqa: S311 - nothing is secret
_WORDS = [*(f"w{i}" for i in range(300)), "Ärger", "straße", "naïve", "日本", "it's"]
USER = {"privacy_unit": PrivacyUnit.USER}


def _text(words):
    return " ".join(_DRAW.choices(_WORDS, k=words))


def _row(number, text, user):
    split = ["train", "train", "dev", "test"][user % 4]
    found = {"id": number, "text": text, "user": f"u{user}", "label": user % 3}
    return found | {"name": f"Name{user}", "split": split}


def _rows():
    """Rows of users, with copies and near copies of others."""
    found = []
    for i in range(90):
        text = _text(_DRAW.randint(1, 50))
        found.append(_row(f"r{i}", text, i % 17))
        if i % 5 == 0:
            found.append(_row(f"c{i}", text, (i + 3) % 17))
            found.append(_row(f"n{i}", f"{text} w0 changed", (i + 5) % 17))
    return found


def _chats():
    """Conversations, some of which repeat others with other turns learnt."""
    found = []
    for i in range(60):
        says = [{"role": "user", "content": _text(8)}]
        says += [{"role": "assistant", "content": _text(9), "name": "bob"}]
        part = {"split": ["train", "test"][i % 2], "user": f"u{i}"}
        found.append({"id": f"a{i}", "messages": says, **part})
        if i % 4 == 0:
            more = [*says, {"role": "assistant", "content": "and once more"}]
            less = [says[0], says[1] | {"weight": 0}, more[2]]
            part = {"split": "test", "user": f"v{i}"}
            found.append({"id": f"b{i}", "messages": more, **part})
            part = {"split": "train", "user": f"w{i}"}
            found.append({"id": f"c{i}", "messages": less, **part})
            found.append({"id": f"d{i}", "messages": says, **part})
    return found


ROWS, CHATS = _rows(), _chats()


def jsonl(rows, name="a.jsonl"):
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return raw(text, name)


def raw(data, name):
    data = data.encode() if isinstance(data, str) else data

    def write(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    return write


def parquet(rows, name="a.parquet"):
    def write(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / name)

    return write


def table(folder):
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as sink:
        writer = csv.DictWriter(sink, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)


def several(*writers):
    return lambda folder: [write(folder) for write in writers]


def changed(*changes):
    """Rows of which each tenth has another fault."""
    return [
        row | (changes[i // 10 % len(changes)] if i % 10 == 3 else {})
        for i, row in enumerate(ROWS)
    ]


@dataclass(frozen=True)
class Case:
    """A corpus: what writes it, its source, and what is asked of it."""

    write: Callable[[Path], object]
    source: Mapping[str, object]
    arguments: Mapping[str, object] = field(default_factory=dict)


J = {"kind": "jsonl", "path": "a.jsonl", "id_column": "id"}
OWNED = J | {"unit_column": "user"}
HASHED = {"kind": "jsonl", "path": "a.jsonl"}
CHAT = J | {"messages_column": "messages", "split_column": "split"}
GIVEN = {"kind": "jsonl", "train": "a.jsonl", "test": "b.jsonl", "id_column": "id"}
LINES = "\n \n".join(row["text"] for row in ROWS)
NAMED = {"allow_content_hash_ids": True}
NEAR = {"duplicates": Duplicates.NEAR, "near_duplicate_threshold": 0.7}
HALF = jsonl(ROWS[:60]), jsonl(ROWS[60:], "b.jsonl")
FOLDER = several(
    *(
        raw(f"{row['text']}\r\n\r\nand {row['text']}", f"f/s{i % 3}/{i}.txt")
        for i, row in enumerate(ROWS[:30])
    )
)
FAULTS = (
    {"id": None},
    {"id": "r3"},
    {"text": "  "},
    {"text": "a\0b"},
    {"user": ""},
    {"text": "CafÃ©"},
    {"text": None, "label": 1.5},
    {"label": "word"},
)

CASES = {
    "json lines": Case(jsonl(ROWS), J, {"validate": True}),
    "json lines of users": Case(jsonl(ROWS), OWNED, USER),
    "all copies kept": Case(jsonl(ROWS), OWNED, USER | {"duplicates": Duplicates.KEEP}),
    "no copies of anybody": Case(
        jsonl(ROWS), OWNED, USER | {"duplicates": Duplicates.EXACT}
    ),
    "no near copies": Case(jsonl(ROWS), J, NEAR),
    "no near copies of held-out ones": Case(
        jsonl(ROWS), OWNED | {"split_column": "split"}, USER | NEAR
    ),
    "near copies nobody counts": Case(
        jsonl(ROWS), J, {"near_duplicate_threshold": None}
    ),
    "splits by a column": Case(jsonl(ROWS), OWNED | {"split_column": "split"}, USER),
    "splits by file": Case(several(*HALF), GIVEN, {"validate": True}),
    "splits by file with ids of each": Case(
        several(jsonl(ROWS), jsonl(ROWS[:40], "b.jsonl")),
        GIVEN | {"ids_are_per_split": True},
    ),
    "labels": Case(jsonl(ROWS), J | {"label_column": "label"}),
    "labels as text": Case(
        jsonl([row | {"label": f"0{row['label']}"} for row in ROWS]),
        J | {"label_column": "label"},
    ),
    "known values": Case(
        jsonl([row | {"name": None} if i % 3 else row for i, row in enumerate(ROWS)]),
        OWNED | {"known_columns": {"name": "PERSON", "label": "ACCOUNT_ID"}},
        USER,
    ),
    "share of users": Case(jsonl(ROWS), OWNED, USER | {"sample_share": 0.6, "seed": 3}),
    "limit on records": Case(jsonl(ROWS), HASHED, NAMED | {"max_records": 50}),
    "hashes as ids": Case(jsonl(ROWS), HASHED, NAMED | {"duplicates": Duplicates.KEEP}),
    "taken by text": Case(
        jsonl(ROWS), J, {"is_taken": lambda text: "w1" in contents_only(text)}
    ),
    "template": Case(jsonl(ROWS), J | {"text_template": "{user}: {text} {{{label}}}"}),
    "gzip": Case(
        raw(
            gzip.compress("\r\n".join(map(json.dumps, ROWS)).encode(), mtime=0),
            "a.jsonl.gz",
        ),
        J | {"path": "a.jsonl.gz"},
    ),
    "csv": Case(table, {"kind": "csv", "path": "a.csv", "id_column": "id"}),
    "csv of several lines": Case(
        raw(
            "\ufeffid,text\r\n"
            + "".join(f'{i},"Line {i}\nmore\rand ""on"""\r\n\n' for i in range(30)),
            "a.csv",
        ),
        {"kind": "csv", "path": "a.csv", "id_column": "id"},
    ),
    "csv in latin-1": Case(
        raw(
            ("id,text\n" + "".join(f"{i},Größe {i}\n" for i in range(30))).encode(
                "latin-1"
            ),
            "a.csv",
        ),
        {"kind": "csv", "path": "a.csv", "id_column": "id", "encoding": "latin-1"},
    ),
    "parquet": Case(
        parquet(ROWS),
        {"kind": "parquet", "path": "a.parquet", "id_column": "id"},
    ),
    "lines of text": Case(
        raw(LINES, "a.txt"), {"kind": "text", "path": "a.txt"}, NAMED
    ),
    "paragraphs of text": Case(
        raw(LINES.replace(" \n", "", 60), "a.txt"),
        {"kind": "text", "path": "a.txt", "record": "paragraph"},
        {"privacy_unit": PrivacyUnit.DOCUMENT, "min_records": 1}
        | {"splits": SplitSettings(validation=0, test=0)},
    ),
    "folder of documents": Case(
        FOLDER,
        {"kind": "folder", "path": "f"},
        {"privacy_unit": PrivacyUnit.DOCUMENT},
    ),
    "folders of splits": Case(
        FOLDER,
        {"kind": "folder", "train": "f/s0", "validation": "f/s1", "test": "f/s2"},
    ),
    "conversations": Case(jsonl(CHATS), CHAT),
    "conversations by hashes": Case(
        jsonl(CHATS), HASHED | {"messages_column": "messages"}, NAMED
    ),
    "conversations nearly alike": Case(jsonl(CHATS), CHAT | {"train_on": "all"}, NEAR),
    "synthetic": Case(lambda _: None, {"kind": "synthetic", "num_records": 80}, USER),
    "many faults": Case(
        jsonl(changed(*FAULTS)), OWNED | {"label_column": "label"}, USER
    ),
    "mojibake": Case(jsonl(changed({"text": "CafÃ© \ufffd"})), J),
    "users in two splits": Case(
        jsonl([row | {"user": row["user"][:2]} for row in ROWS]),
        OWNED | {"split_column": "split"},
        USER,
    ),
    "ids of both files": Case(several(jsonl(ROWS), jsonl(ROWS[80:], "b.jsonl")), GIVEN),
    "a split of one user": Case(
        jsonl([row | {"split": "train" if i else "dev"} for i, row in enumerate(ROWS)]),
        J | {"split_column": "split"},
    ),
    "conversations with faults": Case(
        jsonl([*CHATS, {"id": 1, "messages": [{"role": "alien", "content": 3}]}]),
        J | {"messages_column": "messages"},
    ),
    "files with faults": Case(
        several(
            jsonl(ROWS, "g/0"),
            raw(b'{"id": 1, "text": "a"}\n\xff\n', "g/1"),
            raw('{"id": 2, "txt": "a"}\n{"id": 5}\n', "g/2"),
            raw('{"id": 3, "text": "a"}\n?\n{"id": "r0"}\n[1]\n{"id": "r0"}', "g/3"),
            raw('{"id": "r1", "text": " "}\n{"id": "r1", "text": "x"}', "g/4"),
            raw(" \n", "g/5"),
            raw(gzip.compress(b"x", mtime=0), "g/6"),
        ),
        {"kind": "folder", "path": "g", "format": "jsonl", "pattern": "*"}
        | {"id_column": "id"},
    ),
    "csv that breaks off": Case(
        raw("id,text\n1,a\n2,b,c\n3,\n" + '4,"d" e\n5,f\n', "a.csv"),
        {"kind": "csv", "path": "a.csv", "id_column": "id"},
    ),
}


def outcome(case: Case, place: Path, **more: object) -> dict[str, object]:
    """Make a corpus, and return all that is known of it, or what is wrong with it."""
    case.write(place)
    arguments = {"privacy_unit": PrivacyUnit.RECORD, "validate": False}
    try:
        corpus = build_corpus(
            parse_source(case.source),
            data_root=place,
            **arguments | dict(case.arguments) | more,
        )
    except ProblemsError as error:
        return {"problems": [f"{p.path}: {p.message}" for p in error.problems]}
    rows = json.dumps([corpus.dataset.to_dict(), corpus.dropped_units])
    return {
        "fingerprint": corpus.fingerprint,
        "rows": hashlib.sha256(rows.encode()).hexdigest(),
        "features": str(corpus.dataset.features),
        "report": corpus.report.model_dump(mode="json", exclude={"fingerprint"}),
    }
