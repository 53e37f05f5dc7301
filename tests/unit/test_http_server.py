"""Hypercorn on bound sockets: a port that nobody accepts on any more refuses connections."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx

from pallas_gateway.config.loader import load_deployment
from pallas_gateway.http_server import Accepting
from pallas_gateway.server import bind
from tests.support.asgi import plain_lifespan, respond_json
from tests.support.gateway import Agent, write_project
from tests.support.listener import HOST
from tests.support.waiting import Gate, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.asgi import Receive, Scope, Send


async def test_a_port_refuses_connections_while_the_last_answers_are_still_under_way(tmp_path: Path) -> None:
    gate = Gate()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await plain_lifespan(receive, send)
        else:
            await gate.enter()
            await respond_json(send, 200, {})

    write_project(tmp_path, {"echo": Agent()})
    configuration = load_deployment(tmp_path / "agents.yaml", environ={})
    with ExitStack() as sockets:
        listeners = bind(configuration, sockets)
        [port] = listeners.sockets
        accepting = Accepting(app, listeners, configuration)
        await accepting.__aenter__()
        async with httpx.AsyncClient(trust_env=False) as client:
            asked = asyncio.create_task(client.get(f"http://{HOST}:{port}/"))
            await gate.wait_for_entered()
            closing = asyncio.create_task(accepting.__aexit__())
            await eventually(lambda: _refuses(port), what="a refused connection")
            assert not closing.done()
            gate.open()
            assert (await asked).status_code == 200
        await closing


async def _refuses(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it came in the very moment
        return False
    writer.close()
    return False
