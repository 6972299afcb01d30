"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[
    Path, typer.Argument(help="A file under configs/train/.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Change one setting, such as --set privacy.target_epsilon=4. Repeat it.",
    ),
]
Retrain = Annotated[
    bool,
    typer.Option("--retrain", help="Train (and spend) again, even if finished before."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print everything as JSON instead.")
]
ModelName = Annotated[str, typer.Argument(help="A registered model; see `status`.")]
PassedPolicy = Annotated[
    str | None,
    typer.Option(
        help="The policy that it must have passed; that of its run by default."
    ),
]
Port = Annotated[int, typer.Option(help="Port on this machine.", min=1, max=65535)]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="A file under configs/profiles; DPTUNE_PROFILE, or local, by default.",
        show_default=False,
    ),
]
Reason = Annotated[str, typer.Option(help="Kept on record.")]
