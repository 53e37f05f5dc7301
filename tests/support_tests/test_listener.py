"""The listener: real connections, bounded stops, the same port twice."""

import asyncio
import socket
import struct

import httpx
import pytest

from tests.support.asgi import Message, Receive, Scope, Send, plain_lifespan, respond, send_part, start_response
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.listener import black_hole, reserved_port, serve_app
from tests.support.waiting import Gate

IP_LOCAL_PORT_RANGE = 51  # of Linux; the socket module has no name for it


class App:
    """Answers `/`, begins and never ends `/stream`, never answers `/silent`; notes its lifespan."""

    def __init__(self) -> None:
        self.lifespan: list[str] = []
        self.gate = Gate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["path"] == "/stream":
            await start_response(send, 200, content_type="text/plain")
            await send_part(send, "begun")
            await self.gate.enter("/stream")
        elif scope["path"] == "/silent":
            await self.gate.enter("/silent")
        else:
            await respond(send, 200, "hello", content_type="text/plain")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            self.lifespan.append(message["type"])
            await send(message)

        await plain_lifespan(receive, noting)


async def get(url: str) -> str:
    async with httpx.AsyncClient(trust_env=False) as http:
        return (await http.get(url)).text


async def test_nobody_listens_after_the_block() -> None:
    async with serve_app(App()) as listener:
        pass

    with pytest.raises(httpx.ConnectError):
        await get(listener.base_url)


@pytest.mark.parametrize("path", ["/stream", "/silent"])
async def test_stopping_cancels_running_requests_instead_of_waiting_for_their_clients(path: str) -> None:
    app = App()
    async with httpx.AsyncClient(trust_env=False) as http:
        async with serve_app(app) as listener:
            asking = asyncio.create_task(http.get(f"{listener.base_url}{path}"))
            await app.gate.wait_for_entered()

        await app.gate.wait_for_cancelled()
        answer = await asyncio.wait_for(asyncio.gather(asking, return_exceptions=True), 5)
        assert isinstance(answer[0], httpx.RemoteProtocolError) or answer[0].status_code == 500  # type: ignore[union-attr]


async def test_stopping_closes_idle_and_half_spoken_connections() -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        async with serve_app(App()) as listener:
            await http.get(listener.base_url)
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"POST / HT")
            await writer.drain()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        await writer.wait_closed()


async def test_a_failing_lifespan_is_raised_and_leaves_nothing() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no luck"})

    before = snapshot()
    with pytest.raises(Exception, match="no luck"):
        async with serve_app(failing):
            pytest.fail("served although the lifespan failed")

    await assert_nothing_left(before)


async def test_a_listener_leaves_no_task_and_no_descriptor() -> None:
    before = snapshot()
    async with serve_app(App()) as listener:
        await get(listener.base_url)

    await assert_nothing_left(before)


async def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with serve_app(App()):
            raise KeyError("mine")


async def test_black_hole_takes_connections_and_says_nothing() -> None:
    with black_hole() as base_url, socket.socket() as sock:
        sock.settimeout(0.05)
        sock.connect(("127.0.0.1", int(base_url.rsplit(":", 1)[1])))
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(TimeoutError):
            sock.recv(1)


def only(port: int, *, reuse: bool) -> socket.socket:
    """A socket that the system can give no other port."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        one.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port))
    except OSError:
        one.close()
        pytest.skip("requires Linux 6.3: the range of ports of a socket")
    return one


def test_a_reserved_port_is_given_to_no_other_socket_until_it_is_named() -> None:
    with reserved_port() as port, socket.create_server(("127.0.0.1", 0)) as elsewhere:
        for reuse in (False, True):
            with only(port, reuse=reuse) as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", 0))
        with only(port, reuse=True) as client, pytest.raises(OSError, match="assign"):
            client.connect(elsewhere.getsockname())
        with socket.create_server(("127.0.0.1", port)) as named:
            assert named.getsockname()[1] == port
