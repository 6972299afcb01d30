"""Objects of a cluster that a pod makes, looks at and removes, and that go with it."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration, CoreV1Api
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from urllib3.exceptions import HTTPError

from dptune.errors import ArtifactError, ConfigError, DptuneError, PrivacyError
from infra.cluster.manifests import Manifest, object_name
from infra.nodes.ends import is_up
from infra.nodes.objects import KINDS

_LOG = logging.getLogger(__name__)
_SECONDS: Final = 30.0
"""How long the cluster may take for an answer."""
_POLL_SECONDS: Final = 1.0
_GONE_SECONDS: Final = 300.0
"""How long objects, and the pods that they started, may take to go."""
_ONE_AT_A_TIME: Final = "a stage must be trained by one run at a time"
_WAIT: Final = "Wait for its end, or set `repetition`."
_ResultT = TypeVar("_ResultT")


@dataclass(kw_only=True)
class Owned:
    """What this pod makes in its namespace.

    Args:
        client: of the cluster.
        namespace: of this pod.
        selector: of the pods that the objects start.
        owner: reference to this pod.
    """

    client: DynamicClient
    namespace: str
    selector: str
    owner: Manifest
    _objects: Sequence[Manifest] = ()
    _followed: set[str] = field(default_factory=set)

    @classmethod
    def by_this_pod(cls, namespace: str, *, selector: str, cache: Path) -> "Owned":
        """Ask the cluster who this pod is.

        Args:
            namespace: of this pod.
            selector: see the class.
            cache: file for what the cluster serves.

        Raises:
            ConfigError: this is no pod that may ask.
            ArtifactError: the cluster does not answer.
        """
        settings = Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            config.load_kube_config(client_configuration=settings)
        api = ApiClient(settings)
        client = _asked(partial(DynamicClient, api, cache_file=str(cache)))
        made = cls(client=client, namespace=namespace, selector=selector, owner={})
        own = made._ask("get", "Pod", name=socket.gethostname())["metadata"]
        made.owner = {"apiVersion": "v1", "kind": "Pod"}
        made.owner |= {"name": own["name"], "uid": own["uid"]}
        return made

    def kind(self, wanted: str) -> str:
        """Decide what starts nodes.

        Args:
            wanted: `auto` is a TrainJob where the cluster serves that kind.
        """
        if wanted != "auto":
            return wanted
        with suppress(ConfigError):
            self._of("TrainJob")
            return "TrainJob"
        return "Job"

    @contextmanager
    def made(self, objects: Sequence[Manifest]) -> Iterator[None]:
        """Make objects, and remove them at the end, whatever it is.

        What an earlier start left is removed first, and waited for.

        Args:
            objects: in the order in which they are made; the last one is the job.

        Raises:
            ConfigError: the cluster refuses one.
            PrivacyError: a pod that is still there made them, or makes them now.
        """
        self._objects = objects
        self._remove(leftover=True)
        self._wait_until_gone()
        try:
            for manifest in objects:
                self._ask("create", manifest["kind"], body=manifest)
            yield
        finally:
            with suppress(DptuneError):  # else they go with this pod
                self._remove(leftover=False)

    def look(self) -> tuple[dict[str, Manifest], list[Manifest]]:
        """Return which conditions hold of the job, by type, and its pods.

        Raises:
            ArtifactError: the cluster does not answer.
            DptuneError: somebody removed the job.
        """
        job = self._objects[-1]
        found = self._ask("get", job["kind"], name=job["metadata"]["name"])
        held = {
            condition["type"]: condition
            for condition in found.get("status", {}).get("conditions") or []
            if condition["status"] == "True"
        }
        pods = self._pods()
        for pod in filter(is_up, pods):
            self._follow_log(pod["metadata"]["name"])
        return held, pods

    def _of(self, kind: str) -> Any:  # noqa: ANN401 - made up from what is served
        """Find how a kind is asked for."""
        version = KINDS.get(kind, "v1")
        return _asked(
            partial(self.client.resources.get, api_version=version, kind=kind)
        )

    def _ask(self, verb: str, kind: str, **what: Any) -> Manifest:  # noqa: ANN401
        """Make, read, list or remove something of the namespace."""
        ask = partial(getattr(self._of(kind), verb), namespace=self.namespace)
        answer = _asked(partial(ask, _request_timeout=_SECONDS, **what))
        found: Manifest = answer.to_dict()
        return found

    def _pods(self) -> list[Manifest]:
        return list(self._ask("get", "Pod", label_selector=self.selector)["items"])

    def _refuse_another_pod(self, found: Manifest) -> None:
        """Refuse to take away what belongs to a run that is at work."""
        for owner in found["metadata"].get("ownerReferences") or []:
            if owner["uid"] == self.owner["uid"]:
                continue
            with suppress(_GoneError):
                pod = self._ask("get", "Pod", name=owner["name"])
                ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
                if pod["metadata"]["uid"] == owner["uid"] and not ended:
                    raise PrivacyError(
                        f"{_ONE_AT_A_TIME}, but pod {owner['name']} trains it as "
                        f"{object_name(found)}. {_WAIT}"
                    )

    def _remove(self, *, leftover: bool) -> None:
        """Remove objects, the job first, and the pods that they started.

        Each as it was looked at: another run may make its own of that name meanwhile.

        Args:
            leftover: those of pods that have ended too, not this pod's alone.
        """
        for manifest in reversed(self._objects):
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            with suppress(_GoneError):
                found = self._ask("get", kind, name=name)
                owners = found["metadata"].get("ownerReferences") or []
                is_own = any(owner["uid"] == self.owner["uid"] for owner in owners)
                if not is_own and not leftover:
                    continue
                self._refuse_another_pod(found)
                how = {
                    "propagationPolicy": "Foreground",
                    "preconditions": {"uid": found["metadata"]["uid"]},
                }
                self._ask("delete", kind, name=name, body=how)

    def _wait_until_gone(self) -> None:
        """Wait for what was removed; two jobs of one stage would both draw."""
        end = time.monotonic() + _GONE_SECONDS
        while left := [*self._left(), *map(object_name, self._pods())]:
            if time.monotonic() > end:
                raise DptuneError(
                    "nodes of an earlier start must be gone before others start, but "
                    f"there are {', '.join(left)}. Remove them, then start again."
                )
            time.sleep(_POLL_SECONDS)

    def _left(self) -> Iterator[str]:
        """Name the objects that are still there."""
        for manifest in self._objects:
            name = manifest["metadata"]["name"]
            with suppress(_GoneError):
                self._refuse_another_pod(self._ask("get", manifest["kind"], name=name))
                yield object_name(manifest)

    def _follow_log(self, pod: str) -> None:
        """Copy a pod's log into this one's, line by line, until it ends."""
        if pod in self._followed:
            return
        self._followed.add(pod)

        def copy() -> None:
            with suppress(ApiException, HTTPError):
                lines = CoreV1Api(self.client.client).read_namespaced_pod_log(
                    pod, self.namespace, follow=True, _preload_content=False
                )
                for line in lines:
                    _LOG.info("%s: %s", pod, line.decode(errors="replace").rstrip())

        threading.Thread(target=copy, daemon=True).start()


class _GoneError(DptuneError):
    """Something is not there, or not any more."""


def _asked(question: Callable[[], _ResultT]) -> _ResultT:
    """Ask the cluster; say what its refusals mean.

    Raises:
        ConfigError: it refuses, and would again.
        ArtifactError: it does not answer, or not now.
        PrivacyError: somebody else has just made what this pod was to make.
    """
    try:
        return question()
    except ResourceNotFoundError as error:
        raise ConfigError(
            f"the cluster must serve what pods.accelerated.nodes asks for: {error}. "
            "Install it, or change kind and scheduler there."
        ) from None
    except ApiException as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise _GoneError(
                "what this pod made must stay until it removes it, but is gone. Start "
                "the run again."
            ) from None
        if error.status == HTTPStatus.CONFLICT and "AlreadyExists" in str(error.body):
            raise PrivacyError(
                f"{_ONE_AT_A_TIME}, but another has just started its nodes. {_WAIT}"
            ) from None
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR or (
            error.status in (HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS)
        ):
            raise ArtifactError(f"Kubernetes answers {error.status}.") from None
        raise ConfigError(
            f"Kubernetes must let this pod start nodes, but answers {error.status} "
            f"{error.reason}: {error.body}. `dptune stack check` says what is missing."
        ) from None
    except (HTTPError, OSError) as error:
        raise ArtifactError(f"Kubernetes does not answer: {error}.") from None
