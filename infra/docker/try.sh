#!/bin/sh
# Run an image that buildah has as a restricted pod runs it: sh infra/docker/try.sh IMAGE
# As user 10001 without capabilities, on a read-only root, without a network: health check,
# list of packages, quickstart, and one step as a pod starts it. Needs root and buildah.
set -eu
image=$1
work=$(mktemp -d)
container=
trap 'test -z "$container" || buildah rm "$container" >/dev/null; rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }

buildah inspect --type image --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' \
  "$image" | grep . >"$work/variables"

container=$(buildah from --pull-never "$image")
root=$(buildah mount "$container")
# As Kubernetes gives a volume to a group (fsGroup): writable, and somebody else's.
install --directory --owner=0 --group=10001 --mode=2775 "$work/home"

# What a restricted pod gives a container: user 10001 without capabilities, a read-only root,
# two folders to write to, 64 MiB of shared memory, the image's variables, and no network.
as_a_pod() {
  unshare --mount --pid --net --ipc --uts --fork sh -eu -c '
    root=$1 home=$2 variables=$3
    shift 3
    mount --bind "$root" "$root"
    mount -o remount,bind,ro "$root"
    mount -t tmpfs -o mode=0700,uid=10001,gid=10001 tmpfs "$root/scratch"
    mount --bind "$home" "$root/var/lib/dptune"
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
    mkdir "$root/dev/shm"
    mount -t tmpfs -o size=64m,mode=1777 tmpfs "$root/dev/shm"
    for device in null:3 zero:5 full:7 random:8 urandom:9; do
      mknod -m 666 "$root/dev/${device%:*}" c 1 "${device#*:}"
    done
    ip link set lo up 2>/dev/null || true
    chroot=$(command -v chroot) # not among what the image calls its path
    # shellcheck disable=SC2046 - one variable a line, none with a space
    exec env --ignore-environment $(cat "$variables") \
      "$chroot" "$root" setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs \
      --inh-caps=-all --bounding-set=-all sh -c "cd /app && exec \"\$@\"" sh "$@"
  ' sh "$root" "$work/home" "$work/variables" "$@"
}

say "who runs, and what it may write"
as_a_pod sh -c 'id -u; grep -E "^(CapEff|NoNewPrivs)" /proc/self/status
  for folder in / /app /opt/venv /usr /etc /tmp; do
    if touch "$folder/x" 2>/dev/null; then echo "$folder can be written"; exit 1; fi
  done'
say "health check"
as_a_pod python -m infra.health
say "list of packages"
as_a_pod python -c 'import json
print(len(json.load(open("/opt/venv/sbom.cdx.json"))["components"]), "packages")'
say "quickstart"
code=0
as_a_pod python run.py quickstart || code=$?
test "$code" -le 1 || exit "$code" # 1 is a verdict: the noise is fresh in every run
say "one step, as a pod starts it"
as_a_pod python -c '
from uuid import uuid4
from zenml.utils import source_utils
source_utils.set_custom_source_root("/app") # this program is no file
from infra.stacks.local import ensure_local_stack, isolate
from infra.workspace import current_workspace
isolate(current_workspace(), quiet=False)
ensure_local_stack(current_workspace())
from zenml.client import Client
client = Client()
run = client.list_pipeline_runs(sort_by="desc:created", size=1).items[0]
snapshot = client.zen_store.get_snapshot(client.get_pipeline_run(run.id).snapshot.id)
orchestrator = client.active_stack.orchestrator
orchestrator._orchestrator_run_id = str(uuid4())
orchestrator._prepare_run(snapshot=snapshot)
orchestrator.run_step(step=snapshot.step_configurations["ingest"])
(mine,) = client.list_pipeline_runs(sort_by="desc:created", size=1).items
step = client.get_pipeline_run(mine.id).steps["ingest"]
print("ingest", step.status)
raise SystemExit(not step.status.is_successful)
'
say "$image runs"
