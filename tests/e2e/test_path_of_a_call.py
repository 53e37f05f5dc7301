"""Decision 0003 lists the steps of a call as they run."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from tests.figures.house import PRODUCT, class_of
from tests.figures.sizes import budget
from tests.support.clients import raw_client
from tests.support.documents import DOCS, ROOT
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.scripted_llm import say, scripted_llm

type Function = tuple[str, str]
"""A module, as `doors/http/app`, and the name of a function in it or of a class, as `_Table`."""

CHECKED = ("doors/", "core/", "features/limits/", "calls/asking/", "calls/events/")
"""What runs in `runtime/` is mostly called by fast-agent: spans, hooks, limits and the wrappers of its names."""
BESIDE_THE_PATH = {
    ("doors/mcp/message_calls", "parse"): "a closure of `answer_message`",
    ("doors/mcp/message_calls", "answer"): "a closure of `answer_message`",
    ("doors/mcp/message_calls", "deliver"): "a closure of `answer_message`",
    ("doors/mcp/notifications", "_send"): "one notification of `_send_all`",
    ("doors/mcp/notifications", "send_payload"): "one notification of `_send_all`",
    ("doors/mcp/exchange", "notify"): "one notification of `_send_all`",
    ("doors/mcp/exchange", "send"): "one notification of `_send_all`",
    ("doors/http/bodies", "late_send"): "a closure of `AnswerAfterBody`",
    ("doors/http/bodies", "receive"): "a closure of `AnswerAfterBody`",
}
PACKAGE = f"{ROOT / 'pallas_gateway'}/"


def listed() -> set[Function]:
    """The functions of the table; without `__call__` a class stands for it."""
    text = (DOCS / "develop/decisions/0003-path-of-a-call.md").read_text()
    rows = re.findall(r"^\| (?:`([\w/]+)/`|the package itself) \| (.+) \|$", text, re.MULTILINE)
    return {
        (f"{package}/{module}".removeprefix("/"), name)
        for package, row in rows
        for module, functions in re.findall(r"`([\w/]+)`: ([^;]+)", row)
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", functions)
    }


@contextmanager
def recorded() -> Iterator[set[CodeType]]:
    """The functions of the package that are entered."""
    monitoring, tool = sys.monitoring, 4
    entered: set[CodeType] = set()

    def enter(code: CodeType, _: int) -> Any:
        if not code.co_filename.startswith(PACKAGE):
            return monitoring.DISABLE
        entered.add(code)
        return None

    monitoring.use_tool_id(tool, "path of a call")
    monitoring.register_callback(tool, monitoring.events.PY_START, enter)
    monitoring.set_events(tool, monitoring.events.PY_START)
    try:
        yield entered
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, monitoring.events.PY_START, None)
        monitoring.free_tool_id(tool)


def module_of(code: CodeType) -> str:
    return code.co_filename.removeprefix(PACKAGE).removesuffix(".py")


def step(code: CodeType) -> Function:
    """A function as the list names it: a `__call__` has the name of its class."""
    owner, _, name = code.co_qualname.replace(".<locals>", "").rpartition(".")
    return module_of(code), owner.rpartition(".")[2] if name == "__call__" else name


@asynccontextmanager
async def caller(path: Path) -> AsyncGenerator[Callable[[], Awaitable[set[CodeType]]]]:
    """Yield what calls a plain agent, and returns the functions that were entered."""
    async with scripted_llm(lambda _: say("Done.")) as llm:
        project = write_project(path, {"solo": Agent()}, llm_url=llm.base_url)
        async with running(project) as served, raw_client(served.url("solo"), protocol_version="2025-06-18") as client:
            await client.call_tool("send_message", {"message": "first"})
            await until_idle(served)

            async def call() -> set[CodeType]:
                with recorded() as entered:
                    await client.call_tool("send_message", {"message": "again"})
                    await until_idle(served)
                return entered

            yield call


async def test_each_step_of_the_list_runs_in_a_call_and_each_coroutine_is_a_step(tmp_path: Path) -> None:
    async with caller(tmp_path) as call:
        entered = await call()
    coroutines = {step(code) for code in entered if code.co_flags & inspect.CO_COROUTINE}
    assert listed() - {*map(step, entered)} == set()
    assert {one for one in coroutines if one[0].startswith(CHECKED)} - listed() - BESIDE_THE_PATH.keys() == set()


async def test_a_plain_call_takes_no_more_functions_and_modules_than_the_budget_allows(tmp_path: Path) -> None:
    async with caller(tmp_path) as call:
        each = [await call() for _ in range(3)]
    of_each = set.intersection(*each)
    functions = [
        one for one in of_each if class_of(one.co_filename.removeprefix(PACKAGE)) == PRODUCT and "<" not in one.co_name
    ]
    allowed = budget()
    assert len({*map(module_of, functions)}) <= allowed["modules_of_a_call"]
    assert len(functions) <= allowed["functions_of_a_call"]
