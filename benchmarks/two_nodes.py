"""A Ray cluster of two nodes on this machine, and the processes that it consists of."""

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from combemb.system.cluster import imported_ray

STORE_BYTES = 80 * 2**20  # the least that Ray accepts is 75 MB
# On a busy machine, workers at Ray's nice value of 15 take minutes to start, and are ended because they are late.
PATIENT = {
    "RAY_worker_niceness": "0",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_health_check_timeout_ms": "60000",
}
MARK = "COMBEMB_CLUSTER_MARK"  # an environment variable, which all processes inherit that are started after it was set


def marked(mark: str) -> dict[int, str]:
    """The numbers and command lines of all other processes that have a mark."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        is_own = (
            "resource_tracker" in command and parent == os.getpid()
        )  # of multiprocessing; it ends with this process
        if is_marked and command and not is_own and int(folder.name) != os.getpid():
            found[int(folder.name)] = command
    return found


def require_none_left(mark: str, seconds: float = 20.0) -> None:
    """Fail if a marked process is still there after some time."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, left


def end(mark: str) -> None:
    """Kill marked processes."""
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Yield a cluster with a head and a worker node of one core each, connected; no process is left behind."""
    ray = imported_ray()
    os.environ.update(PATIENT)
    mark = os.environ[MARK] = secrets.token_hex(8)
    try:
        cluster = import_module("ray.cluster_utils").Cluster()
        try:
            cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False)
            worker_node(cluster)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
        require_none_left(mark)
    finally:
        for name in (MARK, *PATIENT):
            del os.environ[name]
        end(mark)


def worker_node(cluster: Any) -> Any:
    """Return the node that is not the head; a new one if there is none."""
    nodes = [node for node in cluster.worker_nodes if node.any_processes_alive()]
    return nodes[0] if nodes else cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
