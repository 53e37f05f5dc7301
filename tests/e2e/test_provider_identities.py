"""Providers that log in with an identity of Google Cloud."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pallas_gateway import cloud_logins
from tests.support.calling import ask, health
from tests.support.provider_gateways import KEY, Provider, serving
from tests.support.provider_matrix import ANTHROPIC_VERTEX, GEMINI_VERTEX
from tests.support.scripted_llm import Reply, say
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripted_llm import LlmRequest, Turn

on_vertex = pytest.mark.parametrize("provider", [GEMINI_VERTEX, ANTHROPIC_VERTEX], ids=str)


@pytest.fixture(autouse=True)
def no_identity_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_logins, "_kept", {})


def done(_: LlmRequest) -> Turn:
    return say("Done.")


@on_vertex
async def test_calls_that_wait_for_a_slow_login_share_it_and_block_none_else(
    provider: Provider, tmp_path: Path
) -> None:
    gate = Gate()
    async with serving(tmp_path, provider, done) as served, asyncio.TaskGroup() as group:
        served.llm.logins.append(gate)
        waiting = [group.create_task(ask(served.url)) for _ in range(2)]
        await gate.wait_for_entered()
        assert (await health(served.url))["status"] == "ok"
        async with served.in_flight() as left:
            await left.vanish()  # who began the login may leave, and so may who waits for it
        gate.open()

    assert [task.result().text for task in waiting] == ["Done."] * 2
    assert served.llm.login_count == 1


@on_vertex
async def test_a_refused_login_fails_the_call_and_the_next_call_logs_in(provider: Provider, tmp_path: Path) -> None:
    refused = {"error": "invalid_grant", "error_description": f"the account of {KEY} is gone"}
    async with serving(tmp_path, provider, done) as served:
        served.llm.logins.append(Reply(400, json.dumps(refused).encode(), "application/json"))
        failed, answered = await ask(served.url), await ask(served.url)

    why = ": Google's login failed: the account of"
    assert (why in failed.text, failed.meta["stop_reason"]) == (True, "llm_error"), failed.text
    assert answered.text == "Done."


@on_vertex
async def test_without_credentials_the_agent_is_refused_with_the_reason(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = replace(provider, config={}, environ={}, logs_in=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    async with serving(tmp_path / "project", nowhere, []) as served:
        document = await health(served.url)

    assert document["status"] == "error"
    assert "Google's credentials cannot be loaded" in document["message"]
    assert "GOOGLE_APPLICATION_CREDENTIALS" in document["message"]


@on_vertex
async def test_without_googles_http_package_the_agent_is_refused_with_the_reason(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", None)
    async with serving(tmp_path, provider, []) as served:
        document = await health(served.url)

    assert document["status"] == "error"
    assert "pip install requests" in document["message"]
