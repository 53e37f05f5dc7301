"""What an ingress does with a call that a replica does not answer: another one gets it only if none has begun it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.deploy.ingress import Ingress, Place, caddy, nginx, place
from tests.support.listener import HOST, reserved_port

CALLS = 6
STOPPING = 503
BODY = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}


@dataclass
class Replica:
    """Stands for a gateway, one connection at a time: answers a call with `status`, or breaks off without one."""

    status: int | None = 200
    begun: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
            await reader.readexactly(int(headers.get("content-length", 0)))
            is_call = head.startswith("POST")
            if is_call:
                self.headers.append(headers)
                self.begun += self.status != STOPPING
            if (status := self.status if is_call else 200) is not None:
                writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}".encode())
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass  # somebody looked whether the port is open
        finally:
            writer.close()


@asynccontextmanager
async def replicas(ingress: Ingress, path: Path, *present: Replica, absent: int = 0) -> AsyncGenerator[Place]:
    """`present` behind the ingress, after `absent` addresses that refuse connections."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(60))
        at = stack.enter_context(place(path / "ingress"))
        ports = [stack.enter_context(reserved_port()) for _ in range(absent)]
        for replica in present:
            server = await stack.enter_async_context(await asyncio.start_server(replica.serve, HOST, 0))
            ports.append(server.sockets[0].getsockname()[1])
        await stack.enter_async_context(ingress(at, ports))
        yield at


async def post(at: Place, count: int = CALLS, headers: dict[str, str] | None = None) -> list[int]:
    """The statuses of calls one after the other."""
    async with httpx.AsyncClient(verify=at.tls, trust_env=False, timeout=20) as client:
        url = f"{at.url}/agents/solo/mcp"
        return [(await client.post(url, json=BODY, headers=headers)).status_code for _ in range(count)]


@pytest.mark.whole
@pytest.mark.parametrize("ingress", [pytest.param(nginx, marks=pytest.mark.needs("nginx")), caddy])
async def test_a_replica_that_refuses_connections_costs_no_call(ingress: Ingress, tmp_path: Path) -> None:
    replica = Replica()
    async with replicas(ingress, tmp_path, replica, absent=1) as at:
        assert await post(at) == [200] * CALLS
    assert replica.begun == CALLS


@pytest.mark.whole
@pytest.mark.needs("nginx")
async def test_nginx_gives_what_a_stopping_replica_refused_to_another(tmp_path: Path) -> None:
    stopping, other = Replica(STOPPING), Replica()
    async with replicas(nginx, tmp_path, stopping, other) as at:
        assert await post(at) == [200] * CALLS
    assert other.begun == CALLS


@pytest.mark.whole
async def test_caddy_hands_on_the_503_of_a_replica_that_has_begun_to_stop(tmp_path: Path) -> None:
    async with replicas(caddy, tmp_path, Replica(STOPPING)) as at:
        assert await post(at, 1) == [503]


@pytest.mark.whole
@pytest.mark.parametrize("ingress", [pytest.param(nginx, marks=pytest.mark.needs("nginx")), caddy])
async def test_a_call_that_broke_off_is_not_sent_again(ingress: Ingress, tmp_path: Path) -> None:
    breaking = [Replica(None), Replica(None)]
    async with replicas(ingress, tmp_path, *breaking) as at:
        statuses = await post(at, 1)
    assert sum(replica.begun for replica in breaking) == 1
    assert statuses == [502]


@pytest.mark.whole
@pytest.mark.needs("nginx")
async def test_nginx_sends_a_call_that_was_refused_and_then_broke_off_to_nobody_else(
    tmp_path: Path,
) -> None:
    breaking, stopping = [Replica(None), Replica(None)], Replica(STOPPING)
    async with replicas(nginx, tmp_path, stopping, *breaking, absent=1) as at:
        for sent in range(1, CALLS + 1):
            [status] = await post(at, 1)
            begun = sum(replica.begun for replica in breaking)
            assert (status in (502, 503), begun <= sent) == (True, True)
        assert begun > 0


@pytest.mark.whole
@pytest.mark.parametrize("ingress", [pytest.param(nginx, marks=pytest.mark.needs("nginx")), caddy])
async def test_gateways_are_told_who_asked_and_not_who_a_client_says_it_is(ingress: Ingress, tmp_path: Path) -> None:
    names = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host")
    forged = dict.fromkeys(names, "evil.example")
    replica = Replica()
    async with replicas(ingress, tmp_path, replica) as at:
        await post(at, 1, forged)
    [told] = replica.headers
    assert (told["x-forwarded-for"], told["x-forwarded-proto"]) == ("127.0.0.1", "https")
    assert told["x-forwarded-host"].partition(":")[0] == "localhost"
    assert told["host"].partition(":")[0] == "localhost"
    assert "forwarded" not in told
