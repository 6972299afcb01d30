"""Where a corpus comes from: a closed union of sources, told apart by `kind`.

Paths may be relative; `data_root` of the reader says to what. Nothing is opened here.
"""

import os.path
import string
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from dptune.conversation import ROLES, Role

SPLITS = ("train", "validation", "test")
TextUnit = Literal["line", "paragraph", "document"]


def _check_encoding(value: str) -> str:
    """Refuse names that Python cannot decode text with."""
    try:
        b"x".decode(value)  # empty bytes would not even look it up
    except UnicodeError:
        return value  # known, with characters of several bytes
    except (LookupError, ValueError):
        raise ValueError("must name a text encoding such as utf-8") from None
    return value


def _check_path(value: Path) -> Path:
    """Refuse paths that no file system can hold."""
    if "\0" in str(value) or not value.parts:
        raise ValueError("must be a path without NUL characters, not empty")
    return value


def _check_pattern(value: str) -> str:
    """Keep a glob pattern inside its folder."""
    path = Path(value)
    is_broken = any("**" in part and part != "**" for part in path.parts)
    if not path.parts or path.is_absolute() or ".." in path.parts or is_broken:
        raise ValueError(
            "must be a relative glob pattern without '..', with '**' on its own"
        )
    return value


def template_columns(template: str) -> tuple[str, ...]:
    """Return the column names of a text template such as `"{question} {answer}"`.

    >>> template_columns("{question} {answer}")
    ('question', 'answer')

    Raises:
        ValueError: a field is empty, or has an attribute, index, conversion or format.
    """
    columns = tuple(name for _, name in template_parts(template) if name is not None)
    if not columns:
        raise ValueError("must name at least one column in braces")
    return columns


def template_parts(template: str) -> tuple[tuple[str, str | None], ...]:
    """Return pairs of literal text and the column that follows it, None at the end.

    Raises:
        ValueError: as in `template_columns`.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        raise ValueError("must hold balanced braces; write {{ for a brace") from None
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if not name.strip() or set(".[]{}") & set(name) or spec or conversion:
            raise ValueError(
                "must hold plain column names in braces, without attribute, index, "
                "conversion or format"
            )
    return tuple((literal, name) for literal, name, _, _ in parts)


def _check_template(value: str) -> str:
    """Refuse templates that do more than join columns."""
    template_columns(value)
    return value


def _check_one_character(value: str) -> str:
    """Refuse delimiters that the csv module cannot use."""
    if len(value) != 1 or value in "\r\n\0":
        raise ValueError("must be one character, not a line end")
    return value


SourcePath = Annotated[Path, AfterValidator(_check_path)]
Encoding = Annotated[str, AfterValidator(_check_encoding)]
Template = Annotated[str, AfterValidator(_check_template)]
Character = Annotated[str, AfterValidator(_check_one_character)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
ColumnName = Annotated[str, Field(min_length=1)]
TypeName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,40}$")]
ChatColumn = Annotated[ColumnName | None, Field(exclude_if=lambda name: name is None)]
"""Left out where it is not used, so that sources of plain text are known as before."""


class _Model(BaseModel):
    """Frozen, closed, and silent about its input."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )


class _Columns(_Model):
    """Which columns hold what.

    Args:
        text_column: holds the text, unless `text_template` is set.
        text_template: joins columns, such as `"{question} {answer}"`.
        messages_column: holds conversations in the place of texts: lists of `role` and
            `content`, or of `from` and `value` (ShareGPT), or JSON of such a list.
        prompt_column, completion_column: hold what a user asks and the assistant says,
            which is a conversation too.
        tools_column: declares the functions that a conversation may call: a list of
            JSON schemas, as OpenAI's and TRL's `tools`, or JSON of it, or null.
        train_on: roles whose turns are learnt, of conversations; `all` are all.
        id_column: stable ids; without it ids are hashes of the content.
        unit_column: the privacy unit (user, document) that owns a record.
        split_column: `train`, `validation` or `test` (`valid`, `val`, `dev` too).
        label_column: class of the record, whole number or string.
        ids_are_per_split: ids start anew in every split, so `train/7` is not `test/7`.
        known_columns: by name the type of what they hold, such as `PERSON`: personal
            data of the unit, which detection finds in every record of that unit.
    """

    text_column: ColumnName = "text"
    text_template: Template | None = None
    messages_column: ChatColumn = None
    prompt_column: ChatColumn = None
    completion_column: ChatColumn = None
    tools_column: ChatColumn = None
    train_on: tuple[Role, ...] | Literal["all"] | None = Field(
        default=None, min_length=1, exclude_if=lambda roles: roles is None
    )
    id_column: ColumnName | None = None
    unit_column: ColumnName | None = None
    split_column: ColumnName | None = None
    label_column: ColumnName | None = None
    ids_are_per_split: bool = False
    known_columns: dict[ColumnName, TypeName] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        """Take text or one kind of conversations."""
        pair = (self.prompt_column, self.completion_column)
        if (pair[0] is None) != (pair[1] is None):
            raise ValueError("must set prompt_column and completion_column together")
        if self.messages_column is not None and pair[0] is not None:
            raise ValueError("must set messages_column or prompt_column, not both")
        named = {"text_column", "text_template"} & self.model_fields_set
        has_text = any(getattr(self, n) != _DEFAULTS.get(n) for n in named)
        if self.is_chat and has_text:
            raise ValueError(
                "must not set text_column or text_template beside conversations"
            )
        for name in ("train_on", "tools_column"):
            if getattr(self, name) is not None and not self.is_chat:
                raise ValueError(
                    f"must set {name} only beside messages_column or prompt_column"
                )
        return self

    @property
    def is_chat(self) -> bool:
        """Whether records are conversations."""
        return self.messages_column is not None or self.prompt_column is not None

    def text_columns(self) -> tuple[str, ...]:
        """Columns that make up the text."""
        if self.messages_column is not None:
            return (self.messages_column,)
        if self.prompt_column is not None and self.completion_column is not None:
            return (self.prompt_column, self.completion_column)
        if self.text_template is None:
            return (self.text_column,)
        return template_columns(self.text_template)

    def columns(self) -> tuple[str, ...]:
        """Every column that must be there."""
        named = (
            *(self.tools_column, self.id_column, self.unit_column),
            *(self.split_column, self.label_column),
        )
        wanted = (*self.text_columns(), *(name for name in named if name is not None))
        return tuple(dict.fromkeys((*wanted, *self.known_columns)))


_DEFAULTS = {"text_column": "text", "text_template": None}


class _Files(_Model):
    """One path for everything, or one per split.

    Args:
        path: a file (or folder) without splits.
        train: path of the training split; then `validation` and `test` may be set.
        validation: path of the validation split.
        test: path of the test split.
        encoding: of text, `utf-8` with or without a byte order mark by default.
        max_bytes: of one file, unpacked; a longer one is refused before it fills the
            memory.
    """

    path: SourcePath | None = None
    train: SourcePath | None = None
    validation: SourcePath | None = None
    test: SourcePath | None = None
    encoding: Encoding = "utf-8"
    max_bytes: int = Field(default=1 << 30, ge=1)

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        """Require `path` alone or `train` with its siblings."""
        if (self.path is None) == (self.train is None):
            raise ValueError("must set exactly one of path and train")
        if self.path is not None and (self.validation or self.test):
            raise ValueError("must set train, not path, beside validation or test")
        return self

    def files(self) -> tuple[tuple[str | None, Path], ...]:
        """Pairs of split (None if undecided) and path."""
        if self.path is not None:
            return ((None, self.path),)
        pairs = zip(SPLITS, (self.train, self.validation, self.test), strict=True)
        return tuple((split, path) for split, path in pairs if path is not None)


class _TabularFiles(_Columns, _Files):
    """Files whose records have columns."""

    @model_validator(mode="after")
    def _check_splits(self) -> Self:
        """Let either files or a column decide splits."""
        if self.train is not None and self.split_column is not None:
            raise ValueError("must not set split_column beside files per split")
        return self


class JsonlSource(_TabularFiles):
    """JSON lines, one object a line, plain or `.gz`."""

    kind: Literal["jsonl"] = "jsonl"


class _Dialect(_Model):
    """How a file delimits and quotes.

    Args:
        delimiter: one character; by default a tab for `.tsv` files, else a comma.
        quote_character: null for files that do not quote, such as SST-2.
    """

    delimiter: Character | None = None
    quote_character: Character | None = '"'

    @model_validator(mode="after")
    def _check_dialect(self) -> Self:
        """Tell fields from quotes."""
        if self.delimiter is not None and self.delimiter == self.quote_character:
            raise ValueError("must set delimiter and quote_character apart")
        return self


class CsvSource(_TabularFiles, _Dialect):
    """Delimited text with a header, plain or `.gz`."""

    kind: Literal["csv"] = "csv"


class ParquetSource(_TabularFiles):
    """Apache Parquet files."""

    kind: Literal["parquet"] = "parquet"


class TextSource(_Files):
    """Plain text, plain or `.gz`.

    Args:
        record: a line, a paragraph (lines between blank lines), or the whole file.
        position_ids: know records by file and line number. Only for files that are
            never edited: a line that is inserted renames every record behind it, and
            what was spent on them is forgotten.
    """

    kind: Literal["text"] = "text"
    record: TextUnit = "line"
    position_ids: bool = False


class FolderSource(_TabularFiles, _Dialect):
    """A folder of files of one format, read in the order of their names.

    Args:
        pattern: glob below the folder; hidden files are left out.
        format: how each file is read.
        record: for text, what a record is.
    """

    kind: Literal["folder"] = "folder"
    pattern: Pattern = "**/*.txt"
    format: Literal["text", "jsonl", "csv", "parquet"] = "text"
    record: TextUnit = "document"

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        """Take conversations from columns alone."""
        if self.is_chat and self.format == "text":
            raise ValueError(
                "must set format to jsonl, csv or parquet for conversations"
            )
        return self


class HubSource(_Columns):
    """A Hugging Face data set, by hub id or local directory. No code of it is run.

    Args:
        name: hub id such as `stanfordnlp/imdb`, or a directory.
        config: configuration (subset) of the data set.
        revision: commit, tag or branch; pin a commit to get the same data again.
        split: one split to take everything from.
        train: name of the training split; then `validation` and `test` may be set.
        validation: name of the validation split.
        test: name of the test split.
    """

    kind: Literal["hub"] = "hub"
    name: str = Field(min_length=1, pattern=r"^[^\x00]+$")
    config: str | None = None
    revision: str | None = None
    split: str | None = None
    train: str | None = None
    validation: str | None = None
    test: str | None = None

    @model_validator(mode="after")
    def _check_splits(self) -> Self:
        """Require `split` alone or `train` with its siblings."""
        if (self.split is None) == (self.train is None):
            raise ValueError("must set exactly one of split and train")
        if self.split is not None and (self.validation or self.test):
            raise ValueError("must set train, not split, beside validation or test")
        if self.train is not None and self.split_column is not None:
            raise ValueError("must not set split_column beside splits by name")
        return self

    def splits(self) -> tuple[tuple[str | None, str], ...]:
        """Pairs of split (None if undecided) and its name on the hub."""
        if self.split is not None:
            return ((None, self.split),)
        pairs = zip(SPLITS, (self.train, self.validation, self.test), strict=True)
        return tuple((split, name) for split, name in pairs if name is not None)


class SyntheticSource(_Model):
    """Invented customer-service dialogues with known personal data.

    Args:
        num_records: how many dialogues.
        private: with personal data, or the public half without.
        seed: decides every word.
    """

    kind: Literal["synthetic"] = "synthetic"
    num_records: int = Field(default=1000, ge=1, le=1_000_000)
    private: bool = True
    seed: int = Field(default=0, ge=0)


TabularFileSource = JsonlSource | CsvSource | ParquetSource
FileSource = TabularFileSource | TextSource
DataSource = Annotated[
    JsonlSource
    | CsvSource
    | ParquetSource
    | TextSource
    | FolderSource
    | HubSource
    | SyntheticSource,
    Field(discriminator="kind"),
]


def learnt_roles(source: DataSource) -> tuple[str, ...]:
    """Roles whose turns have a loss; none of plain text."""
    if not isinstance(source, _Columns) or not source.is_chat:
        return ()
    return ROLES if source.train_on == "all" else source.train_on or ("assistant",)


def describe_source(source: DataSource) -> str:
    """Name a source in one line, without machine paths."""
    match source:
        case HubSource():
            name = Path(source.name).name if Path(source.name).is_absolute() else None
            parts = [name or source.name, source.config, source.revision]
            names = "@".join(part for part in parts if part)
        case SyntheticSource():
            half = "private" if source.private else "public"
            names = f"{source.num_records} {half} dialogues, seed {source.seed}"
        case _:
            names = ", ".join(display_name(path) for _, path in source.files())
    return f"{source.kind}: {names}"


def shares_data(one: DataSource, other: DataSource) -> bool:
    """Tell whether two sources are one, or name a file or a data set in common.

    Looks at names alone: the preflight compares texts, so that it finds copies.

    >>> one, other = JsonlSource(path="a.jsonl"), JsonlSource(train="./a.jsonl")
    >>> shares_data(one, other), shares_data(one, JsonlSource(path="b.jsonl"))
    (True, False)
    """
    return one == other or bool(_names_of(one) & _names_of(other))


def _names_of(source: DataSource) -> frozenset[str]:
    """Name the files of a source, or what the hub or the generator calls it."""
    match source:
        case HubSource():
            parts = [part for _, part in source.splits()]
            return frozenset(f"{source.name}@{source.config}@{p}" for p in parts)
        case SyntheticSource():
            return frozenset([f"synthetic@{source.private}@{source.seed}"])
        case FolderSource():
            paths = [path / source.pattern for _, path in source.files()]
        case _:
            paths = [path for _, path in source.files()]
    return frozenset(map(os.path.normpath, paths))


def display_name(path: Path) -> str:
    """Name a file in messages: as configured, or its last part if absolute."""
    return path.name if path.is_absolute() else path.as_posix()
