"""The `review` commands of `dptune`: arguments in, one call, a table out."""

from pathlib import Path
from typing import Annotated

import typer

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
    config: Annotated[Path, typer.Argument(help="A file under configs/train/.")],
    html: Annotated[
        Path | None,
        typer.Option(help="Where the page goes. It quotes text: keep it private."),
    ] = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(help="Where the masked lines go. They show what was missed."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="As for `train`."),
    ] = None,
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
    """Draw sentences for people to read. Nothing is written but what you name here.

    Both files are made for their owner alone (mode 0600), and never overwritten.
    """
    from cli.review import export_command

    export_command(
        config,
        overrides or [],
        html=html,
        jsonl=jsonl,
        share=share,
        size=size,
        screened=screened,
        llm=(llm_url, llm_model),
    )


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
    from cli.review import import_command

    import_command(file, public=public)


def status() -> None:
    """Show every review: what is open, what it measured, and which versions use it."""
    from cli.review import status_command

    status_command()
