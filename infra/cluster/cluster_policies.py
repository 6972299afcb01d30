"""What a set of manifests must keep as a whole: namespace, network, roles, budgets.

Each policy takes all objects of an overlay and yields pairs of an object's name and
what is wrong with it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from urllib.parse import urlsplit

from infra.cluster.manifests import (
    Manifest,
    Pod,
    find_objects,
    find_pods,
    object_name,
    selects,
)
from infra.nodes.settings import JOB, LAUNCHES, NEEDED_VERBS, PORT

Wrong = tuple[str, str]

_POD_SECURITY = "pod-security.kubernetes.io"
_RISKY_RESOURCES = {"pods/exec", "pods/attach", "pods/portforward", "nodes", "*"}
_RISKY_VERBS = {"*", "escalate", "bind", "impersonate", "deletecollection"}
_READING = {"get", "list", "watch"}
_PLACEHOLDER = re.compile(
    r"\bexample\.(com|org)\b|set-by-overlay|set-a-digest|sha256:0{64}"
)
_NOWHERE = "192.0.2.0/24"
_NEEDED_NETWORKS = (
    *("orchestrator-to-kubernetes", "launcher-to-kubernetes"),
    "object-store",
)
_LAUNCHER, _HOME = "dptune-launcher", "dptune-home"
_NODE, _WEB = {JOB: "any", "app.kubernetes.io/part-of": "dptune"}, {443, 6443}
_POSTGRES, _POSTGRES_PORT = "StatefulSet/postgres", 5432
_INSIDE = {53, _POSTGRES_PORT, 3306}  # DNS and the databases
_OBJECT_STORE, _PORT_OF = "MLFLOW_S3_ENDPOINT_URL", {"http": 80, "https": 443}
_MOST_NAMED = 5


def namespace_is_restricted(manifests: list[Manifest]) -> Iterator[Wrong]:
    """The cluster itself enforces the restricted level."""
    found = find_objects(manifests, "Namespace")
    if not found:
        yield "Namespace", "must be among the objects."
    for manifest in found:
        labels = manifest["metadata"].get("labels") or {}
        for mode in ("enforce", "audit", "warn"):
            if labels.get(f"{_POD_SECURITY}/{mode}") != "restricted":
                yield object_name(manifest), f"must {mode} the level restricted."


def all_objects_are_in_one_namespace(manifests: list[Manifest]) -> Iterator[Wrong]:
    """Nothing lands elsewhere."""
    (name, *others) = [
        manifest["metadata"]["name"]
        for manifest in find_objects(manifests, "Namespace")
    ] or ["?"]
    for other in others:
        yield f"Namespace/{other}", "must be the only one."
    for manifest in manifests:
        namespace = manifest.get("metadata", {}).get("namespace")
        if manifest["kind"] not in _CLUSTER_KINDS and namespace != name:
            yield object_name(manifest), f"must be in the namespace {name}."


def networks_are_closed(manifests: list[Manifest]) -> Iterator[Wrong]:
    """Nothing is allowed unless written down, and never the whole world."""
    policies = find_objects(manifests, "NetworkPolicy")
    closed = [
        p["spec"]["policyTypes"]
        for p in policies
        if p["spec"]["podSelector"] == {}
        and not p["spec"].get("ingress")
        and not p["spec"].get("egress")
    ]
    for direction in ("Ingress", "Egress"):
        if not any(direction in types for types in closed):
            yield "NetworkPolicy", f"must deny {direction} by default."
    for policy in policies:
        yield from _open_rules(policy)


def roles_are_least(manifests: list[Manifest]) -> Iterator[Wrong]:
    """No wildcards, no reading of secrets, nothing for the whole cluster."""
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        for manifest in find_objects(manifests, kind):
            yield object_name(manifest), "must be a Role of the namespace instead."
    for binding in find_objects(manifests, "RoleBinding"):
        if binding["roleRef"]["kind"] != "Role":
            yield object_name(binding), "must name a Role of the namespace."
    for role in find_objects(manifests, "Role"):
        for rule in role.get("rules") or []:
            resources, verbs = set(rule.get("resources") or []), set(rule["verbs"])
            risky = (resources & _RISKY_RESOURCES) | (verbs & _RISKY_VERBS)
            if risky or "*" in (rule.get("apiGroups") or []):
                yield object_name(role), f"must not allow {', '.join(sorted(risky))}."
            if "secrets" in resources and verbs & _READING:
                yield object_name(role), "must not read secrets."


def secret_writers_are_confined(manifests: list[Manifest]) -> Iterator[Wrong]:
    """Accounts that may write secrets may write the tokens of runs only."""
    policies = find_objects(manifests, "ValidatingAdmissionPolicy")
    bound = {
        binding["spec"]["policyName"]
        for binding in find_objects(manifests, "ValidatingAdmissionPolicyBinding")
        if "Deny" in binding["spec"]["validationActions"]
    }
    confined = " ".join(
        condition["expression"]
        for policy in policies
        if policy["metadata"]["name"] in bound
        and policy["spec"].get("failurePolicy") == "Fail"
        and "zenml-token-" in json.dumps(policy["spec"]["validations"])
        for condition in policy["spec"]["matchConditions"]
    )
    for role in find_objects(manifests, "Role"):
        writes = any("secrets" in rule["resources"] for rule in role["rules"])
        short = role["metadata"]["name"].removeprefix("dptune-")
        if writes and short not in confined:
            yield object_name(role), "must be confined to the tokens of runs."


def namespace_has_limits(manifests: list[Manifest]) -> Iterator[Wrong]:
    """The namespace cannot take the whole cluster."""
    for kind in ("ResourceQuota", "LimitRange"):
        if not find_objects(manifests, kind):
            yield kind, "must be among the objects."
    for quota in find_objects(manifests, "ResourceQuota"):
        missing = {
            "limits.cpu",
            "limits.memory",
            "pods",
            "services.loadbalancers",
        } - set(quota["spec"]["hard"])
        if missing:
            yield object_name(quota), f"must limit {', '.join(sorted(missing))}."


def servers_survive_drains(manifests: list[Manifest]) -> Iterator[Wrong]:
    """Each server has a disruption budget that lets nodes be drained."""
    budgets = find_objects(manifests, "PodDisruptionBudget")
    for pod in find_pods(manifests):
        if not pod.owner.startswith(("Deployment/", "StatefulSet/")):
            continue
        own = [b for b in budgets if selects(b["spec"]["selector"], pod.labels)]
        if not own:
            yield pod.owner, "must have a PodDisruptionBudget."
        if any(b["spec"].get("maxUnavailable") in (0, "0%") for b in own):
            yield pod.owner, "must not keep a node from being drained."


def tokens_only_where_needed(manifests: list[Manifest]) -> Iterator[Wrong]:
    """Only pods whose account has a role get a token of the cluster."""
    accounts = {
        account["metadata"]["name"]: account.get("automountServiceAccountToken", True)
        for account in find_objects(manifests, "ServiceAccount")
    }
    bound = {
        subject["name"]
        for binding in find_objects(manifests, "RoleBinding")
        for subject in binding["subjects"]
    }
    for pod in find_pods(manifests):
        account = pod.spec.get("serviceAccountName") or "default"
        own = pod.spec.get("automountServiceAccountToken")
        mounts = accounts.get(account, True) if own is None else own
        if mounts and account not in bound:
            yield pod.owner, f"must not mount a token of {account}."
    for name, mounts in accounts.items():
        if mounts and name not in bound:
            yield f"ServiceAccount/{name}", "must not mount its token."


def launcher_may_start_nodes(manifests: list[Manifest]) -> Iterator[Wrong]:
    """A step that several nodes train may make what starts them, and ask Kubernetes."""
    roles = {
        binding["roleRef"]["name"]
        for binding in find_objects(manifests, "RoleBinding")
        if any(subject["name"] == _LAUNCHER for subject in binding["subjects"])
    }
    allowed = {
        (group, resource, verb)
        for role in find_objects(manifests, "Role")
        if role["metadata"]["name"] in roles
        for rule in role["rules"]
        for group, resource, verb in product(
            rule["apiGroups"], rule["resources"], rule["verbs"]
        )
    }
    for group, resource, verb in NEEDED_VERBS:
        if (group, resource, verb) not in allowed:
            what = f"{resource}.{group}" if group else resource
            yield f"ServiceAccount/{_LAUNCHER}", f"must be allowed to {verb} {what}."
    if not _ports(manifests, LAUNCHES, None, "egress") & _WEB:
        yield "NetworkPolicy", "must let pods that start nodes reach Kubernetes."


def nodes_reach_each_other(manifests: list[Manifest]) -> Iterator[Wrong]:
    """Nodes of a stage meet at one port, and exchange gradients at any that is free."""
    node, needed = {JOB: "any"}, {PORT, *range(32768, 60999)}
    for direction in ("ingress", "egress"):
        if needed - _ports(manifests, node, node, direction):
            ports = f"ports {PORT} and 32768 to 60999"
            yield "NetworkPolicy", f"must allow {direction} between nodes, {ports}."


def nodes_reach_the_budget_store(manifests: list[Manifest]) -> Iterator[Wrong]:
    """The first node charges, on a PostgreSQL outside of the cluster or inside."""
    pods = find_pods(manifests)
    inside: list[Mapping[str, str] | None] = [
        pod.labels for pod in pods if pod.owner == _POSTGRES
    ]
    for labels in inside or [None]:
        ways = {"egress": _ports(manifests, _NODE, labels, "egress")}
        if labels is not None:
            ways["ingress"] = _ports(manifests, labels, _NODE, "ingress")
        for direction, ports in ways.items():
            if _POSTGRES_PORT not in ports:
                yield "NetworkPolicy", f"must allow {direction} of nodes to PostgreSQL."


def nodes_reach_nobody_else(manifests: list[Manifest]) -> Iterator[Wrong]:
    """What nodes exchange is in the clear, and they hold weights: none goes out."""
    if ports := _ports(manifests, _NODE, None, "egress") - _INSIDE:
        first = sorted(ports)[:_MOST_NAMED]
        numbers = ", ".join([*map(str, first), *["..."] * (len(ports) > len(first))])
        yield "NetworkPolicy", f"must not let nodes out of the cluster, port {numbers}."


def object_store_is_reached_at_its_port(manifests: list[Manifest]) -> Iterator[Wrong]:
    """The network of the object store has the port that its URL names."""
    for pod in find_pods(manifests):
        for url in _values_of(pod, _OBJECT_STORE):
            parts = urlsplit(url)
            port = parts.port or _PORT_OF.get(parts.scheme)
            if port not in _ports(manifests, pod.labels, None, "egress"):
                message = (
                    f"must open port {port} of object-store-url: object-store-port."
                )
                yield "NetworkPolicy/object-store", message


def home_is_shared(manifests: list[Manifest]) -> Iterator[Wrong]:
    """Pods of several nodes write checkpoints and read jobs on one volume."""
    for claim in find_objects(manifests, "PersistentVolumeClaim"):
        modes = claim["spec"].get("accessModes") or []
        if claim["metadata"]["name"] == _HOME and "ReadWriteMany" not in modes:
            yield object_name(claim), "must be ReadWriteMany."


def no_secret_is_written_down(manifests: list[Manifest]) -> Iterator[Wrong]:
    """Manifests hold references, never values."""
    for manifest in find_objects(manifests, "Secret"):
        if manifest.get("data") or manifest.get("stringData"):
            yield object_name(manifest), "must not be committed with values."


def jobs_end(manifests: list[Manifest]) -> Iterator[Wrong]:
    """A job stops trying, ends in time, is cleaned up; preemption is not its fault."""
    for name, spec in _jobs(manifests):
        wanted = ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished")
        missing = [key for key in wanted if spec.get(key) is None]
        if missing:
            yield name, f"must set {', '.join(missing)}."
        rules = (spec.get("podFailurePolicy") or {}).get("rules") or [{}]
        ignored = json.dumps(rules[0].get("onPodConditions"))
        if rules[0].get("action") != "Ignore" or "DisruptionTarget" not in ignored:
            yield name, "must not count preempted pods: that rule comes first."


def schedules_wait_for_each_other(manifests: list[Manifest]) -> Iterator[Wrong]:
    """A run that is not over keeps the next from starting; a missed one is dropped."""
    for manifest in find_objects(manifests, "CronJob"):
        if manifest["spec"].get("concurrencyPolicy") != "Forbid":
            yield object_name(manifest), "must forbid runs at the same time."
        if manifest["spec"].get("startingDeadlineSeconds") is None:
            yield object_name(manifest), "must set startingDeadlineSeconds."


def nothing_is_left_to_fill_in(manifests: list[Manifest]) -> Iterator[Wrong]:
    """No value of the example is left."""
    for manifest in manifests:
        for found in sorted(
            {m[0] for m in _PLACEHOLDER.finditer(json.dumps(manifest))}
        ):
            yield object_name(manifest), f"{found} must be replaced by a real value."
    needed = {*_NEEDED_NETWORKS}
    if _POSTGRES not in map(object_name, manifests):
        needed.add("databases")  # the budget store's is outside
    for policy in find_objects(manifests, "NetworkPolicy"):
        if policy["metadata"]["name"] in needed and _NOWHERE in json.dumps(policy):
            yield object_name(policy), f"{_NOWHERE} must be replaced: it is no network."


CLUSTER_POLICIES: tuple[Callable[[list[Manifest]], Iterator[Wrong]], ...] = (
    namespace_is_restricted,
    all_objects_are_in_one_namespace,
    networks_are_closed,
    roles_are_least,
    secret_writers_are_confined,
    namespace_has_limits,
    servers_survive_drains,
    tokens_only_where_needed,
    launcher_may_start_nodes,
    nodes_reach_each_other,
    nodes_reach_the_budget_store,
    nodes_reach_nobody_else,
    object_store_is_reached_at_its_port,
    home_is_shared,
    no_secret_is_written_down,
    jobs_end,
    schedules_wait_for_each_other,
    nothing_is_left_to_fill_in,
)

_CLUSTER_KINDS = {
    "Namespace",
    "PriorityClass",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


def _jobs(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Specifications of jobs, those of schedules included."""
    for manifest in find_objects(manifests, "Job"):
        yield object_name(manifest), manifest["spec"]
    for manifest in find_objects(manifests, "CronJob"):
        yield object_name(manifest), manifest["spec"]["jobTemplate"]["spec"]


def _ports(
    manifests: list[Manifest],
    own: Mapping[str, str],
    other: Mapping[str, str] | None,
    direction: str,
) -> set[int]:
    """Ports that policies open between two pods, or to what is outside (None)."""
    peers = "from" if direction == "ingress" else "to"
    return {
        number
        for policy in find_objects(manifests, "NetworkPolicy")
        if selects(policy["spec"]["podSelector"], own)
        for rule in policy["spec"].get(direction) or []
        if any(_is_peer(peer, other) for peer in rule.get(peers) or [])
        for port in rule.get("ports") or []
        if isinstance(port["port"], int)
        for number in range(port["port"], port.get("endPort", port["port"]) + 1)
    }


def _values_of(pod: Pod, name: str) -> set[str]:
    """Values that the containers of a pod have of a variable."""
    variables = (v for c in pod.spec["containers"] for v in c.get("env") or [])
    return {v["value"] for v in variables if v["name"] == name and v.get("value")}


def _is_peer(peer: Manifest, other: Mapping[str, str] | None) -> bool:
    """Whether a peer is a pod of the namespace, or anything outside (None)."""
    if other is None:
        return "namespaceSelector" in peer or "ipBlock" in peer
    return "podSelector" in peer and selects(peer["podSelector"], other)


def _open_rules(policy: Manifest) -> Iterator[Wrong]:
    """Rules of a policy that let everybody in, or out to everywhere."""
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for rule in policy["spec"].get(direction) or []:
            if not rule.get(peers) or not rule.get("ports"):
                yield object_name(policy), f"{direction} must name peers and ports."
            for peer in rule.get(peers) or []:
                if peer.get("ipBlock", {}).get("cidr") in ("0.0.0.0/0", "::/0"):
                    yield object_name(policy), f"{direction} must not be the world."
                if peer in ({"podSelector": {}}, {"namespaceSelector": {}}):
                    yield object_name(policy), f"{direction} must not be everybody."
