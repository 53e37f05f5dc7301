"""The guards alone: what is hard to bring about over a real connection."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import ClientDisconnect

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.fastagent_file import FastAgentFile
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.config.model.deployment import Deployment, GatewaySettings
from pallas_gateway.limits import BodyLimits
from pallas_gateway.web import guards
from tests.support.asgi import respond_json
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.asgi import Message, Receive, Scope, Send

HOST = "fd00::1"


class Client:
    """Both ends of one ASGI exchange: sends `pieces` (then hangs), and remembers what was sent back."""

    def __init__(self, pieces: list[Message], **headers: str) -> None:
        self.pieces = pieces
        self.sent: list[Message] = []
        self.scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/agents/echo/mcp",
            "scheme": "http",
            "server": ("192.0.2.1", 24200),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }

    @property
    def status(self) -> int | None:
        return next((message["status"] for message in self.sent if "status" in message), None)

    async def receive(self) -> Message:
        if not self.pieces:
            await asyncio.Event().wait()
        return self.pieces.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(message)


def piece(*, more: bool) -> Message:
    return {"type": "http.request", "body": b"x" * 1000, "more_body": more}


def answering(status: int) -> Any:
    """An app that answers `status` without a look at the body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond_json(send, status, {})

    return app


def guard(app: Any, **limits: float) -> guards.AnswerAfterBody:
    return guards.AnswerAfterBody(app, BodyLimits(**limits))


async def test_a_refusal_is_sent_once_the_whole_body_was_read() -> None:
    client = Client([piece(more=True), piece(more=True), piece(more=False)])
    async with asyncio.timeout(20):
        await guard(answering(413))(client.scope, client.receive, client.send)

    assert (client.pieces, client.status) == ([], 413)


async def test_a_refusal_waits_no_longer_for_a_client_that_left() -> None:
    client = Client([piece(more=True), {"type": "http.disconnect"}])
    async with asyncio.timeout(20):
        await guard(answering(404))(client.scope, client.receive, client.send)

    assert client.status == 404


async def test_a_refusal_waits_only_so_long_for_a_body_without_end() -> None:
    client = Client([piece(more=True)])
    async with asyncio.timeout(20):
        await guard(answering(413), rest_seconds=0.05)(client.scope, client.receive, client.send)

    assert client.status == 413


async def test_an_answer_that_is_no_refusal_waits_for_the_body_too() -> None:
    client = Client([piece(more=True)] * 30 + [piece(more=False)])
    async with asyncio.timeout(20):
        await guard(answering(200))(client.scope, client.receive, client.send)

    assert (client.pieces, client.status) == ([], 200)


async def test_a_body_without_end_is_read_on_while_it_is_answered() -> None:
    is_answered = asyncio.Event()
    client = Client([piece(more=True)])

    async def receive() -> Message:
        if client.pieces:
            return client.pieces.pop()
        await is_answered.wait()  # more comes only then
        client.pieces = [{"type": "http.disconnect"}]
        return piece(more=True)

    async def send(message: Message) -> None:
        """As Hypercorn: the end of an answer waits until what has come is read."""
        client.sent.append(message)
        is_answered.set()
        if message["type"] == "http.response.body":
            await eventually(lambda: not client.pieces, what="an end of reading")

    async with asyncio.timeout(20):
        await guard(answering(200), rest_seconds=0.05)(client.scope, receive, send)

    assert (client.pieces, client.status) == ([], 200)


async def test_a_body_that_does_not_come_is_a_client_that_left_and_is_answered_with_408() -> None:
    received: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        received.extend([await receive() for _ in range(3)])
        await respond_json(send, 400, {})  # to half a request

    client = Client([piece(more=True)])
    async with asyncio.timeout(20):
        await guard(app, seconds=0.01, bytes_per_second=1 << 30)(client.scope, client.receive, client.send)

    assert [message["type"] for message in received] == ["http.request", *["http.disconnect"] * 2]
    assert client.status == 408


async def test_each_part_of_a_body_gives_the_rest_more_time() -> None:
    client, rest = Client([piece(more=True)]), asyncio.Event()

    async def receive() -> Message:
        if not client.pieces:
            await rest.wait()
            return piece(more=False)
        asyncio.get_running_loop().call_soon(rest.set)
        return client.pieces.pop()

    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await respond_json(send, 200, {})

    async with asyncio.timeout(20):
        await guards.AnswerAfterBody(reading, BodyLimits(seconds=0, bytes_per_second=1000 / 60))(
            client.scope, receive, client.send
        )

    assert client.status == 200


async def test_an_app_that_gives_up_half_a_request_leaves_no_answer() -> None:
    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    client = Client([])
    await guard(reading)(client.scope, client.receive, client.send)

    assert client.sent == []


async def test_a_refusal_after_a_body_that_was_read_waits_for_nothing() -> None:
    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await respond_json(send, 400, {})

    client = Client([piece(more=False)])
    async with asyncio.timeout(20):
        await guard(reading)(client.scope, client.receive, client.send)

    assert client.status == 400


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("[fd00::1]:24200", None, 200),
        ("[FD00::1]", None, 200),
        ("[fd00::2]:24200", None, 421),
        ("192.0.2.1:24200", None, 200),
        ("192.0.2.2:24200", None, 421),
        ("[fd00::1]:24200", "http://[fd00::1]:24200", 200),
        ("[fd00::1]:24200", "https://[fd00::1]", 200),
        ("localhost:evil.example", None, 421),
        ("localhost:80:80", None, 421),
        ("user@localhost:80", None, 421),
        ("192.0.2.1:24200", "http://localhost:evil.example", 403),
        ("192.0.2.1:24200", "http://localhost:80@evil.example", 403),
        ("192.0.2.1:24200", "http://localhost:80.evil.example", 403),
        ("192.0.2.1:24200", "http://localhost:5173/", 200),
        ("[fd00::1]:24200", "http://[::1]:5173", 200),
        ("[fd00::1]:24200", "http://[fd00::2]:24200", 403),
        ("[fd00::1]:24200", "http://:", 403),
        ("localhost:24200", "http://localhost", 200),
        ("localhost:24200", "tauri://localhost", 403),
        ("localhost:24200", "chrome-extension://localhost", 403),
    ],
)
async def test_addresses_of_either_family_are_guarded_like_names(host: str, origin: str | None, status: int) -> None:
    deployment = Deployment(name="test", host=HOST, agents={"echo": AgentSettings(module="echo")})
    configuration = Configuration(deployment, Path("agents.yaml"), {}, FastAgentFile())
    client = Client([piece(more=False)], host=host, **({"origin": origin} if origin else {}))
    app = guards.host_and_origin_guard(answering(200), configuration)
    await app(client.scope, client.receive, client.send)

    assert client.status == status


@pytest.mark.parametrize("allowed", ["app://localhost", "*", "app://*"])
async def test_another_scheme_than_http_can_be_allowed(allowed: str) -> None:
    settings = GatewaySettings(allowed_origins=(allowed,))
    deployment = Deployment(name="test", agents={"echo": AgentSettings(module="echo")}, gateway=settings)
    configuration = Configuration(deployment, Path("agents.yaml"), {}, FastAgentFile())
    client = Client([piece(more=False)], host="localhost", origin="app://localhost")
    await guards.host_and_origin_guard(answering(200), configuration)(client.scope, client.receive, client.send)
    assert client.status == 200


@pytest.mark.parametrize(
    ("headers", "status", "says", "setting"),
    [
        ({"host": "evil.example"}, 421, "Host 'evil.example' is not one this gateway answers to", "allowed_hosts"),
        (
            {"host": "localhost", "origin": "https://evil.example"},
            403,
            "Origin 'https://evil.example' is not one this gateway answers to",
            "allowed_origins",
        ),
    ],
)
async def test_a_refused_name_is_told_with_its_setting_and_logged_once(
    headers: dict[str, str], status: int, says: str, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = Deployment(name="test", agents={"echo": AgentSettings(module="echo")})
    guard = guards.host_and_origin_guard(answering(200), Configuration(deployment, Path("x"), {}, FastAgentFile()))
    for _ in range(3):
        client = Client([piece(more=False)], **headers)
        await guard(client.scope, client.receive, client.send)
        assert client.status == status
        body = b"".join(message.get("body", b"") for message in client.sent)
        assert json.loads(body) == {"error": f"{says}; it can be added to gateway.{setting}"}

    told = [vars(record) for record in caplog.records if record.name == "pallas.web"]
    assert [(record["why"], record["setting"]) for record in told] == [(says, f"gateway.{setting}")]
