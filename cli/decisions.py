"""The `verify-decision` command: for deploy jobs, offline."""

import os
import stat
from pathlib import Path
from typing import Final

from rich.console import Console

from cli.runs import CONFIGS
from dptune.configfile import load_policy
from dptune.errors import ArtifactError, ConfigError, GateFailedError
from dptune.gates.decision import GateOutcome
from dptune.gates.policy import GatePolicy
from dptune.gates.signing import (
    Statement,
    open_envelope,
    refuse_other_files,
    refuse_other_weights,
)

_LARGEST: Final = 1 << 24
"""Bytes of a decision or key: a hundred times the largest that was seen."""


def verify_file(
    file: Path,
    *,
    key: Path,
    model: Path | None,
    digest: str | None,
    policy_name: str | None = None,
) -> None:
    """Check that a decision is genuine, about these files, and a pass.

    Args:
        file: the signed decision.
        key: public key of the signer.
        model: directory of the version, as MLflow keeps it or as a plain model.
        digest: of the weights, in its place; says nothing of other files.
        policy_name: the policy that must have been passed, or its file.

    Raises:
        GateFailedError: any of it is not so.
        ConfigError: a file cannot be read, or weights and digest are both or neither
            given.
    """
    if (model is None) == (digest is None):
        message = "exactly one of --model and --digest must be given."
        raise ConfigError.at("--model", message)
    policy = (
        load_policy(policy_name, configs=CONFIGS, key="--policy")
        if policy_name
        else None
    )
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
    _refuse_policy(statement, policy)
    decision = statement.decision
    if decision.outcome is not GateOutcome.PASS:
        failed = ", ".join(criterion.name for criterion in decision.failed())
        raise GateFailedError(
            f"do not deploy: {statement.subject} is {decision.outcome} ({failed})"
        )
    _tell(statement, by_digest=model is None, by_name=policy is None)


def _refuse_policy(statement: Statement, policy: GatePolicy | None) -> None:
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


def _tell(statement: Statement, *, by_digest: bool, by_name: bool) -> None:
    """Say what was verified, and what was not."""
    console, decision = Console(highlight=False), statement.decision
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
