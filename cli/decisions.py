"""The `verify-decision` command: for deploy jobs, offline."""

from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from dptune.errors import ArtifactError, ConfigError, GateFailedError, Problem
from dptune.gates.decision import GateOutcome
from dptune.gates.signing import open_envelope


def verify_file(
    file: Path, *, key: Path, model: Path | None, digest: str | None
) -> None:
    """Check that a decision is genuine, about these weights, and a pass.

    Args:
        file: the signed decision.
        key: public key of the signer.
        model: directory of the weights.
        digest: of the weights, in their place.

    Raises:
        GateFailedError: any of the three is not so.
        ConfigError: a file cannot be read, or weights and digest are both or neither
            given.
    """
    if (model is None) == (digest is None):
        message = "exactly one of --model and --digest must be given."
        raise ConfigError([Problem(path="--model", message=message)])
    envelope, public = _read(file, "FILE"), _read(key, "--key")
    wanted = digest if model is None else _digest_of(model)
    try:
        statement = open_envelope(
            envelope.decode("utf-8", errors="replace"),
            public_key=public,
            model_digest=str(wanted),
        )
    except ArtifactError as error:
        raise GateFailedError(f"do not deploy: {error}") from None
    decision = statement.decision
    name = f"version {statement.model_version} of {statement.model_name}"
    if decision.outcome is not GateOutcome.PASS:
        failed = ", ".join(criterion.name for criterion in decision.failed())
        raise GateFailedError(f"do not deploy: {name} is {decision.outcome} ({failed})")
    Console(highlight=False).print(
        f"{name}: PASS under policy {decision.policy_name} version "
        f"{decision.policy_version}, decided {statement.decided_at:%Y-%m-%d %H:%M} "
        f"UTC, decision {statement.decision_hash[:16]}",
        soft_wrap=True,
    )


def _read(file: Path, option: str) -> bytes:
    """Read a file that was named on the command line."""
    try:
        return file.read_bytes()
    except OSError as error:
        message = f"must be a readable file, got {file.name} ({error.strerror})."
        raise ConfigError([Problem(path=option, message=message)]) from None


def _digest_of(folder: Path) -> str:
    """Digest weights as they lie in a model directory, or as MLflow lays them out."""
    from dptune.models.digest import model_digest

    parts = (folder / "model", folder / "components" / "tokenizer")
    if not all(part.is_dir() for part in parts):
        return model_digest(folder)
    with TemporaryDirectory(prefix="dptune-") as name:
        for part in parts:
            for source in part.iterdir():
                link = Path(name) / source.name
                link.unlink(missing_ok=True)  # the tokenizer's files win, as they do
                link.symlink_to(source.resolve())  # where the digest was made
        return model_digest(Path(name))
