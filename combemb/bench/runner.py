"""Runs the cells that have no result yet; a run that is killed loses the cells in progress at most."""

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from statistics import mean
from typing import Any

from combemb.bench.cells import Cell
from combemb.bench.fits import Library, Places, record_of
from combemb.bench.results import about_code, read_result, write_result
from combemb.bench.sources import MissingData
from combemb.system.cluster import connected
from combemb.system.errors import require
from combemb.system.machine import own_process
from combemb.system.parent import end_with_parent

MAX_RETRIES = 2  # of a cell whose worker on a cluster died; if three die on one cell, the cell kills them


@dataclass(frozen=True)
class Done:
    """A cell that has just been finished, how many are done of all that are to run, and a guess of the time left."""

    cell: Cell
    record: dict[str, Any]
    n_done: int
    n_all: int
    seconds_left: float


@dataclass
class Outcome:
    """What came of a run.

    Attributes
    ----------
    n_done, n_failed, n_before : int
        Cells that ran, how many of them failed, and cells that had a result before.
    missing : dict
        Reason -> number of cells that could not run for lack of data.
    """

    n_done: int = 0
    n_failed: int = 0
    n_before: int = 0
    missing: dict[str, int] = field(default_factory=dict)


def run(
    cells: Iterable[Cell],
    places: Places,
    *,
    jobs: int = 1,
    retry: bool = False,
    tell: Callable[[Done], None] = lambda _: None,
    engine: str | None = None,
    address: str | None = None,
) -> Outcome:
    """Run the cells that have no result.

    Parameters
    ----------
    cells : iterable of Cell
    places : Places
    jobs : int
        Processes, of one thread each; 1 runs in this process, or one cell per core of a cluster.
    retry : bool
        Whether cells whose result is a failure run again.
    tell : callable
        Is called after each cell.
    engine : {None, "ray"}
        None: this machine; "ray": the workers of a Ray cluster, which must be able to read the data.
    address : str, optional
        Of the cluster, see `combemb.system.cluster.connected`.

    Returns
    -------
    Outcome
    """
    cells = list(dict.fromkeys(cells))
    todo = [cell for cell in cells if _is_wanted(cell, places, retry)]
    outcome = Outcome(n_before=len(cells) - len(todo))
    require(engine in {None, "ray"}, f"engine={engine!r} is unknown; use ray, or leave it out")
    with ExitStack() as stack:
        lanes: Sequence[Lane | RayLane] = []
        if engine == "ray" and todo:
            lanes = stack.enter_context(_ray_lanes(places, jobs if jobs > 1 else None, address))
        elif jobs > 1:
            lanes = [stack.enter_context(Lane(places)) for _ in range(jobs)]
        clock = Clock(todo, max(len(lanes), 1))
        for group in _grouped(todo):
            try:
                done = _in_lanes(group, places, lanes) if lanes else _here(group, places)
                for cell, record in done:
                    outcome.n_done += 1
                    outcome.n_failed += "failure" in record
                    clock.stop(cell, record)
                    tell(Done(cell, record, outcome.n_done, outcome.n_done + len(clock.left), clock.seconds_left))
            except MissingData as error:
                outcome.missing[str(error)] = outcome.missing.get(str(error), 0) + len(group)
                clock.drop(group)
    return outcome


class Clock:
    """A guess of the time left: of each method the mean of what its cells took so far."""

    def __init__(self, cells: list[Cell], jobs: int):
        self.left, self.jobs = dict.fromkeys(cells), jobs
        self.taken: dict[str, list[float]] = {}

    def stop(self, cell: Cell, record: dict[str, Any]) -> None:
        """Count a finished cell."""
        self.left.pop(cell)
        self.taken.setdefault(cell.method, []).append(record.get("seconds", 0.0))

    def drop(self, cells: list[Cell]) -> None:
        """Leave out cells that cannot run."""
        for cell in cells:
            self.left.pop(cell, None)

    @property
    def seconds_left(self) -> float:
        """The guess; a method that has not run yet counts like the mean of the others."""
        of_method = {method: mean(seconds) for method, seconds in self.taken.items()}
        other = mean(of_method.values())
        return sum(of_method.get(cell.method, other) for cell in self.left) / self.jobs


def _is_wanted(cell: Cell, places: Places, retry: bool) -> bool:
    record = read_result(places.results, cell)
    return record is None or (retry and "failure" in record)


def _grouped(cells: list[Cell]) -> list[list[Cell]]:
    """Return the cells by preset and data set, so that each is read once."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.preset, cell.dataset), []).append(cell)
    return list(groups.values())


def _here(cells: list[Cell], places: Places) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Run cells in this process."""
    library = Library(places)
    for cell in cells:
        yield cell, _stored(cell, library)


def _stored(cell: Cell, library: Library) -> dict[str, Any]:
    record = record_of(cell, library)
    write_result(library.places.results, cell, record)
    return record


class Lane:
    """A process that runs one cell after the other; if it dies, the cell has failed and another process follows."""

    def __init__(self, places: Places):
        self.places = places
        self.pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"), _begin_worker, (self.places,))

    def __enter__(self) -> "Lane":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def submit(self, cell: Cell) -> "Future[dict[str, Any]]":
        """Begin a cell."""
        return self.pool.submit(_work, cell)

    def result(self, cell: Cell, future: "Future[dict[str, Any]]") -> dict[str, Any]:
        """Return the record of a finished cell."""
        try:
            return future.result()
        except BrokenProcessPool:
            self.pool.shutdown()
            self.pool = self._new_pool()
            return _died(cell, self.places)


def _died(cell: Cell, places: Places) -> dict[str, Any]:
    """Write and return the record of a cell whose process died."""
    said = "the process died; it was killed, or the system ran out of memory"
    record = {"cell": asdict(cell), **about_code(), "failure": said}
    write_result(places.results, cell, record)
    return record


class RayLane:
    """One cell at a time on some worker of a cluster; results are written here, as those of other lanes."""

    def __init__(self, places: Places, ray: Any, task: Any):
        self.places, self.ray, self.task = places, ray, task

    def submit(self, cell: Cell) -> "Future[dict[str, Any]]":
        """Begin a cell."""
        found: Future[dict[str, Any]] = self.task.remote(cell, self.places).future()
        return found

    def result(self, cell: Cell, future: "Future[dict[str, Any]]") -> dict[str, Any]:
        """Return the record of a finished cell."""
        try:
            record = future.result()
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause or error from error
        except self.ray.exceptions.RayError:
            return _died(cell, self.places)
        write_result(self.places.results, cell, record)
        return record


@contextmanager
def _ray_lanes(places: Places, n: int | None, address: str | None) -> Iterator[list[RayLane]]:
    """Yield lanes on a cluster: n, or one per core."""
    own = tuple((name, path.absolute(), labels and labels.absolute()) for name, path, labels in places.own)
    data, weights = (path and path.absolute() for path in (places.data, places.weights))
    there = replace(places, data=data, weights=weights, own=own)  # workers have other working directories
    with connected(address) as ray:
        options = {"num_cpus": 1, "max_retries": MAX_RETRIES, "scheduling_strategy": "SPREAD"}
        task = ray.remote(_work_there).options(**options)
        n = n or max(1, int(ray.cluster_resources().get("CPU", 1)))
        yield [RayLane(there, ray, task) for _ in range(n)]


def _in_lanes(
    cells: list[Cell], places: Places, lanes: Sequence[Lane | RayLane]
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Run the first cell alone, which stores features in the cache for the others, and these in all lanes."""
    first, *rest = cells
    yield first, lanes[0].result(first, lanes[0].submit(first))
    waiting = iter(rest)
    running: dict[Future[dict[str, Any]], tuple[Lane | RayLane, Cell]] = {}
    for lane, cell in zip(lanes, waiting, strict=False):
        running[lane.submit(cell)] = (lane, cell)
    while running:
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            lane, cell = running.pop(future)
            record = lane.result(cell, future)
            following = next(waiting, None)
            if following is not None:
                running[lane.submit(following)] = (lane, following)
            yield cell, record


_libraries: list[Library] = []  # of a worker process, one


def _begin_worker(places: Places) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    end_with_parent()
    own_process()
    _libraries.append(Library(places))


def _work(cell: Cell) -> dict[str, Any]:
    return _stored(cell, _libraries[0])


def _work_there(cell: Cell, places: Places) -> dict[str, Any]:
    """Run a cell in a worker of a cluster, which keeps its library for the next one."""
    if not _libraries or _libraries[0].places != places:
        _libraries.clear()
        _begin_worker(places)
    return record_of(cell, _libraries[0])
