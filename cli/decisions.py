"""The `verify-decision` command: for deploy jobs, offline."""

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.printing import speaker
from dptune.errors import ArtifactError, ConfigError, GateFailedError

if TYPE_CHECKING:  # takes long to import, and --help is to be quick
    from dptune.gates.policy import GatePolicy
    from dptune.gates.signing import Statement

_LARGEST: Final = 1 << 24
"""Bytes of a decision or key: a hundred times the largest that was seen."""


def verify_decision(
    file: Annotated[
        Path, typer.Argument(help="A decision that `gate --output` wrote.")
    ],
    key: Annotated[Path, typer.Option(help="The signer's public key, PEM.")],
    model: Annotated[
        Path | None, typer.Option(help="The weights that are to be deployed.")
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option(
            help="Their digest, in place of the weights: says nothing of other files."
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="The policy that must have been passed: a name or a YAML file."
        ),
    ] = None,
) -> None:
    """Check a signed decision offline: no server, no project folder.

    Exit 0 if it is genuine, about exactly these files, under this policy, and a pass; 1
    if not; 2 if a file cannot be read.
    """
    from cli.runs import CONFIGS
    from dptune.configfile import load_policy
    from dptune.gates.decision import GateOutcome
    from dptune.gates.signing import (
        open_envelope,
        refuse_other_files,
        refuse_other_weights,
    )

    if (model is None) == (digest is None):
        message = "must be given, or --digest in its place, and not both."
        raise ConfigError.at("--model", message)
    asked = load_policy(policy, configs=CONFIGS, key="--policy") if policy else None
    envelope, public = _read(file, "FILE"), _read(key, "--key")
    try:
        statement = open_envelope(
            envelope.decode("utf-8", errors="replace"), public_key=public
        )
        if model is not None:
            refuse_other_files(statement, _folder(model))
        else:
            refuse_other_weights(statement, str(digest))
    except ArtifactError as error:
        raise GateFailedError(f"do not deploy: {error}") from None
    _refuse_policy(statement, asked)
    decision = statement.decision
    if decision.outcome is not GateOutcome.PASS:
        failed = ", ".join(criterion.name for criterion in decision.failed())
        raise GateFailedError(
            f"do not deploy: {statement.subject} is {decision.outcome} ({failed})"
        )
    _tell(statement, by_digest=model is None, by_name=asked is None)


def _refuse_policy(statement: "Statement", policy: "GatePolicy | None") -> None:
    """Refuse a decision under another policy.

    Raises:
        GateFailedError: the digests differ.
    """
    if policy is not None and statement.decision.policy_digest != policy.digest:
        raise GateFailedError(
            f"do not deploy: {statement.subject} must have passed under policy "
            f"{policy.reference.title}, but was decided on under "
            f"{statement.decision.policy}"
        )


def _tell(statement: "Statement", *, by_digest: bool, by_name: bool) -> None:
    """Say what was verified, and what was not."""
    console, decision = speaker(), statement.decision
    console.print(
        f"{statement.subject}: PASS under policy {decision.policy}, decided "
        f"{statement.decided_at:%Y-%m-%d %H:%M} UTC, decision "
        f"{statement.decision_hash[:16]}, files {decision.manifest_digest[:16]}",
        soft_wrap=True,
    )
    if by_digest:
        console.print(
            "not checked: which files are deployed. A digest of weights says nothing "
            "of an adapter, code or settings beside them; use --model",
            style="dim",
            soft_wrap=True,
        )
    if by_name:
        console.print(
            "not checked: which policy was passed. Any file may call itself "
            f"{decision.policy_name}; use --policy, or compare the digest",
            style="dim",
            soft_wrap=True,
        )


def _folder(path: Path) -> Path:
    """Return the directory that was named on the command line.

    Raises:
        ConfigError: there is none.
    """
    if not path.is_dir():
        message = f"must be a directory, got {path.name or path}."
        raise ConfigError.at("--model", message)
    return path


def _read(file: Path, option: str) -> bytes:
    """Read a file that was named on the command line: a small and regular one.

    Raises:
        ConfigError: it is something else; reading a pipe would never end.
    """
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as source:
            is_file = stat.S_ISREG(os.fstat(source.fileno()).st_mode)
            text = source.read(_LARGEST + 1) if is_file else b""
    except OSError as error:
        why = f"{error.strerror}"
    else:
        if is_file and len(text) <= _LARGEST:
            return text
        why = f"more than {_LARGEST >> 20} MB" if is_file else "no regular file"
    raise ConfigError.at(option, f"must be a readable file, got {file.name} ({why}).")
