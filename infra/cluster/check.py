"""All checks of an overlay in one call."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from infra.cluster.cluster_policies import CLUSTER_POLICIES
from infra.cluster.manifests import Manifest, find_pods
from infra.cluster.pod_policies import POD_POLICIES
from infra.cluster.references import (
    external_secrets,
    secret_references,
    unresolved_references,
)
from infra.cluster.schemas import round_trip_problems, schema_problems
from infra.cluster.secrets import known_secrets


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is wrong with an object.

    Args:
        policy: that it breaks.
        name: kind and name of the object.
        message: what is wrong.
    """

    policy: str
    name: str
    message: str


def check_manifests(
    manifests: list[Manifest], *, made: Mapping[str, frozenset[str]] | None = None
) -> list[Finding]:
    """Check rendered objects: schemas, types, policies, references.

    Args:
        manifests: all objects of one overlay, and those that join them there.
        made: secrets that a run makes for itself, and their keys.
    """
    return [
        *_findings("schema", schema_problems(manifests)),
        *_findings("round_trip", round_trip_problems(manifests)),
        *check_policies(manifests, made=made),
    ]


def check_policies(
    manifests: list[Manifest], *, made: Mapping[str, frozenset[str]] | None = None
) -> list[Finding]:
    """Check rendered objects without the schemas of Kubernetes."""
    made = made or {}
    references = unresolved_references(manifests, secrets={**known_secrets(), **made})
    return [
        *(
            Finding(policy=policy.__name__, name=pod.owner, message=message)
            for pod in find_pods(manifests)
            for policy in POD_POLICIES
            for message in policy(pod)
        ),
        *(
            finding
            for policy in CLUSTER_POLICIES
            for finding in _findings(policy.__name__, policy(manifests))
        ),
        *_findings("references", references),
        *_findings("external_secrets", _missing_in_vault(manifests, made)),
    ]


def _missing_in_vault(
    manifests: list[Manifest], made: Mapping[str, frozenset[str]]
) -> Iterator[tuple[str, str]]:
    """Values that the vault should bring and does not, where there is one."""
    brought = external_secrets(manifests)
    if not brought:
        return
    brought |= made
    for reference in secret_references(manifests):
        keys = brought.get(reference.secret, frozenset())
        if reference.key not in keys and not reference.optional:
            yield (
                reference.owner,
                f"{reference.key} of {reference.secret} must come from the vault.",
            )


def _findings(policy: str, found: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Name the policy of what was found."""
    for name, message in found:
        yield Finding(policy=policy, name=name, message=message)
