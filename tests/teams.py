"""Teams of real processes, as torchrun would start them, but without an agent that ends the others when one dies."""

import pickle
import secrets
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from combemb.system.team import Team
from tests.real_processes import ended, started


def together(folder: Path, size: int, work: Callable[..., Any], *arguments: Any, **settings: Any) -> list[Any]:
    """Let processes call a function of a module with their team; return what each returned or the error it raised.

    The result of a process that was killed is its exit code.
    """
    return results_of(begun(folder, size, work, *arguments, **settings))


def begun(
    folder: Path, size: int, work: Callable[..., Any], *arguments: Any, **settings: Any
) -> list[tuple[BaseProcess, Path]]:
    """Start the processes of a team."""
    meeting = folder / f"meeting-{secrets.token_hex(4)}"
    call = partial(work, **settings)
    members = [started(_member, call, arguments, meeting, rank, size) for rank in range(size)]
    return [(member, meeting.with_suffix(f".{rank}")) for rank, member in enumerate(members)]


def results_of(team: list[tuple[BaseProcess, Path]]) -> list[Any]:
    """Wait for the processes of a team."""
    try:
        codes = [ended(process) for process, _ in team]
    finally:
        for process, _ in team:
            process.kill()
            process.join()
    written = [path.read_bytes() if path.exists() else None for _, path in team]
    return [
        code if content is None else pickle.loads(content)  # noqa: S301 - a process of this test has written it
        for content, code in zip(written, codes, strict=True)
    ]


def _member(work: Callable[..., Any], arguments: tuple[Any, ...], meeting: Path, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    try:
        result = work(Team.of_all(), *arguments)
    except Exception as error:
        result = error
    finally:
        dist.destroy_process_group()
    meeting.with_suffix(f".{rank}").write_bytes(pickle.dumps(result))
