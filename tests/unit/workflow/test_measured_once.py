"""What a base model shows is measured once, and again where its file is damaged."""

import pytest

from dptune.workflow.canary_ranking import once


@pytest.mark.parametrize("content", [b"", b"[1, 2", b"\xff\xfe"])
def test_damaged_file_is_measured_anew(tmp_path, content):
    taken = []

    def measure():
        taken.append(None)
        return [1, 2]

    for _ in range(2):
        assert once(tmp_path, "base", ["model"], measure) == [1, 2]
    assert len(taken) == 1
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    for _ in range(2):
        assert once(tmp_path, "base", ["model"], measure) == [1, 2]
    assert len(taken) == 2
