"""Both overlays keep every policy, and every policy catches who breaks it."""

import copy
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cli.cluster import build_cluster_app
from dptune.errors import ConfigError
from infra.cluster.check import check_manifests, check_policies
from infra.cluster.cluster_policies import CLUSTER_POLICIES
from infra.cluster.manifests import (
    OVERLAYS,
    find_objects,
    find_pods,
    overlay_names,
    render_overlay,
    selects,
)
from infra.cluster.pod_policies import POD_POLICIES
from infra.cluster.references import external_secrets, secret_references
from infra.cluster.schemas import VERSIONS, round_trip_problems, schema_problems
from infra.cluster.secrets import SECRETS, secret_commands
from infra.nodes.objects import node_objects
from infra.nodes.settings import JOB, LAUNCHES
from infra.workspace import REPOSITORY
from tests.cluster.node_cluster import node_job
from tests.infra.clusters import DIGEST, filled_overlay, find

NAMES = ("production", "staging")


@pytest.fixture(scope="module")
def overlays(tmp_path_factory):
    """Both overlays, filled in and rendered once."""
    return {n: filled_overlay(n, tmp_path_factory.mktemp(n)) for n in NAMES}


@pytest.fixture
def staging(overlays):
    """A copy of the staging overlay that a test may spoil."""
    return copy.deepcopy(overlays["staging"])


def test_overlays_are_the_two_that_are_tested():
    assert overlay_names() == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_overlay_filled_in_keeps_every_policy(overlays, name):
    assert len(overlays[name]) > 30
    assert check_manifests(overlays[name]) == []


@pytest.mark.parametrize("name", NAMES)
def test_overlay_as_committed_is_refused_for_its_placeholders_alone(name):
    found = check_policies(render_overlay(name))
    assert {finding.policy for finding in found} == {
        "names_images_by_digest",
        "nothing_is_left_to_fill_in",
    }


@pytest.mark.parametrize("name", NAMES)
def test_network_of_databases_must_be_given_where_none_is_inside(overlays, name):
    """Else no run could reach the budget store, and nothing said so."""
    spoiled = copy.deepcopy(overlays[name])
    for rule in spec(spoiled, "NetworkPolicy/databases")["egress"]:
        rule["to"] = [{"ipBlock": {"cidr": "192.0.2.0/24"}}]
    found = {f"{finding.policy} {finding.name}" for finding in check_policies(spoiled)}
    wanted = {"nothing_is_left_to_fill_in NetworkPolicy/databases"}
    assert found == (wanted if name == "production" else set())


def test_every_version_of_the_schemas_is_tested():
    assert len(set(VERSIONS)) >= 2


def test_production_has_two_of_each_server_and_staging_one(overlays):
    replicas = {
        name: {
            m["metadata"]["name"]: m["spec"]["replicas"]
            for m in find_objects(overlays[name], "StatefulSet")
        }
        for name in NAMES
    }
    assert replicas["production"] == {"mlflow": 2, "zenml": 2}
    assert replicas["staging"] == {"mlflow": 1, "zenml": 1, "postgres": 1}


def test_zenml_in_production_has_no_file_and_its_url_from_a_secret(overlays):
    server = find(overlays["production"], "StatefulSet/zenml")["spec"]
    assert "volumeClaimTemplates" not in server
    (container,) = server["template"]["spec"]["containers"]
    (url,) = [v for v in container["env"] if v["name"] == "ZENML_STORE_URL"]
    assert url["valueFrom"]["secretKeyRef"]["key"] == "store-url"
    assert "value" not in url


def test_facts_of_the_cluster_arrive_where_they_belong(overlays):
    store = find(overlays["staging"], "NetworkPolicy/object-store")["spec"]
    assert store["egress"][0]["to"] == [{"ipBlock": {"cidr": "10.20.0.0/24"}}]
    for claim in find_objects(overlays["staging"], "PersistentVolumeClaim"):
        assert claim["spec"]["storageClassName"] == "shared"
    assert not find_objects(overlays["staging"], "ConfigMap")[1:]


PORTS = {
    "https://s3.internal": "http://minio.internal:9000",
    'object-store-port: "443"': 'object-store-port: "9000"',
    "endpoints: 192.0.2.0/24": "endpoints: 10.40.0.0/24",
    'endpoints-port: "443"': 'endpoints-port: "5000"',
    "node-dns: 169.254.20.10/32": "node-dns: 10.96.0.10/32",
}


def test_ports_of_the_cluster_arrive_as_numbers(tmp_path):
    """A MinIO at 9000, or an MLflow outside at 5000, was cut off."""
    made = filled_overlay("production", tmp_path, facts=PORTS)
    assert check_manifests(made) == []
    opened = {
        name: [
            port["port"]
            for port in spec(made, f"NetworkPolicy/{name}")["egress"][0]["ports"]
        ]
        for name in ("object-store", "endpoints")
    }
    assert opened == {"object-store": [9000], "endpoints": [443, 5000]}
    assert may_call(made, STEP, "10.96.0.10/32")


def test_port_of_the_object_stores_url_must_be_open(tmp_path):
    facts = {k: v for k, v in PORTS.items() if "port" not in k}
    (found,) = check_policies(filled_overlay("staging", tmp_path, facts=facts))
    assert found.name == "NetworkPolicy/object-store"
    assert found.message.startswith("must open port 9000")


def test_names_are_looked_up_at_the_nodes_own_cache_too(overlays):
    """Node-local DNS was blocked: it is no pod of kube-dns."""
    for source in (STEP, ORCHESTRATOR, NODE):
        assert may_call(overlays["staging"], source, "169.254.20.10/32")


def test_vault_brings_every_secret_and_key_that_there_is(overlays):
    inside = {"dptune-postgres"}
    wanted = {n: frozenset(k) for n, k in SECRETS.items() if n not in inside}
    assert external_secrets(overlays["production"]) == wanted


# Who reaches whom, by the policies' own selectors.

STEP = {
    "pipeline": "train",
    "step_name": "score",
    "app.kubernetes.io/part-of": "dptune",
}
ORCHESTRATOR = {"pipeline": "train", "app.kubernetes.io/part-of": "dptune"}
STRANGER = {"app": "stranger"}
LAUNCHER = STEP | LAUNCHES
NODE = {JOB: "dptune-1", "app.kubernetes.io/part-of": "dptune"}
OTHER_NODE = {JOB: "dptune-1", "app.kubernetes.io/part-of": "dptune"}


def reaches(manifests, source, target, port):
    """Whether one pod's packets may leave it and enter the other."""

    def allowed(own, other, direction, peers):
        return any(
            selects(peer["podSelector"], other)
            for policy in find_objects(manifests, "NetworkPolicy")
            if selects(policy["spec"]["podSelector"], own)
            for rule in policy["spec"].get(direction, [])
            if any(opens(p, port) for p in rule["ports"])
            for peer in rule[peers]
            if "podSelector" in peer and "namespaceSelector" not in peer
        )

    return allowed(source, target, "egress", "to") and allowed(
        target, source, "ingress", "from"
    )


def opens(rule, port):
    """Whether a port of a policy is this one, by number, range or name."""
    first = rule["port"]
    return first == "http" or first <= port <= rule.get("endPort", first)


def may_call(manifests, source, cidr):
    """Whether a pod may speak to an address outside."""
    return any(
        peer.get("ipBlock", {}).get("cidr") == cidr
        for policy in find_objects(manifests, "NetworkPolicy")
        if selects(policy["spec"]["podSelector"], source)
        for rule in policy["spec"].get("egress", [])
        for peer in rule["to"]
    )


@pytest.mark.parametrize(
    ("source", "server", "port", "expected"),
    [
        (STEP, "mlflow", 5000, True),
        (STEP, "zenml", 8080, True),
        (STEP, "postgres", 5432, True),
        (ORCHESTRATOR, "mlflow", 5000, True),
        (ORCHESTRATOR, "zenml", 8080, True),
        (ORCHESTRATOR, "postgres", 5432, False),
        (NODE, "mlflow", 5000, False),
        (NODE, "zenml", 8080, False),
        (NODE, "postgres", 5432, True),
        (STRANGER, "mlflow", 5000, False),
        (STRANGER, "zenml", 8080, False),
        (STRANGER, "postgres", 5432, False),
    ],
)
def test_networks_let_through_what_a_run_needs_and_no_more(
    overlays, source, server, port, expected
):
    pods = {pod.owner: pod for pod in find_pods(overlays["staging"])}
    labels = pods[f"StatefulSet/{server}"].labels
    assert reaches(overlays["staging"], source, labels, port) is expected


def test_nodes_of_a_stage_reach_each_other_and_nobody_else_reaches_them(overlays):
    for port in (29500, 40000):
        assert reaches(overlays["staging"], NODE, OTHER_NODE, port)
        for source in (STEP, LAUNCHER, ORCHESTRATOR, STRANGER):
            assert not reaches(overlays["staging"], source, NODE, port)
            assert not reaches(overlays["staging"], NODE, source, port)


@pytest.mark.parametrize("kind", ["Job", "TrainJob"])
def test_nodes_keep_every_policy_beside_the_overlay(overlays, tmp_path, kind):
    made = node_objects(
        node_job(tmp_path / "profile", scheduler="gang"),
        kind=kind,
        name="dptune-1",
        folder=tmp_path,
        num_processes=1,
        owner={"apiVersion": "v1", "kind": "Pod", "name": "step-1", "uid": "1"},
    )
    assert check_manifests([*overlays["production"], *made]) == []
    (pod,) = find_pods(made)
    pod.spec["containers"][0].pop("securityContext")
    found = {f.policy for f in check_policies([*overlays["production"], *made])}
    assert "has_read_only_root" in found


def test_networks_let_only_the_orchestrator_speak_to_kubernetes(overlays):
    for source in (ORCHESTRATOR, LAUNCHER, STEP, NODE, STRANGER):
        speaks = source in (ORCHESTRATOR, LAUNCHER)
        assert may_call(overlays["staging"], source, "10.0.0.1/32") is speaks
    for source in (ORCHESTRATOR, LAUNCHER, STEP, NODE, STRANGER):
        stores = source not in (NODE, STRANGER)
        assert may_call(overlays["staging"], source, "10.20.0.0/24") is stores


# Broken twins: one change each, and the policy that must see it.


def container(manifests):
    return find(manifests, "StatefulSet/mlflow")["spec"]["template"]["spec"][
        "containers"
    ][0]


def pod(manifests):
    return find(manifests, "StatefulSet/mlflow")["spec"]["template"]["spec"]


def spec(manifests, name):
    return find(manifests, name)["spec"]


def drop(manifests, name):
    manifests.remove(find(manifests, name))


def rule(manifests, name):
    return find(manifests, f"Role/{name}")["rules"][0]


SECRET = {"kind": "Secret", "apiVersion": "v1", "data": {"key": "YQ=="}}
SECRET |= {"metadata": {"name": "a", "namespace": "dptune-staging"}}

IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def job(manifests, **changes):
    """Add a job that keeps every policy, but for what is changed."""
    spec = {
        "activeDeadlineSeconds": 60,
        "backoffLimit": 1,
        "ttlSecondsAfterFinished": 60,
        "podFailurePolicy": {"rules": [IGNORE]},
        "template": copy.deepcopy(
            find(manifests, "StatefulSet/mlflow")["spec"]["template"]
        ),
    }
    manifests.append(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train", "namespace": "dptune-staging"},
            "spec": spec | changes,
        }
    )


def schedule(manifests, **changes):
    """Add a schedule that keeps every policy, but for what is changed."""
    job(manifests)
    found = manifests.pop()
    spec = {"schedule": "0 3 * * *", "concurrencyPolicy": "Forbid"}
    spec |= {"startingDeadlineSeconds": 60, "jobTemplate": {"spec": found["spec"]}}
    manifests.append(found | {"kind": "CronJob", "spec": spec | changes})


TWINS = [
    ("jobs_end", lambda m: job(m, activeDeadlineSeconds=None)),
    ("jobs_end", lambda m: job(m, backoffLimit=None)),
    ("jobs_end", lambda m: job(m, podFailurePolicy=None)),
    (
        "jobs_end",
        lambda m: job(m, podFailurePolicy={"rules": [{"action": "Count"}, IGNORE]}),
    ),
    ("schedules_wait_for_each_other", lambda m: schedule(m, concurrencyPolicy="Allow")),
    (
        "schedules_wait_for_each_other",
        lambda m: schedule(m, startingDeadlineSeconds=None),
    ),
    ("runs_as_somebody", lambda m: pod(m)["securityContext"].pop("runAsNonRoot")),
    ("runs_as_somebody", lambda m: pod(m)["securityContext"].update(runAsUser=0)),
    (
        "runs_as_somebody",
        lambda m: container(m)["securityContext"].update(runAsUser=0),
    ),
    ("has_seccomp_profile", lambda m: pod(m)["securityContext"].pop("seccompProfile")),
    (
        "has_seccomp_profile",
        lambda m: container(m)["securityContext"].update(
            seccompProfile={"type": "Unconfined"}
        ),
    ),
    ("has_no_privilege", lambda m: container(m).pop("securityContext")),
    (
        "has_no_privilege",
        lambda m: container(m)["securityContext"].update(privileged=True),
    ),
    (
        "has_no_privilege",
        lambda m: container(m)["securityContext"].update(allowPrivilegeEscalation=True),
    ),
    (
        "has_no_privilege",
        lambda m: container(m)["securityContext"]["capabilities"].update(
            add=["SYS_ADMIN"]
        ),
    ),
    ("has_no_privilege", lambda m: container(m)["ports"][0].update(hostPort=5000)),
    ("has_no_privilege", lambda m: pod(m).update(hostNetwork=True)),
    (
        "has_read_only_root",
        lambda m: container(m)["securityContext"].pop("readOnlyRootFilesystem"),
    ),
    (
        "mounts_only_harmless_volumes",
        lambda m: pod(m)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    ),
    (
        "mounts_only_harmless_volumes",
        lambda m: pod(m)["volumes"].append({"name": "h", "emptyDir": {}}),
    ),
    ("has_limits", lambda m: container(m)["resources"]["limits"].pop("memory")),
    ("has_limits", lambda m: container(m).pop("resources")),
    (
        "has_limits",
        lambda m: container(m)["resources"]["limits"].update({"nvidia.com/gpu": "1"}),
    ),
    (
        "holds_no_secret",
        lambda m: container(m)["env"].append({"name": "API_TOKEN", "value": "a"}),
    ),
    (
        "holds_no_secret",
        lambda m: container(m)["command"].append("--uri=postgresql://u:p@host/db"),
    ),
    ("names_images_by_digest", lambda m: container(m).update(image="a/b:latest")),
    (
        "names_images_by_digest",
        lambda m: container(m).update(image="a/b@sha256:" + "0" * 64),
    ),
    ("answers_probes", lambda m: container(m).pop("readinessProbe")),
    ("does_not_learn_services", lambda m: pod(m).pop("enableServiceLinks")),
    (
        "namespace_is_restricted",
        lambda m: find(m, "Namespace/dptune-staging")["metadata"]["labels"].update(
            {"pod-security.kubernetes.io/enforce": "baseline"}
        ),
    ),
    (
        "all_objects_are_in_one_namespace",
        lambda m: find(m, "Service/mlflow")["metadata"].update(namespace="default"),
    ),
    ("networks_are_closed", lambda m: drop(m, "NetworkPolicy/default-deny")),
    (
        "networks_are_closed",
        lambda m: spec(m, "NetworkPolicy/object-store")["egress"][0].pop("to"),
    ),
    (
        "networks_are_closed",
        lambda m: spec(m, "NetworkPolicy/object-store")["egress"][0].update(
            to=[{"ipBlock": {"cidr": "0.0.0.0/0"}}]
        ),
    ),
    (
        "networks_are_closed",
        lambda m: spec(m, "NetworkPolicy/postgres")["ingress"][0].update(
            {"from": [{"podSelector": {}}]}
        ),
    ),
    ("roles_are_least", lambda m: rule(m, "dptune-orchestrator").update(verbs=["*"])),
    (
        "roles_are_least",
        lambda m: rule(m, "dptune-orchestrator").update(resources=["secrets"]),
    ),
    (
        "roles_are_least",
        lambda m: rule(m, "dptune-submitter").update(resources=["pods/exec"]),
    ),
    (
        "roles_are_least",
        lambda m: find(m, "RoleBinding/dptune-submitter")["roleRef"].update(
            kind="ClusterRole", name="edit"
        ),
    ),
    (
        "secret_writers_are_confined",
        lambda m: drop(m, "ValidatingAdmissionPolicyBinding/dptune-token-secrets"),
    ),
    (
        "secret_writers_are_confined",
        lambda m: spec(m, "ValidatingAdmissionPolicy/dptune-token-secrets").update(
            failurePolicy="Ignore"
        ),
    ),
    ("namespace_has_limits", lambda m: drop(m, "ResourceQuota/dptune")),
    (
        "namespace_has_limits",
        lambda m: spec(m, "ResourceQuota/dptune")["hard"].pop("limits.memory"),
    ),
    ("servers_survive_drains", lambda m: drop(m, "PodDisruptionBudget/mlflow")),
    (
        "servers_survive_drains",
        lambda m: spec(m, "PodDisruptionBudget/mlflow").update(maxUnavailable=0),
    ),
    (
        "tokens_only_where_needed",
        lambda m: pod(m).update(automountServiceAccountToken=True),
    ),
    (
        "tokens_only_where_needed",
        lambda m: find(m, "ServiceAccount/dptune-step").pop(
            "automountServiceAccountToken"
        ),
    ),
    ("launcher_may_start_nodes", lambda m: drop(m, "RoleBinding/dptune-launcher")),
    (
        "launcher_may_start_nodes",
        lambda m: drop(m, "NetworkPolicy/launcher-to-kubernetes"),
    ),
    *(
        (
            "launcher_may_start_nodes",
            lambda m, n=number: find(m, "Role/dptune-launcher")["rules"].pop(n),
        )
        for number in range(6)
    ),
    ("nodes_reach_each_other", lambda m: drop(m, "NetworkPolicy/nodes-to-nodes")),
    (
        "nodes_reach_each_other",
        lambda m: spec(m, "NetworkPolicy/nodes-to-nodes").pop("ingress"),
    ),
    (
        "nodes_reach_each_other",
        lambda m: spec(m, "NetworkPolicy/nodes-to-nodes")["egress"][0].update(
            ports=[{"protocol": "TCP", "port": 29500}]
        ),
    ),
    (
        "nodes_reach_the_budget_store",
        lambda m: spec(m, "NetworkPolicy/postgres")["ingress"][0]["from"].pop(),
    ),
    (
        "nodes_reach_the_budget_store",
        lambda m: drop(m, "NetworkPolicy/to-postgres"),
    ),
    (
        "nodes_reach_nobody_else",
        lambda m: spec(m, "NetworkPolicy/object-store")["podSelector"][
            "matchExpressions"
        ].pop(),
    ),
    (
        "object_store_is_reached_at_its_port",
        lambda m: spec(m, "NetworkPolicy/object-store")["egress"][0].update(
            ports=[{"protocol": "TCP", "port": 9000}]
        ),
    ),
    (
        "nodes_reach_nobody_else",
        lambda m: spec(m, "NetworkPolicy/databases")["egress"][0]["ports"].append(
            {"protocol": "TCP", "port": 9000}
        ),
    ),
    (
        "home_is_shared",
        lambda m: spec(m, "PersistentVolumeClaim/dptune-home").update(
            accessModes=["ReadWriteOnce"]
        ),
    ),
    ("no_secret_is_written_down", lambda m: m.append(SECRET)),
    (
        "nothing_is_left_to_fill_in",
        lambda m: container(m).update(image=f"example.com/a@{DIGEST}"),
    ),
    (
        "nothing_is_left_to_fill_in",
        lambda m: spec(m, "NetworkPolicy/object-store")["egress"][0].update(
            to=[{"ipBlock": {"cidr": "192.0.2.0/24"}}]
        ),
    ),
    ("references", lambda m: drop(m, "ServiceAccount/dptune-server")),
    ("references", lambda m: drop(m, "PriorityClass/dptune-server")),
    ("references", lambda m: m.remove(find_objects(m, "ConfigMap")[0])),
    ("references", lambda m: drop(m, "Service/mlflow")),
    ("references", lambda m: drop(m, "Role/dptune-submitter")),
    ("references", lambda m: drop(m, "ServiceAccount/dptune-submitter")),
    (
        "references",
        lambda m: drop(m, "ValidatingAdmissionPolicy/dptune-token-secrets"),
    ),
    (
        "references",
        lambda m: spec(m, "Service/mlflow")["selector"].update({"a": "b"}),
    ),
    (
        "references",
        lambda m: spec(m, "Service/mlflow")["ports"][0].update(targetPort="grpc"),
    ),
    (
        "references",
        lambda m: spec(m, "PodDisruptionBudget/mlflow")["selector"].update(
            matchLabels={"a": "b"}
        ),
    ),
    (
        "references",
        lambda m: find(m, "RoleBinding/dptune-submitter")["subjects"][0].update(
            namespace="dptune"
        ),
    ),
    (
        "references",
        lambda m: container(m)["env"][0]["valueFrom"]["secretKeyRef"].update(key="no"),
    ),
    (
        "references",
        lambda m: pod(m)["volumes"].append(
            {"name": "p", "persistentVolumeClaim": {"claimName": "no"}}
        ),
    ),
    (
        "references",
        lambda m: container(m)["volumeMounts"].append(
            {"name": "no", "mountPath": "/a"}
        ),
    ),
]


@pytest.mark.parametrize(
    ("policy", "spoil"), TWINS, ids=[f"{n}-{p}" for n, (p, _) in enumerate(TWINS)]
)
def test_policy_catches_its_broken_twin(staging, policy, spoil):
    spoil(staging)
    assert policy in {finding.policy for finding in check_policies(staging)}


def test_jobs_and_schedules_that_keep_every_policy_are_left_alone(staging):
    job(staging)
    schedule(staging)
    assert check_policies(staging) == []


def test_every_policy_has_a_broken_twin():
    policies = {policy.__name__ for policy in (*CLUSTER_POLICIES, *POD_POLICIES)}
    assert {name for name, _ in TWINS} == policies | {"references"}


def test_vault_that_forgets_a_key_is_caught(overlays):
    spoiled = copy.deepcopy(overlays["production"])
    del spec(spoiled, "ExternalSecret/dptune-mlflow")["data"][0]
    assert "external_secrets" in {f.policy for f in check_policies(spoiled)}


UNFIT = [
    lambda m: container(m).update(imagePulPolicy="Always"),
    lambda m: container(m)["ports"][0].update(containerPort="five"),
    lambda m: spec(m, "PodDisruptionBudget/mlflow").update(minAvailible=1),
    lambda m: find(m, "Namespace/dptune-staging").update(spek={}),
]


@pytest.mark.parametrize("spoil", UNFIT)
def test_schema_catches_misspelt_and_mistyped_fields(staging, spoil):
    spoil(staging)
    touched = [m for m in staging if m["kind"] in ("StatefulSet", "Namespace")]
    touched += find_objects(staging, "PodDisruptionBudget")
    assert {m.split(":")[0] for _, m in schema_problems(touched)} == set(VERSIONS)


def test_round_trip_catches_a_field_that_the_client_does_not_know(staging):
    container(staging)["imagePulPolicy"] = "Always"
    (problem,) = round_trip_problems([find(staging, "StatefulSet/mlflow")])
    assert "imagePulPolicy" in problem[1]


def test_round_trip_takes_nulls_as_not_given(staging):
    container(staging)["securityContext"]["run_as_user"] = None
    assert list(round_trip_problems(staging)) == []


# Rendering and secrets.


def test_render_refuses_an_unknown_overlay():
    with pytest.raises(ConfigError, match="must be one of production, staging"):
        render_overlay("moon")


def test_render_says_what_kustomize_says(tmp_path):
    (tmp_path / "kustomization.yaml").write_text("resources: [nothing.yaml]\n")
    with pytest.raises(ConfigError, match=r"nothing\.yaml"):
        render_overlay(tmp_path)


def test_manifests_hold_no_deprecated_kustomize_field():
    for path in OVERLAYS.parent.rglob("kustomization.yaml"):
        used = set(yaml.safe_load(path.read_text()))
        assert not used & {"bases", "patchesStrategicMerge", "patchesJson6902", "vars"}
        assert "commonLabels" not in used


def test_secret_commands_read_files_and_name_every_key():
    (line,) = secret_commands({"dptune-budget": frozenset({"key", "url"})}, "dptune")
    assert line == (
        "kubectl --namespace dptune create secret generic dptune-budget "
        "--from-file=key=secrets/dptune-budget/key "
        "--from-file=url=secrets/dptune-budget/url"
    )
    assert subprocess.run(["sh", "-nc", line], check=False).returncode == 0


def test_every_secret_that_servers_name_is_listed(overlays):
    for name in NAMES:
        for reference in secret_references(overlays[name]):
            assert reference.key in SECRETS[reference.secret]


# The commands.


@pytest.fixture
def cluster():
    """Run a `cluster` command; returns its exit code and what it printed."""

    def run(*arguments):
        wide = {"COLUMNS": "250"}
        outcome = CliRunner().invoke(build_cluster_app(), arguments, env=wide)
        return outcome.exit_code, " ".join(outcome.output.split())

    return run


def test_check_command_lists_what_is_wrong_and_what_to_do(cluster):
    code, output = cluster("check", "staging")
    assert code == 1
    for words in ("NetworkPolicy/object-store", "set-a-digest", "next", "cluster.yaml"):
        assert words in output


def test_secrets_command_prints_commands_or_names_the_vault(cluster):
    code, output = cluster("secrets", "staging")
    assert code == 0
    assert "kubectl --namespace dptune-staging create secret generic" in output
    assert "store-url" not in output
    code, output = cluster("secrets", "production")
    assert code == 0
    assert "vault" in output
    assert "store-url" in output
    assert "dptune-postgres" not in output


@pytest.mark.parametrize("is_clone", [True, False])
def test_next_step_names_a_folder_that_is_there(
    cluster, tmp_path, monkeypatch, is_clone
):
    monkeypatch.chdir(REPOSITORY if is_clone else tmp_path)
    _, output = cluster("secrets", "production")
    folder = output.split("kubectl apply -k ")[1]
    assert (Path(folder) / "kustomization.yaml").is_file()
    assert Path(folder).is_absolute() is not is_clone


def test_render_command_prints_every_object(cluster):
    code, output = cluster("render", "staging")
    assert code == 0
    assert output.count("apiVersion:") >= len(render_overlay("staging"))
