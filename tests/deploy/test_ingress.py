"""A gateway behind real nginx and Caddy with the shipped configurations, TLS at the ingress."""

import asyncio
import base64
import http.client
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from h2.connection import H2Connection

from tests.deploy.ingress import SCALE, Ingress, Place, caddy, nginx, place
from tests.support.calling import EACH_VERSION, answer_of, ask
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.guarded import static_key
from tests.support.listener import HOST
from tests.support.scripted_llm import ScriptedLlm, hang, say, scripted_llm, stream
from tests.support.waiting import Gate, eventually
from tests.support.watching import Watched, calling, watching_meta

AGENTS = {"solo": Agent(settings={"model_capabilities": {"vision": True}, "icon": "/solo.svg"})}
OWN, CLIENT, SOMEBODY = "127.0.0.1", "127.0.0.2", "203.0.113.9"  # the ingress's address, the client's, made up
FIVE_MINUTES = 300 / SCALE
IMAGES = 10
IMAGE_BYTES = 2_000_000
METRICS_PATHS = (
    "/metrics", "/metrics/", "//metrics", "/metrics?x=1", "/%6detrics", "/METRICS", "/agents/../metrics",
    "/agents/%2e%2e/metrics", "/agents/..%2fmetrics", "/agents/x/../../metrics", "/livez/../metrics", "/./metrics",
    "/.well-known/oauth-protected-resource/../../metrics", "/metrics#", "/metrics;x", "https://localhost/metrics",
)  # fmt: skip


@pytest.fixture(params=[pytest.param(nginx, marks=pytest.mark.needs("nginx")), caddy], ids=["nginx", "caddy"])
def ingress(request: pytest.FixtureRequest) -> Ingress:
    chosen: Ingress = request.param
    return chosen


@dataclass(frozen=True)
class Stage:
    """A gateway behind an ingress."""

    at: Place
    served: Running
    llm: ScriptedLlm

    @property
    def solo(self) -> str:
        return f"{self.at.url}/agents/solo/mcp"

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(verify=self.at.tls, trust_env=False) as client:
            return await client.get(f"{self.at.url}{path}")


@asynccontextmanager
async def behind(ingress: Ingress, path: Path, **settings: Any) -> AsyncGenerator[Stage]:
    with place(path / "ingress") as at:
        async with scripted_llm() as llm:
            gateway = {"public_url": at.url, **settings}
            project = write_project(path / "project", AGENTS, llm_url=llm.base_url, gateway=gateway)
            async with running(project) as served, ingress(at, [served.gateway.addresses.registry_port]):
                yield Stage(at, served, llm)


@pytest.mark.whole
@pytest.mark.parametrize("version", EACH_VERSION)
async def test_progress_and_text_arrive_while_the_call_runs(version: str, ingress: Ingress, tmp_path: Path) -> None:
    gate = Gate()
    async with behind(ingress, tmp_path) as stage:
        stage.llm.script = lambda _: stream(["first ", "second"], gate)
        meta = watching_meta(version, **{"pallas/stream": "delta"})
        async with calling(stage.solo, version=version, meta=meta, tls=stage.at.tls) as (_, call):
            await gate.wait_for_entered()
            await eventually(lambda: '"first ' in str(call.notifications).replace("'", '"'), what="the first piece")
            assert any(one["method"] == "notifications/progress" for one in call.notifications)
            gate.open()
            watched = Watched(await call.reply())
    assert watched.text == "first second"


@pytest.mark.whole
@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_call_that_is_silent_for_five_minutes_is_answered(
    version: str, ingress: Ingress, tmp_path: Path
) -> None:
    gate = Gate()
    async with behind(ingress, tmp_path) as stage:
        stage.llm.script = lambda _: hang(gate, say("at last"))
        async with calling(stage.solo, version=version, meta={}, tls=stage.at.tls) as (_, call):
            await gate.wait_for_entered()
            until = asyncio.get_running_loop().time() + FIVE_MINUTES
            await eventually(lambda: asyncio.get_running_loop().time() > until, what="five minutes")
            assert (call.notifications, call.comments) == ([], 0)
            gate.open()
            assert Watched(await call.reply()).text == "at last"


# The provider's HTTP client, aiohttp, warns of large bodies; they are fast-agent's to send otherwise.
@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
async def test_20_mb_of_images_reach_the_model(ingress: Ingress, tmp_path: Path) -> None:
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(IMAGE_BYTES)).decode()
    images = [{"data": data, "mime_type": "image/png"}] * IMAGES
    async with behind(ingress, tmp_path) as stage:
        stage.llm.script = lambda _: say("seen")
        answer = await ask(stage.solo, "look", tls=stage.at.tls, images=images)
        [asked] = stage.llm.requests
    assert (answer.text, answer.is_error) == ("seen", False)
    assert str(asked.body).count(data) == IMAGES


@pytest.mark.whole
async def test_a_client_that_leaves_ends_its_call(ingress: Ingress, tmp_path: Path) -> None:
    gate = Gate()
    async with behind(ingress, tmp_path) as stage:
        stage.llm.script = lambda _: hang(gate)
        async with calling(stage.solo, tls=stage.at.tls):
            await gate.wait_for_entered()
        await stage.llm.wait_for_aborted()


@pytest.mark.whole
async def test_the_open_paths_answer_with_public_urls_and_no_other_does(ingress: Ingress, tmp_path: Path) -> None:
    async with behind(ingress, tmp_path) as stage:
        registry = await stage.get("/.well-known/mcp/server.json")
        assert [remote["url"] for remote in registry.json()["servers"][0]["server"]["remotes"]] == [stage.solo]
        assert "http://" not in registry.text.replace("https://", "").replace("http://json-schema.org", "")
        [solo] = (await stage.get("/v0.1/servers")).json()["servers"]
        assert solo["server"]["remotes"][0]["url"] == stage.solo
        name = quote(solo["server"]["name"], safe="")
        for api in ("/v0.1", "/v0"):
            assert (await stage.get(f"{api}/servers/{name}/versions/latest")).json() == solo
        for path in ("/livez", "/readyz"):
            assert (await stage.get(path)).status_code == 200
        # Without gateway.auth there is no metadata; that it is the gateway who says so shows in the JSON.
        assert "error" in (await stage.get("/.well-known/oauth-protected-resource/agents/solo/mcp")).json()
        assert (await stage.get("/")).status_code == 404
        assert (await stage.get("/docs")).status_code == 404


@pytest.mark.whole
@pytest.mark.needs("nginx")
async def test_the_paths_that_nginx_has_as_comments_lead_to_the_gateway(tmp_path: Path) -> None:
    opened = {"openai_api": True, "console": True}
    async with behind(partial(nginx, opens_all=True), tmp_path, **opened) as stage:
        answer = await ask(f"{stage.at.url}/mcp", "hi", tool="agent-solo", tls=stage.at.tls)
        assert (answer.text, answer.is_error) == ("heard: hi", False)
        assert (await stage.get("/v1/models")).json()["data"][0]["id"] == "solo"
        assert (await stage.get("/api/gateway")).status_code == 200
        assert "text/html" in (await stage.get("/console/")).headers["content-type"]
        for path in ("/metrics", "/", "/docs/"):
            assert (path, (await stage.get(path)).status_code) == (path, 404)


@pytest.mark.whole
@pytest.mark.parametrize("trusted", [True, False])
async def test_the_log_says_who_was_refused_and_not_who_a_client_says_it_is(
    trusted: bool, ingress: Ingress, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forged = {"x-forwarded-for": f"{SOMEBODY}, {OWN}", "x-real-ip": SOMEBODY, "authorization": "Bearer wrong"}
    forged["forwarded"] = f"for={SOMEBODY};proto=http"
    settings = {"auth": {"tokens": [static_key("run:agents")]}, "trusted_proxies": [OWN] if trusted else []}
    with caplog.at_level("INFO", "pallas.identity"):
        async with behind(ingress, tmp_path, **settings) as stage:
            transport = httpx.AsyncHTTPTransport(verify=stage.at.tls, local_address=CLIENT)
            async with httpx.AsyncClient(transport=transport) as client:
                refused = await client.post(stage.solo, headers=forged, json={})
    told = [vars(record) for record in caplog.records if record.message == "caller refused"]
    assert refused.status_code == 401
    assert [(record["reason"], record["client"]) for record in told] == [("invalid_token", CLIENT if trusted else OWN)]
    assert "is ignored" not in caplog.text


@pytest.mark.whole
async def test_metrics_cannot_be_reached(ingress: Ingress, tmp_path: Path) -> None:
    async with behind(ingress, tmp_path) as stage:
        for path in METRICS_PATHS:
            status, body = await asyncio.to_thread(_get_as_it_is, stage.at, path)
            assert (path, status in (301, 308, 400, 404)) == (path, True)
            assert "pallas_" not in body


UPGRADES = {
    "h2c": {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA"},
    "websocket": {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    },
}


@pytest.mark.whole
@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_an_upgrade_is_not_passed_on(upgrade: str, ingress: Ingress, tmp_path: Path) -> None:
    """To a server that would agree to it, and whose connections would lead past the ingress from then on."""
    async with agreeing_server() as (port, heads):
        with place(tmp_path / "ingress") as at:
            async with ingress(at, [port]):
                head = await asyncio.to_thread(_first_head, at, UPGRADES[upgrade])
    assert head.startswith(b"HTTP/1.1 200 ")
    asked = [one.lower() for one in heads if b"get /livez " in one.lower()]
    assert asked
    assert [one for one in asked if b"\r\nupgrade:" in one or b"\r\nhttp2-settings:" in one] == []


@asynccontextmanager
async def agreeing_server() -> AsyncGenerator[tuple[int, list[bytes]]]:
    """A server that agrees to every upgrade, and the heads of the requests that it got."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        kind = next((line[8:] for line in heads[-1].split(b"\r\n") if line.lower().startswith(b"upgrade:")), None)
        if kind is None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade:" + kind + b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1], heads


@pytest.mark.whole
async def test_no_tunnel_leads_past_the_ingress(ingress: Ingress, tmp_path: Path) -> None:
    preface = H2Connection()
    preface.initiate_connection()
    preface.send_headers(1, [(":method", "GET"), (":scheme", "http"), (":authority", "x"), (":path", "/metrics")], True)
    async with behind(ingress, tmp_path) as stage:
        said = await asyncio.to_thread(_first_head, stage.at, UPGRADES["h2c"], then=preface.data_to_send())
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"\x00\x00\x00\x04\x01" not in said  # an acknowledgement of HTTP/2 settings


def _first_head(at: Place, headers: Mapping[str, str], *, then: bytes = b"") -> bytes:
    """All that comes back for a GET with these headers, and what follows it, or its head."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with (
        socket.create_connection((HOST, at.port), timeout=20) as plain,
        at.tls.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(f"GET /livez HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
        said = b""
        while b"\r\n\r\n" not in said and (more := connection.recv(1 << 16)):
            said += more
        if then:
            connection.sendall(then)
            while more := _received(connection):
                said += more
    return said


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except OSError:  # reset
        return b""


def _get_as_it_is(at: Place, path: str) -> tuple[int, str]:
    """GET without a client's tidying of the path."""
    connection = http.client.HTTPSConnection("localhost", at.port, context=at.tls, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.whole
@pytest.mark.needs("nginx")
async def test_http_2_is_spoken_and_plain_http_is_led_to_https(tmp_path: Path) -> None:
    async with (
        behind(nginx, tmp_path) as stage,
        httpx.AsyncClient(verify=stage.at.tls, trust_env=False, http2=True) as client,
    ):
        assert (await client.get(f"{stage.at.url}/livez")).http_version == "HTTP/2"
        plain = await client.get(f"http://localhost:{stage.at.plain_port}/agents/solo/mcp")
    assert (plain.status_code, plain.headers["location"]) == (301, stage.solo)


@pytest.mark.whole
async def test_a_body_above_the_limit_is_refused_with_413(ingress: Ingress, tmp_path: Path) -> None:
    async with behind(ingress, tmp_path) as stage:
        async with raw_client(stage.solo, protocol_version=MODERN_VERSION, tls=stage.at.tls) as client:
            reply = await client.call_tool("send_message", {"message": "x" * (33 << 20)})
        assert reply.status == 413
        assert stage.llm.requests == []
        assert (await ask(stage.solo, "small", tls=stage.at.tls)).text == "heard: small"


@pytest.mark.whole
async def test_calls_one_after_the_other_on_one_connection_are_answered(ingress: Ingress, tmp_path: Path) -> None:
    async with (
        behind(ingress, tmp_path) as stage,
        raw_client(stage.solo, protocol_version=MODERN_VERSION, tls=stage.at.tls) as client,
    ):
        answers = [answer_of(await client.call_tool("solo", {"message": f"{n}"})).text for n in range(5)]
    assert answers == [f"heard: {n}" for n in range(5)]
