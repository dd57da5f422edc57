"""The socket that the server listens on."""

import asyncio
import socket

from combemb.explorer.server.serving import listening


def test_an_answer_in_two_parts_does_not_wait_for_the_client():
    """Of an answer, the header is sent before the body; with Nagle's algorithm, the body would wait for 40 ms."""

    async def without_delay() -> int:
        loop, found = asyncio.get_running_loop(), asyncio.Queue[int]()

        class Watched(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                sock = transport.get_extra_info("socket")
                found.put_nowait(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        with listening("127.0.0.1", 0) as sock:
            server = await loop.create_server(Watched, sock=sock)
            _, writer = await asyncio.open_connection(*sock.getsockname())
            is_set = await found.get()
            writer.close()
            server.close()
            return is_set

    assert asyncio.run(without_delay()) == 1
