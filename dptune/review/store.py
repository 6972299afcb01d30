"""Samples, decisions and lists of a project, in one private folder.

No file holds text: sentences are places and keyed hashes, decisions are ranges, list
entries are keyed hashes. What a gate may rely on is sealed with the review key, so that
a figure that was edited by hand is refused.
"""

import fcntl
import hmac
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError

from dptune.accounting.assumptions import Assumption
from dptune.detection.recognizer import fingerprint_of
from dptune.errors import ArtifactError, ConfigError
from dptune.files import replacing
from dptune.results import Interval, Report
from dptune.review.decisions import Verdict
from dptune.review.lists import (
    DenyEntry,
    ListKey,
    ReviewLists,
    check_key,
    extended,
    united,
)
from dptune.review.sample import SampledSentence

RecordT = TypeVar("RecordT", bound="_Sealed")


class _Sealed(Report):
    """A record with a seal: HMAC of everything else in it."""

    seal: str = ""

    def sealed(self, key: ListKey) -> Self:
        """Return the record with its seal."""
        return self.model_copy(update={"seal": self._seal(key)})

    def check_seal(self, key: ListKey, name: str) -> Self:
        """Return the record if its seal is its own.

        Raises:
            ArtifactError: it was edited, or the key is another one.
        """
        if not hmac.compare_digest(self.seal, self._seal(key)):
            raise ArtifactError(
                f"{name} must carry the seal of this project's review key, but does "
                "not: it was edited, or the key was replaced. Restore both, or export "
                "a new sample."
            )
        return self

    def _seal(self, key: ListKey) -> str:
        body = self.model_copy(update={"seal": ""})._body()
        return key.name(f"seal {type(self).__name__}", body)

    def _body(self) -> str:
        """Return what the seal is over."""
        return self.model_dump_json()


class SampleRecord(_Sealed):
    """An exported sample: where its sentences stand, and what marked them.

    Args:
        id: of the sample.
        config: name of the configuration that it was drawn for.
        data: settings that the corpus is read by.
        corpus: fingerprint of the corpus.
        detector: fingerprint of the detector without lists.
        recognizers: their names, for people.
        lists: as they were when the sample was drawn.
        sizes: sentences of each stratum in the training split.
        created: UTC, ISO 8601.
        screened: these are all sentences of the part that a stage trains on without
            noise, for people to read. Its rate is that of the part, not of the corpus.
        data_set: whose records these are, as the budget knows them; empty in samples of
            before lists belonged to a data set.
    """

    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    config: str
    data: dict[str, Any] = Field(repr=False)
    corpus: str
    detector: str
    tier: str
    recognizers: tuple[str, ...]
    lists: ReviewLists = ReviewLists()
    sizes: dict[str, int]
    sentences: tuple[SampledSentence, ...]
    created: str
    screened: bool = False
    data_set: str = ""

    def _body(self) -> str:
        """Leave newer fields out where they are empty: older seals stay valid."""
        newest: dict[str, Any] = {
            name: True for name in ("screened", "data_set") if not getattr(self, name)
        }
        unset = {"language": "", "stands_for": None}
        missing = {
            name
            for name, empty in unset.items()
            if all(getattr(one, name) == empty for one in self.sentences)
        }
        if missing:
            newest["sentences"] = {"__all__": missing}
        return self.model_dump_json(exclude=newest)


class LanguageRate(Report):
    """The missing rate in the sentences of one language.

    Args:
        rate: missed sensitive words / all words.
        num_texts: records or sentences that it was measured on.
    """

    rate: float
    interval: Interval
    num_texts: int


class ReviewRecord(_Sealed):
    """Decisions on a sample, and what they say once every sentence is decided.

    Args:
        sample: id of the sample.
        verdicts: by sentence.
        rate: missed sensitive words / all words; None while sentences are open.
        lists: with which the rate holds.
        num_missed: words.
        imported: UTC, ISO 8601.
        public: whoever imported them declared that the phrases are public.
        by_language: rates of single languages, where the sample has several.
    """

    sample: str
    verdicts: dict[str, Verdict] = Field(repr=False)
    rate: float | None = None
    interval: Interval | None = None
    lists: ReviewLists = ReviewLists()
    num_missed: int = 0
    num_false_alarms: int = 0
    num_charged: int = 0
    imported: str
    public: bool = False
    by_language: dict[str, LanguageRate] = Field(default_factory=dict)

    def _body(self) -> str:
        """Leave newer fields out where they are empty: older seals stay valid."""
        newest = {name for name in ("public", "by_language") if not getattr(self, name)}
        return self.model_dump_json(exclude=newest)


class ListsOfProject(Report):
    """All lists of a project.

    Phrases that were read in records act on the data set of these records alone:
    elsewhere they would carry what one data set holds into a model of another, whose
    budget knows nothing of it.

    Args:
        of_data_set: by the name that the budget knows the data set by.
        public: phrases that were declared public; they act everywhere.
    """

    of_data_set: dict[str, ReviewLists] = Field(default_factory=dict)
    public: ReviewLists = ReviewLists()

    def acting_on(self, data_set: str) -> ReviewLists:
        """Return all phrases that act on a data set."""
        return united(self.of_data_set.get(data_set, ReviewLists()), self.public)

    def assumptions(self, data_set: str) -> tuple[Assumption, ...]:
        """Name what marks by these lists rest on."""
        found = []
        if self.acting_on(data_set).fingerprint != self.public.fingerprint:
            found.append(Assumption.PRIVATE_REVIEW_LISTS)
        if self.public.fingerprint:
            found.append(Assumption.PUBLIC_REVIEW_LISTS)
        return tuple(found)

    def extended(
        self,
        data_set: str,
        key: ListKey,
        *,
        public: bool,
        allow: Iterable[str],
        deny: Iterable[DenyEntry],
    ) -> "ListsOfProject":
        """Add entries to the list of a data set, or to the public one."""
        if public:
            longer = extended(self.public, key, allow=allow, deny=deny)
            return self.model_copy(update={"public": longer})
        own = self.of_data_set.get(data_set, ReviewLists())
        longer = extended(own, key, allow=allow, deny=deny)
        return self.model_copy(
            update={"of_data_set": {**self.of_data_set, data_set: longer}}
        )


@dataclass(frozen=True, kw_only=True)
class ReviewState:
    """All that was reviewed, oldest first, and the lists as they are now.

    Args:
        finished: corpora of the samples whose reviews were finished, oldest first, also
            of those that are not there any more; none of before this was noted.
    """

    key: ListKey
    lists: ListsOfProject
    finished: Mapping[str, str] = field(default_factory=dict)
    samples: tuple[SampleRecord, ...] = ()
    reviews: tuple[ReviewRecord, ...] = ()

    def review(self, sample: str) -> ReviewRecord | None:
        """Return the decisions on a sample."""
        return next((r for r in self.reviews if r.sample == sample), None)

    def sample(self, name: str) -> SampleRecord:
        """Return a sample by its id.

        Raises:
            ConfigError: there is none.
        """
        for record in self.samples:
            if record.id == name:
                return record
        raise ConfigError.at(
            "sample",
            f"must be one of the {len(self.samples)} exported samples "
            "of this project, but is not.",
            "`dptune review status` lists them.",
        )


class ReviewStore:
    """The folder. Nothing is created before the first write.

    Args:
        folder: private; files are for their owner alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def digest(self) -> str:
        """Digest of everything in the store; empty where there is nothing."""
        files = [p for p in sorted(self._folder.rglob("*.json")) if p.is_file()]
        parts = [str(p.relative_to(self._folder)) for p in files]
        bodies = [p.read_text(encoding="utf-8", errors="replace") for p in files]
        return fingerprint_of((*parts, *bodies)) if files else ""

    def read(self, key: ListKey) -> ReviewState:
        """Read and check everything.

        Raises:
            ArtifactError: a file is damaged, edited, gone, or sealed with another key.
            ConfigError: the lists were made with another key, or before lists belonged
                to a data set.
        """
        file = self._folder / "lists.json"
        lists = _Lists()
        if file.is_file():
            lists = _load(_Lists, file).check_seal(key, file.name)
        _refuse_homeless(lists)
        check_key(lists.of_project.public, key)
        for own in lists.of_project.of_data_set.values():
            check_key(own, key)
        samples = self._all(SampleRecord, "samples", key)
        reviews = self._all(ReviewRecord, "reviews", key)
        if reviews and not file.is_file():
            raise ArtifactError(
                "lists.json must be there beside reviews, but is not. Restore it, or "
                "move the folder reviews away too, and review a new sample."
            )
        return ReviewState(
            key=key,
            lists=lists.of_project,
            finished=lists.finished,
            samples=tuple(sorted(samples, key=lambda sample: sample.created)),
            reviews=tuple(sorted(reviews, key=lambda review: review.imported)),
        )

    def add_sample(self, record: SampleRecord, key: ListKey) -> None:
        """Keep an exported sample."""
        self._write("samples", record.id, record.sealed(key))

    def add_review(
        self,
        record: ReviewRecord,
        key: ListKey,
        *,
        lists: ListsOfProject,
        finished: Mapping[str, str],
    ) -> None:
        """Keep decisions and what goes with them, see `ReviewState`: that goes first.

        A crash between the two leaves more marked or less, and no rate: never a rate
        of lists that are not there.
        """
        known = _Lists(of_project=lists, finished=dict(finished))
        self._write("", "lists", known.sealed(key))
        self._write("reviews", record.sample, record.sealed(key))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other imports out while one reads and writes."""
        self._make("")
        with (self._folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _all(self, kind: type[RecordT], name: str, key: ListKey) -> list[RecordT]:
        files = sorted((self._folder / name).glob("*.json"))
        return [_load(kind, file).check_seal(key, file.name) for file in files]

    def _make(self, folder: str) -> Path:
        """Make a folder for its owner alone."""
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(exist_ok=True, mode=0o700)
        home = self._folder / folder
        home.mkdir(exist_ok=True, mode=0o700)
        return home

    def _write(self, folder: str, name: str, record: Report) -> None:
        """Replace a file as a whole; only its owner may read it."""
        home = self._make(folder)
        write_private(home / f"{name}.json", record.model_dump_json(indent=1))


class _Lists(_Sealed):
    """The file of lists; `lists` held them before they belonged to a data set."""

    lists: ReviewLists = ReviewLists()
    of_project: ListsOfProject = ListsOfProject()
    finished: dict[str, str] = Field(default_factory=dict)

    def _body(self) -> str:
        """Leave newer fields out where they are empty: older seals stay valid."""
        newest = {"of_project"} if self.of_project == ListsOfProject() else set()
        if not self.finished:
            newest.add("finished")
        return self.model_dump_json(exclude=newest)


def _refuse_homeless(file: _Lists) -> None:
    """Refuse lists of which nobody knows whose records they were read off."""
    if file.lists.fingerprint:
        raise ConfigError(
            "lists.json must say of which data set each list is, but was made before "
            "lists belonged to one: it acted on every corpus of the project. Move the "
            "file and the folder reviews away, export a new sample (`dptune review "
            "export`) and import its decisions; or set detection.use_review: false."
        )


def write_private(file: Path, content: str) -> None:
    """Write a file as a whole, mode 0600 from its first byte."""
    with replacing(file) as half:
        handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as sink:
            sink.write(content)


def _load(kind: type[RecordT], file: Path) -> RecordT:
    try:
        return kind.model_validate_json(file.read_bytes())
    except (ValidationError, OSError):
        raise ArtifactError(
            f"{file.name} must be a {kind.__name__.strip('_')} of this version, but "
            "is not. Restore it, or export a new sample."
        ) from None


def open_sentences(sample: SampleRecord, review: ReviewRecord | None) -> Sequence[str]:
    """Return ids of sentences without a verdict."""
    decided = review.verdicts if review else {}
    return [s.id for s in sample.sentences if s.id not in decided]
