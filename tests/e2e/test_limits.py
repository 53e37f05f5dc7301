"""Rules of `gateway.limits` at every API: who is refused, in which form, and when to try again."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI

from tests.support.calling import ask
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.guarded import guarded, static_key

MINUTE = 60
KEYS = {name: f"pgw_the-key-of-{name}" for name in ("anna", "ben")}
ONE_A_MINUTE = {"name": "slow", "calls_per_minute": 1}


def limits(*rules: Mapping[str, Any]) -> dict[str, Any]:
    return {"limits": {"rules": [dict(rule) for rule in rules]}}


def tokens() -> dict[str, Any]:
    return {"tokens": [static_key("run:agents", key=key, name=name) for name, key in KEYS.items()]}


@asynccontextmanager
async def served(path: Path, *rules: Mapping[str, Any], **gateway: Any) -> AsyncGenerator[Running]:
    """Two agents whose model repeats the message."""
    project = write_project(path, {"one": Agent(), "two": Agent()}, gateway={**limits(*rules), **gateway})
    async with running(project) as gateway_:
        yield gateway_


async def test_a_client_of_mcp_reads_the_rule_and_when_to_try_again(tmp_path: Path) -> None:
    async with served(tmp_path, ONE_A_MINUTE) as gateway:
        async with streamable_http_client(gateway.url("one")) as streams, ClientSession(*streams[:2]) as session:
            await session.initialize()
            answered = await session.call_tool("send_message", {"message": "hello"})
            refused = await session.call_tool("send_message", {"message": "hello"})
        other = await ask(gateway.url("two"))
        refusals = gateway.metric("pallas_calls_refused_total", agent="one", reason="limited")

    assert not answered.is_error
    assert refused.is_error
    assert refused.meta is not None
    limit = refused.meta["pallas/limit"]
    assert refused.meta["pallas/call"]["stop_reason"] == "limited"
    assert (limit.keys(), limit["rule"]) == ({"rule", "retry_after_seconds"}, "slow")
    assert 0 < limit["retry_after_seconds"] <= MINUTE
    [block] = refused.content
    assert block.type == "text"
    assert block.text == f"Rule 'slow' limits calls per minute to 1. Try again in {limit['retry_after_seconds']} s."
    assert (other.is_error, other.meta["stop_reason"]) == (True, "limited")  # the rule is for all agents together
    assert refusals == 1


async def test_a_client_of_the_openai_api_gets_429_with_its_headers(tmp_path: Path) -> None:
    async with (
        served(tmp_path, ONE_A_MINUTE, openai_api=True) as gateway,
        AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key="any", max_retries=0, timeout=60) as client,
    ):
        completions = client.chat.completions
        await completions.create(model="one", messages=[{"role": "user", "content": "hello"}])
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as caught:
                await completions.create(model="one", messages=[{"role": "user", "content": "hello"}], stream=stream)
            error, headers = caught.value, caught.value.response.headers
            assert (error.type, error.code) == ("rate_limit_error", "rate_limit_exceeded")
            assert 0 < int(headers["retry-after"]) <= MINUTE
            shown = {name: value for name, value in headers.items() if name.startswith("x-ratelimit")}
            assert shown == {
                "x-ratelimit-limit-requests": "1",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": f"{headers['retry-after']}s",
            }


async def test_a_client_of_the_threads_api_gets_429(tmp_path: Path) -> None:
    async with (
        served(tmp_path, ONE_A_MINUTE, database="sqlite:///threads.db") as gateway,
        httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=60) as client,
    ):
        answered = await client.post("/api/v1/agents/one/chat", json={"message": "hello"})
        refused = await client.post("/api/v1/agents/one/chat", json={"message": "hello"})
        again = {"message": "hello", "threadId": answered.json()["threadId"]}
        events = {"accept": "text/event-stream"}
        streamed = await client.post("/api/v1/agents/one/chat", json=again, headers=events)
    assert answered.status_code == 200, answered.text
    assert refused.status_code == 429
    body, seconds = refused.json(), int(refused.headers["retry-after"])
    assert (body["error"], body["limit"]) == ("limited", {"rule": "slow", "retryAfterSeconds": seconds})
    assert 0 < seconds <= MINUTE
    # In a thread the message is stored first, so the stream has begun.
    *_, last, done = [line for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert (streamed.status_code, done) == (200, "data: [DONE]")
    event = json.loads(last.removeprefix("data: "))
    assert (event["type"], event["reason"], event["limit"]["rule"]) == ("error", "limited", "slow")


async def test_callers_do_not_use_up_each_others_limits(tmp_path: Path) -> None:
    rules = limits({**ONE_A_MINUTE, "caller": "key:*"})
    async with guarded(tmp_path, agents=("research",), jwt=None, auth={"jwt": None, **tokens()}, gateway=rules) as gate:
        results = [await ask(gate.url(), bearer=KEYS[name]) for name in ("anna", "ben", "anna", "ben")]
    assert [one.is_error for one in results] == [False, False, True, True]


async def test_a_token_cannot_take_the_name_of_a_key(tmp_path: Path) -> None:
    rules = limits({**ONE_A_MINUTE, "caller": "key:ci-1"})
    key = static_key("run:agents", key=KEYS["anna"], name="ci-1")
    async with guarded(tmp_path, auth={"tokens": [key]}, gateway=rules) as gate:
        token = gate.token(sub="key:ci-1")
        by_token = [await ask(gate.url(), bearer=token) for _ in range(3)]
        by_key = [await ask(gate.url(), bearer=KEYS["anna"]) for _ in range(2)]
    assert [one.is_error for one in by_token] == [False, False, False]
    assert [one.is_error for one in by_key] == [False, True]


async def test_callers_without_a_token_are_told_apart_by_address_and_by_network(tmp_path: Path) -> None:
    async with served(tmp_path, {**ONE_A_MINUTE, "caller": "anonymous"}, trusted_proxies=["127.0.0.1"]) as gateway:

        async def refused(address: str) -> bool:
            return (await ask(gateway.url("one"), headers={"x-forwarded-for": address})).is_error

        addresses = ["192.0.2.1", "192.0.2.2", "192.0.2.1", "2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"]
        assert [await refused(one) for one in addresses] == [False, False, True, False, True, False]


async def test_a_rule_that_is_not_enforced_counts_and_refuses_nothing(tmp_path: Path) -> None:
    async with served(tmp_path, {**ONE_A_MINUTE, "enforce": False}) as gateway:
        results = [await ask(gateway.url("one")) for _ in range(3)]
        async with httpx.AsyncClient(base_url=gateway.base_url, trust_env=False) as client:
            scraped = (await client.get("/metrics")).text
    assert not any(one.is_error for one in results)
    assert 'pallas_limit_used_ratio{rule="slow"} 3.0' in scraped


async def test_a_changed_limit_holds_from_the_reload_on(tmp_path: Path) -> None:
    async with served(tmp_path, ONE_A_MINUTE) as gateway:
        before = [(await ask(gateway.url("one"))).is_error for _ in range(2)]
        gateway.project.edit(lambda document: document["gateway"]["limits"]["rules"][0].update(calls_per_minute=2))
        await gateway.reload()
        after = [(await ask(gateway.url("one"))).is_error for _ in range(2)]
        limits = gateway.project.document["gateway"]["limits"]
        gateway.project.edit(lambda document: document["gateway"].pop("limits"))
        await gateway.reload()
        without = [(await ask(gateway.url("one"))).is_error for _ in range(3)]
        gateway.project.edit(lambda document: document["gateway"].update(limits=limits))
        await gateway.reload()
        again = (await ask(gateway.url("one"))).is_error
    assert (before, after, without, again) == ([False, True], [False, True], [False] * 3, True)
