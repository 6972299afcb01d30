"""What a cluster lacks for a profile whose stages several nodes train."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from infra.nodes.settings import NEEDED_VERBS, TRAINER
from infra.profiles import Profile
from infra.stacks.findings import SECONDS, Finding, State
from infra.stacks.settings import ProductionStack

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_APPLY = "kubectl apply -k infra/k8s/overlays/<name>"


def check_nodes(
    api: "ApiClient", stack: ProductionStack, profile: Profile
) -> Iterator[Finding]:
    """Look at what starts nodes, at the account that does, and at their volume.

    Args:
        api: of the cluster, which answers.
        stack: where pods run.
        profile: says how many nodes; nothing is asked for one.
    """
    if profile.nodes == 1 or profile.pods is None:
        return
    yield _kind(api, profile.pods.accelerated.nodes.kind)
    yield _account(api, stack.kubernetes.namespace, stack)
    for volume in profile.volumes:
        if volume.claim is not None and not volume.read_only:
            yield _claim(api, stack.kubernetes.namespace, volume.claim)


def _kind(api: "ApiClient", wanted: str) -> Finding:
    """Whether Kubeflow Trainer is there; an Indexed Job always is."""
    from kubernetes.client import ApisApi  # noqa: PLC0415 - an extra

    groups = ApisApi(api).get_api_versions(_request_timeout=SECONDS).groups
    served = {v.group_version for group in groups for v in group.versions}
    if TRAINER in served and wanted != "Job":
        return Finding(name="nodes", state=State.OK, found=f"TrainJob of {TRAINER}")
    lacks = wanted == "TrainJob"
    return Finding(
        name="nodes",
        state=State.MISSING if lacks else State.OK,
        found=f"no {TRAINER}" if lacks else "Indexed Job with a headless Service",
        how="install Kubeflow Trainer, or let pods.accelerated.nodes.kind be auto"
        if lacks
        else "",
    )


def _account(api: "ApiClient", namespace: str, stack: ProductionStack) -> Finding:
    """Whether the account of steps that start nodes may do so; asks for every verb."""
    from kubernetes import client  # noqa: PLC0415 - an extra

    account = stack.kubernetes.launcher_service_account
    name = f"rights of {account}"
    user = f"system:serviceaccount:{namespace}:{account}"
    reviews, denied = client.AuthorizationV1Api(api), []
    for group, resource, verb in NEEDED_VERBS:
        kind, _, part = resource.partition("/")
        what = client.V1ResourceAttributes(
            group=group,
            resource=kind,
            subresource=part or None,
            verb=verb,
            namespace=namespace,
        )
        spec = client.V1SubjectAccessReviewSpec(user=user, resource_attributes=what)
        body = client.V1SubjectAccessReview(spec=spec)
        try:
            answer = reviews.create_subject_access_review(
                body, _request_timeout=SECONDS
            )
        except client.ApiException as error:
            found = f"the cluster answers {error.status}"
            how = "this user may not ask for others' rights"
            return Finding(name=name, state=State.UNKNOWN, found=found, how=how)
        if not answer.status.allowed:
            denied.append(f"{verb} {resource}")
    if denied:
        found = f"may not {', '.join(denied)}"
        return Finding(name=name, state=State.MISSING, found=found, how=_APPLY)
    return Finding(name=name, state=State.OK, found="may start nodes")


def _claim(api: "ApiClient", namespace: str, claim: str) -> Finding:
    """Whether several nodes may write a volume."""
    from kubernetes.client import ApiException, CoreV1Api  # noqa: PLC0415 - an extra

    name = f"volume claim {claim} for nodes"
    try:
        found = CoreV1Api(api).read_namespaced_persistent_volume_claim(
            claim, namespace, _request_timeout=SECONDS
        )
    except ApiException as error:
        said = f"the cluster answers {error.status}"
        return Finding(name=name, state=State.UNKNOWN, found=said)
    modes = found.spec.access_modes or []
    shared = "ReadWriteMany" in modes
    return Finding(
        name=name,
        state=State.OK if shared else State.MISSING,
        found=", ".join(modes),
        how="" if shared else "make it of a storage class that is ReadWriteMany",
    )
