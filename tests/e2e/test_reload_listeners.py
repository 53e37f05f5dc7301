"""What a reload does to ports and to the certificate."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.process import reload
from tests.support.calling import ask
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.gateway import Agent, gateway_and_model, module_source, running, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, hang, say
from tests.support.waiting import Gate, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

    from tests.support.calling import Answer
    from tests.support.gateway import Running

PER_PORT = Overrides(per_port=True)
LOCAL = "127.0.0.1"


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Ports nobody listens on until the gateway does: the registry's and three agents'."""
    with ExitStack() as reserved:
        yield [reserved.enter_context(reserved_port()) for _ in range(4)]


def url(port: int) -> str:
    return f"http://{LOCAL}:{port}/mcp"


async def refuses(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOCAL, port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


@asynccontextmanager
async def last_call(path: Path, ports: list[int]) -> AsyncGenerator[tuple[Running, asyncio.Task[Answer], Gate]]:
    """A gateway of the agents `stays` and `goes`, and a call of the latter that the gate holds."""
    registry, stays, goes, _ = ports
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate, say("the last answer")) if request.last_user_text == "wait" else say("an answer")

    agents = {"stays": Agent(settings={"port": stays}), "goes": Agent(settings={"port": goes})}
    settings: dict[str, Any] = {"gateway": {"host": LOCAL}, "deployment": {"registry_port": registry, "host": LOCAL}}
    async with gateway_and_model(path, agents, script, overrides=PER_PORT, **settings) as (served, _):
        last = asyncio.create_task(ask(url(goes), "wait"))
        await gate.wait_for_entered()
        yield served, last, gate


async def test_ports_come_and_go_with_their_agents(ports: list[int], tmp_path: Path) -> None:
    _, stays, goes, comes = ports
    async with last_call(tmp_path, ports) as (served, last, gate):
        served.project.write_module("comes", module_source("comes", Agent()))

        def edit(document: dict[str, Any]) -> None:
            del document["agents"]["goes"]
            document["agents"]["comes"] = {"module": f"{served.project.package}.comes", "port": comes}

        served.project.edit(edit)
        await served.reload()

        assert (await ask(url(stays))).text == "an answer"
        await eventually(lambda: served.gateway.agents["comes"].runtime is not None, what="the new agent up")
        assert (await ask(url(comes))).text == "an answer"
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.post(url(goes), json={})).status_code == 404
        gate.open()
        assert (await last).text == "the last answer"
        await eventually(lambda: refuses(goes), what="the port closed")
        assert served.metric("pallas_config_last_reload_successful") == 1


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_port_about_to_close_stands_another_reload(
    comes_back: bool, ports: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, stays, goes, _ = ports
    async with last_call(tmp_path, ports) as (served, last, gate):
        entries: dict[str, Any] = {}
        served.project.edit(lambda document: entries.update(goes=document["agents"].pop("goes")))
        await served.reload()
        if comes_back:
            served.project.edit(lambda document: document["agents"].update(entries))
        await served.reload()
        assert served.metric("pallas_config_reloads_total", outcome="ok") == 2
        gate.open()
        assert (await last).text == "the last answer"
        if comes_back:
            await eventually(lambda: served.gateway.agents["goes"].runtime is not None, what="the agent up")
            assert (await ask(url(goes))).text == "an answer"
            assert (await ask(url(goes))).text == "an answer"
        else:
            await eventually(lambda: refuses(goes), what="the port closed")
        assert (await ask(url(stays))).text == "an answer"
    assert [record.message for record in caplog.records if record.name == "pallas.tasks"] == []


async def test_two_agents_may_swap_their_ports(ports: list[int], tmp_path: Path) -> None:
    registry, one, other, _ = ports
    project = write_project(
        tmp_path,
        {"one": Agent(settings={"port": one}), "other": Agent(settings={"port": other})},
        gateway={"host": LOCAL},
        deployment={"registry_port": registry, "host": LOCAL},
    )
    async with running(project, overrides=PER_PORT) as served:
        assert (await ask(url(one))).meta["agent"] == "one"

        def swap(document: dict[str, Any]) -> None:
            document["agents"]["one"]["port"], document["agents"]["other"]["port"] = other, one

        project.edit(swap)
        await served.reload()
        assert (await ask(url(one))).meta["agent"] == "other"
        assert (await ask(url(other))).meta["agent"] == "one"


async def test_a_port_that_is_taken_changes_nothing(
    ports: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry, one, other, _ = ports
    project = write_project(
        tmp_path,
        {"one": Agent(settings={"port": one})},
        gateway={"host": LOCAL},
        deployment={"registry_port": registry, "host": LOCAL},
    )
    async with running(project, overrides=PER_PORT) as served:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), LOCAL, 0)
        taken = server.sockets[0].getsockname()[1]
        project.edit(lambda document: document["agents"]["one"].update(port=taken))
        await served.reload()
        assert (await ask(url(one))).text == "hello"
        assert served.metric("pallas_config_last_reload_successful") == 0
        why = [vars(record)["why"] for record in caplog.records if record.msg.startswith("configuration not reloaded")]
        assert [str(taken) in one_why for one_why in why] == [True]
        server.close()
        project.edit(lambda document: document["agents"]["one"].update(port=other))
        await served.reload()
        assert (await ask(url(other))).text == "hello"


async def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    before = write_certificate(tmp_path)
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"tls": TLS_FILES})) as served:
        https = served.url("echo").replace("http:", "https:")
        assert (await ask(https, tls=before)).text == "hello"

        end = served.metric("pallas_certificate_expires_seconds", setting="gateway.tls")
        renewed = write_certificate(tmp_path, days=200)
        (tmp_path / TLS_FILES["certfile"]).rename(tmp_path / "other.pem")
        await served.reload()  # half of a renewal: nothing changes
        assert served.metric("pallas_config_last_reload_successful") == 0
        assert (await ask(https, tls=before)).text == "hello"

        (tmp_path / "other.pem").rename(tmp_path / TLS_FILES["certfile"])
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 1
        assert (await ask(https, tls=renewed)).text == "hello"
        renewed_end = served.metric("pallas_certificate_expires_seconds", setting="gateway.tls")
        assert renewed_end == pytest.approx(end + 110 * 86400, abs=600)
        with pytest.raises(httpx.ConnectError) as refused:
            await connect(https, before)
        assert "certificate" in str(refused.value).lower()


async def test_a_certificate_that_breaks_after_it_was_checked_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trusted = write_certificate(tmp_path)
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"tls": TLS_FILES})) as served:
        https = served.url("echo").replace("http:", "https:")
        before = served.gateway.configuration

        def break_it(_: object) -> None:
            (tmp_path / TLS_FILES["certfile"]).write_text("half of it")

        monkeypatch.setattr(reload, "check_tls", break_it)
        served.project.edit(lambda document: document["agents"]["echo"].update(title="Another"))
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 0
        assert served.gateway.configuration is before
        assert served.gateway.agents["echo"].settings.title is None
        assert (await ask(https, tls=trusted)).text == "hello"
        assert [vars(record)["why"].partition(" (")[0] for record in caplog.records if "why" in vars(record)] == [
            f"gateway.tls: {TLS_FILES['certfile']} is no certificate that fits {TLS_FILES['keyfile']}"
        ]


async def connect(https: str, trusting: ssl.SSLContext) -> None:
    async with httpx.AsyncClient(verify=trusting, trust_env=False) as client:
        await client.get(https)
