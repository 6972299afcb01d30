"""Passwords, keys and codes are masked where tools, files and people write them."""

import re

import pytest

from dptune.detection.engine import build_engine
from dptune.detection.recognizer import Tier

ENGINE = build_engine(tier=Tier.LOW_ENTITY)
MASKED = [
    "sshpass -p '⟦Slate-Finch⟧' ssh ops@edge",
    "redis-cli -a ⟦marigold⟧ ping",
    "mysql -h db -u ⟦tarek⟧ -p⟦Slate-Finch⟧ shop",
    "docker login -u ⟦tarek⟧ -p ⟦marigold⟧",
    "curl -u ⟦tarek:marigold⟧ https://⟦example.org/v1⟧",
    "openssl enc -aes-256-cbc -k ⟦marigold⟧",
    "echo '⟦marigold⟧' | sudo -S true",
    "export PGPASSWORD=⟦marigold⟧",
    "db_pass: ⟦marigold⟧",
    '{"user": "⟦tarek⟧", "pass": "⟦marigold⟧"}',
    "wachtwoord: ⟦marigold⟧",
    "hasło: ⟦marigold⟧",
    "mail.login('⟦tarek@example.org⟧', '⟦Slate-Finch⟧')",
    "jdbc:oracle:thin:⟦tarek/marigold⟧@db:1521/x",
    "amqp://⟦guest⟧:⟦s@y:so⟧@queue/",
    (
        "seed phrase: ⟦ladder mimic orbit stove canyon ribbon pepper jungle velvet "
        "anchor dune copper⟧"
    ),
    "i forgot the pasword, think it was ⟦sunny-hill⟧",
    "user ⟦tarek⟧ and password ⟦marigold⟧",
    "username: ⟦tarek⟧, password is ⟦marigold⟧",
    (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"
        "DEK-Info: AES-128-CBC,⟦00AA⟧\n\n⟦abcd/efgh+ijkl⟧\n⟦mnop⟧\n"
        "-----END RSA PRIVATE KEY-----"
    ),
    (
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n⟦abcd/efgh⟧\n"
        "-----END PGP PRIVATE KEY BLOCK-----"
    ),
]
STAYS = [
    "The tests pass: 41 of 42, one is skipped.",
    "all tests pass and the pass rate is fine",
    "mkdir -p build and tar -xzf it",
    "unzip -q archive and zip -r again",
    "curl -s -o file",
    "Enter your user name and password, and you will be good to go",
    "Do you know your user name and password?",
    "type the user name and password when prompted",
    "the login page password field is empty",
    "a user forgot the password again",
]


def left(line):
    """Return what of the bracketed values of a line is not masked."""
    text = re.sub("[⟦⟧]", "", line)
    shown = set(range(len(text)))
    for span in ENGINE.detect([text])[0]:
        shown -= set(range(span.start, span.end))
    parts, position, found = re.split("[⟦⟧]", line), 0, ""
    for number, part in enumerate(parts):
        places = range(position, position + len(part))
        found += "".join(text[i] for i in places if number % 2 and i in shown)
        position += len(part)
    return "".join(filter(str.isalnum, found))


@pytest.mark.parametrize("line", MASKED)
def test_secret_is_masked_as_a_whole(line):
    assert left(line) == ""


@pytest.mark.parametrize("text", STAYS)
def test_what_only_looks_like_a_secret_stays(text):
    kinds = {span.entity_type for span in ENGINE.detect([text])[0]}
    assert not kinds & {"SECRET", "USERNAME"}
