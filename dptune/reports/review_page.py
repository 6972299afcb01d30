"""The page on which a person reads sampled sentences and says what was missed.

**Privacy.** It is the one page that quotes record text, for a person who may read the
corpus. It is never an artifact: the command line writes it where its user says, for the
user alone. It asks no network for anything (a content security policy forbids it),
keeps nothing in the browser, and what it saves are places and numbers.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from dptune.reports.render import TEMPLATES, environment
from dptune.review.crosscheck import CheckedSentence
from dptune.review.sample import Excerpt, masked
from dptune.review.store import SampleRecord

_MEANINGS: Final = {
    "low_entity": "names of persons, organizations and places, dates, and everything "
    "that identifies, such as addresses, numbers and ids.",
    "high_entity": "all names and numbers: persons, organizations, places, dates, "
    "times, amounts, products, events, works, laws, and everything that identifies.",
    "low_contextual": "all names and numbers, and also pronouns, subjects and objects.",
    "high_contextual": "all names and numbers, pronouns, subjects, objects, and verbs.",
}


def review_page(
    record: SampleRecord,
    excerpts: Sequence[Excerpt],
    *,
    opinions: Mapping[str, CheckedSentence] | None = None,
) -> str:
    """Return the page as one self-contained HTML document.

    Args:
        record: the sample.
        excerpts: its sentences, in the order in which they are shown.
        opinions: of a language model, by sentence; a hint, which decides nothing.
    """
    script = (TEMPLATES / "review.js").read_text(encoding="utf-8")
    css = (TEMPLATES / "review.css").read_text(encoding="utf-8")
    template = environment().get_template("review.html.j2")
    return template.render(
        policy=_policy(script, css),
        css=Markup(css),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        data=Markup(_data(record, excerpts, opinions or {})),  # noqa: S704 - JSON without `<`
        count=len(excerpts),
        config=record.config,
        sample=record.id,
        recognizers=", ".join(record.recognizers),
        tier=record.tier.replace("_", " "),
        meaning=_MEANINGS[record.tier],
    )


def masked_lines(excerpts: Sequence[Excerpt]) -> Iterator[str]:
    """Yield one JSON line for each sentence, with placeholders for what was marked.

    **Formal guarantee.** No code point of a mark is in a line. What the detector missed
    is: that is what readers look for, so the lines are as private as the corpus.
    """
    for excerpt in excerpts:
        shown = masked(excerpt)
        yield json.dumps(
            {
                "id": excerpt.sentence.id,
                "stratum": excerpt.sentence.stratum,
                "text": shown.text,
                "marks": [
                    {"start": start, "end": end}
                    for (start, end), _ in shown.placeholders
                ],
            },
            ensure_ascii=False,
        )


def _policy(script: str, css: str) -> str:
    """Allow the page's own script and style, by their hashes, and nothing else."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src "
        f"'{_digest(css)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _data(
    record: SampleRecord,
    excerpts: Sequence[Excerpt],
    opinions: Mapping[str, CheckedSentence],
) -> str:
    """Write the sentences as JSON that cannot end its element."""
    values: dict[str, Any] = {
        "sample": record.id,
        "items": [
            {
                "id": excerpt.sentence.id,
                "text": excerpt.text,
                "before": excerpt.before[-400:],
                "after": excerpt.after[:400],
                "marks": [
                    [mark.start, mark.end, mark.entity_type, mark.firm]
                    for mark in excerpt.sentence.marks
                ],
                **_hint(opinions.get(excerpt.sentence.id)),
            }
            for excerpt in excerpts
        ],
    }
    return json.dumps(values).replace("<", "\\u003c")


def _hint(found: CheckedSentence | None) -> dict[str, Any]:
    """Say what a language model thinks of a sentence."""
    if found is None:
        return {"hint": "", "doubts": []}
    words = {
        "agree": "a language model lists nothing else",
        "disagree": "a language model lists what is underlined",
        "unavailable": "no language model could judge this sentence",
    }
    return {"hint": words[found.opinion], "doubts": [list(d) for d in found.doubts]}
