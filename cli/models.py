"""The `models` commands: what pods without a hub need, on a volume."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.printing import say_next, speaker

Configs = Annotated[
    list[Path] | None,
    typer.Argument(help="Files under configs/train/; all of them by default."),
]
Folder = Annotated[Path, typer.Option(help="The volume; pods find it as HF_HUB_CACHE.")]


def build_models_app() -> typer.Typer:
    """Build the `models` commands."""
    app = typer.Typer(
        help="Fill the volume from which pods without a hub read; merge adapters.",
        no_args_is_help=True,
    )
    app.command()(fetch)
    app.command()(check)
    app.command()(merge)
    return app


def fetch(to: Folder, configs: Configs = None) -> None:
    """Fetch models and tokenizers of configurations; what is there stays.

    Safetensors and JSON only: no code, no pickle. Any account may read them: they are
    public, and pods run as another one.
    """
    os.umask(0o022)
    _report(to, configs)


def check(folder: Folder, configs: Configs = None) -> None:
    """Check, without a network, that all of it is there. Exit 2 names what is not."""
    import huggingface_hub.constants

    huggingface_hub.constants.HF_HUB_OFFLINE = True
    _report(folder, configs)


def merge(
    base: Annotated[Path, typer.Argument(help="The model they were trained over.")],
    adapter: Annotated[Path, typer.Argument(help="Folder `adapter` of a stage.")],
    to: Annotated[Path, typer.Option(help="A new folder for the model.")],
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Of the weights.")
    ] = "float32",
) -> None:
    """Put a stage's adapters into the model that they were trained over."""
    import torch

    from dptune.models.adapters import merge_adapter

    types = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    digest = merge_adapter(base, adapter, to, dtype=types[dtype])
    console = speaker()
    console.print(f"{to}: digest {digest[:16]}", soft_wrap=True)
    say_next(console, f"AutoModelForCausalLM.from_pretrained({str(to)!r})")


def _report(folder: Path, configs: list[Path] | None) -> None:
    """Fetch, and print what lies there."""
    from cli.runs import CONFIGS, read_config
    from dptune.models.hub import fetch_models

    console = speaker()
    files = configs or sorted((CONFIGS / "train").glob("*.yaml"))
    found = fetch_models(
        [read_config(file).model.source for file in files], folder=folder
    )
    for one in found:
        digest = f", digest {one.digest[:16]}" if one.digest else ", tokenizer only"
        console.print(
            f"{one.source.id} at {one.source.revision}: commit {one.commit[:12]}"
            f"{digest}",
            soft_wrap=True,
        )
    if not found:
        console.print("these configurations need nothing from a hub")
