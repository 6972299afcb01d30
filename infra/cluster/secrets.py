"""Secrets that a cluster needs: their keys, and how each value is made."""

from collections.abc import Iterator, Mapping
from shlex import quote

from infra.cluster.manifests import Manifest
from infra.cluster.references import secret_references

_RANDOM = "openssl rand -hex 32"

SECRETS: Mapping[str, Mapping[str, str]] = {
    "dptune-budget": {
        "url": "postgresql+psycopg://USER:PASSWORD@HOST:5432/dptune_budget",
        "key": f"{_RANDOM}; keep a copy: whoever loses it loses the data sets' account",
    },
    "dptune-signing": {"private.pem": "optional; signs gate decisions"},
    "dptune-alerts": {"url": "optional; the webhook that alerts go to"},
    "dptune-mlflow": {
        "backend-store-uri": "postgresql+psycopg://USER:PASSWORD@HOST:5432/mlflow",
        "auth.ini": "see docs/OPERATIONS.md; names the database mlflow_auth",
        "username": "of MLflow's first user",
        "password": "of that user, at least 12 characters",
        "flask-secret-key": _RANDOM,
    },
    "dptune-zenml": {
        "store-url": "mysql://USER:PASSWORD@HOST:3306/zenml",
        "username": "of ZenML's first user",
        "password": "of that user",
        "jwt-secret-key": _RANDOM,
        "encryption-key": f"{_RANDOM}; stored secrets cannot be read without it",
    },
    "dptune-s3": {
        "access-key-id": "for the bucket of artifacts",
        "secret-access-key": "for the bucket of artifacts",
    },
    "dptune-postgres": {"password": f"{_RANDOM}; of PostgreSQL inside the cluster"},
}
"""Every secret of `infra/k8s` and `configs/profiles`, its keys, and what goes there."""

OF_RUNS = ("dptune-budget", "dptune-signing", "dptune-alerts")
"""Secrets that steps ask for, by the profile; servers do not know them."""


def known_secrets() -> dict[str, frozenset[str]]:
    """Name the secrets and their keys."""
    return {name: frozenset(keys) for name, keys in SECRETS.items()}


def wanted_secrets(manifests: list[Manifest]) -> dict[str, frozenset[str]]:
    """Name the secrets that servers ask for, and those of runs, with their keys.

    Args:
        manifests: of an overlay.
    """
    wanted = {name: frozenset(SECRETS[name]) for name in OF_RUNS}
    for reference in secret_references(manifests):
        known = wanted.get(reference.secret, frozenset())
        wanted[reference.secret] = known | {reference.key}
    return wanted


def secret_commands(
    wanted: Mapping[str, frozenset[str]], namespace: str
) -> Iterator[str]:
    """Write the commands that make secrets from files; values never reach a shell.

    Args:
        wanted: names of secrets, and the keys that are used.
        namespace: where they go.
    """
    for name in sorted(wanted):
        parts = [
            f"--from-file={quote(f'{key}=secrets/{name}/{key}')}"
            for key in sorted(wanted[name])
        ]
        yield " ".join(
            ["kubectl", "--namespace", namespace, "create secret generic", name, *parts]
        )
