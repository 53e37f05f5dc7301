"""Calls that wait for an answer while another gateway takes the place of theirs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.askable_callers import (
    CAN_BE_ASKED,
    Asked,
    asked_at,
    asked_in,
)
from tests.support.asking_gateways import (
    calls_the_tool_it_is_told,
    project_of,
)
from tests.support.calling import answer_of
from tests.support.gateway import Agent, Running, running, until_idle
from tests.support.scripted_llm import Script, ScriptedLlm, scripted_llm


@dataclass(frozen=True)
class Resumed:
    """A gateway in place of one with the same keys, and a call that waits for an answer since then."""

    served: Running
    asked: Asked
    llm: ScriptedLlm

    async def answered(self, *answers: dict[str, Any]) -> str:
        """The text of the resumed call; `answers` are for its questions, in turn."""
        asked = self.asked
        for answer in answers[:-1]:
            asked = asked_in((await asked.repeat(answer)).result, asked.url, asked.message)
        return answer_of(await asked.repeat(answers[-1] if answers else None)).text


@asynccontextmanager
async def resumed(
    path: Path,
    url: str,
    message: str,
    agent: Agent | None = None,
    *,
    script: Script = calls_the_tool_it_is_told,
    then: Agent | None = None,
    meta: dict[str, Any] = CAN_BE_ASKED,
    **gateway: Any,
) -> AsyncIterator[Resumed]:
    """Ask at one gateway, and give the one that takes its place; `then` is the agent as that one has it."""
    keys = {"state_keys": ["k" * 32], **gateway}
    async with scripted_llm(script) as llm:
        async with running(project_of(path / "one", llm, {"url": url}, agent, gateway=keys)) as first:
            asked = await asked_at(first.url("user"), message, meta)
        llm.requests.clear()
        async with running(project_of(path / "two", llm, {"url": url}, then or agent, gateway=keys)) as second:
            yield Resumed(second, replace(asked, url=second.url("user")), llm)
            await until_idle(second)
