"""Processes that share one piece of work: each does a part, all see every result, and an error of one ends all."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch.distributed as dist

from combemb.system import processes
from combemb.system.errors import require

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

        The wait has a limit of half an hour (torch's default), so exchange something after each piece of long work.
        """
        values = self._given(value)
        for rank, given in enumerate(values):
            if isinstance(given, _Failure):
                raise FailedElsewhere(f"{given.message} (in process {rank} of {self.size})")
        return values

    def _given(self, value: Any) -> list[Any]:
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

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
