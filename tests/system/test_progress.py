"""Progress: nothing when nobody wants it, whole lines in a file, a live line on a terminal."""

import io
import os
import pty
import re
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr

import numpy as np
import pytest

from combemb.methods.combemb import CombEmb
from combemb.methods.itq import ITQ
from combemb.system import progress
from combemb.system.progress import Display, is_wanted, tracked


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No wishes of the machine about colours, terminals and widths."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_REFRESHES", 0.0)


@contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """Standard error is a terminal inside; gives what was written to it. A fixture's would be undone by pytest."""
    master, slave = pty.openpty()

    def written() -> str:
        sys.stderr.flush()
        found = b""
        while select.select([master], [], [], 0.3)[0]:  # what was written arrives in pieces, a moment later
            found += os.read(master, 2**16)
        return found.decode()

    with os.fdopen(slave, "w") as stream, redirect_stderr(stream):
        yield written
    os.close(master)


def toy_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    targets = np.arange(140) % 7
    x = rng.normal(size=(7, 16))[targets] + 0.3 * rng.normal(size=(140, 16))
    return x.astype(np.float32), np.where((targets < 5) & (np.arange(140) < 90), targets, -1)


def test_a_wish_decides_and_else_the_terminal():
    with terminal():
        assert [is_wanted(wish) for wish in (None, True, False)] == [True, True, False]
    with redirect_stderr(io.StringIO()):
        assert [is_wanted(wish) for wish in (None, True, False)] == [False, True, False]


@pytest.mark.parametrize("wish", [None, False])
def test_nothing_is_shown_where_nobody_looks(wish, often, capsys):
    asked = []
    with Display("training", 10, "items", wish) as display:
        for _ in range(10):
            display.advance(1, lambda: asked.append(1) or "text")
    assert list(tracked([1, 2, 3], "reading", 3, wish)) == [1, 2, 3]
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert asked == [], "the text of a line may cost time"


@pytest.mark.parametrize("wish", [None, False])
def test_methods_are_silent_where_nobody_looks(wish, often, capsys):
    x, labels = toy_data()
    for method in (CombEmb(bits=12, epochs=2, batch_size=64, check=False), ITQ(bits=12)):
        method.fit(x, labels, progress=wish).embed(x, progress=wish)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_wish_for_silence_holds_on_a_terminal(often):
    x, labels = toy_data()
    with terminal() as written:
        CombEmb(bits=12, epochs=2, batch_size=64, check=False).fit(x, labels, progress=False)
        assert written() == ""


def test_lines_say_how_far_how_fast_and_how_long(often, capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Display("training", 100, "items", True, done=20) as display:
        for seconds, n in ((2.0, 20), (2.0, 20)):
            clock[0] += seconds
            display.advance(n, lambda: "epoch 1/2")
    captured = capsys.readouterr()
    assert captured.out == "", "standard output belongs to results"
    assert captured.err.splitlines() == [
        "training  40%  epoch 1/2  10 items/s  6 s left",
        "training  60%  epoch 1/2  10 items/s  4 s left",
    ]


def test_lines_come_no_more_often_than_agreed(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 10.0)
    with Display("reading", 100, "items", True) as display:
        for _ in range(50):
            clock[0] += 0.5
            display.advance(1)
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["20%", "40%"]


def test_training_shows_its_epochs_on_lines_that_are_whole(often, capsys):
    x, labels = toy_data()
    CombEmb(bits=12, epochs=2, batch_size=64, check=False).fit(x, labels, progress=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("training")]
    whole = re.compile(r"training +\d+%  epoch [12]/2  [\d,]+ items/s  \d+ s left")
    assert len(lines) == 2 * 3, "one per step"
    assert [line for line in lines if not whole.fullmatch(line)] == []
    assert lines[-1].startswith("training 100%  epoch 2/2")
    assert lines[-1].endswith(" 0 s left")


def test_a_terminal_gets_a_live_line_that_is_cleared(often):
    with terminal() as written:
        with Display("training", 4, "items", None) as display:
            for _ in range(4):
                display.advance(1, lambda: "epoch 1/1")
        shown = written()
    assert "training" in shown
    assert "epoch 1/1" in shown
    assert "items/s" in shown
    assert "\x1b[2K" in shown, "the line is erased at the end"


def test_a_terminal_gets_its_cursor_back_after_an_error(often):
    def fail() -> None:
        with Display("training", 4, "items", None) as display:
            display.advance(1)
            raise RuntimeError("boom")

    with terminal() as written:
        with pytest.raises(RuntimeError, match="boom"):
            fail()
        shown = written()
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0


def test_tracked_counts_what_was_used(often, capsys):
    assert list(tracked("abcd", "reading", 4, True)) == list("abcd")
    assert [line.split()[:2] for line in capsys.readouterr().err.splitlines()] == [
        ["reading", share] for share in ("25%", "50%", "75%", "100%")
    ]


def test_progress_of_a_part_names_the_part(often, capsys):
    with progress.part_of_work("step 2 of 4"), Display("reading", 2, "items", True) as display:
        display.advance(1)
    with Display("reading", 2, "items", True) as display:
        display.advance(1)
    titles = [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()]
    assert titles == ["step 2 of 4, reading", "reading"]
