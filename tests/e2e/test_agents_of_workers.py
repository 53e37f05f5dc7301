"""The API of agents with several workers: what one has written, each reads at once, and no change is lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.fleet import fleet
from tests.support.agents_api import POEM, RELEASED
from tests.support.threads_api import stream_of

WRITES = 10


async def test_each_worker_reads_at_once_what_another_has_written_and_no_change_is_lost(tmp_path: Path) -> None:
    gateway: dict[str, Any] = {"database": "sqlite:///pallas.db", "agents_may_use": RELEASED}
    async with fleet(tmp_path, **gateway) as served, AsyncExitStack() as stack:
        api = f"{served.base_url}/api/v1"
        one, other = [await stack.enter_async_context(served.client_of(pid, api)) for pid in sorted(served.pids)]
        made = await one.post("/agents", json={"name": "poet", **POEM})
        read = await other.get("/agents/poet")
        changed = await other.patch("/agents/poet", json={"title": "Two"}, headers={"If-Match": made.headers["etag"]})
        late = await one.patch("/agents/poet", json={"title": "Three"}, headers={"If-Match": made.headers["etag"]})
        waited = await one.patch("/agents/poet?wait=true", json={"title": "Four"}, headers={"If-Match": "*"})
        accepted = sum(await asyncio.gather(*(_write(http, text) for http in (one, other) for text in "abcde")))
        versions = (await other.get("/agents/poet/versions")).json()["versions"]
        listed = [(await http.get("/agents")).json()["agents"] for http in (one, other)]
    assert (made.status_code, read.headers["etag"]) == (201, made.headers["etag"])
    assert (changed.status_code, late.status_code) == (200, 412)
    assert waited.json()["runningVersion"] == waited.json()["version"] == 3
    assert accepted == WRITES
    assert [one["version"] for one in versions] == [*range(3 + WRITES, 0, -1)]
    assert [
        (agent["name"], agent["version"]) for shown in listed for agent in shown if agent["source"] == "database"
    ] == [("poet", 3 + WRITES)] * 2


async def _write(http: httpx.AsyncClient, text: str) -> bool:
    """Change the agent by the version that was read, and again while another was faster."""
    while True:
        etag = (await http.get("/agents/poet")).headers["etag"]
        answer = await http.patch("/agents/poet", json={"description": f"{text} {etag}"}, headers={"If-Match": etag})
        if answer.status_code != 412:
            return answer.status_code == 200


async def test_a_try_asks_its_caller_at_each_worker_and_two_run_at_once_over_all(tmp_path: Path) -> None:
    gateway: dict[str, Any] = {"database": "sqlite:///pallas.db", "agents_may_use": {"models": ["generic.*"]}}
    definition = {"instruction": "-", "model": "generic.test-model", "humanInput": True}
    path, body = "/agents/try", {"definition": definition, "message": "ask me"}
    async with fleet(tmp_path, **gateway) as served, AsyncExitStack() as stack:
        api = f"{served.base_url}/api/v1"
        one, other = [await stack.enter_async_context(served.client_of(pid, api)) for pid in sorted(served.pids)]
        async with stream_of(one, path, body) as first, stream_of(one, path, body) as second:
            begun, question = await first.event("try"), await first.event("question")
            await second.event("question")
            third = await other.post(path, json=body)
            accept = {question["id"]: {"action": "accept", "content": {"name": "Ada"}}}
            given = await other.post(f"{path}/{begun['tryId']}/answers", json={"answers": accept})
            final = await first.last()
    assert (third.status_code, third.json()["limit"]["rule"]) == (429, "tries")
    assert given.status_code == 204
    assert "Ada" in final["content"]
