"""The `decrypt` command."""

import re
from pathlib import Path
from typing import Annotated

import typer

from dptune.errors import ConfigError, Problem, ProblemsError


def decrypt(
    file: Annotated[
        Path, typer.Argument(help="A text with values such as <EMAIL:enc:...>.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="New file for the text, for you alone."),
    ],
    key: Annotated[
        str,
        typer.Option(help="Variable that holds the key, or with _FILE names its file."),
    ] = "DPTUNE_REDACTION_KEY",
) -> None:
    """Turn the values of a text back that `redaction.operator: encrypt` wrote."""
    from dptune.redaction.operators import ENCRYPTION_KEY
    from dptune.redaction.pseudonyms import decrypt_text
    from dptune.review.store import write_private
    from infra.workspace import read_redaction_key

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
    from dptune.redaction.operators import ENCRYPTION_KEY

    return re.fullmatch(rf"{ENCRYPTION_KEY}(_[A-Z0-9]{{1,40}})?", key) is not None
