"""Progress where there is no terminal: lines now and then, with the time left."""

import io

import pytest
from rich.console import Console

from steps import _progress


@pytest.fixture
def written(monkeypatch):
    """What is printed, and a clock that moves when it is told to."""
    stream, clock = io.StringIO(), [0.0]
    monkeypatch.setattr(
        _progress, "console", lambda: Console(file=stream, highlight=False)
    )
    monkeypatch.setattr(_progress.time, "monotonic", lambda: clock[0])
    return stream, clock


def test_line_says_how_much_time_is_left(written):
    stream, clock = written
    with _progress.progress("exposure", 100) as advance:
        advance(20)
        clock[0] = 30.0
        advance(40, "note")
        clock[0] = 120.0
        advance(100)
    lines = stream.getvalue().splitlines()
    assert lines == [
        "  exposure: 40/100 note · about 1 min 30 s left",
        "  exposure: 100/100 ",
    ]


def test_pieces_of_work_are_shown_by_name_if_they_take_long(written):
    stream, clock = written
    with _progress.progress_of_many() as tell:
        for done in (1, 2, 3):
            tell("short", done, 3)
        for done in (1, 2, 3, 4):
            clock[0] += 15.0
            tell("long", done, 4)
        tell("short again", 3, 3)
    shown = [line.split(":")[0].strip() for line in stream.getvalue().splitlines()]
    assert set(shown) == {"long"}
    assert len(shown) > 1
