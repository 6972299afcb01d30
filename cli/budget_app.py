"""The `budget` commands of `dptune`: arguments in, one call, a table out."""

from pathlib import Path
from typing import Annotated

import typer

from dptune.privacy import NeighboringRelation, Notion

DataSet = Annotated[
    str, typer.Argument(help="The name under budget.data_set.", show_default=False)
]
Delta = Annotated[
    float, typer.Option(help="Delta of figures that nothing was granted for.")
]

_HELP = """What every run ever spent on each privacy unit, and what is left.

The budget belongs to the data set, over all runs: scheduled ones, repeated ones, trials
of a sweep. A run holds its whole cost before it starts, pays for every block before its
noise is drawn, and gives back the rest. Epsilons are composed, never added.

Begin with `dptune budget grant <data set> --epsilon 8 --delta 1e-6`.
"""


def build_budget_app() -> typer.Typer:
    """Build the group of commands."""
    app = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    for command in (show, grant, count, reserve, release, history, export, verify):
        app.command()(command)
    app.command(name="admit-loss")(admit_loss)
    return app


def show(delta: Delta = 1e-5) -> None:
    """Show what every data set may spend, has spent, and went into tuning."""
    from cli.budget import show_command

    show_command(delta)


def grant(  # noqa: PLR0917 - typer passes them by name
    data_set: DataSet,
    epsilon: Annotated[float, typer.Option(help="What its worst unit may lose.")],
    delta: Annotated[float, typer.Option(help="Below 1 / number of units.")],
    notion: Annotated[Notion, typer.Option(help="What is protected.")] = Notion.RECORD,
    relation: Annotated[
        NeighboringRelation | None,
        typer.Option(help="Which data are neighbors; the notion's usual by default."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Kept on record.")] = "",
) -> None:
    """Set what a data set may spend, in place of an earlier grant of this notion."""
    from cli.budget import grant_command

    grant_command(
        data_set,
        epsilon=epsilon,
        delta=delta,
        notion=notion,
        relation=relation,
        reason=reason,
    )


def count(
    config: Annotated[Path, typer.Argument(help="A file under configs/train/.")],
    noise_multiplier: Annotated[
        float, typer.Option(help="Stddev of the noise; one unit moves the count by 1.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="As for `train`."),
    ] = None,
) -> None:
    """Count privacy units under noise, once, for `data.public_units`; this spends."""
    from cli.budget import count_command

    count_command(config, overrides or [], noise_multiplier=noise_multiplier)


def reserve(
    config: Annotated[Path, typer.Argument(help="A file under configs/train/.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="As for `train`."),
    ] = None,
) -> None:
    """Hold the cost of a run now; the same `train` command finds it later."""
    from cli.budget import reserve_command

    reserve_command(config, overrides or [])


def release(
    reservation: Annotated[str, typer.Argument(help="Its id; see `budget history`.")],
) -> None:
    """Give back what a killed or abandoned run still holds; what it drew is spent."""
    from cli.budget import release_command

    release_command(reservation)


def admit_loss(
    reason: Annotated[str, typer.Option(help="Kept on record.")],
) -> None:
    """Say that earlier entries of the store are lost for good, so that runs go on.

    First restore what can be restored, and reserve again what was spent since.
    """
    from cli.budget import admit_loss_command

    admit_loss_command(reason)


def history(
    data_set: Annotated[
        str | None, typer.Argument(help="One data set; all by default.")
    ] = None,
) -> None:
    """List every run that touched the data, with what it holds and has drawn."""
    from cli.budget import history_command

    history_command(data_set)


def export(
    file: Annotated[Path, typer.Argument(help="Where to write; must not exist.")],
) -> None:
    """Write the log and its head, to be kept elsewhere: `verify --head` reads it."""
    from cli.budget import export_command

    export_command(file)


def verify(
    head: Annotated[
        list[Path] | None,
        typer.Option(help="A file that `budget export` wrote. Repeat it."),
    ] = None,
) -> None:
    """Check the log, the tables, and every epsilon with another accountant.

    Exit 0 if all is as it was written, 1 if not: the first bad entry is named.
    """
    from cli.budget import verify_command

    verify_command(head or [])
