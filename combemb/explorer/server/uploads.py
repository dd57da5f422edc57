"""Images that are sent to the server: limited in bytes and pixels, and tried in another process first."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import anyio
from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from combemb.data.images import Images, readable_formats
from combemb.explorer.server import trial
from combemb.explorer.server.problems import Refused

Answer = TypeVar("Answer")

MAX_BYTES = 20_000_000
MAX_PIXELS = 50_000_000
AT_ONCE = 4
TRIAL_BYTES = 2**30  # of address space, for MAX_PIXELS in four channels and in a copy
TRIAL_SECONDS = 30.0


class Turns:
    """A few uploads are received and worked on at a time, so that many of them do not fill memory or all threads."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(AT_ONCE)

    async def of(self, request: Request, work: Callable[[bytes], Answer]) -> Answer:
        """Return what `work` makes of the body of a request, in a thread."""
        async with self._limiter:
            return await run_in_threadpool(work, await _received(request))


async def _received(request: Request) -> bytes:
    """Return the body of a request; refuse if it is longer than it said, or empty."""
    parts, n_bytes = [], 0
    async for part in request.stream():
        n_bytes += len(part)
        if n_bytes > MAX_BYTES:
            raise Refused(413, "too_large", f"the image has more than {MAX_BYTES:,} bytes; send a smaller one")
        parts.append(part)
    if n_bytes == 0:
        raise Refused(422, "broken_image", "there is no image in the request; send its bytes as the body")
    return b"".join(parts)


@contextmanager
def uploaded(content: bytes) -> Iterator[Path]:
    """Keep an image in a temporary file while it is used; refuse what cannot be decoded.

    Decoding is tried in a child process with limits, because a damaged or malicious file could take this one down. What
    the child could decode, this process can.
    """
    with tempfile.TemporaryDirectory(prefix="combemb-") as folder:
        path = Path(folder) / "upload"
        path.write_bytes(content)
        _try_out(path)
        if (reason := Images(files=[path]).reason(0)) is not None:
            raise Refused(422, "broken_image", f"the image cannot be read: {reason}")
        yield path


def _try_out(path: Path) -> None:
    limits = [str(MAX_PIXELS), str(TRIAL_BYTES), ",".join(readable_formats())]
    command = [sys.executable, "-I", trial.__file__, str(path), *limits]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Refused(422, "broken_image", "the image takes too long to decode") from None
    if tried.returncode != 0:
        reason = tried.stdout.strip() if tried.returncode == 1 else ""
        raise Refused(422, "broken_image", f"the image cannot be read: {reason or 'decoding it stopped the process'}")
