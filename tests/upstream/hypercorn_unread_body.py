"""Hypercorn never closes a connection whose app has answered without reading a long body: no timeout applies."""

import asyncio
import socket
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config

POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"1\r\na\r\n"
KEEP_ALIVE_SECONDS = 0.2


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


async def main() -> None:
    config, stopped = Config(), asyncio.Event()
    config.errorlog = None
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        config.bind = [f"fd://{listening.detach()}"]
    serving = asyncio.create_task(serve(app, config, shutdown_trigger=stopped.wait))

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(POST + CHUNK * (config.max_app_queue_size + 1))  # and no end of the body
    await reader.readuntil(b"\r\n\r\n")
    try:
        await asyncio.wait_for(reader.read(), KEEP_ALIVE_SECONDS * 5)
        print("no fault: the connection was closed")
    except TimeoutError:
        print("fault: the connection is open long after its answer and every timeout")
    writer.close()
    stopped.set()
    serving.cancel()
    await asyncio.wait({serving})


asyncio.run(main())
