"""Where blocks are worked on: one after the other in this process, or by the workers of a Ray cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from combemb.system.cluster import connected, imported_ray
from combemb.system.errors import require
from combemb.system.machine import limited_threads

Engine = Literal["local", "ray"]
Result = TypeVar("Result")

TASKS_PER_CORE = 2  # one is worked on, the next one waits: more would be lost with a driver
MAX_RETRIES = 20  # of a block whose worker died; if this many die on one block, the block kills them


@contextmanager
def session(engine: Engine, address: str | None = None) -> Iterator[None]:
    """Keep the connection of an engine for several calls of `results`; raise a ValueError if the engine is unknown."""
    known = get_args(Engine)
    require(engine in known, f"engine={engine!r} is unknown; choose one of {', '.join(known)}")
    if engine == "local":
        yield
    else:
        with connected(address):
            yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch and BLAS to one thread.

    The last bits of a sum may depend on the number of threads, and codes have to be the same wherever a block is
    encoded. A worker has one core anyway.
    """
    with limited_threads(1), threadpool_limits(1):
        yield


def results(work: Callable[[int], Result], numbers: Sequence[int], engine: Engine) -> Iterator[Result]:
    """Yield what `work` returns for each number, in any order.

    Parameters
    ----------
    work : callable
        Returns something small, since it is sent to this process. For Ray it must be possible to pickle it.
    numbers : sequence of int
        Of the blocks.
    engine
        "local" works in this process; "ray" on the cluster of the `session`. A block whose worker died is given to
        another one.
    """
    if engine == "local":
        yield from (_done(work, number) for number in numbers)
    elif numbers:
        yield from _by_ray(imported_ray(), work, numbers)


def _done(work: Callable[[int], Result], number: int) -> Result:
    with one_thread():
        return work(number)


def _by_ray(ray: Any, work: Callable[[int], Result], numbers: Sequence[int]) -> Iterator[Result]:
    task = ray.remote(_done).options(num_cpus=1, max_retries=MAX_RETRIES, scheduling_strategy="SPREAD")
    shared, waiting = ray.put(work), iter(numbers)
    running: set[Any] = set()
    try:
        while True:
            n_at_once = TASKS_PER_CORE * max(1, int(ray.cluster_resources().get("CPU", 1)))  # nodes come and go
            while len(running) < n_at_once and (number := next(waiting, None)) is not None:
                running.add(task.remote(shared, number))
            if not running:
                return
            ready, _ = ray.wait(list(running), num_returns=1)
            running.difference_update(ready)
            for reference in ready:
                yield answer_of(ray, reference)
    finally:
        for reference in running:  # after an error, or if the caller wants no more
            ray.cancel(reference, force=True)


def answer_of(ray: Any, reference: Any) -> Any:
    """Return the result of a task or an actor; its own error is raised as it was there, without Ray's around it."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause or error from error
