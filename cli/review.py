"""The `review` commands: people correct the detector, and measure what it misses."""

import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from cli.options import ConfigPath, Overrides
from cli.printing import folding_table, say_next, speaker
from dptune.errors import ConfigError, Problem
from infra.workspace import (
    current_workspace,
    data_root,
    keep_review_key,
    llm_access,
    read_review_key,
)

if TYPE_CHECKING:  # takes long to import, and --help is to be quick
    from dptune.detection.endpoint import Endpoint
    from dptune.detection.recognizer import Tier
    from dptune.review.crosscheck import CheckedSentence
    from dptune.review.lists import ListKey
    from dptune.review.sample import Excerpt
    from dptune.review.store import ReviewState, SampleRecord
    from dptune.workflow.review import Imported

_HELP = """Let people correct the detector, and measure how much it misses.

`export` draws sentences of the training split, half of them with a mark and half
without, as a page to work through with the keyboard and as masked JSON lines. `import`
takes the decisions back: what was missed is marked in every later run, false alarms no
longer are, and the measured missing rate goes onto the privacy card.

Begin with `dptune review export configs/train/own_text.yaml --html review.html`.
"""


def build_review_app() -> typer.Typer:
    """Build the group of commands."""
    app = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.command()(export)
    app.command(name="import")(import_)
    app.command()(status)
    return app


def export(  # noqa: PLR0917 - typer passes them by name
    config: ConfigPath,
    html: Annotated[
        Path | None,
        typer.Option(help="Where the page goes. It quotes text: keep it private."),
    ] = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(help="Where the masked lines go. They show what was missed."),
    ] = None,
    overrides: Overrides = None,
    share: Annotated[
        float, typer.Option(help="Of all sentences.", min=0.0, max=1.0)
    ] = 0.01,
    size: Annotated[
        int | None, typer.Option(help="Number of sentences instead.", min=4)
    ] = None,
    screened: Annotated[
        bool,
        typer.Option(
            "--screened",
            help="All sentences that the recipe's screened stage trains on instead.",
        ),
    ] = False,
    llm_url: Annotated[
        str | None,
        typer.Option(
            help="Ask a language model about each sentence, such as "
            "http://localhost:11434/v1; a hint on the page. Marks are replaced before "
            "anything is sent; what was missed is sent. Key: DPTUNE_LLM_KEY."
        ),
    ] = None,
    llm_model: Annotated[str | None, typer.Option(help="Its name there.")] = None,
) -> None:
    """Draw sentences for people to read. No text is written but where you name it.

    Both files are made for their owner alone (mode 0600), and never overwritten.
    """
    import numpy as np

    from cli.runs import read_config
    from dptune.detection.recognizer import Tier
    from dptune.reports.pages.detector import masked_lines, review_page
    from dptune.review.crosscheck import Opinion
    from dptune.review.lists import ListKey
    from dptune.review.store import ReviewStore, write_private
    from dptune.workflow.review import export_sample

    _check_outputs(html, jsonl)
    endpoint = _endpoint(llm_url, llm_model)
    settings = read_config(config, overrides or [])
    workspace = current_workspace()
    key = ListKey(secret=read_review_key(workspace) or secrets.token_bytes(32))
    store = ReviewStore(workspace.review)
    spinner = Console(stderr=True).status("marking personal data, drawing sentences")
    with spinner, workspace.work() as folder:
        workspace.make()  # refuses here what cannot be kept below
        record, drawn = export_sample(
            settings,
            data_root=data_root(),
            store=store,
            key=key,
            generator=np.random.default_rng(),
            share=share,
            size=size,
            screened=screened,
            access=llm_access(),
            folder=folder,
        )
    opinions = _ask(endpoint, drawn.excerpts, Tier(record.tier)) if endpoint else {}
    workspace.make()
    keep_review_key(workspace, key.secret)
    store.add_sample(record, key)
    if html is not None:
        page = review_page(record, drawn.excerpts, opinions=opinions)
        write_private(html, page)
    if jsonl is not None:
        write_private(jsonl, "\n".join(masked_lines(drawn.excerpts)) + "\n")
    _print_sample(record, html=html, jsonl=jsonl)
    if opinions:
        tally = Counter(one.opinion for one in opinions.values())
        parts = ", ".join(f"{tally[kind]:,} {kind}" for kind in Opinion)
        speaker().print(f"language model: {parts}", style="dim")


def import_(
    file: Annotated[Path, typer.Argument(help="What the page saved.")],
    *,
    public: Annotated[
        bool,
        typer.Option(
            help="Declare the phrases public: they act on every data set, and claims "
            "take them as public. Else they act on the sample's data set alone and "
            "make its claims conditional."
        ),
    ] = False,
) -> None:
    """Take decisions back: the missing rate, and the lists of later runs.

    Every problem of the file is told at once, without any text; then nothing changes.
    """
    from dptune.review.store import ReviewStore
    from dptune.workflow.review import import_decisions

    if not file.is_file():
        message = f"must be a file that the review page saved, got {file.name!r}."
        raise ConfigError.at("FILE", message)
    workspace, key = current_workspace(), _key()
    if key is None:
        raise ConfigError(
            "nothing was exported for review in this project. Run `dptune "
            "review export CONFIG --html review.html` first."
        )
    spinner = Console(stderr=True).status("checking the decisions")
    with spinner, workspace.work() as folder:
        done = import_decisions(
            file.read_bytes(),
            data_root=data_root(),
            store=ReviewStore(workspace.review),
            key=key,
            public=public,
            folder=folder,
        )
    _print_imported(speaker(), done, public=public)


def status() -> None:
    """Show every review: what is open, what it measured, and which versions use it."""
    from dptune.review.store import ReviewStore

    console, key = speaker(), _key()
    if key is None:
        console.print("nothing was exported for review yet", style="dim")
        say_next(console, "dptune review export CONFIG --html review.html")
        return
    state = ReviewStore(current_workspace().review).read(key)
    console.print(_status_table(state, _users()))
    named = {f"data set {name}": own for name, own in state.lists.of_data_set.items()}
    for name, lists in {**named, "every data set (public)": state.lists.public}.items():
        console.print(
            f"lists of {name}: {len(lists.deny)} phrases are always marked, "
            f"{len(lists.allow)} are false alarms"
        )


def _key() -> "ListKey | None":
    """Read the key that the samples were drawn with; None if none was drawn yet."""
    from dptune.review.lists import ListKey

    workspace = current_workspace()
    key = read_review_key(workspace)
    was_used = key is not None and workspace.review.is_dir()
    return ListKey(secret=key) if key is not None and was_used else None


def _endpoint(url: str | None, model: str | None) -> "Endpoint | None":
    """Describe whom to ask; None where nobody is to be asked."""
    if (url is None) != (model is None):
        raise ConfigError.at("--llm-url, --llm-model", "must be given together.")
    if url is None or model is None:
        return None
    from dptune.detection.endpoint import Endpoint

    return Endpoint(base_url=url, model=model, api_key=llm_access().key())


def _ask(
    endpoint: "Endpoint", excerpts: Sequence["Excerpt"], tier: "Tier"
) -> "dict[str, CheckedSentence]":
    """Ask about every sentence; the patterns run once more before anything is sent."""
    from dptune.detection.patterns import PatternRecognizer
    from dptune.review.crosscheck import CrossCheck, check_excerpt

    known = [PatternRecognizer(tier=tier)]
    checker = CrossCheck(endpoint=endpoint, tier=tier, known=known)
    with Console(stderr=True).status("asking the language model"):
        return {e.sentence.id: check_excerpt(checker, e) for e in excerpts}


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
    if html is not None and jsonl is not None and html.resolve() == jsonl.resolve():
        problems.append(Problem(path="--jsonl", message="must not be the page's file."))
    if problems:
        raise ConfigError(problems)


def _print_sample(
    record: "SampleRecord", *, html: Path | None, jsonl: Path | None
) -> None:
    """Say what was drawn and what to do with it."""
    from dptune.reports.formatting import percent
    from dptune.review.decisions import best_upper_bound

    console = speaker()
    marked = sum(bool(sentence.marks) for sentence in record.sentences)
    console.print(
        f"review {record.id}: {len(record.sentences):,} of "
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
        "restricted: they quote personal text. Keep them where the corpus may be, and "
        "delete them after the import",
        style="bold",
    )
    say_next(
        console,
        "open the page, decide, save, then",
        f"dptune review import decisions-{record.id}.json",
    )


def _print_imported(console: Console, done: "Imported", *, public: bool) -> None:
    """Say what an import changed."""
    from dptune.reports.formatting import interval, percent

    total = len(done.sample.sentences)
    console.print(f"review {done.sample.id}: {done.num_decided:,} of {total:,} decided")
    if done.num_changed:
        console.print(
            f"{done.num_changed:,} of them said something else in an earlier import, "
            "which this file takes the place of"
        )
    found = done.found
    if found is None:
        left = total - done.num_decided
        console.print(
            f"{left:,} sentences are open. There is no missing rate, and no list "
            "changed, until all are decided."
        )
        say_next(
            console, "open the page, Load this file, decide the rest, save, import"
        )
        return
    console.print(
        f"missing rate {percent(found.rate)} of all words, "
        f"{interval(found.interval, as_percent=True)}"
    )
    console.print(
        f"{found.num_missed:,} words missed, {found.num_false_alarms:,} false alarms; "
        f"lists: {done.new_deny:+,} always marked, {done.new_allow:+,} false alarms"
    )
    if done.new_deny or done.new_allow:
        console.print(
            "they act on every data set, and claims take them as public"
            if public
            else f"they act on data set {done.sample.data_set} alone, and make its "
            "claims conditional where marks matter: what was read in one record "
            "reaches others"
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
    say_next(console, f"dptune train ...  (the config of {done.sample.config})")


def _status_table(state: "ReviewState", users: dict[str, list[str]]) -> Table:
    """List every sample, oldest first."""
    from dptune.reports.formatting import interval, percent
    from dptune.review.store import open_sentences

    columns = ("review", "exported", "config", "decided", "missing rate", "used by")
    table = folding_table("reviews", *columns)
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
    if not current_workspace().is_set_up:
        return {}
    from cli.runs import require_workspace
    from steps import _tracking
    from steps._deciding import read_dossier

    require_workspace()
    _tracking.connect()
    users: dict[str, list[str]] = {}
    for name in _tracking.model_names():
        for version in _tracking.versions(name):
            review = read_dossier(name, version.version).detection.review
            if review:
                users.setdefault(review, []).append(f"{name} v{version.version}")
    return users
