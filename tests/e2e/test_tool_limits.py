"""Limits on single tools, with approvals, and calls with budgets that another process resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, override

import pytest

from tests.support.askable_callers import Person, accept, told
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import asked_by, gateway_of, questions, tool_named
from tests.support.calling import ask
from tests.support.gateway import Agent
from tests.support.resumed_calls import resumed
from tests.support.scripted_llm import Usage, call_tools, say

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_types import ElicitRequestParams, ElicitResult

    from tests.support.scripted_llm import LlmRequest, Turn

pytestmark = pytest.mark.usefixtures("patience")
TURN = Usage(prompt=80, completion=20)
REFUSED = (
    "The tool 'asking/wipe' was not run: the limit of one call for tools of 'asking/wipe' is 2, and it is reached."
)


def wipes_at_once(request: LlmRequest) -> Turn:
    """Call `wipe` three times at once, then once more, then repeat what the calls brought."""
    results = request.tool_results
    if len(results) == 4:
        return say(" | ".join(results.values()))
    return call_tools([("asking__wipe", {"path": f"/{n}"}) for n in range(1 if results else 3)])


class Decides(Person):
    def __init__(self, **decisions: str) -> None:
        super().__init__()
        self.decisions = decisions

    @override
    async def __call__(self, context: object, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params)
        path = next(path for path in self.decisions if f'"/{path[1:]}"' in params.message)
        return accept(decision=self.decisions[path])


async def test_a_limited_tool_is_not_put_to_the_caller(tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"], "tool_limits": {"asking/wipe": 2}})
    person = Decides(p0="once", p1="once", p2="once")
    async with asked_by(tmp_path, person, agent, script=wipes_at_once) as (client, served, downstream):
        answer = await told(client, "go")
        assert len(downstream.recorder.calls("wipe")) == len(person.asked) == 2
        assert questions(served, "approval", "accepted") == 2
    assert answer.count(REFUSED) == 2


async def test_a_tool_that_the_caller_does_not_approve_is_not_counted(tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"], "tool_limits": {"asking/wipe": 3}})
    person = Decides(p0="once", p1="deny", p2="once")
    async with asked_by(tmp_path, person, agent, script=wipes_at_once) as (client, _, downstream):
        answer = await told(client, "go")
        assert len(downstream.recorder.calls("wipe")) == 3
    assert "requires approval" in answer
    assert "limit of one call" not in answer


FUNCTIONS = """
from fast_agent import FastAgent

fast = FastAgent("user", parse_cli_args=False)


def send_mail(to: str) -> str:
    return f"sent to {to}"


@fast.agent(name="user", function_tools=[send_mail], default=True)
async def agent() -> None: ...
"""


async def test_functions_of_an_agent_are_limited_as_local_tools(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        results = request.tool_results
        return (
            say(" | ".join(results.values())) if results else call_tools([("send_mail", {"to": one}) for one in "ab"])
        )

    agent = Agent(source=FUNCTIONS, settings={"tool_limits": {"local/send_*": 1}})
    async with gateway_of(tmp_path, {"url": "http://127.0.0.1:9/mcp"}, agent, script=script) as served:
        first, second = (await ask(served.url("user"))).text.split(" | ")
    assert first == "sent to a"
    assert second.startswith("The tool 'local/send_mail' was not run")


# --- calls that another process resumes ------------------------------------------------------------------------------


def one_tool_per_turn(request: LlmRequest) -> Turn:
    """Call the tools that the message names one after the other, then repeat what they brought."""
    made, words = len(request.tool_results), request.last_user_text.split()
    if made == len(words):
        return say(" | ".join(request.tool_results.values()), usage=TURN)
    name, arguments = tool_named(words[made])
    return call_tools([(name, arguments)], text=f"Turn {made}.", usage=TURN)


async def test_finished_tools_of_the_earlier_process_count(tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"tool_limits": {"asking/wipe": 2}, "loop_repeat_threshold": 0})
    async with (
        asking_downstream("modern") as downstream,
        resumed(tmp_path, downstream.url, "wipe name wipe wipe", agent, script=one_tool_per_turn) as call,
    ):
        answer = await call.answered()
        assert len(downstream.recorder.calls("wipe")) == 2
    assert answer.endswith(REFUSED + " Do not call it again in this call; answer without it.")


@pytest.mark.parametrize(("most", "requests"), [(300, 1), (200, 0), (1_000, 3)])
async def test_a_resumed_call_has_what_is_left_of_its_budget(most: int, requests: int, tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"max_tokens_per_call": most})
    async with (
        asking_downstream("modern") as downstream,
        resumed(tmp_path, downstream.url, "wipe name wipe wipe", agent, script=one_tool_per_turn) as call,
    ):
        answer = await call.answered()
        assert len(call.llm.requests) == requests
    if requests < 3:
        assert f"a call of the agent 'user' has used {200 + 100 * requests} tokens" in answer
        assert f"Turn {1 + requests}." in answer
