"""The floor: a FastMCP server on Hypercorn that repeats what it is told. No agent, no LLM, no downstream.

`python -m benchmarks.floor` serves it on a free port, which is the first line on stdout.
"""

from __future__ import annotations

import asyncio
import socket
import sys

from fastmcp import FastMCP
from hypercorn.asyncio import serve
from hypercorn.config import Config

server = FastMCP("floor")


@server.tool
def echo(message: str) -> str:
    """Repeat a message."""
    return message


async def main() -> None:
    # With its protocol number, else asyncio leaves Nagle's delay on.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        config = Config()
        config.bind = [f"fd://{listener.fileno()}"]
        config.backlog = 1024
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        await serve(server.http_app(path="/mcp", stateless_http=True), config, shutdown_trigger=asyncio.Event().wait)  # type: ignore[arg-type]  # its own ASGI types


if __name__ == "__main__":
    asyncio.run(main())
