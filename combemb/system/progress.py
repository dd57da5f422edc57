"""Progress of long work: a live line on a terminal, a plain line from time to time elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = float(os.environ.get("COMBEMB_PROGRESS_SECONDS", "10"))  # less where a program reads them
SECONDS_BETWEEN_REFRESHES = 0.2

_part: ContextVar[str] = ContextVar("_part", default="")  # of longer work, before all titles


@contextmanager
def part_of_work(name: str) -> Iterator[None]:
    """Show all progress in this block as that of a part of longer work, such as "step 2 of 4"."""
    token = _part.set(f"{name}, ")
    try:
        yield
    finally:
        _part.reset(token)


def is_wanted(progress: bool | None) -> bool:
    """Return whether to show progress; None means on a terminal only."""
    return sys.stderr.isatty() if progress is None else progress


class Display:
    """A progress display with a known total and a line of text; silent if not wanted."""

    def __init__(self, title: str, total: int, unit: str, progress: bool | None = None, done: int = 0):
        title = _part.get() + title
        self.title, self.total, self.unit, self.done, self.start = title, total, unit, done, done
        self.console = Console(stderr=True)
        self.is_shown = is_wanted(progress)
        self.bar: Progress | None = None
        if self.is_shown and self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[text]}"))
            self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self.task = self.bar.add_task(title, total=total, completed=done, text="")
        self.began = self.last = time.monotonic()

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def advance(self, n: int, text: Callable[[], str] = str) -> None:
        """Count n more units; `text` is called only when something is shown."""
        self.done += n
        now = time.monotonic()
        interval = SECONDS_BETWEEN_REFRESHES if self.bar else SECONDS_BETWEEN_LINES
        if not self.is_shown or now - self.last < interval:
            return
        self.last = now
        speed = (self.done - self.start) / (now - self.began)
        line = f"{text()}  {speed:,.0f} {self.unit}/s".strip()
        if self.bar:
            self.bar.update(self.task, completed=min(self.done, self.total), text=line)
        else:
            share, left = self.done / self.total, max(self.total - self.done, 0) / speed
            self.console.print(f"{self.title} {share:4.0%}  {line}  {left:.0f} s left", highlight=False, soft_wrap=True)


def tracked(items: Iterable[Item], title: str, total: int, progress: bool | None = None) -> Iterator[Item]:
    """Yield the items and show how many have been used."""
    with Display(title, total, "chunks", progress) as display:
        for item in items:
            yield item
            display.advance(1)
