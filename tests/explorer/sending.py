"""Requests to the server, and images to send: whole ones, and one that is a bomb."""

import asyncio
import io
import struct
import zlib
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import numpy as np
from PIL import Image
from starlette.testclient import TestClient


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def png(side: int = 32) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def bomb(side: int) -> bytes:
    """A PNG of a few kilobytes that becomes side x side pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    compress, rows = zlib.compressobj(9), b"\0" * (side // 8 + 1)
    lines = b"".join(compress.compress(rows) for _ in range(side)) + compress.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def upload(
    client: TestClient, content: bytes, kind: str = "image/png", path: str = "/api/predict/image", **headers: str
):
    return client.post(path, content=content, headers={"Content-Type": kind, **headers})


async def nothing() -> dict[str, Any]:
    """A body that is there at once, and empty."""
    return {"type": "http.request", "body": b"", "more_body": False}


def asked(
    app: Any,
    path: str,
    verb: str = "GET",
    headers: dict[str, str] | None = None,
    receive: Callable[[], Awaitable[dict[str, Any]]] = nothing,
) -> tuple[int, bytes]:
    """Ask without a client, since clients resolve dots in a path and send bodies at once."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": verb, "path": unquote(path), "raw_path": path.encode(), "root_path": ""}
    scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http"}
    pairs = {"host": "127.0.0.1", **(headers or {})}.items()
    scope["headers"] = [(name.encode(), value.encode()) for name, value in pairs]
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
