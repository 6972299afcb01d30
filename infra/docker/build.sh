#!/bin/sh
# Build an image for real without a Docker daemon, and try it as a cluster would run it:
#   sh infra/docker/build.sh cpu [OPTION OF `buildah build`]...
# Needs root on Debian, `apt-get install buildah debootstrap`, and 15 GB. The base image is
# made by debootstrap in place of the public python one, which needs a registry; BASE names
# another. Behind a proxy or with a mirror of packages, its certificates and pip's
# configuration are given to the build and stay out of the image:
#   --volume /etc/pip.conf:/etc/pip.conf:ro --build-arg TORCH_INDEX=
set -eu
target=$1
shift
image=localhost/dptune-$target
base=${BASE:-}
work=$(mktemp -d)
container=
trap 'test -z "$container" || buildah rm "$container" >/dev/null; rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }

if test -z "$base"; then
  base=localhost/dptune-base
  say "base image from ${DEBIAN_MIRROR:-deb.debian.org} (${DEBIAN_SUITE:-bookworm})"
  debootstrap --variant=minbase --include=ca-certificates,python3-venv,python-is-python3 \
    "${DEBIAN_SUITE:-bookworm}" "$work/root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$work/log" ||
    { tail "$work/log"; exit 1; }
  rm -rf "$work/root/var/cache/apt/archives" "$work/root/var/lib/apt/lists"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$work/root" / >/dev/null
  buildah commit --quiet --rm "$container" "$base" >/dev/null
  container=
  rm -rf "$work/root"
fi

say "image $target"
buildah build --isolation chroot --format docker --pull-never --build-arg "BASE=$base" \
  --file "infra/docker/$target.Dockerfile" --tag "$image" "$@" .
buildah images --format '{{.Name}} {{.Size}}' "$image"
sh infra/docker/try.sh "$image"
