"""Sources from mappings, and what they hold without being made a corpus."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import datasets
import numpy as np
from pydantic import TypeAdapter, ValidationError

from dptune.data.checks import check_columns, check_records
from dptune.data.engine import open_engine
from dptune.data.readers import read_records
from dptune.data.records import ProblemLog, RawRecord
from dptune.data.source import DataSource, learnt_roles
from dptune.data.table import UNDECIDED, RecordTable, TableWriter, split_code
from dptune.data.written import write_records
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
    with open_engine(None) as engine:
        writer = TableWriter(engine, None, is_chat=bool(learnt_roles(source)))
        raw = read_records(source, data_root=data_root, log=log)
        table = check_records(raw, writer=writer, log=log)
        check_columns(table, log=log)
        log.raise_if_any()
        with_split = bool((table.splits != UNDECIDED).any())
        placed = np.maximum(table.splits, 0)
        written = write_records(table, placed, folder=None, with_split=with_split)
        return written.dataset()


def written_table(
    engine, rows: Iterable[tuple[str, str, str, str | None]], *, is_chat: bool = False
) -> RecordTable:
    """Write sound records of id, text, unit and split as a checked table."""
    writer = TableWriter(engine, None, is_chat=is_chat)
    for number, (name, text, unit, split) in enumerate(rows, start=1):
        writer.table.num_read += 1
        if split is not None:
            writer.table.named.add(split)
        writer.add(
            RawRecord(file="a", row=number, text=text, id=name),
            text=text,
            identifier=name,
            unit=unit,
            split=split_code(split),
            label=None,
            label_kind=0,
            is_whole=False,
            is_broken=False,
            known=None,
        )
    return writer.close()
