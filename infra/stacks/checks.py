"""What a production stack still lacks, and how to get it. Looks, and changes nothing.

Every check answers within seconds, without a cluster too: then it says that there is
none to ask.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from infra.nodes.checks import check_nodes
from infra.profiles import Profile
from infra.stacks.findings import SECONDS, Finding, State
from infra.stacks.production import missing_secrets
from infra.stacks.settings import ArtifactStoreSettings, ProductionStack

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_PACKAGES = ("kubernetes", "s3fs", "boto3")
_EXAMPLE = re.compile(r"\bexample\.(com|org)\b|sha256:0{64}")


def check_stack(stack: ProductionStack, profile: Profile) -> list[Finding]:
    """Look at everything that a run on the stack will need."""
    found = [
        *_check_packages(),
        *_check_kubeflow(stack, profile),
        _check_image(stack.image),
        _check_url(
            "container registry",
            f"https://{urlsplit(f'//{stack.container_registry}').netloc}/v2/",
            "log in where the image was pushed, or correct container_registry",
        ),
        _check_url(
            "ZenML server",
            f"{stack.zenml_server}/health",
            "apply infra/k8s, or correct zenml_server",
        ),
        *_check_zenml(stack),
        _check_url(
            "MLflow server",
            f"{stack.mlflow.tracking_uri}/health",
            "apply infra/k8s, or correct mlflow.tracking_uri",
        ),
        _check_bucket(stack.artifact_store),
    ]
    return [*found, *_check_cluster(stack, profile)]


def _check_packages() -> Iterator[Finding]:
    """Packages that only a cluster needs."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    yield Finding(
        name="Python packages",
        state=State.MISSING if missing else State.OK,
        found=f"without {', '.join(missing)}" if missing else ", ".join(_PACKAGES),
        how="pip install 'dptune[cluster]'" if missing else "",
    )


def _check_kubeflow(stack: ProductionStack, profile: Profile) -> Iterator[Finding]:
    """Kubeflow's SDK, its API, and how pods prove to ZenML who they are."""
    kubeflow, variable = stack.kubeflow, "ZENML_STORE_API_KEY"
    if kubeflow is None:
        return
    has_sdk = find_spec("kfp") is not None
    yield Finding(
        name="Kubeflow's SDK",
        state=State.OK if has_sdk else State.MISSING,
        found="kfp" if has_sdk else "without kfp",
        how=""
        if has_sdk
        else "sh infra/kubeflow/install.sh FOLDER, then use FOLDER/bin/dptune",
    )
    if kubeflow.host is not None:
        yield _check_url(
            "Kubeflow Pipelines",
            f"{kubeflow.host}/apis/v2beta1/healthz",
            "install Kubeflow Pipelines, or correct kubeflow.host",
        )
    named = variable in profile.secrets
    yield Finding(
        name="key of pods",
        state=State.OK if named else State.MISSING,
        found="by reference" if named else f"no {variable} among secrets",
        how="" if named else f"name a Kubernetes secret for {variable} in the profile",
    )


def _check_image(image: str) -> Finding:
    """An image by its digest, and not the example's."""
    how = "push an image of infra/docker and write its digest into image"
    if _EXAMPLE.search(image):
        return Finding(name="image", state=State.MISSING, found="the example", how=how)
    if not re.search(r"@sha256:[0-9a-f]{64}$", image):
        return Finding(
            name="image", state=State.MISSING, found="named without digest", how=how
        )
    return Finding(name="image", state=State.OK, found=image.rpartition("/")[2][:60])


def _check_url(name: str, url: str, how: str) -> Finding:
    """Whether a server answers; one that asks who is there does."""
    if _EXAMPLE.search(url):
        return Finding(name=name, state=State.MISSING, found="the example", how=how)
    try:
        status = _status(url)
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Finding(
            name=name,
            state=State.MISSING,
            found=f"no answer ({type(reason).__name__})",
            how=f"{how}; inside the cluster it may answer: port-forward, or run "
            "this there",
        )
    answers = status in (HTTPStatus.OK, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    return Finding(
        name=name,
        state=State.OK if answers else State.MISSING,
        found=f"answers {status}",
        how="" if answers else how,
    )


def _status(url: str) -> int:
    """Ask a server for a page; returns the status whatever it is."""
    request = Request(url, method="GET")  # noqa: S310 - http(s) by the schema
    try:
        with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - as above
            return int(answer.status)
    except HTTPError as error:
        return error.code


def _check_zenml(stack: ProductionStack) -> Iterator[Finding]:
    """The connection to the server, the registered stack, and the secrets it names."""
    from zenml.client import Client  # noqa: PLC0415 - must follow `isolate`
    from zenml.config.global_config import GlobalConfiguration  # noqa: PLC0415
    from zenml.enums import StoreType  # noqa: PLC0415

    remote = GlobalConfiguration().store_configuration.type == StoreType.REST
    yield Finding(
        name="ZenML connection",
        state=State.OK if remote else State.MISSING,
        found="a server" if remote else "this machine's database",
        how=""
        if remote
        else "set ZENML_STORE_URL and ZENML_STORE_API_KEY (a service account's)",
    )
    client = Client()
    try:
        client.get_stack(stack.name, allow_name_prefix_match=False)
        state = State.OK
    except KeyError:
        state = State.MISSING
    yield Finding(
        name=f"stack {stack.name}",
        state=state,
        found="registered" if state is State.OK else "not registered",
        how="" if state is State.OK else "dptune stack up",
    )
    absent = {problem.path: problem.next_step for problem in missing_secrets(stack)}
    for name in stack.secrets:
        how = absent.get(f"secret {name}", "")
        yield Finding(
            name=f"ZenML secret {name}",
            state=State.MISSING if how else State.OK,
            found="absent" if how else "there",
            how=how,
        )


def _check_bucket(store: ArtifactStoreSettings) -> Finding:
    """Whether the bucket is there, as far as this machine may ask."""
    bucket = urlsplit(store.path).netloc
    name = f"bucket {bucket}"
    if find_spec("boto3") is None:
        return Finding(name=name, state=State.UNKNOWN, found="boto3 is not installed")
    import boto3  # noqa: PLC0415 - an extra
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    patience = Config(
        connect_timeout=SECONDS, read_timeout=SECONDS, retries={"max_attempts": 0}
    )
    try:
        client = boto3.client(
            "s3",
            endpoint_url=store.endpoint_url,
            region_name=store.region,
            config=patience,
        )
        client.head_bucket(Bucket=bucket)
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code"))
        return Finding(
            name=name,
            state=State.MISSING if code == "404" else State.UNKNOWN,
            found=f"the store answers {code}",
            how="create the bucket, private and versioned"
            if code == "404"
            else "this machine may not look; the pods' identity must",
        )
    except (BotoCoreError, ValueError) as error:
        return Finding(
            name=name,
            state=State.UNKNOWN,
            found=type(error).__name__,
            how="give this machine credentials to look, or look in a pod",
        )
    return Finding(name=name, state=State.OK, found="there")


def _check_cluster(stack: ProductionStack, profile: Profile) -> list[Finding]:
    """The cluster, and everything in the namespace that pods refer to."""
    needed = _needed_objects(stack, profile)
    if find_spec("kubernetes") is None:
        return [_no_cluster("the kubernetes package is not installed", needed)]
    from kubernetes.client import ApiException, VersionApi  # noqa: PLC0415 - an extra
    from kubernetes.config import ConfigException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError as NoAnswer  # noqa: PLC0415

    try:
        api = _connect(stack.kubernetes.context)
        version = VersionApi(api).get_code(_request_timeout=SECONDS).git_version
    except ConfigException:
        wanted = stack.kubernetes.context or "a service account of a pod"
        return [_no_cluster(f"no configuration of {wanted}", needed)]
    except (ApiException, NoAnswer, OSError) as error:
        return [_no_cluster(f"no answer ({type(error).__name__})", needed)]
    cluster = Finding(name="cluster", state=State.OK, found=str(version))
    looks = _looks(api, stack.kubernetes.namespace)
    found = [cluster, *(_look(o, looks[o.kind]) for o in needed)]
    return [*found, *check_nodes(api, stack, profile)]


@dataclass(frozen=True, kw_only=True)
class _Object:
    """Something in the namespace that pods refer to by name."""

    kind: str
    name: str
    how: str
    optional: bool = False


def _needed_objects(stack: ProductionStack, profile: Profile) -> list[_Object]:
    """List what must be in the namespace, each once."""
    cluster, apply = stack.kubernetes, "kubectl apply -k infra/k8s/overlays/<name>"
    accounts = [cluster.orchestrator_service_account, cluster.step_service_account]
    if stack.kubeflow is not None:
        accounts, apply = [stack.kubeflow.service_account], "see docs/OPERATIONS.md"
    if profile.nodes > 1:
        accounts.append(cluster.launcher_service_account)
    found = [_Object(kind="namespace", name=cluster.namespace, how=apply)]
    found += [_Object(kind="service account", name=n, how=apply) for n in accounts if n]
    found += [
        _Object(kind="volume claim", name=v.claim, how=apply)
        for v in profile.volumes
        if v.claim is not None
    ]
    keys: dict[str, list[str]] = {}
    optional = {s.name for s in profile.secrets.values()}
    for secret in profile.secrets.values():
        keys.setdefault(secret.name, []).append(secret.key)
        if not secret.optional:
            optional.discard(secret.name)
    found += [
        _Object(
            kind="secret",
            name=name,
            how=f"create it with {', '.join(sorted(set(names)))}",
            optional=name in optional,
        )
        for name, names in keys.items()
    ]
    how = "kubectl create secret docker-registry"
    pulls = stack.kubernetes.image_pull_secrets
    found += [_Object(kind="secret", name=name, how=how) for name in pulls]
    return list(dict.fromkeys(found))


def _no_cluster(found: str, needed: list[_Object]) -> Finding:
    """One line instead of many where there is no cluster to ask."""
    names = ", ".join(f"{o.kind} {o.name}" for o in needed)
    return Finding(
        name="cluster",
        state=State.MISSING,
        found=found,
        how=f"set kubernetes.context to one of your kubeconfig; then {names} are "
        "looked for",
    )


def _connect(context: str | None) -> "ApiClient":
    """Make a client of the cluster; nothing is asked yet."""
    from kubernetes import client, config  # noqa: PLC0415 - an extra

    settings = client.Configuration()
    if context is None:
        config.load_incluster_config(client_configuration=settings)
    else:
        config.load_kube_config(context=context, client_configuration=settings)
    settings.retries = 0
    return client.ApiClient(settings)


def _looks(api: "ApiClient", namespace: str) -> dict[str, Callable[[str], Any]]:
    """How each kind of object is looked for."""
    from kubernetes.client import CoreV1Api  # noqa: PLC0415 - an extra

    core, wait = CoreV1Api(api), {"_request_timeout": SECONDS}
    return {
        "namespace": lambda name: core.read_namespace(name, **wait),
        "service account": lambda name: core.read_namespaced_service_account(
            name, namespace, **wait
        ),
        "volume claim": lambda name: core.read_namespaced_persistent_volume_claim(
            name, namespace, **wait
        ),
        "secret": lambda name: core.read_namespaced_secret(name, namespace, **wait),
    }


def _look(wanted: _Object, look: Callable[[str], Any]) -> Finding:
    """Look for one object; what it holds is not read."""
    from kubernetes.client import ApiException  # noqa: PLC0415 - an extra
    from urllib3.exceptions import HTTPError as NoAnswer  # noqa: PLC0415

    name = f"{wanted.kind} {wanted.name}"
    try:
        look(wanted.name)
    except ApiException as error:
        if error.status != HTTPStatus.NOT_FOUND:
            return Finding(
                name=name,
                state=State.UNKNOWN,
                found=f"the cluster answers {error.status}",
                how="this user may not look",
            )
        state = State.UNKNOWN if wanted.optional else State.MISSING
        found = "absent, optional" if wanted.optional else "absent"
        return Finding(name=name, state=state, found=found, how=wanted.how)
    except (NoAnswer, OSError) as error:
        return Finding(
            name=name,
            state=State.UNKNOWN,
            found=f"no answer ({type(error).__name__})",
        )
    return Finding(name=name, state=State.OK, found="there")
