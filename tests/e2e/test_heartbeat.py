"""No silence while a call with a token runs: whatever it waits for, clients and proxies that give up soon do not."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.clients import READ_SECONDS
from tests.support.fair_time import hastened
from tests.support.gateway import Agent
from tests.support.listener import HOST, reserved_port
from tests.support.scripted_llm import call_tools, hang, say
from tests.support.waiting import Gate, eventually
from tests.support.watching import EACH_VERSION, Watched, calling, check_order, stage
from tests.support_programs import program

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from tests.support.clients import RawCall
    from tests.support.scripted_llm import LlmRequest, Turn

BEAT = {"heartbeat_seconds": 0.2}
PATIENCE = 5.0  # seconds without a byte after which the clients and the proxy of these tests give up
LONG = 28  # heartbeats: more than the patience
NO_TOKEN = {"io.modelcontextprotocol/logLevel": "info"}


def beats(messages: Sequence[str], by: str) -> list[int]:
    """The seconds that the heartbeats of `by` tell of."""
    return [int(found[1]) for one in messages if (found := re.fullmatch(rf"{re.escape(by)} working \((\d+)s\)", one))]


async def until_beaten(call: RawCall, count: int, by: str = "solo") -> None:
    """Return once `count` heartbeats have come, on a hastened clock."""
    await hastened(really_beaten(call, count, by), BEAT["heartbeat_seconds"] / 2)


async def really_beaten(call: RawCall, count: int, by: str = "solo") -> None:
    """Return once `count` heartbeats have come; each of them restarts the wait."""
    for number in range(1, count + 1):
        await eventually(lambda: _beaten(call, by) >= number, what=f"heartbeat {number} of {by}")  # noqa: B023  awaited here


def _beaten(call: RawCall, by: str) -> int:
    return len(beats([one["params"].get("message", "") for one in call.notifications], by))


# --- whatever the call waits for -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EACH_VERSION)
@pytest.mark.parametrize("waits_for", ["model", "tool"])
async def test_heartbeats_come_while_a_call_waits(waits_for: str, version: str, tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if waits_for == "model":
            return hang(gate, say("done"))
        return say("done") if request.tool_results else call_tools([("tools__slow", {})])

    async with stage(tmp_path, script, gateway=BEAT) as staged:
        async with calling(staged.url("solo"), version=version) as (_, call):
            await until_beaten(call, 6)
            gate.open()
            staged.tools.gate.open()
            watched = Watched(await call.reply())

        check_order(watched.reply)
        told = beats(watched.progress, "solo")
        assert told == sorted(told)
        assert told[-1] >= 1
        assert staged.served.metric("pallas_heartbeats_total", agent="solo") == len(told)
    assert watched.text == "done"
    assert "solo step 1 (llm)" in watched.progress


async def test_heartbeats_come_while_a_call_waits_for_its_turn(tmp_path: Path) -> None:
    gate = Gate()
    one_at_a_time = {**BEAT, "max_in_flight": 1, "queue_seconds": 30}
    async with stage(tmp_path, lambda _: hang(gate), gateway=one_at_a_time) as staged, calling(staged.url("solo")):
        await gate.wait_for_entered()  # else the second call could take the slot
        async with calling(staged.url("solo")) as (_, queued):
            await until_beaten(queued, 3)
            gate.open()
            watched = Watched(await queued.reply())

    assert len(beats(watched.progress[:3], "solo")) == 3


async def test_heartbeats_of_a_peer_are_progress_of_the_tool_that_called_it(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if request.last_user_text == "inner":
            return hang(gate)
        return say("done") if request.tool_results else call_tools([("peer__send_message", {"message": "inner"})])

    with reserved_port() as port:
        agents = {"root": Agent(["peer"]), "peer": Agent(settings={"port": port})}
        servers = {"peer": {"url": f"http://localhost:{port}/mcp"}}
        async with (
            stage(tmp_path, script, agents, peers=servers, gateway=BEAT) as staged,
            calling(staged.url("root")) as (_, call),
        ):
            await until_beaten(call, 3, "peer/send_message: peer")
            gate.open()
            check_order(await call.reply())


async def test_a_call_without_a_token_hears_no_heartbeat(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, lambda _: hang(gate), gateway=BEAT) as staged:
        async with (
            calling(staged.url("solo")) as (_, hears),
            calling(staged.url("solo"), meta=NO_TOKEN) as (_, hears_nothing),
        ):
            await gate.wait_for_entered(2)
            await until_beaten(hears, 4)
            gate.open()
            heard, unheard = Watched(await hears.reply()), Watched(await hears_nothing.reply())
        counted = staged.served.metric("pallas_heartbeats_total", agent="solo")

    assert unheard.progress == []
    assert counted == len(beats(heard.progress, "solo"))


async def test_a_call_that_is_never_silent_needs_no_heartbeat(tmp_path: Path) -> None:
    async with stage(tmp_path, lambda _: say("hello"), gateway={"heartbeat_seconds": 60}) as staged:
        async with calling(staged.url("solo")) as (_, call):
            watched = Watched(await call.reply())

        assert staged.served.metric("pallas_heartbeats_total", agent="solo") == 0
    assert watched.progress == ["solo step 1 (llm)"]


# --- who would give up -----------------------------------------------------------------------------------------------


async def test_clients_that_soon_give_up_survive_a_long_call_if_they_ask_for_progress(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, lambda _: hang(gate, say("done")), gateway=BEAT) as staged, AsyncExitStack() as stack:
        patient, impatient = await _each_era(stack, staged.url("solo"), read_seconds=PATIENCE)
        for call in patient:
            await until_beaten(call, LONG)
        for call in impatient:
            with pytest.raises(httpx.ReadTimeout):
                await call.reply()
        gate.open()
        answers = [Watched(await call.reply()) for call in patient]

    assert [answer.text for answer in answers] == ["done", "done"]


@pytest.mark.needs("nginx")
async def test_a_proxy_that_soon_gives_up_lets_a_long_call_through_if_its_client_asks_for_progress(
    tmp_path: Path,
) -> None:
    """The time is that of the proxy."""
    gate = Gate()
    async with (
        stage(tmp_path / "project", lambda _: hang(gate, say("done")), gateway=BEAT) as staged,
        nginx(tmp_path / "nginx", staged.served.base_url) as proxy,
        AsyncExitStack() as stack,
    ):
        patient, impatient = await _each_era(stack, f"{proxy}/agents/solo/mcp", read_seconds=READ_SECONDS)
        await asyncio.gather(*(really_beaten(call, LONG) for call in patient))
        for call in impatient:  # the proxy answers in the gateway's place, or cuts an answer that has begun
            [given_up] = await asyncio.gather(call.reply(), return_exceptions=True)
            assert isinstance(given_up, httpx.RemoteProtocolError) or getattr(given_up, "status", None) == 504
        gate.open()
        answers = [Watched(await call.reply()) for call in patient]

    assert [answer.text for answer in answers] == ["done", "done"]


async def _each_era(stack: AsyncExitStack, url: str, *, read_seconds: float) -> tuple[list[RawCall], list[RawCall]]:
    """One call in each era that asks for progress, and one that does not."""
    calls: list[list[RawCall]] = [[], []]
    for version in EACH_VERSION:
        for number, meta in enumerate([None, NO_TOKEN]):
            call = calling(url, version=version, meta=meta, read_seconds=read_seconds)
            calls[number].append((await stack.enter_async_context(call))[1])
    return calls[0], calls[1]


@asynccontextmanager
async def nginx(folder: Path, upstream: str) -> AsyncGenerator[str]:
    """A real nginx with stock settings but for its patience; yields its base URL."""
    folder.mkdir()
    with reserved_port() as port:
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(f"""
            daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log; events {{}}
            http {{
              access_log off; client_body_temp_path {folder}/body; {temporary}
              server {{
                listen {HOST}:{port};
                location / {{ proxy_pass {upstream}; proxy_read_timeout {PATIENCE * 1000:.0f}ms; }}
              }}
            }}
            """)
        arguments = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
        process = await asyncio.create_subprocess_exec(program("nginx"), *arguments)
        try:
            await eventually(lambda: _answers(port), what=f"nginx, see {folder}/error.log")
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()
            await process.wait()


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
