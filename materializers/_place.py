"""Where the files of an artifact are, and whether they are what was saved."""

from typing import Final

from dptune.errors import ArtifactError

failures: Final[list[BaseException]] = []
"""What ended a step of this process. ZenML's local orchestrator drops it, and calls no
hook of the step where an input could not be loaded."""


def file_of(uri: str, name: str) -> str:
    """Return the place of one file; the two slashes of `s3://` must stay two.

    Args:
        uri: of the artifact, as ZenML gives it.
        name: of the file.
    """
    return f"{uri.rstrip('/')}/{name}"


def refuse_changed(uri: str, found: str, *, saved: str | None) -> None:
    """Refuse an artifact that is not what ZenML's database noted when it was saved.

    Who may write to the artifact store need not be able to write there: another run's
    canaries or corpus would let a model pass for one that knows none of its own.

    Args:
        uri: of the artifact.
        found: hash of what lies there.
        saved: as ZenML hands it over; None where it noted none.

    Raises:
        ArtifactError: they differ; names the output of the step.
    """
    if saved is not None and saved != found:
        raise refused(
            f"artifact {name_of(uri)} must be what its step wrote, {saved[:16]}, but "
            f"was changed since, to {found[:16]}. Restore the artifact store, or run "
            "without ZenML's cache."
        )


def refused(message: str) -> ArtifactError:
    """Return an error of an artifact, and keep it for the command line."""
    failures.append(error := ArtifactError(message))
    return error


def name_of(uri: str) -> str:
    """Name the step and the output that an artifact is of, for a message."""
    return "/".join(uri.rstrip("/").split("/")[-4:-2])
