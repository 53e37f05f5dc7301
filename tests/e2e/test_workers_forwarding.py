"""Requests that reach another worker than their call: where they are answered, and what a client may write in them."""

from __future__ import annotations

import os
import re
import signal
import stat
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.fleet import fleet
from tests.support.askable_callers import CAN_BE_ASKED, INVALID_PARAMS
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.clients import MODERN_VERSION
from tests.support.threads_api import stream_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    import httpx

    from tests.e2e.fleet import WorkerManager

ASK = {"name": "send_message", "arguments": {"message": "ask"}}
ADA = {"action": "accept", "content": {"name": "Ada"}}
MODERN = {"mcp-protocol-version": MODERN_VERSION, "mcp-method": "tools/call", "mcp-name": "send_message"}
ACCEPT = {"accept": "application/json, text/event-stream"}


async def call(http: httpx.AsyncClient, url: str, **params: Any) -> dict[str, Any]:
    """The response to a call of 2026-07-28."""
    meta = {**CAN_BE_ASKED, "io.modelcontextprotocol/protocolVersion": MODERN_VERSION}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**ASK, **params, "_meta": meta}}
    return dict((await http.post(url, json=body, headers={**MODERN, **ACCEPT})).json())


async def asked(http: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """What the repeated request of a call adds."""
    result = (await call(http, url))["result"]
    return {"requestState": result["requestState"], "inputResponses": dict.fromkeys(result["inputRequests"], ADA)}


async def test_live_events_and_the_end_of_a_turn_reach_a_client_of_another_worker(tmp_path: Path) -> None:
    async with fleet(tmp_path, database="sqlite:///threads.db") as served, AsyncExitStack() as stack:
        api = f"{served.base_url}/api/v1"
        clients = [await stack.enter_async_context(served.client_of(pid, api)) for pid in served.pids]
        chat = {"message": "delegate hang on", "background": True}
        async with stream_of(clients[0], "/agents/root/chat", chat) as first:
            thread_id = (await first.event("thread"))["threadId"]
            await first.event("tool_call")
            await served.gate.wait_for_entered(1)
        async with stream_of(clients[1], f"/threads/{thread_id}/answers", {"answers": {}}) as second:
            assert (await second.event("tool_call"))["toolName"] == "peer/send_message"
            assert (await clients[1].post(f"/threads/{thread_id}/cancel")).status_code == 204
            await served.gate.wait_for_cancelled(1)
            assert (await second.event("error"))["reason"] == "cancelled"


async def test_a_turn_whose_worker_is_killed_ends_the_stream_of_another_worker_with_an_error(tmp_path: Path) -> None:
    async with fleet(tmp_path, database="sqlite:///threads.db") as served, AsyncExitStack() as stack:
        api, pids = f"{served.base_url}/api/v1", sorted(served.pids)
        clients = [await stack.enter_async_context(served.client_of(pid, api)) for pid in pids]
        async with stream_of(clients[0], "/agents/peer/chat", {"message": "hang on", "background": True}) as first:
            thread_id = (await first.event("thread"))["threadId"]
        async with stream_of(clients[1], f"/threads/{thread_id}/answers", {"answers": {}}) as second:
            await second.event("thread")
            os.kill(pids[0], signal.SIGKILL)
            assert (await second.event("error"))["reason"] == "abandoned"


async def test_a_name_that_a_client_forges_continues_no_call_and_the_state_stays_good(tmp_path: Path) -> None:
    async with fleet(tmp_path) as served, AsyncExitStack() as stack:
        url = served.url("peer")
        one, other = [await stack.enter_async_context(served.client_of(pid)) for pid in served.pids]
        again, foreign = await asked(one, url), await asked(other, url)
        name, _, sealed = again["requestState"].partition(".")
        another = foreign["requestState"].partition(".")[0]
        assert name != another
        for forged in (another, "0" * 8, "", "../../etc", name.upper() + "x"):
            state = {**again, "requestState": f"{forged}.{sealed}"}
            assert (await call(other, url, **state))["error"]["code"] == INVALID_PARAMS
        for changed in (f"{another}.{sealed}", sealed):
            assert (await call(one, url, **{**again, "requestState": changed}))["error"]["code"] == INVALID_PARAMS
        results = [await call(http, url, **again) for http in (other, one)]
    assert results[0]["result"]["content"][0]["text"] == '{"name": "Ada"}'
    assert results[1]["error"]["code"] == INVALID_PARAMS


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_a_repeated_request_reaches_its_call_per_port_and_with_tls(tls: bool, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    trusting = write_certificate(tmp_path / "project") if tls else None
    settings: dict[str, Any] = {"tls": TLS_FILES} if tls else {}
    async with (
        fleet(tmp_path, "--per-port", **settings) as served,
        AsyncExitStack() as stack,
    ):
        base = f"{'https' if tls else 'http'}://127.0.0.1:{served.ports['peer']}"
        clients = [
            await stack.enter_async_context(served.client_of(pid, base, trusting or True)) for pid in served.pids
        ]
        again = await asked(clients[0], "/mcp")
        result = (await call(clients[1], "/mcp", **again))["result"]
    assert result["content"][0]["text"] == '{"name": "Ada"}'


async def test_the_sockets_are_of_the_gateways_user_alone_and_that_of_a_killed_worker_is_removed(
    tmp_path: Path,
) -> None:
    async with fleet(tmp_path) as served:
        folder = shared_folder(served)
        before = set(folder.glob("*.sock"))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(before) == 2
        os.kill(min(served.pids), signal.SIGKILL)
        await eventually(lambda: len(set(folder.glob("*.sock")) - before) == 1, 100, what="another socket")
        assert len(set(folder.glob("*.sock")) & before) == 1
    assert not folder.exists()


def shared_folder(served: WorkerManager) -> Path:
    [pid, *_] = served.pids
    return Path(re.findall(r"(/\S*pallas-workers-\w+)/", Path(f"/proc/{pid}/maps").read_text())[0])
