"""Read a Hugging Face data set by name, without running its code."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import datasets

from dptune.data.files import locate
from dptune.data.parsers import check_columns
from dptune.data.problems import ProblemLog
from dptune.data.source import HubSource, describe_source
from dptune.errors import DependencyError

_FAILURES = (
    OSError,  # ConnectionError, FileNotFoundError, hub HTTP errors
    ValueError,  # unknown configuration or split
    RuntimeError,  # data sets that need code
    datasets.exceptions.DatasetsError,
    datasets.exceptions.DatasetGenerationError,
)


def read_hub(
    source: HubSource, *, data_root: Path | None, log: ProblemLog
) -> Iterator[tuple[str | None, int, Mapping[str, object]]]:
    """Yield split, row number and columns of every row.

    Privacy: the Hugging Face cache keeps a copy of the data set on disk, in plain text.

    Raises:
        DependencyError: the data set cannot be fetched, here or now.
    """
    if not _stays_inside(source, data_root, log):
        return
    for split, name in source.splits():
        dataset = _load(source, split=name, data_root=data_root)
        location = f"{describe_source(source)} split {name}"
        wanted = source.columns()
        if not check_columns(dataset.column_names, wanted, name=location, log=log):
            continue
        if dataset.num_rows == 0:
            log.add(location, "must not be empty, got 0 rows.", "Choose another split.")
        for number, row in enumerate(dataset.select_columns(list(wanted)), start=1):
            yield split, number, row


def _stays_inside(source: HubSource, data_root: Path | None, log: ProblemLog) -> bool:
    """Whether a data set's name is no directory outside the data root."""
    local = Path(source.name) if data_root is None else data_root / source.name
    if not local.is_dir():
        return True
    name = describe_source(source)
    return locate(Path(source.name), data_root, name=name, log=log) is not None


def _load(source: HubSource, *, split: str, data_root: Path | None) -> datasets.Dataset:
    """Load one split; the cause of a failure is dropped since it may quote rows."""
    local = Path(source.name) if data_root is None else data_root / source.name
    try:
        return datasets.load_dataset(
            str(local) if local.is_dir() else source.name,
            name=source.config,
            revision=source.revision,
            split=split,
        )
    except _FAILURES as error:
        failure = type(error).__name__
    raise DependencyError(
        f"data.name must be a data set that can be loaded, got {source.name!r} "
        f"(config {source.config}, split {split}, revision {source.revision}): "
        f"{failure}. Check name, config and split; without a network, download it "
        f"elsewhere with `hf download {source.name} --repo-type dataset --local-dir "
        "DIR` and set data.name to that directory."
    )
