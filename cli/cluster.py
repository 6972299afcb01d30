"""The `cluster` commands: what goes to Kubernetes, checked before it goes there."""

from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from cli.printing import folding_table, say_next, speaker
from infra.cluster.manifests import Manifest, find_objects, render_overlay
from infra.workspace import REPOSITORY

Overlay = Annotated[
    str,
    typer.Argument(
        help="A folder under infra/k8s/overlays, or the path of your own.",
        show_default=False,
    ),
]


def build_cluster_app() -> typer.Typer:
    """Build the `cluster` commands."""
    app = typer.Typer(
        help="Render and check what goes to Kubernetes, and list its secrets.",
        no_args_is_help=True,
    )
    for command in (check, render, secrets):
        app.command()(command)
    return app


def check(overlay: Overlay) -> None:
    """Check what an overlay sends: schemas, restricted pods, roles, networks.

    Exit 0 if nothing is wrong, 1 if something is.
    """
    from infra.cluster.check import check_manifests

    console = speaker()
    manifests = _render(overlay)
    found = check_manifests(manifests)
    if found:
        columns = ("object", "what is wrong", "policy")
        table = folding_table(f"overlay {overlay}", *columns)
        for finding in found:
            table.add_row(finding.name, finding.message, finding.policy)
        console.print(table)
        say_next(
            console,
            "edit cluster.yaml and kustomization.yaml of the overlay, and check again",
        )
        raise typer.Exit(code=1)
    console.print(f"{len(manifests)} objects, nothing wrong")
    say_next(
        console,
        f"dptune cluster secrets {overlay}",
        f"kubectl apply -k {_shown(overlay)}",
    )


def render(overlay: Overlay) -> None:
    """Print what `kubectl apply -k` would send."""
    text = yaml.safe_dump_all(_render(overlay), sort_keys=False)
    Console(highlight=False, soft_wrap=True).print(text, markup=False)


def secrets(overlay: Overlay) -> None:
    """List the secrets that an overlay and its runs need, and how to make them."""
    from infra.cluster.references import external_secrets
    from infra.cluster.secrets import SECRETS, secret_commands, wanted_secrets

    console = Console(highlight=False, markup=False, soft_wrap=True)
    manifests = _render(overlay)
    wanted = wanted_secrets(manifests)
    table = folding_table(f"secrets of {overlay}", "secret", "key", "value")
    for name, keys in sorted(wanted.items()):
        for key in sorted(keys):
            table.add_row(name, key, SECRETS[name][key])
    console.print(table)
    if external_secrets(manifests):
        console.print(
            "The vault brings them: put each under dptune/SECRET, key by key."
        )
        say_next(console, f"kubectl apply -k {_shown(overlay)}")
        return
    (namespace,) = find_objects(manifests, "Namespace")
    console.print(
        "Write each value into a file secrets/SECRET/KEY, with no line break at the "
        "end (printf %s VALUE), then:"
    )
    for line in secret_commands(wanted, namespace["metadata"]["name"]):
        console.print(line)
    say_next(console, "rm -r secrets")


def _render(overlay: str) -> list[Manifest]:
    """Render an overlay by its name or its path."""
    folder = Path(overlay)
    return render_overlay(folder if folder.is_dir() else overlay)


def _shown(overlay: str) -> str:
    """Write the folder of an overlay so that a command finds it from here."""
    if Path(overlay).is_dir():
        return overlay
    folder = REPOSITORY / "infra" / "k8s" / "overlays" / overlay
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
