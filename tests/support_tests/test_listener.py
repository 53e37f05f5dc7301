"""The listener: real connections, bounded stops, the same port twice."""

import asyncio
import socket
import struct
from contextlib import suppress

import pytest
from starlette.applications import Starlette

from tests.support.listener import reserved_port, serve_app

IP_LOCAL_PORT_RANGE = 51  # of Linux; the socket module has no name for it


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_comes_while_the_server_closes_is_closed(turns: int) -> None:
    loop, app = asyncio.get_running_loop(), Starlette()
    with socket.socket() as client:

        def connect(left: int, port: int) -> None:
            loop.call_soon(connect, left - 1, port) if left else client.connect_ex(("127.0.0.1", port))

        async with serve_app(app) as listener:
            connect(turns, listener.port)
        client.setblocking(False)
        with suppress(OSError):  # it was refused or reset
            assert await loop.sock_recv(client, 1) == b""


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
