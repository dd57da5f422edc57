"""What the explorer's server takes with many items: the map, searches by several clients, a mixed load, memory.

python benchmarks/explorer_load.py --folder DIR             # a run on 100,000 embeddings, made if it is not in DIR
python benchmarks/explorer_load.py --run RUN                # a run of your own; changes are made and undone in it

Clients are threads of this process with a connection each, so that the server has one of two cores for itself. Times
are those that a client sees. The memory of the server is what it holds after a warm-up, and again after the mixed
load.
"""

import argparse
import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

N, N_FEATURES, N_CLASSES, N_SEEN = 100_000, 64, 100, 75
N_CLIENTS, N_SEARCHES, N_MIXED, N_WARM = 8, 4_000, 10_000, 2_000
TARGETS = {
    "first data of the map, s": 3.0,
    "search p99, ms": 50.0,
    "memory, MB": 1_500.0,
    "errors": 0.0,
    "growth, %": 5.0,
}
JSON = {"Content-Type": "application/json"}

Client = Callable[[str, str, dict[str, object] | None], tuple[int, bytes]]


def made_run(folder: Path, n: int) -> Path:
    """Return a run on n embeddings in clusters, half of the seen ones labelled, with index, discovery and map."""
    run, data = folder / f"run-{n}", folder / f"items-{n}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    if not data.exists():
        targets = rng.integers(0, N_CLASSES, n)
        x = rng.normal(size=(N_CLASSES, N_FEATURES))[targets] + 0.35 * rng.normal(size=(n, N_FEATURES))
        labels = np.where((targets < N_SEEN) & (rng.random(n) < 0.5), targets, -1)
        np.savez(data, x=x.astype(np.float32), labels=labels, ids=[f"item-{i:06}" for i in range(n)])
    steps = {
        "weights.safetensors": ("fit", data, "--out", run, "--method", "itq", "--bits", 48),
        "index.safetensors": ("index", run),
        "discovery-map.safetensors": ("discover", run, "--n-novel", N_CLASSES - N_SEEN),
    }
    for made, command in steps.items():
        if not (run / made).exists():
            subprocess.run([sys.executable, "-m", "combemb", *map(str, command)], check=True)
    return run


@contextmanager
def served(run: Path) -> Iterator[tuple[int, int]]:
    """Serve a run; yield the id of the process and the port."""
    command = [sys.executable, "-m", "combemb", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/;", process.stdout.readline())
        assert found is not None, "the server did not start"
        yield process.pid, int(found[1])
    finally:
        process.terminate()
        process.wait()


@contextmanager
def connected(port: int) -> Iterator[Client]:
    """Yield a function that asks the server: status and content of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(verb: str, path: str, body: dict[str, object] | None = None) -> tuple[int, bytes]:
        connection.request(verb, path, None if body is None else json.dumps(body), JSON if body is not None else {})
        answer = connection.getresponse()
        return answer.status, answer.read()

    try:
        yield ask
    finally:
        connection.close()


def memory(pid: int) -> float:
    """Return the memory that a process holds, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1_000


def by_clients(port: int, n: int, ask: Callable[[Client, random.Random], int]) -> tuple[list[float], int]:
    """Let clients make n requests together; return the milliseconds of each, and the number of errors."""
    times: list[float] = []
    n_errors = 0

    def work(seed: int) -> None:
        nonlocal n_errors
        rng = random.Random(seed)
        with connected(port) as client:
            for _ in range(n // N_CLIENTS):
                began = time.perf_counter()
                status = ask(client, rng)
                times.append(1_000 * (time.perf_counter() - began))
                n_errors += status >= 400

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(N_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, n_errors


def mixed(n_items: int, seen: str, novel: list[str]) -> Callable[[Client, random.Random], int]:
    """Return a function that makes a request of a mixed load: mostly looking, sometimes confirming and undoing."""
    turn = threading.Lock()  # a change and its undo belong together

    def change(client: Client, rng: random.Random) -> int:
        if not turn.acquire(blocking=False):  # a connection that waits for long is closed
            return of_class(client, rng)
        try:
            done = client("POST", "/api/changes", {"kind": "name", "cluster": seen, "to": seen})[0]
            return max(done, client("POST", "/api/changes", {"kind": "undo"})[0])
        finally:
            turn.release()

    def of_class(client: Client, rng: random.Random) -> int:
        order = rng.choice(["exemplars", "borderline"])
        return client("GET", f"/api/items?cluster={rng.choice(novel)}&order={order}&start={rng.randrange(300)}", None)[
            0
        ]

    def some_row(rng: random.Random) -> int:
        return rng.randrange(n_items)

    parts: list[tuple[int, Callable[[Client, random.Random], int]]] = [
        (40, lambda ask, rng: ask("POST", "/api/search", {"row": some_row(rng), "k": 20})[0]),
        (10, lambda ask, rng: ask("POST", "/api/search", {"row": some_row(rng), "kind": "novel"})[0]),
        (25, of_class),
        (10, lambda ask, rng: ask("GET", f"/api/items?order=doubt&start={some_row(rng)}", None)[0]),
        (6, lambda ask, rng: ask("GET", f"/api/items?rows={some_row(rng)}", None)[0]),
        (4, lambda ask, _: ask("GET", "/api/clusters", None)[0]),
        (2, lambda ask, _: ask("GET", "/api/assignment", None)[0]),
        (2, lambda ask, rng: ask("POST", "/api/embed", {"rows": [some_row(rng)]})[0]),
        (1, change),
    ]
    weights, requests = zip(*parts, strict=True)
    return lambda ask, rng: rng.choices(requests, weights)[0](ask, rng)


def first_data(port: int) -> tuple[float, int]:
    """Return the seconds until a page has all data of the map, and their bytes."""
    began, n_bytes = time.perf_counter(), 0
    with connected(port) as client:
        for path in ("/", "/static/plotly.min.js", "/api/run", "/api/clusters", "/api/map", "/api/assignment"):
            status, content = client("GET", path, None)
            assert status == 200, (path, content[:200])
            n_bytes += len(content)
    return time.perf_counter() - began, n_bytes


def measured(run: Path, n_mixed: int) -> dict[str, float]:
    """Return all figures of a run."""
    with served(run) as (pid, port):
        with connected(port) as client:
            about = json.loads(client("GET", "/api/run", None)[1])
            listed = json.loads(client("GET", "/api/clusters", None)[1])["clusters"]
        n_items = about["n_items"]
        seen, novel = ([c["name"] for c in listed if c["is_seen"] == is_seen] for is_seen in (True, False))
        seconds, n_bytes = first_data(port)

        def search(client: Client, rng: random.Random) -> int:
            return client("POST", "/api/search", {"row": rng.randrange(n_items), "k": 20})[0]

        by_clients(port, N_SEARCHES // 4, search)
        times, n_errors = by_clients(port, N_SEARCHES, search)
        load = mixed(n_items, seen[0], novel)
        by_clients(port, min(N_WARM, n_mixed), load)
        before = memory(pid)
        mixed_times, more_errors = by_clients(port, n_mixed, load)
        after = memory(pid)
    return {
        "items": n_items,
        "first data of the map, s": seconds,
        "their size, MB": n_bytes / 1e6,
        "search p50, ms": float(np.percentile(times, 50)),
        "search p99, ms": float(np.percentile(times, 99)),
        "searches per second": 1_000 * N_CLIENTS / float(np.mean(times)),
        "mixed requests": len(mixed_times),
        "mixed p99, ms": float(np.percentile(mixed_times, 99)),
        "errors": n_errors + more_errors,
        "memory, MB": after,
        "growth, %": 100 * (after - before) / before,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run with index, discovery and map")
    parser.add_argument("--folder", type=Path, help="where a run is made, if none is given")
    parser.add_argument("-n", type=int, default=N, help="number of items of that run")
    parser.add_argument("--requests", type=int, default=N_MIXED, help="of the mixed load")
    options = parser.parse_args()
    if (options.run is None) == (options.folder is None):
        parser.error("give either --run or --folder")
    found = measured(options.run or made_run(options.folder, options.n), options.requests)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {N_CLIENTS} clients")
    missed = 0
    for name, value in found.items():
        target = TARGETS.get(name)
        is_missed = target is not None and value > target
        missed += is_missed
        note = "" if target is None else f"   {'missed' if is_missed else 'within'} {target:,g}"
        print(f"  {name:26}{value:12,.1f}{note}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
