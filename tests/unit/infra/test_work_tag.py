"""A tag of a run tells equal work apart, and neighbors to nobody outside."""

import hashlib

from steps._scheduling import work_tag


def test_tag_of_a_run_cannot_be_computed_without_the_secret(tmp_path, monkeypatch):
    tags = set()
    for project in ("one", "two"):
        monkeypatch.setenv("DPTUNE_HOME", str(tmp_path / project))
        tags |= {work_tag("config", "corpus"), work_tag("config", "corpus")}
    assert len(tags) == 2  # one for each secret
    plain = hashlib.sha256(b"config:corpus").hexdigest()
    assert not [tag for tag in tags if plain[:24] in tag]
