"""What a reviewer decided, read from a file that nobody vouches for."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dptune.errors import DataError, Problem
from dptune.results import Report
from dptune.review.masking import placeholders_of, to_original
from dptune.review.sample import SampledSentence

FORMAT: Final = "dptune-review-decisions"
MOST_CHARACTERS: Final = 50_000_000


class Place(BaseModel):
    """A range of code points of a sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    start: int = Field(ge=0, strict=True)
    end: int = Field(ge=1, strict=True)


class Decision(BaseModel):
    """What was decided on one sentence; nothing in it quotes the text.

    Args:
        id: of the sentence.
        missed: what should have been marked.
        false_alarms: marks that need not be, exactly as they were shown.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    missed: tuple[Place, ...] = ()
    false_alarms: tuple[Place, ...] = ()


class DecisionFile(BaseModel):
    """The file that the review page saves.

    Args:
        sample: id of the exported sample.
        view: what the ranges speak of: the sentence, or the masked one of the JSON
            lines.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    format: Literal["dptune-review-decisions"]
    version: Literal[1]
    sample: str = Field(pattern=r"^[0-9a-f]{16}$")
    view: Literal["original", "masked"] = "original"
    decisions: tuple[Decision, ...]


class Verdict(Report):
    """A checked decision, in code points of the original sentence.

    Args:
        missed: half-open ranges.
        false_alarms: numbers of the sentence's marks.
    """

    missed: tuple[tuple[int, int], ...] = ()
    false_alarms: tuple[int, ...] = ()


def read_decisions(content: bytes) -> DecisionFile:
    """Parse a file of decisions.

    Raises:
        DataError: with everything that is wrong with its form, and none of its content.
    """
    if len(content) > MOST_CHARACTERS:
        raise _unusable(f"must be at most {MOST_CHARACTERS:,} bytes long.")
    try:
        values = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _unusable("must be JSON in UTF-8, but is not.") from None
    try:
        return DecisionFile.model_validate(values)
    except ValidationError as error:
        raise DataError(
            [
                Problem(
                    path=_path(detail["loc"]),
                    message=f"{detail['msg']}.",
                    next_step="Save the file from the review page again.",
                )
                for detail in error.errors(include_input=False, include_url=False)
            ]
        ) from None


def check_decisions(
    file: DecisionFile, sentences: Sequence[SampledSentence]
) -> dict[str, Verdict]:
    """Check decisions against the sample that they speak of.

    Returns:
        verdicts by the id of their sentence.

    Raises:
        DataError: with every decision that does not fit, by its number in the file.
    """
    known = {sentence.id: sentence for sentence in sentences}
    times = Counter(decision.id for decision in file.decisions)
    problems: list[Problem] = []
    verdicts: dict[str, Verdict] = {}
    for number, decision in enumerate(file.decisions):
        where = f"decisions[{number}]"
        sentence = known.get(decision.id)
        if sentence is None:
            problems.append(
                Problem(
                    path=f"{where}.id",
                    message="must be a sentence of the sample, but is not.",
                    next_step="Import the decisions of this sample's own page.",
                )
            )
            continue
        if times[decision.id] > 1:
            problems.append(
                Problem(path=f"{where}.id", message="must be there once, but is not.")
            )
        problems += _problems(where, decision, sentence, view=file.view)
        if not problems:
            verdicts[decision.id] = _verdict(decision, sentence, view=file.view)
    if not file.decisions:
        problems.append(
            Problem(
                path="decisions",
                message="must hold at least one decision, got none.",
                next_step="Approve or correct sentences on the page, then save.",
            )
        )
    if problems:
        raise DataError(problems)
    return verdicts


def _problems(
    where: str, decision: Decision, sentence: SampledSentence, *, view: str
) -> list[Problem]:
    """Report ranges that do not fit their sentence."""
    length = sentence.end - sentence.start
    shown = _shown_marks(sentence, view)
    if view == "masked":
        length += sum((high - low) for low, high in shown)
        length -= sum(mark.end - mark.start for mark in sentence.marks)
    problems = [
        Problem(
            path=f"{where}.missed[{i}]",
            message=f"must lie in [0, {length}) with start < end, got "
            f"[{place.start}, {place.end}).",
        )
        for i, place in enumerate(decision.missed)
        if not place.start < place.end <= length
    ]
    problems += [
        Problem(
            path=f"{where}.false_alarms[{i}]",
            message=f"must be one of the sentence's {len(shown)} marks, got "
            f"[{place.start}, {place.end}).",
        )
        for i, place in enumerate(decision.false_alarms)
        if (place.start, place.end) not in shown
    ]
    firm = [mark.firm for mark in sentence.marks]
    problems += [
        Problem(
            path=f"{where}.false_alarms[{i}]",
            message="must not be a mark with a valid checksum, but is.",
            next_step="Such marks stay; take it out of the file.",
        )
        for i, place in enumerate(decision.false_alarms)
        if (place.start, place.end) in shown
        and firm[shown.index((place.start, place.end))]
    ]
    return problems


def _verdict(decision: Decision, sentence: SampledSentence, *, view: str) -> Verdict:
    """Restate a decision in code points of the sentence."""
    shown = _shown_marks(sentence, view)
    missed = [(place.start, place.end) for place in decision.missed]
    if view == "masked":
        missed = [to_original(place, sentence.marks) for place in missed]
    alarms = {shown.index((p.start, p.end)) for p in decision.false_alarms}
    return Verdict(
        missed=tuple(sorted(set(missed))), false_alarms=tuple(sorted(alarms))
    )


def _shown_marks(sentence: SampledSentence, view: str) -> list[tuple[int, int]]:
    if view == "masked":
        return [shown for shown, _ in placeholders_of(sentence.marks)]
    return [(mark.start, mark.end) for mark in sentence.marks]


def _path(location: Sequence[int | str]) -> str:
    """Write a location as a path; keys that a file invents are not quoted."""
    names = {*DecisionFile.model_fields, *Decision.model_fields, *Place.model_fields}
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if part in names else ".(unknown key)"
    return path.removeprefix(".") or "file"


def _unusable(message: str) -> DataError:
    return DataError([Problem(path="file", message=message)])


def merged(
    earlier: Mapping[str, Verdict], later: Mapping[str, Verdict]
) -> dict[str, Verdict]:
    """Put two imports together; the later one decides."""
    return {**earlier, **later}
