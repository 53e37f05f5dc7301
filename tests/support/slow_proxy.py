"""A TCP proxy that is slow by turns of the event loop, not by a clock.

It shares the loop with whom it serves: who blocks the loop while waiting for it waits for ever.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

TURNS = 20
"""Of the loop, before a connection is accepted, before an answer begins, and between its first pieces."""
SLOW_PIECES = 10
PIECE_BYTES = 64


async def turns(count: int = TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def slow_proxy(port: int) -> AsyncGenerator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        async with asyncio.TaskGroup() as group:
            accepting = group.create_task(_accept(listening, port, group))
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            accepting.cancel()


async def _accept(listening: socket.socket, port: int, group: asyncio.TaskGroup) -> None:
    serving: list[asyncio.Task[None]] = []
    try:
        while True:
            client, _ = await asyncio.get_running_loop().sock_accept(listening)
            serving.append(group.create_task(_serve(client, port)))
    finally:
        for task in serving:
            task.cancel()


async def _serve(client: socket.socket, port: int) -> None:
    await turns()
    reader, writer = await asyncio.open_connection(sock=client)
    to_server, from_server = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(_hand_on(reader, from_server))
            await _dribble(to_server, writer)
            sending.cancel()
    except* OSError:
        pass
    finally:
        writer.close()
        from_server.close()


async def _hand_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
    with suppress(OSError):
        sink.write_eof()


async def _dribble(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    slow = SLOW_PIECES
    while data := await source.read(PIECE_BYTES):
        await turns(TURNS if slow > 0 else 1)
        slow -= 1
        sink.write(data)
