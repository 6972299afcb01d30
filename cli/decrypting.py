"""What `decrypt` does."""

import re
from pathlib import Path

import typer

from dptune.errors import ConfigError, Problem, ProblemsError
from dptune.redaction.operators import ENCRYPTION_KEY
from dptune.redaction.pseudonyms import decrypt_text
from dptune.review.store import write_private
from infra.workspace import read_redaction_key


def decrypt_command(file: Path, *, output: Path, key: str) -> None:
    """Write the decrypted text to a new file for its owner alone.

    Raises:
        ConfigError: with everything that is wrong; values of another key are counted,
            and nothing is written.
    """
    problems = []
    if not key_is_named(key):
        message = f"must be {ENCRYPTION_KEY} or a name that begins so, got {key!r}."
        problems.append(Problem(path="--key", message=message))
    if output.exists() or not output.parent.is_dir():
        message = f"must be a new file in a folder that exists, got {str(output)!r}."
        problems.append(Problem(path="--output", message=message))
    text, secret = "", b""
    try:
        text = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        message = "must be a readable file of UTF-8 text, but is not."
        problems.append(Problem(path="FILE", message=message))
    try:
        secret = read_redaction_key(key) if key_is_named(key) else b""
    except ProblemsError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    found = decrypt_text(text, secret)
    if found.num_failed:
        message = (
            f"must be of this key and unaltered, got {found.num_failed:,} values that "
            f"are not, and {found.num_read:,} that are."
        )
        step = "Name the variable of the key that the redaction had, with --key."
        raise ConfigError.at("FILE", message, step)
    write_private(output, found.text)
    typer.echo(f"{found.num_read:,} values decrypted: {output}  (restricted)")


def key_is_named(key: str) -> bool:
    """Whether a variable may hold an encryption key; no other can be named."""
    return re.fullmatch(rf"{ENCRYPTION_KEY}(_[A-Z0-9]{{1,40}})?", key) is not None
