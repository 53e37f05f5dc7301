"""`serve --workers 2`: one gateway to its clients, whichever process a connection comes to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pallas_gateway.telemetry.metrics import Metrics
from tests.e2e.fleet import WorkerManager, fleet
from tests.support.calling import EACH_VERSION, answer_of, ask
from tests.support.clients import (
    EACH_ERA,
    MODERN_VERSION,
    Connect,
    RawCall,
    RawClient,
    raw_client,
    text_of,
    tool_params,
)
from tests.support.exposition import lint
from tests.support.waiting import eventually
from tests.support.watching import calling

pytestmark = pytest.mark.asyncio(loop_scope="module")
INITIALIZE = "2025-06-18"
ROOT, ALL = "/agents/root/mcp", "/mcp"
TOTAL = "pallas_send_message_total"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[WorkerManager]:
    doors: dict[str, Any] = {"openai_api": True, "database": "sqlite:///threads.db"}
    async with fleet(tmp_path_factory.mktemp("fleet"), **doors) as running:
        yield running


async def test_connections_that_wait_in_a_queue_are_shared_out_among_the_workers(served: WorkerManager) -> None:
    pids, address = served.pids, urlsplit(served.base_url)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(socket.create_connection((address.hostname, address.port or 0), timeout=30))
            for _ in range(60)
        ]
        for one in waiting:
            one.sendall(_call_of("peer", "burst"))
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        for one in waiting:
            assert "said burst" in await asyncio.to_thread(_read_to_the_end, one)

    ended = await served.calls_ended(lambda records: len(records) >= len(waiting))
    workers = Counter(record["worker"] for record in ended)
    assert min(workers[1], workers[2]) >= 10


@pytest.mark.parametrize("connect", EACH_ERA)
async def test_clients_of_either_era_need_no_sticky_sessions(connect: Connect, served: WorkerManager) -> None:
    async with connect(served.url("peer")) as client:
        for pid in sorted(served.pids):
            with served.only(pid):  # connections of the other one stay open, and are not answered meanwhile
                async with connect(served.url("peer")) as second:
                    answer = await second.call_tool("send_message", {"message": "hello"})
                assert text_of(answer) == "said hello"
        assert text_of(await client.call_tool("send_message", {"message": "again"})) == "said again"


async def test_nested_calls_come_back_to_the_worker_that_makes_them(served: WorkerManager) -> None:
    answers = []
    for pid in sorted(served.pids):  # few at once: a busy machine connects slowly, and a peer is waited for 5 s
        with served.only(pid):
            answers += await asyncio.gather(*(ask(served.url("root"), f"delegate task {n}") for n in range(10)))

    assert {answer.text for answer in answers} == {"delegated"}
    ids = {answer.meta["call_id"] for answer in answers}
    records = await served.calls_ended(lambda records: ids <= {record["call_id"] for record in records})
    ended = {record["call_id"]: record for record in records}
    nested = [record for record in ended.values() if record.get("nesting") == 1]
    assert len(nested) >= 20
    assert all(record["worker"] == ended[record["parent_call_id"]]["worker"] for record in nested)
    assert {record["worker"] for record in nested} == {1, 2}


async def test_what_a_peer_does_is_relayed(served: WorkerManager) -> None:
    async with calling(served.url("root"), "delegate something") as (_, call):
        await call.reply()
    told = [one["params"]["message"] for one in call.notifications if one["method"] == "notifications/progress"]
    assert "peer/send_message: peer step 1 (llm)" in told
    assert "peer/send_message: completed" in told


async def test_a_thread_goes_on_at_whichever_worker_its_next_message_comes_to(served: WorkerManager) -> None:
    thread_id, turns = None, []
    for number, pid in enumerate(2 * sorted(served.pids), start=1):
        async with served.client_of(pid, f"{served.base_url}/api/v1") as http:
            body = {"message": f"turn {number}", **({"threadId": thread_id} if thread_id else {})}
            answer = (await http.post("/agents/peer/chat", json=body)).raise_for_status().json()
            heard = served.llm.requests[-1].user_texts
            thread_id = answer["threadId"]
            turns.append((answer["turnIndex"], answer["content"], len(heard)))
            kept = (await http.get(f"/threads/{thread_id}/messages")).raise_for_status().json()["messages"]
            assert [one["content"] for one in kept[::2]] == heard

    assert turns == [(number, f"said turn {number}", number) for number in range(1, 5)]

    def of_thread(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [record for record in records if record["conversation_id"] == thread_id]

    ended = of_thread(await served.calls_ended(lambda records: len(of_thread(records)) == len(turns)))
    assert [record["worker"] for record in ended] in ([1, 2, 1, 2], [2, 1, 2, 1])


@pytest.mark.parametrize(("begun", "cancelled", "path"), [(0, 1, ROOT), (1, 0, ROOT), (0, 0, ROOT), (0, 1, ALL)])
async def test_a_call_is_cancelled_whichever_worker_hears_of_it(
    begun: int, cancelled: int, path: str, served: WorkerManager
) -> None:
    pids, entered = sorted(served.pids), len(served.gate.entered)
    async with AsyncExitStack() as stack:
        with served.only(pids[begun]):
            tool = "agent-root" if path == ALL else "send_message"
            url = f"{served.base_url}{path}"
            calls = calling(url, "delegate hang", tool=tool, version=INITIALIZE, bearer="alice")
            client, call = await stack.enter_async_context(calls)
            await served.gate.wait_for_entered(entered + 1)
        with served.only(pids[cancelled]):
            await _cancel(client, call, bearer="bob")
            await _cancel(client, call, bearer="alice")
        reply = answer_of(await call.reply())

    assert reply.meta["stop_reason"] == "cancelled"
    await served.gate.wait_for_cancelled(len(served.gate.entered) - len(served.gate.passed))


@pytest.mark.parametrize("asked_at", [0, 1])
async def test_a_log_level_holds_at_whichever_worker_a_call_arrives(asked_at: int, served: WorkerManager) -> None:
    pids, call = sorted(served.pids), tool_params("send_message", {"message": "hi"})
    with served.only(pids[0]):
        async with raw_client(served.url("peer"), protocol_version=INITIALIZE) as client:
            await client.initialize()
            await client.request("logging/setLevel", {"level": "info"})
            loud = await client.request("tools/call", call)
            await client.request("logging/setLevel", {"level": "warning"})
            session = client.session_id
    with served.only(pids[asked_at]):
        async with raw_client(served.url("peer"), protocol_version=INITIALIZE) as client:
            client.session_id = session
            quiet = await client.request("tools/call", call)
            client.session_id = None
            another = await client.request("tools/call", call)
    streams = [[one["method"] for one in reply.notifications] for reply in (loud, quiet, another)]
    assert streams == [["notifications/message"], [], ["notifications/message"]]


CAN_BE_ASKED: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}


async def asked_of(client: RawClient, message: str = "ask") -> dict[str, Any]:
    """Return the parameters with which a call of 2026-07-28 that asks is repeated."""
    call: dict[str, Any] = {"name": "send_message", "arguments": {"message": message}}
    result = (await client.request("tools/call", call, meta=CAN_BE_ASKED)).result
    (id_,) = result["inputRequests"]
    responses = {id_: {"action": "accept", "content": {"name": "Ada"}}}
    return {**call, "requestState": result["requestState"], "inputResponses": responses}


async def test_the_metrics_are_those_of_a_single_process(served: WorkerManager) -> None:
    exposition = await served.metrics()
    alone = text_string_to_metric_families(generate_latest(Metrics().registry).decode())
    expected = {(family.name, family.type, family.documentation) for family in alone}

    told = list(text_string_to_metric_families(exposition.text))
    assert {(family.name, family.type, family.documentation) for family in told} == expected
    assert "pid=" not in exposition.text


@pytest.mark.needs("promtool")
async def test_prometheus_has_nothing_against_the_metrics_of_workers(served: WorkerManager) -> None:
    assert lint((await served.metrics()).text) == ""


async def test_counters_are_summed_and_the_same_whoever_is_asked(served: WorkerManager) -> None:
    before = await served.metric(TOTAL, agent="peer", outcome="ok")
    for pid in sorted(served.pids):
        with served.only(pid):
            await asyncio.gather(*(ask(served.url("peer"), "count") for _ in range(5)))

    for pid in sorted(served.pids):
        with served.only(pid):
            told = await served.metrics()
            assert told.value(TOTAL, agent="peer", outcome="ok") == before + 10
            assert told.value("pallas_send_message_duration_seconds_count", agent="peer") == sum(
                told.value(TOTAL, agent="peer", outcome=outcome) or 0 for outcome in ("ok", "error")
            )


async def test_calls_in_flight_are_those_of_all_workers(served: WorkerManager) -> None:
    pids, calls = sorted(served.pids), []
    entered = len(served.gate.entered)
    for number, pid in enumerate(pids, start=1):
        with served.only(pid):
            calls.append(asyncio.create_task(ask(served.url("peer"), "hang on")))
            await served.gate.wait_for_entered(entered + number)
    assert await served.metric("pallas_calls_in_flight", agent="peer") == 2
    await _until_metric(served, "pallas_instances_live", 2, agent="peer")
    served.gate.let_through(2)
    await asyncio.gather(*calls)

    await _until_metric(served, "pallas_calls_in_flight", 0, agent="peer")
    await _until_metric(served, "pallas_instances_live", 0, agent="peer")


async def test_all_workers_give_the_registry_one_tag(served: WorkerManager) -> None:
    tags = []
    for pid in sorted(served.pids):
        with served.only(pid):
            tags.append((await served.get("/.well-known/mcp/server.json")).headers["ETag"])
    assert len(tags) == 2
    assert tags[0] == tags[1]


async def test_a_hangup_has_every_worker_reload(served: WorkerManager) -> None:
    file = served.folder / "agents.yaml"
    document = yaml.safe_load(file.read_text())
    document["agents"]["peer"]["title"] = "Renamed"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    served.program.signal(signal.SIGHUP)
    await _until_metric(served, "pallas_config_reloads_total", 2, outcome="ok")

    for pid in sorted(served.pids):
        with served.only(pid):
            assert '"Renamed"' in (await served.get("/.well-known/mcp/server.json")).text


async def test_each_worker_knows_the_problems_of_a_configuration_that_the_parent_rejects(served: WorkerManager) -> None:
    await _reload_a_bad_file(served)
    for pid in sorted(served.pids):
        assert "nonsense: unknown key" in await _problem_shown_by(served, pid)
    assert await served.metric("pallas_workers") == 2


async def test_a_crashed_worker_is_replaced_its_questions_are_kept_and_nothing_is_counted_backwards(
    served: WorkerManager,
) -> None:
    dying, staying = sorted(served.pids)
    await _reload_a_bad_file(served)
    entered = len(served.gate.entered)
    with served.only(dying):
        async with raw_client(served.url("peer"), protocol_version=MODERN_VERSION) as client:
            again, twice = await asked_of(client), await asked_of(client)
        await ask(served.url("peer"), "counted")
        lost = asyncio.create_task(ask(served.url("peer"), "hang for ever"))
        await served.gate.wait_for_entered(entered + 1)
    before = (await served.metrics()).series

    os.kill(dying, signal.SIGKILL)
    with pytest.raises(httpx.HTTPError):
        await lost
    assert (await ask(served.url("peer"), "meanwhile")).text == "said meanwhile"
    async with raw_client(served.url("peer"), protocol_version=MODERN_VERSION) as client:  # resumed by the other one
        assert answer_of(await client.request("tools/call", again, meta=CAN_BE_ASKED)).text == '{"name": "Ada"}'
        assert (await client.request("tools/call", again, meta=CAN_BE_ASKED)).error["code"] == -32602
    await asyncio.to_thread(served.program.wait_for, "worker ended")
    await eventually(lambda: _ready_in_all(served) == 3, 100, what="another worker")
    await _until_metric(served, "pallas_worker_restarts_total", 1)

    after = await served.metrics()
    for (name, labels), value in before.items():
        if name.endswith(("_total", "_count", "_sum", "_bucket")):
            assert after.series[name, labels] >= value, name
    assert after.value("pallas_calls_in_flight", agent="peer") == 0
    assert staying in served.pids
    [record] = served.records("worker ended")
    assert (record["signal"], record["level"]) == ("SIGKILL", "ERROR")
    [new] = served.pids - {staying}
    with served.only(new):
        assert (await ask(served.url("peer"), "new")).text == "said new"
    assert "nonsense: unknown key" in await _problem_shown_by(served, new)
    failed = {"outcome": "error"}
    assert after.value("pallas_config_reloads_total", **failed) == await served.metric(
        "pallas_config_reloads_total", **failed
    )
    async with AsyncExitStack() as stack:  # the new worker knows no less of used states than the other one
        clients = await _clients_of_each(served, stack)
        repeats = [(client, params) for params in (again, twice) for client in clients]
        replies = await asyncio.gather(
            *(one.request("tools/call", params, meta=CAN_BE_ASKED) for one, params in repeats)
        )
    assert [
        sum("result" in message for one in pair for message in one.messages) for pair in (replies[:2], replies[2:])
    ] == [0, 1]


async def test_every_log_line_is_whole_and_says_its_worker(served: WorkerManager) -> None:
    names = [f"{n}-{'x' * 100}" for n in range(20)]
    for pid, of_one in zip(sorted(served.pids), (names[:10], names[10:]), strict=True):
        with served.only(pid):
            await asyncio.gather(*(ask(served.url("peer"), "log", conversation_id=name) for name in of_one))

    def all_are_there(records: list[dict[str, Any]]) -> bool:
        return set(names) <= {record.get("conversation_id") for record in records}

    await served.calls_ended(all_are_there)

    def on_stderr() -> list[dict[str, Any]]:
        return [json.loads(line) for line in served.program.err.splitlines()]

    await eventually(lambda: all_are_there(on_stderr()), what="the same lines on stderr")
    of_calls = [record for record in on_stderr() if record["logger"] == "pallas.calls"]
    assert {record["worker"] for record in of_calls} == {1, 2}


async def test_a_drain_ends_the_calls_of_every_worker_and_the_gateway_with_0(tmp_path: Path) -> None:
    async with fleet(tmp_path, "--per-port", late_requests=True) as leaving:
        asked = [("peer", "hang"), ("root", "late errand")] * 4
        urls = {name: f"http://127.0.0.1:{leaving.ports[name]}/mcp" for name in ("root", "peer")}
        calls = [
            asyncio.create_task(ask(urls[agent], f"{message} {n}", version=EACH_VERSION[n % 2]))
            for n, (agent, message) in enumerate(asked)
        ]
        # Clients that list tools to check their results, perhaps at the other worker.
        listing = [asyncio.create_task(answer_to(EACH_ERA[n % 2], urls["peer"])) for n in range(20)]
        await leaving.gate.wait_for_entered(len(asked) + len(listing))
        for pid in leaving.pids:
            os.kill(pid, signal.SIGINT)  # as a terminal sends it to everybody
        leaving.program.signal(signal.SIGTERM)
        for pid in sorted(leaving.pids):
            with leaving.only(pid):
                await eventually(lambda: _status(leaving, "/readyz", 503), what="a drain")
        async with httpx.AsyncClient(trust_env=False) as http:
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "send_message"}}
            refused = await http.post(urls["peer"], json=call)
        leaving.gate.open()
        answers = await asyncio.gather(*calls)
        assert await asyncio.gather(*listing) == ["just in time"] * len(listing)
        ran = await asyncio.to_thread(leaving.program.end, 30)

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert Counter(answer.text for answer in answers) == {"just in time": 4, "delegated": 4}
    assert ran.code == 0
    assert {record["worker"] for record in leaving.records("stopping")} == {1, 2}
    assert len(leaving.records("call ended")) == 32  # the nested ones too
    assert [line for line in leaving.log_text.splitlines() if '"level": "ERROR"' in line] == []


async def answer_to(connect: Connect, url: str) -> str:
    """The answer to the first call of a client, which does not know the tools."""
    async with connect(url) as client:
        return text_of(await client.call_tool("send_message", {"message": "hang"}))


async def _clients_of_each(served: WorkerManager, stack: AsyncExitStack) -> list[RawClient]:
    """A client of 2026-07-28 for each worker, which keeps its connection to that one."""
    clients = []
    for pid in sorted(served.pids):
        client = await stack.enter_async_context(raw_client(served.url("peer"), protocol_version=MODERN_VERSION))
        with served.only(pid):
            await client.request("tools/list")
        clients.append(client)
    return clients


def _call_of(agent: str, message: str) -> bytes:
    params = {"name": "send_message", "arguments": {"message": message}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = {
        "Host": "127.0.0.1",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines = [f"POST /agents/{agent}/mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", body]
    return "\r\n".join(lines).encode()


def _read_to_the_end(connection: socket.socket) -> str:
    with connection.makefile("rb") as stream:
        return stream.read().decode()


async def _status(served: WorkerManager, path: str, status: int) -> bool:
    return (await served.get(path)).status_code == status


async def _cancel(client: RawClient, call: RawCall, *, bearer: str) -> None:
    async with raw_client(client.url, protocol_version=INITIALIZE, bearer=bearer) as another:
        another.session_id = client.session_id
        response = await another.notify("notifications/cancelled", {"requestId": call.request_id})
        assert response.status_code == 202


def _ready_in_all(served: WorkerManager) -> int:
    """How many workers have been ready so far: `root` starts last."""
    return served.log_text.count('"message": "agent ready", "agent": "root"')


async def _reload_a_bad_file(served: WorkerManager) -> None:
    """Have the parent reject a configuration, and wait until both workers have counted it."""
    file, failed = served.folder / "agents.yaml", {"outcome": "error"}
    good, before = file.read_text(), await served.metric("pallas_config_reloads_total", **failed)
    file.write_text(f"{good}nonsense: true\n")
    served.program.signal(signal.SIGHUP)
    await _until_metric(served, "pallas_config_reloads_total", before + 2, **failed)
    file.write_text(good)


async def _problem_shown_by(served: WorkerManager, pid: int) -> str:
    with served.only(pid):
        [problem] = (await served.get("/api/gateway")).json()["problems"]
    return str(problem)


async def _until_metric(served: WorkerManager, name: str, value: float, **labels: str) -> None:
    async def is_so() -> bool:
        return await served.metric(name, **labels) == value

    await eventually(is_so, what=f"{name} {value}")
