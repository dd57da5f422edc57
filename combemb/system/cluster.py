"""The connection to a Ray cluster. Ray is imported when it is asked for, never before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ENVIRONMENT = {  # read when ray is imported or started
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # tasks without GPUs leave CUDA variables alone
    "RAY_raylet_start_wait_time_s": "120",  # a busy machine needs more than 30 seconds
    "RAY_agent_register_timeout_ms": "120000",
}
STORE_BYTES = 256 * 2**20  # of a Ray that is started here: queries, hits and a model are all that passes through it


def imported_ray() -> Any:
    """Return the module ray; without it, raise a ValueError that says how to install it."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        raise ValueError(f"the engine ray needs Ray ({error}); pip install combemb[ray]") from error
    return ray


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """Yield ray, connected to a cluster; what is started here ends here.

    Parameters
    ----------
    address : str, optional
        Of a cluster, as `ray start --head` prints it, or "auto" for the one on this machine. By default RAY_ADDRESS,
        or a cluster of this machine alone that is started now.
    """
    ray = imported_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        start: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        options = start if address == "local" else {}
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
        except ConnectionError as error:
            raise ValueError(f"there is no Ray cluster at {address}: {error}; run ray start --head first") from error
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()
