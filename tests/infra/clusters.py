"""Overlays with every placeholder replaced, as an operator would."""

import shutil
from pathlib import Path

from infra.cluster.manifests import OVERLAYS, object_name, render_overlay

DIGEST = "sha256:" + "7f3a" * 16
_FACTS = {
    "kubernetes-api: 192.0.2.0/24": "kubernetes-api: 10.0.0.1/32",
    "object-store: 192.0.2.0/24": "object-store: 10.20.0.0/24",
    "databases: 192.0.2.0/24": "databases: 10.30.0.0/24",
    "s3.example.com": "s3.internal",
}
_IMAGE = (
    "{name: dptune, newName: registry.example.com/dptune/cpu, newTag: set-a-digest}"
)


def filled_overlay(name, folder, facts=None):
    """Render an overlay from a copy in which nothing is left to fill in.

    Args:
        name: of the overlay.
        folder: of the copy.
        facts: lines of cluster.yaml beside those of the example, as `{old: new}`.
    """
    tree = Path(folder) / "k8s"
    shutil.copytree(OVERLAYS.parent, tree)
    cluster = tree / "overlays" / name / "cluster.yaml"
    text = cluster.read_text()
    for placeholder, value in (_FACTS | (facts or {})).items():
        assert placeholder in text
        text = text.replace(placeholder, value)
    cluster.write_text(text)
    kustomization = tree / "overlays" / name / "kustomization.yaml"
    text = kustomization.read_text()
    assert _IMAGE in text
    image = f"{{name: dptune, newName: registry.internal/dptune/cpu, digest: {DIGEST}}}"
    kustomization.write_text(text.replace(_IMAGE, image))
    return render_overlay(tree / "overlays" / name)


def find(manifests, name):
    """Find an object by its kind and name."""
    (found,) = [m for m in manifests if object_name(m) == name]
    return found
