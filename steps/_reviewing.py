"""What people reviewed in this project, for the step that marks personal data."""

from dptune.config import TrainConfig
from dptune.errors import ConfigError
from dptune.review.lists import ListKey
from dptune.review.store import ListsOfProject, ReviewState, ReviewStore
from infra.workspace import current_workspace, read_review_key


def with_review(config: TrainConfig) -> tuple[TrainConfig, str]:
    """Name the data set's lists in a configuration, so that they decide what a run is.

    Likewise a file of known values, by its digest.

    Returns:
        the configuration, and a digest of the project's reviews, empty without any.

    Raises:
        ConfigError: the key of the lists is gone, or the file cannot be read.
        ArtifactError: a file of theirs was edited.
    """
    config = _with_values(config)
    digest = _store().digest if config.detection.use_review else ""
    state = read_review(digest)
    if state is None or config.detection.review_lists:
        return config, digest
    own = state.lists.acting_on(config.budget.data_set)
    lists = {"review_lists": own.fingerprint}
    detection = config.detection.model_copy(update=lists)
    return config.model_copy(update={"detection": detection}), digest


def _with_values(config: TrainConfig) -> TrainConfig:
    """Name the file of known values by its digest."""
    values = config.detection.known_values
    if values is None or values.digest:
        return config
    from dptune.detection.known_values import file_digest

    named = values.model_copy(update={"digest": file_digest(values.file)})
    detection = config.detection.model_copy(update={"known_values": named})
    return config.model_copy(update={"detection": detection})


def read_review(expected: str) -> ReviewState | None:
    """Read the project's reviews; None where none are expected.

    Raises:
        ConfigError: they changed since the run was started, or their key is gone.
        ArtifactError: a file of theirs was edited.
    """
    if not expected:
        return None
    workspace = current_workspace()
    if _store().digest != expected:
        raise ConfigError(
            "reviews must not be imported while a run starts, but one was. Run again."
        )
    key = read_review_key(workspace)
    if key is None:
        raise ConfigError(
            f"{workspace.review_key_file.name} must be there, because the lists of "
            "this project were made with it. Restore it, or set "
            "detection.use_review: false."
        )
    return _store().read(ListKey(secret=key))


def read_lists(expected: str) -> ListsOfProject | None:
    """Read the project's review lists; None where none are expected.

    Raises:
        as `read_review`.
    """
    state = read_review(expected)
    return state.lists if state else None


def _store() -> ReviewStore:
    return ReviewStore(current_workspace().review)
