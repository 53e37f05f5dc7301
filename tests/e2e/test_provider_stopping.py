"""A gateway in a process of its own whose providers are silent: deadline, cancellation and SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.support.calling import ask
from tests.support.clients import MODERN_VERSION
from tests.support.commands import READY_SECONDS, started
from tests.support.gateway import Agent, write_project
from tests.support.provider_matrix import ANTHROPIC_VERTEX, BEDROCK, GEMINI
from tests.support.providers.google_login import TOKEN_PATH, write_service_account
from tests.support.providers.provider import scripted_provider
from tests.support.scripted_llm import hang
from tests.support.waiting import Gate, eventually
from tests.support.watching import calling

PROVIDERS = (BEDROCK, GEMINI, ANTHROPIC_VERTEX)


async def test_silent_providers_keep_no_call_and_no_process(tmp_path: Path) -> None:
    gate, login = Gate(), Gate()
    async with AsyncExitStack() as stack:
        config: dict[str, Any] = {}
        environ = {"PALLAS_LOG_LEVEL": "INFO"}
        agents: dict[str, Agent] = {}
        for one in PROVIDERS:
            llm = await stack.enter_async_context(scripted_provider(one.dialect, lambda _: hang(gate)))
            llm.logins += [login] * 9
            config[one.section or one.name] = {key: value.format(url=llm.base_url) for key, value in one.config.items()}
            environ |= {name: value.format(url=llm.base_url) for name, value in one.environ.items()}
            account = write_service_account(tmp_path / "account.json", f"{llm.base_url}{TOKEN_PATH}")
            agents[one.name] = Agent(model=one.model)
            agents[f"{one.name}-brief"] = Agent(model=one.model, settings={"call_timeout_seconds": 1})
        environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(account)
        write_project(tmp_path / "project", agents, fastagent=config, gateway={"drain_seconds": 0.2})
        with started(["serve"], tmp_path / "project", environ=environ) as program:
            await asyncio.to_thread(program.wait_for, "Registry:")
            base = program.url.replace("localhost", "127.0.0.1")
            urls = {name: f"{base}/agents/{name}/mcp" for name in agents}

            brief = await asyncio.gather(*(ask(urls[f"{one.name}-brief"]) for one in PROVIDERS))
            asked = len(gate.entered)
            async with AsyncExitStack() as calls:
                for one in PROVIDERS:
                    _, call = await calls.enter_async_context(calling(urls[one.name], "go", version=MODERN_VERSION))
                    calls.push_async_callback(call.vanish)
                await gate.wait_for_entered(asked + 2)
            await eventually(lambda: without_instances(base), what="calls that were left have ended")

            last = [asyncio.create_task(ask(urls[one.name])) for one in PROVIDERS]
            await gate.wait_for_entered(asked + 4)
            program.signal(signal.SIGTERM)
            ran = await asyncio.to_thread(program.end, READY_SECONDS)
            await asyncio.wait(last)

    assert ran.code == 0, ran.err
    assert {(answer.is_error, answer.meta["stop_reason"]) for answer in brief} == {(False, "endTurn")}, brief
    assert login.entered


async def without_instances(base: str) -> bool:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{base}/metrics")).text
    samples = [line for line in text.splitlines() if line.startswith("pallas_instances_live{")]
    return bool(samples) and all(line.endswith(" 0.0") for line in samples)
