"""What the `review` commands do."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from cli.runs import read_config, require_workspace
from dptune.detection.endpoint import Endpoint
from dptune.detection.patterns import PatternRecognizer
from dptune.detection.recognizer import Tier
from dptune.errors import ConfigError, Problem
from dptune.reports.formatting import interval, percent
from dptune.reports.pages.detector import masked_lines, review_page
from dptune.review.crosscheck import (
    CheckedSentence,
    CrossCheck,
    Opinion,
    check_excerpt,
)
from dptune.review.decisions import best_upper_bound
from dptune.review.lists import ListKey
from dptune.review.sample import Excerpt
from dptune.review.store import (
    ReviewState,
    ReviewStore,
    SampleRecord,
    open_sentences,
    write_private,
)
from dptune.workflow.review import Imported, export_sample, import_decisions
from infra.workspace import (
    current_workspace,
    data_root,
    ensure_review_key,
    llm_access,
    read_review_key,
)


def export_command(
    path: Path,
    overrides: Sequence[str],
    *,
    html: Path | None,
    jsonl: Path | None,
    share: float,
    size: int | None,
    screened: bool = False,
    llm: tuple[str | None, str | None] = (None, None),
) -> None:
    """Draw a sample and write it where the user says."""
    _check_outputs(html, jsonl)
    endpoint = _endpoint(*llm)
    config = read_config(path, overrides)
    workspace = current_workspace()
    workspace.root.mkdir(parents=True, exist_ok=True)
    with Console(stderr=True).status("marking personal data, drawing sentences"):
        record, drawn = export_sample(
            config,
            data_root=data_root(),
            store=ReviewStore(workspace.review),
            key=ListKey(secret=ensure_review_key(workspace)),
            generator=np.random.default_rng(),
            share=share,
            size=size,
            screened=screened,
            access=llm_access(),
            folder=workspace.work,
        )
    opinions = _ask(endpoint, drawn.excerpts, Tier(record.tier)) if endpoint else {}
    if html is not None:
        page = review_page(record, drawn.excerpts, opinions=opinions)
        write_private(html, page)
    if jsonl is not None:
        write_private(jsonl, "\n".join(masked_lines(drawn.excerpts)) + "\n")
    _print_sample(record, html=html, jsonl=jsonl)
    if opinions:
        tally = Counter(one.opinion for one in opinions.values())
        parts = ", ".join(f"{tally[kind]:,} {kind}" for kind in Opinion)
        Console(highlight=False).print(f"language model: {parts}", style="dim")


def _endpoint(url: str | None, model: str | None) -> Endpoint | None:
    """Describe whom to ask; None where nobody is to be asked."""
    if (url is None) != (model is None):
        raise ConfigError.at("--llm-url, --llm-model", "must be given together.")
    if url is None or model is None:
        return None
    return Endpoint(base_url=url, model=model, api_key=llm_access().key())


def _ask(
    endpoint: Endpoint, excerpts: Sequence[Excerpt], tier: Tier
) -> dict[str, CheckedSentence]:
    """Ask about every sentence; the patterns run once more before anything is sent."""
    known = [PatternRecognizer(tier=tier)]
    checker = CrossCheck(endpoint=endpoint, tier=tier, known=known)
    with Console(stderr=True).status("asking the language model"):
        return {e.sentence.id: check_excerpt(checker, e) for e in excerpts}


def import_command(file: Path, *, public: bool = False) -> None:
    """Take decisions back."""
    if not file.is_file():
        message = f"must be a file that the review page saved, got {file.name!r}."
        raise ConfigError.at("FILE", message)
    workspace, key = current_workspace(), _key()
    with Console(stderr=True).status("checking the decisions"):
        done = import_decisions(
            file.read_bytes(),
            data_root=data_root(),
            store=ReviewStore(workspace.review),
            key=key,
            public=public,
            folder=workspace.work,
        )
    _print_imported(Console(highlight=False), done, public=public)


def status_command() -> None:
    """Print every review."""
    console = Console(highlight=False)
    workspace = current_workspace()
    key = read_review_key(workspace)
    if key is None or not workspace.review.is_dir():
        console.print("nothing was exported for review yet", style="dim")
        _next(console, "dptune review export CONFIG --html review.html")
        return
    state = ReviewStore(workspace.review).read(ListKey(secret=key))
    console.print(_status_table(state, _users()))
    named = {f"data set {name}": own for name, own in state.lists.of_data_set.items()}
    for name, lists in {**named, "every data set (public)": state.lists.public}.items():
        console.print(
            f"lists of {name}: {len(lists.deny)} phrases are always marked, "
            f"{len(lists.allow)} are false alarms"
        )


def _key() -> ListKey:
    """Read the key that the samples were drawn with."""
    workspace = current_workspace()
    key = read_review_key(workspace)
    if key is None or not workspace.review.is_dir():
        raise ConfigError(
            "nothing was exported for review in this project. Run `dptune "
            "review export CONFIG --html review.html` first."
        )
    return ListKey(secret=key)


def _check_outputs(html: Path | None, jsonl: Path | None) -> None:
    """Refuse what cannot be written, before the corpus is read."""
    problems = []
    if html is None and jsonl is None:
        problems.append(
            Problem(
                path="--html, --jsonl",
                message="must name at least one file: the sample quotes text, so it is "
                "written only where you say.",
                next_step="Add --html review.html, in a folder that is not shared.",
            )
        )
    for option, file in (("--html", html), ("--jsonl", jsonl)):
        if file is None:
            continue
        if not file.parent.is_dir():
            message = f"must be in a folder that exists, got {str(file)!r}."
            problems.append(Problem(path=option, message=message))
        elif file.exists():
            message = f"must be a new file, got {str(file)!r}, which exists."
            problems.append(Problem(path=option, message=message))
    if html is not None and html == jsonl:
        problems.append(Problem(path="--jsonl", message="must not be the page's file."))
    if problems:
        raise ConfigError(problems)


def _print_sample(
    record: SampleRecord, *, html: Path | None, jsonl: Path | None
) -> None:
    """Say what was drawn and what to do with it."""
    console = Console(highlight=False)
    marked = sum(bool(sentence.marks) for sentence in record.sentences)
    console.print(
        f"review [bold]{record.id}[/]: {len(record.sentences):,} of "
        f"{sum(record.sizes.values()):,} sentences, {marked:,} with a mark"
    )
    best = best_upper_bound(record.sentences, record.sizes)
    console.print(
        f"without a single miss it shows a missing rate of at most {percent(best)}; "
        "for a smaller bound take a larger --size"
    )
    for name, file in (("page", html), ("lines", jsonl)):
        if file is not None:
            console.print(f"{name:<7} {file}", soft_wrap=True)
    console.print(
        "[bold]restricted[/] they quote personal text: keep them where the corpus may "
        "be, and delete them after the import"
    )
    _next(console, "open the page, decide, save, then")
    _next(console, f"dptune review import decisions-{record.id}.json")


def _print_imported(console: Console, done: Imported, *, public: bool) -> None:
    """Say what an import changed."""
    total = len(done.sample.sentences)
    console.print(
        f"review [bold]{done.sample.id}[/]: {done.num_decided:,} of {total:,} decided"
    )
    found = done.found
    if found is None:
        left = total - done.num_decided
        console.print(
            f"{left:,} sentences are open. There is no missing rate, and no list "
            "changed, until all are decided."
        )
        _next(console, "open the page, Load this file, decide the rest, save, import")
        return
    console.print(
        f"missing rate {percent(found.rate)} of all words, "
        f"{interval(found.interval, as_percent=True)}"
    )
    console.print(
        f"{found.num_missed:,} words missed, {found.num_false_alarms:,} false alarms; "
        f"lists: {done.new_deny:+,} always marked, {done.new_allow:+,} false alarms"
    )
    console.print(
        "they act on every data set, and claims take them as public"
        if public
        else f"they act on data set {done.sample.data_set} alone, and make its claims "
        "conditional where marks matter: what was read in one record reaches others"
    )
    if found.num_charged:
        console.print(
            f"{found.num_charged:,} words count as missed because a false alarm of "
            "another sentence takes their mark back"
        )
    if found.num_too_long:
        console.print(
            f"{found.num_too_long:,} missed passages are too long for the list"
        )
    _next(console, f"dptune train ...  (the config of {done.sample.config})")


def _status_table(state: ReviewState, users: dict[str, list[str]]) -> Table:
    """List every sample, oldest first."""
    table = Table(title="reviews", title_justify="left")
    columns = ("review", "exported", "config", "decided", "missing rate", "used by")
    for column in columns:
        table.add_column(column, overflow="fold")
    for sample in state.samples:
        review = state.review(sample.id)
        total = len(sample.sentences)
        left = len(open_sentences(sample, review))
        rate = "open"
        if review is not None and review.rate is not None:
            measured = interval(review.interval, as_percent=True)
            rate = f"{percent(review.rate)}, {measured}"
        table.add_row(
            sample.id,
            sample.created[:10],
            sample.config,
            f"{total - left:,} of {total:,}",
            rate,
            ", ".join(users.get(sample.id, ())) or "–",
        )
    return table


def _users() -> dict[str, list[str]]:
    """Find the registered versions whose card quotes a review."""
    if not current_workspace().zenml.is_dir():
        return {}
    require_workspace()
    from steps import _tracking
    from steps._deciding import read_dossier

    _tracking.connect()
    users: dict[str, list[str]] = {}
    for name in _tracking.model_names():
        for version in _tracking.versions(name):
            review = read_dossier(name, version.version).detection.review
            if review:
                users.setdefault(review, []).append(f"{name} v{version.version}")
    return users


def _next(console: Console, text: str) -> None:
    console.print(f"next    {text}", style="dim", soft_wrap=True)
