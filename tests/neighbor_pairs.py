"""Raw data sets that differ in one unit: who joins, leaves, or says something else."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

Row = Mapping[str, Any]
Relation = Literal["add", "remove", "replace", "selective"]
USERS = 32
"""Users in the raw file; a tenth of them is kept from training."""


@cache
def corpus_rows(
    count: int = USERS, *, labelled: bool = False, single: bool = False
) -> tuple[Row, ...]:
    """Return raw records of some users; some have several of them, unless `single`."""
    people = ("Maria Lopez", "John Smith", "Ada King", "Omar Haddad", "Lena Vogel")
    things = ("a film", "the invoice", "my garden", "this train", "our school")
    rows = []
    for number in range(count):
        name, thing = people[number % 5], things[(number // 5) % 5]
        text = (
            f"{name} wrote to us about {thing} on 2021-03-{number % 28 + 1:02} at "
            f"10:{number % 40 + 10}. "
            f"Mail: {name.split()[0].lower()}{number}@example.com."
        )
        if labelled:
            text = f"{name.lower()} saw the film , it was {('bad', 'good')[number % 2]}"
        rows.append(
            {
                "id": f"r{number}",
                "user": f"u{number}",
                "text": text,
                "label": ("no", "yes")[number % 2],
            }
        )
    if not labelled and not single:
        for number in range(0, count, 9):  # users of several records
            for copy in range(2):
                text = f"{people[number % 5]} wrote again, number {copy}, from Berlin."
                more = {"id": f"r{number}-{copy}", "user": f"u{number}", "text": text}
                rows.append(rows[number] | more)
    return tuple(rows)


def unusual_texts() -> Iterator[tuple[str, str]]:
    """Name and write texts that might disturb what others are given."""
    first = corpus_rows()[0]["text"]
    yield "plain", "Peter Novak asked for a refund of the second ticket."
    yield "text of another", first
    yield "nearly that of another", first.replace("us", "you")
    yield "very long", "Anna Berg paid again and again. " * 80
    yield "one character", "."
    yield "unknown characters", "\U0001f9ec\ue000\u200b漢字ﷺ\u0301 ½"
    yield "special tokens", "<mask> <|endoftext|> <|pad|> [MASK] [PAD] <mask><mask>"
    yield "personal data alone", "Maria Lopez maria@example.com 4111 1111 1111 1111"
    yield "lower-case names", "maria lopez lives in berlin with john smith"
    yield "capitals", "THIS IS BERLIN AND MARIA AND THE INVOICE AND MONDAY"
    yield "a canary's template", "The code is 417302"
    yield "blank lines", "\n\n.\n\n \t ."
    yield "one token many times", "a" * 400
    yield "control characters", "one\x01two\x7fthree\u2028four\u0085five"
    yield "right to left", "\u202eשלום\u202c عمر said hello to Omar Haddad"
    yield "markup", '{"id": "r1", "user": "u1", "text": "x"}\n<b>&amp;</b>,"""'
    yield "numbers", "12 345 678 9.0 1e9 -7 0x1F 2021-03-04 10:30 +49 170 1234567"
    yield "words of another", " ".join(sorted(set(first.split()), reverse=True))
    yield "dates", "On 2021-03-04, 5 May 2020, yesterday and last Monday."
    yield "addresses", "http://example.com/?q=1 10.0.0.1 DE89370400440532013000"


Secrets = Literal["all", "high", "low", "both", "missed"]
_OTHER_DIGITS = str.maketrans("0123456789", "1234567890")
_OTHER_NAMES = {
    "Maria Lopez": "Chiara Rossi",
    "John Smith": "Peter Novak",
    "Ada King": "Zoe Lam",
    "Omar Haddad": "Tariq Mansour",
    "Lena Vogel": "Jutta Kranz",
}
STRANGE_IDS = ("u1", "u", "u 0", "0 u1", "U1", "canary", "u1 ", "é", "e\u0301", "u0/1")


def neighbor_pairs(
    relation: Relation,
    *,
    count: int = 20,
    labelled: bool = False,
    single: bool = False,
    tiers: bool = False,
) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """Name and write pairs of raw data sets that differ in one unit.

    The first of a pair is always the same, so that it is run once.

    Args:
        relation: how the second differs.
        count: pairs.
        labelled: short texts with classes.
        single: every user has one record.
        tiers: secrets change within one tier, or in both.
    """
    rows = [dict(row) for row in corpus_rows(labelled=labelled, single=single)]
    if relation == "add":
        for number, (name, text) in zip(range(count), _texts(labelled), strict=False):
            size = 1 if single else (1, 1, 3, 6)[number % 4]
            yield f"add: {name}", rows, _joined(rows, text, number=number, size=size)
    elif relation == "remove":
        for number in range(count):
            gone = f"u{(number * 9) % USERS}"
            rest = [row for row in rows if row["user"] != gone]
            yield f"remove: {gone}", rows, rest
    elif relation == "replace":
        for number, (name, text) in zip(range(count), _texts(labelled), strict=False):
            user = f"u{(number * 9) % USERS if number % 2 else number}"
            mine = [i for i, row in enumerate(rows) if row["user"] == user]
            other = [dict(row) for row in rows]
            other[mine[0]]["text"] = text
            gone = set(mine[1:]) if number % 3 else set()
            yield (
                f"replace: {name}",
                rows,
                [row for i, row in enumerate(other) if i not in gone],
            )
    else:
        choices: tuple[Secrets, ...] = ("high", "low", "both") if tiers else ("all",)
        for number in range(count):
            what = choices[number % len(choices)]
            other = _other_secrets(rows, number, what=what, labelled=labelled)
            yield f"selective: {what} {number}", rows, other


def _texts(labelled: bool) -> Iterator[tuple[str, str]]:
    """Texts of joining or replaced units."""
    if not labelled:
        yield from unusual_texts()
        return
    for name, text in unusual_texts():
        yield name, text if name != "very long" else "the film was good " * 40


def _joined(rows: Sequence[Row], text: str, *, number: int, size: int) -> list[Row]:
    """Let a user with some records join, in front, in the middle or at the end."""
    user = STRANGE_IDS[number % len(STRANGE_IDS)] + f"~{number}"
    place = (0, len(rows) // 2, len(rows))[number % 3]
    new = [
        {"id": f"{user}-{copy}", "user": user, "text": text, "label": "yes"}
        for copy in range(size)
    ]
    if size > 1:  # others' texts are among them
        new[1]["text"] = rows[number]["text"]
    return [*rows[:place], *new, *rows[place:]]


def _other_secrets(
    rows: Sequence[Row], number: int, *, what: Secrets, labelled: bool
) -> list[Row]:
    """Give one record other secrets, of the same types."""
    record = dict(rows[number])
    text = str(record["text"])
    if what in {"high", "both", "all"}:
        text = re.sub(r"\d+(?=@)", lambda m: m[0].translate(_OTHER_DIGITS), text)
        text = text.replace("2021-03-", "2019-11-")
    if what in {"low", "both", "missed"}:
        text = re.sub(r"(?<=at 10:)\d+", lambda m: str(69 - int(m[0])), text)
    if what == "all":
        for old, new in _OTHER_NAMES.items():
            text = text.replace(old, new)
            first, other = old.split()[0].lower(), new.split()[0].lower()
            text = re.sub(rf"\b{first}(?=\d+@)", other, text)
            if labelled:
                text = text.replace(old.lower(), "john smith")
    record["text"] = text
    return [record if i == number else row for i, row in enumerate(rows)]


def kind_of(label: str) -> int | None:
    """Return the part that a selective pair differs in alone, by its label."""
    return {"low": 0, "high": 1}.get(label.split()[1] if " " in label else "")
