"""`combemb serve` in a process of its own: what it says, who may ask, and what is left when it is killed."""

import json
import os
import re
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from combemb.collection.class_log import read_log
from tests.commands import done, refused
from tests.real_processes import command, ended, held, started

SECONDS = 120  # until a server answers on a busy machine


@pytest.fixture(scope="module")
def discovered(item_run) -> Path:
    """A run with a discovery and a map."""
    return item_run[0]


@pytest.fixture
def run(discovered: Path, tmp_path: Path) -> Path:
    """Such a run that a test may change."""
    return shutil.copytree(discovered, tmp_path / "run")


@contextmanager
def served(run: Path, *options: object) -> Iterator[tuple[BaseProcess, str, Path]]:
    """Serve a run: the process, its address, and what it prints."""
    with serving(run.parent / "printed", "serve", run, "--port", 0, *options) as found:
        yield found


@contextmanager
def serving(printed: Path, *words: object) -> Iterator[tuple[BaseProcess, str, Path]]:
    """Run a command that serves a run: the process, the address, and what it prints."""
    process = started(command, printed, *words)
    try:
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(r"is served at (\S+);", printed.read_text() if printed.exists() else "")):
            assert process.is_alive(), printed.read_text()
            assert time.monotonic() < deadline, printed.read_text()
            time.sleep(0.05)
        yield process, found[1], printed
    finally:
        process.kill()
        ended(process)


def asked(address: str, path: str, body: dict | None = None, **headers: str):
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    with urllib.request.urlopen(urllib.request.Request(address + path, content, headers), timeout=SECONDS) as answer:
        return json.load(answer)


def refusal(address: str, path: str, body: dict | None = None, **headers: str) -> tuple[int, dict]:
    """The status and the error of a request that is refused."""
    with pytest.raises(HTTPError) as error:
        asked(address, path, body, **headers)
    with error.value as answer:
        return answer.code, json.load(answer)["error"]


def test_what_was_confirmed_is_there_after_a_kill(run: Path):
    """Names are given as fast as they are confirmed, until the server dies in the middle of one."""
    confirmed, names = [], [f"name {i}" for i in range(10_000)]
    with served(run) as (process, address, _):
        for name in names:
            try:
                asked(address, "api/changes", {"kind": "name", "cluster": confirmed[-1] if confirmed else "novel-1",
                                               "to": name})  # fmt: skip
            except OSError:
                break
            confirmed.append(name)
            if len(confirmed) == 5:
                killer = started(_kill_soon, process.pid)
        ended(killer)
    said = [change.to for change in read_log(run)]
    assert len(confirmed) >= 5
    assert said[: len(confirmed)] == confirmed
    assert len(said) <= len(confirmed) + 1, "at most the one that was on its way"
    done("classes", run, "undo")  # the lock of the dead server does not block


def _kill_soon(pid: int) -> None:
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)


def test_a_job_ends_with_a_server_that_is_killed(run: Path):
    with served(run) as (process, address, _):
        own = os.getpriority(os.PRIO_PROCESS, process.pid)
        asked(address, "api/jobs", {"kind": "discover"})
        child = eventually(lambda: next(iter(children(process.pid)), None))
        eventually(lambda: os.getpriority(os.PRIO_PROCESS, child) > own)  # it has arranged to end with the server
        os.kill(child, signal.SIGSTOP)  # it cannot end by itself
        try:
            os.kill(process.pid, signal.SIGKILL)
            eventually(lambda: state_of(child) in {"Z", None})
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def eventually(found: Callable[[], Any]) -> Any:
    """Wait for a value that is true."""
    deadline = time.monotonic() + SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def state_of(pid: int) -> str | None:
    """The state of a process as Linux says it, such as R or Z; None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def test_commands_beside_the_server(run: Path):
    with served(run) as (process, address, printed):
        asked(address, "api/changes", {"kind": "name", "cluster": "novel-1", "to": "owl"})
        done("classes", run, "name", "novel-2", "wasp")
        names = {cluster["name"] for cluster in asked(address, "api/clusters")["clusters"]}
        assert {"owl", "wasp"} <= names
        with held(run) as writer:
            status, told = refusal(address, "api/changes", {"kind": "undo"})
        assert (status, told["code"]) == (409, "busy")
        assert f"is being written by process {writer.pid}" in told["message"]
        asked(address, "api/changes", {"kind": "undo"})
        os.kill(process.pid, signal.SIGINT)
        assert ended(process) == 130
        assert printed.read_text().splitlines()[-1] == "stopped"
    assert [change.kind for change in read_log(run)] == ["name", "name", "undo"]


def test_others_need_the_token(run: Path, tmp_path: Path):
    assert "0.0.0.0 can be reached by others; give --token-file FILE" in refused("serve", run, "--host", "0.0.0.0")
    file = tmp_path / "token"
    with served(run, "--host", "0.0.0.0", "--token-file", file) as (_, address, printed):
        here = address.replace("0.0.0.0", "127.0.0.1")
        assert refusal(here, "api/run")[0] == 401
        token = file.read_text().strip()
        assert asked(here, "api/run", Authorization=f"Bearer {token}")["name"] == "run"
        assert f"the token is in {file}, which is new" in printed.read_text()
        assert token not in printed.read_text()
        assert refusal(here, "api/run", Authorization=f"Bearer {token}", Host="evil.example")[0] == 403


def test_what_cannot_be_served(run: Path, tmp_path: Path):
    assert "is not a readable run folder" in refused("serve", tmp_path / "none")
    assert "there is no such folder" in refused("serve", run, "--image-root", tmp_path / "none")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused("serve", run, "--port", port)
    assert f"cannot listen on 127.0.0.1 port {port}" in told
    assert "--port 0" in told


def test_run_serves_what_it_made(items: Path, tmp_path: Path):
    words = ("run", items, "--out", tmp_path / "run", "--method", "itq", "--bits", "12", "--serve", "--port", "0")
    with serving(tmp_path / "printed", *words) as (_, address, _):
        about = asked(address, "api/run")
        assert (about["name"], about["map"], about["discovery"]) == ("run", "ready", "ready")
