"""Hypercorn keeps a connection whose client will send nothing more, if an answer ends after the client has said so."""

import asyncio
import socket
import time
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config

KEEP_ALIVE_SECONDS = 1.0


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    while (await receive())["type"] != "http.disconnect":
        pass
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
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    writer.write_eof()  # no other request will come
    await reader.readuntil(b"\r\n\r\n")
    answered = time.monotonic()
    await reader.read()
    waited = time.monotonic() - answered
    writer.close()
    stopped.set()
    await serving

    fault = waited > KEEP_ALIVE_SECONDS / 2
    print("fault" if fault else "no fault", f": the connection was closed {waited:.3f} s after its last answer", sep="")


asyncio.run(main())
