"""Sources from mappings, and what they hold without being made a corpus."""

from collections.abc import Mapping
from pathlib import Path

import datasets
from pydantic import TypeAdapter, ValidationError

from dptune.data.checks import check_records, to_dataset
from dptune.data.readers import read_records
from dptune.data.records import ProblemLog
from dptune.data.source import DataSource
from dptune.errors import ConfigError, Problem

_ADAPTER: TypeAdapter[DataSource] = TypeAdapter(DataSource)


def parse_source(value: Mapping[str, object]) -> DataSource:
    """Turn a mapping, as read from YAML, into a source; errors as a configuration's."""
    try:
        return _ADAPTER.validate_python(value)
    except ValidationError as error:
        problems = [
            Problem(
                path=".".join(("data", *(str(part) for part in detail["loc"]))),
                message=f"{detail['msg'].removeprefix('Value error, ')}.",
            )
            for detail in error.errors(include_input=False, include_url=False)
        ]
    raise ConfigError(problems)


def read_source(
    source: DataSource, *, data_root: Path | None = None
) -> datasets.Dataset:
    """Read a source into the columns `id, text, unit_id`, nothing dropped or split."""
    log = ProblemLog()
    raw = read_records(source, data_root=data_root, log=log)
    records = check_records(raw, log=log)
    log.raise_if_any()
    with_split = any(record.split is not None for record in records)
    return to_dataset(records, with_split=with_split)
