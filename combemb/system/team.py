"""Processes that share one piece of work: each does a part, all see every result, and an error of one ends all."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from filelock import FileLock, Timeout

from combemb.system import processes
from combemb.system.errors import require

LOCK = ".lock"  # in a folder that several programs may write; it stays

Value = TypeVar("Value")


class FailedElsewhere(ValueError):
    """An error of another process of the team."""


@dataclass(frozen=True)
class _Failure:
    """What a process that has failed gives in place of a value."""

    message: str


@dataclass(frozen=True)
class Team:
    """Processes that call the same functions in the same order; alone, one process is a team.

    A process that dies makes the next exchange raise an error in the others, so that they do not wait for it.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def of_all(cls) -> Self:
        """Return the team of all processes that train together."""
        return cls(processes.rank(), processes.world_size())

    def exchange(self, value: Value) -> list[Value]:
        """Return the values of all processes, in order of rank, when each has given its own.

        Waiting has a limit, so exchange something after each piece of long work.
        """
        values = self._given(value)
        for rank, given in enumerate(values):
            if isinstance(given, _Failure):
                raise FailedElsewhere(f"{given.message} (in process {rank} of {self.size})")
        return values

    def _given(self, value: Any) -> list[Any]:
        return processes.given_by_all(value) if self.size > 1 else [value]

    def in_turns(self, values: Iterator[Value]) -> Iterator[Value]:
        """Yield the values of all processes, none of them None: the first of each in order of rank, then the second.

        A process makes its next value while the others make theirs.
        """
        while turn := [value for value in self.exchange(next(values, None)) if value is not None]:
            yield from turn

    def require_same(self, facts: dict[str, Any]) -> None:
        """Raise a ValueError that names the first fact in which another process differs from the first."""
        everyone = self.exchange(facts)
        for rank, others in enumerate(everyone):
            for name, value in everyone[0].items():
                found = f"{name}: {value} in process 0, {others[name]} in process {rank}"
                require(others[name] == value, f"{found}; give all processes the same data and settings")

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Raise an error that a user can fix in all processes if one of them raises it in this block.

        The others raise it at their next exchange, or at the end of the block.
        """
        try:
            yield
        except FailedElsewhere:
            raise
        except (ValueError, OSError) as error:
            self._given(_Failure(str(error)))
            raise
        self.exchange(None)


ALONE = Team()


@contextmanager
def sole_writer(folder: Path, team: Team, tell_waiting: Callable[[], object]) -> Iterator[bool]:
    """Lock a folder against other programs, after they are done with it.

    Parameters
    ----------
    folder : Path
        It is made if necessary. Processes on several machines may have the same one or each their own.
    team : Team
        All its processes enter the block together.
    tell_waiting : callable
        Called once if there is something to wait for.

    Yields
    ------
    bool
        Whether this is the one process of the team that writes into this folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock, is_writer, is_told = FileLock(folder / LOCK), _is_first_in(folder, team), False
    try:
        while not all(team.exchange(not is_writer or _is_acquired(lock))):
            lock.release()  # with several folders, two teams could otherwise hold one each and wait for the other
            if not is_told:
                tell_waiting()
                is_told = True
            time.sleep(0.05 + secrets.randbelow(50) / 1000)
        yield is_writer
    finally:
        lock.release()


def _is_first_in(folder: Path, team: Team) -> bool:
    """Return whether no process of lower rank has the same folder."""
    if team.size == 1:
        return True
    mark = folder / f".{secrets.token_hex(8)}"
    try:
        mark.touch()
        is_here = [(folder / name).exists() for name in team.exchange(mark.name)]
        team.exchange(None)  # all have looked
    finally:
        mark.unlink(missing_ok=True)
    return is_here.index(True) == team.rank


def _is_acquired(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True
