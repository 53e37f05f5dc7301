"""Questions of downstreams and of `human_input` agents: each goes to the caller of the running call.

fast-agent prompts at the process's terminal and accepts every page to open. Here each question goes to the `Questions`
of the running call, as do the pages that the error `URL_ELICITATION_REQUIRED` of 2025-11-25 names. Deadlines of
fast-agent and the MCP SDK pause meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import contextmanager
from functools import partial, wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fast_agent.mcp.client_callback_runtime import MCPClientCallbackRuntime
from fast_agent.mcp.elicitation_handlers import auto_cancel_elicitation_handler
from fast_agent.mcp.url_elicitation_required import parse_url_elicitation_required_data
from mcp import MCPError
from mcp_types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    URL_ELICITATION_REQUIRED,
    ElicitationCapability,
    ElicitRequestURLParams,
    ElicitResult,
    FormElicitationCapability,
    UrlElicitationCapability,
)

from pallas_gateway.calls.asking.pauses import PausableDeadline
from pallas_gateway.calls.questions import Question
from pallas_gateway.changes.change import Name
from pallas_gateway.changes.names import incompatible, misfit, replace
from pallas_gateway.runtime.call.journal import ask_for_server, ask_in_tool, is_required
from pallas_gateway.runtime.call.tool_events import ToolEvents
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

    from fast_agent.mcp.client_connection import MCPClientConnection
    from mcp.client.session import ClientSession
    from mcp.shared._request_clock import RequestClock
    from mcp_types import ClientCapabilities, ElicitRequestParams

    from pallas_gateway.calls.questions import Answer, Mode

    type Elicit = Callable[[Any, ElicitRequestParams], Awaitable[ElicitResult]]


_log = logging.getLogger("pallas.questions")
_STILL_REQUIRED = (
    "The caller agreed to open the page, but the server still requires it: it may not be completed yet. "
    "Ask the caller to complete it, then call the tool again."
)
_NO_AGENT = "Unknown Agent"
"""fast-agent's name for an agent without one."""
_NOT_ASKED = (
    "The tool has a question, and this caller cannot be asked it. Do not repeat this call: continue without the "
    "answer, or write in your answer what is needed."
)
_ONE_OF_THEM = "This tool call, or another one of its server that ran at the same time, had a question: "
_LOST = (
    "The question of this tool could not be completed: its server does not know the call any more, because it was "
    "restarted or the answer came too late. It may have done a part of its work. Call the tool again only if that may "
    "be done twice."
)
_NOT_GIVEN = {"decline": "The caller declined to answer.", "cancel": "The caller did not answer."}
_ignored: set[str] = set()
_CHILDREN = "fast_agent.agents.workflow.agents_as_tools_agent"
CHILD_CLOCK = Name(f"{_CHILDREN}:asyncio")
"""Its `wait_for` measures the time of an agent that is used as a tool."""
_CHILD_TIMEOUTS = Name(f"{_CHILDREN}:AgentsAsToolsAgent._run_child_tool_clone", reads=("wait_for",))


def resolve_elicitation_handler(
    original: Callable[[MCPClientCallbackRuntime], Elicit | None], _: type[MCPClientCallbackRuntime]
) -> Callable[[MCPClientCallbackRuntime], Elicit | None]:
    """Ask the caller, in place of the process's terminal and of handlers of agents."""

    @wraps(original)
    def resolve_elicitation_handler(self: MCPClientCallbackRuntime) -> Elicit | None:
        if self.custom_elicitation_handler is not None:
            _say_ignored(self.agent_name or "unknown")
            return CallerAsker(self)
        configured = original(self)
        if configured is None:  # `elicitation: {mode: none}`
            return None
        return _cancel if configured is auto_cancel_elicitation_handler else CallerAsker(self)

    return resolve_elicitation_handler


def build_capabilities(original: Callable[..., ClientCapabilities], _: type[ClientSession]) -> Callable[..., Any]:
    """Declare to a downstream what the caller of this call can be asked."""

    @wraps(original)
    def build_capabilities(self: ClientSession, version: str) -> ClientCapabilities:
        declared = original(self, version)
        if not isinstance(self._elicitation_callback, CallerAsker):
            return declared
        return declared.model_copy(update={"elicitation": _capability_of(current_scope.get().questions.modes)})

    return build_capabilities


def repeated_after_pages(
    original: Callable[..., Awaitable[Any]], _: type[MCPClientConnection]
) -> Callable[..., Awaitable[Any]]:
    """Return a request that is repeated once, after the caller has opened the pages that the server requires."""

    @wraps(original)
    async def repeated(self: MCPClientConnection, *args: Any, **options: Any) -> Any:
        asker = self.callbacks.elicitation_callback
        try:
            return await original(self, *args, **options)
        except MCPError as error:
            if not isinstance(asker, CallerAsker):
                raise
            if (text := _meaning_of(error)) is not None:
                asker.tell_model(text)
            if error.code != URL_ELICITATION_REQUIRED or not await asker.pages_accepted(error):
                raise
        try:
            return await original(self, *args, **options)
        except MCPError as error:
            if error.code == URL_ELICITATION_REQUIRED:
                asker.tell_model(_STILL_REQUIRED)
            raise

    return repeated


def human_input_callback(original: Any, _: Any) -> Callable[[], Any]:
    """Return the function by which an agent gets the callback of its `__human_input` tool."""
    del original
    return lambda: _ask_human


def request_clock(original: Callable[[float | None], Any], _: Any) -> Callable[..., Any]:
    """Pause the SDK's `read_timeout_seconds`, as the SDK itself does while a person logs in."""

    @wraps(original)
    @contextmanager
    def request_clock(timeout: float | None) -> Iterator[RequestClock]:
        with original(timeout) as clock, current_scope.get().questions.pauses.including(clock):
            yield clock

    return request_clock


def pause_child_timeouts() -> None:
    """Pause `child_timeout_sec` of agents that use others as tools; to be called once such agents may have been loaded.

    Raises:
        PlatformError: fast-agent measures this time in another way.
    """
    module = sys.modules.get(_CHILDREN)
    if module is not None and getattr(module, "asyncio", None) is asyncio:
        if (why := misfit((_CHILD_TIMEOUTS,))) is not None:
            raise incompatible("fast-agent-mcp", why)
        replace(module, CHILD_CLOCK, lambda *_: SimpleNamespace(**{**vars(asyncio), "wait_for": _wait_for}))


def _capability_of(modes: Collection[Mode]) -> ElicitationCapability | None:
    if not modes:
        return None
    return ElicitationCapability(
        form=FormElicitationCapability() if "form" in modes else None,
        url=UrlElicitationCapability() if "url" in modes else None,
    )


def _say_ignored(agent: str) -> None:
    if agent not in _ignored:
        _ignored.add(agent)
        # The agent's own `elicitation_handler=`; once per agent.
        _log.warning("elicitation handler ignored", extra={"agent": agent, "why": "only the caller is asked"})


async def _cancel(context: Any, params: ElicitRequestParams) -> ElicitResult:
    """Answer a server that may not ask, by `elicitation: {mode: auto-cancel}`; fast-agent's own logs the question."""
    del context, params
    return ElicitResult(action="cancel")


class CallerAsker:
    """The elicitation callback of one connection."""

    def __init__(self, runtime: MCPClientCallbackRuntime) -> None:
        self._runtime = runtime

    @property
    def _server(self) -> str:
        return self._runtime.server_name or "unknown"

    async def __call__(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        key = getattr(context, "request_id", None)
        is_own = self._is_http or is_required(key)
        tools = partial(_tool_calls, self._runtime, self._server, is_own=is_own)
        answer = await self.answer_to(params, partial(ask_for_server, key, tools), is_own=is_own)
        return ElicitResult(action=answer.action, content=None if answer.content is None else dict(answer.content))

    @property
    def _is_http(self) -> bool:
        config = self._runtime.server_config
        return config is None or config.transport == "http"

    async def answer_to(
        self, params: ElicitRequestParams, ask: Callable[[Question], Awaitable[Answer]], *, is_own: bool = True
    ) -> Answer:
        """Return the caller's answer by `ask`; where the caller was not asked, the model reads the question.

        `is_own`: it is asked in the context of the tool call that it belongs to.
        """
        server, agent = self._server, _inner_agent(self._runtime.agent_name)
        if isinstance(params, ElicitRequestURLParams):
            question = Question("url", params.message, server, url=params.url, agent=agent)
        else:
            question = Question("form", params.message, server, schema=params.requested_schema, agent=agent)
        answer = await ask(question)
        if not answer.was_asked_for and is_own:
            self.tell_model(question.not_asked(answer.why))
        elif not answer.was_asked_for and (events := _events(self._runtime)) is not None:
            asking = await events.asking_on(server)
            text = question.not_asked(answer.why)
            for tool_call_id in asking:
                current_scope.get().questions.tell_model(
                    tool_call_id, text if len(asking) == 1 else _ONE_OF_THEM + text
                )
        return answer

    def tell_model(self, text: str) -> None:
        """Have the model read `text` in the result of the tool call of the current context."""
        for tool_call_id in _tool_calls(self._runtime, self._server, is_own=True):
            current_scope.get().questions.tell_model(tool_call_id, text)

    async def pages_accepted(self, error: MCPError) -> bool:
        """Put the pages of an error to the caller, one after the other; return whether all were accepted."""
        pages = parse_url_elicitation_required_data(error.data).elicitations
        for page in pages:
            answer = await self.answer_to(page, partial(ask_in_tool, f"page {page.elicitation_id}"))
            if answer.action != "accept":
                if answer.was_asked_for:
                    self.tell_model(_NOT_GIVEN[answer.action])
                return False
        return bool(pages)


def _meaning_of(error: MCPError) -> str | None:
    """Return what an error of a server of 2026-07-28 about a question means to the model; None for any other error."""
    data = error.data if isinstance(error.data, dict) else {}
    required = data.get("requiredCapabilities")
    if error.code == MISSING_REQUIRED_CLIENT_CAPABILITY and isinstance(required, dict) and "elicitation" in required:
        return _NOT_ASKED
    # The server refuses its own state: the call that asked has ended with its process.
    is_lost = error.code == INVALID_PARAMS and data.get("reason") == "invalid_request_state"
    return _LOST if is_lost else None


def _inner_agent(name: str | None) -> str | None:
    """Return the name of an inner agent of a workflow, without a clone's number; None for the agent that was called."""
    own = (name or "").partition("[")[0]
    return None if own in {"", current_scope.get().served} else own


def _tool_calls(runtime: MCPClientCallbackRuntime, server: str, *, is_own: bool) -> tuple[str, ...]:
    """Return the ids of the tool calls in which a server asks.

    Over HTTP and in 2026-07-28 the context of the question is that of the tool call. A program of the initialize era
    asks in the context that connected it, so the question may belong to every tool call of it that runs.
    """
    events, here = _events(runtime), current_scope.get().peer_call
    running = events.running_on(server) if events is not None else ()
    return (here.tool_call_id,) if is_own and here is not None and here.tool_call_id in running else running


def _events(runtime: MCPClientCallbackRuntime) -> ToolEvents | None:
    events = runtime.aggregator._tool_handler if runtime.aggregator is not None else None
    return events if isinstance(events, ToolEvents) else None


async def _ask_human(request: Mapping[str, Any], agent_name: str | None, *_: object) -> str:
    """Return the result of an agent's `__human_input` tool, whose arguments fast-agent has made into a form."""
    agent = _inner_agent(None if agent_name == _NO_AGENT else agent_name)
    schema = request["metadata"]["requested_schema"]
    question = Question("human_input", request["prompt"], schema=schema, agent=agent)
    answer = await ask_in_tool("human_input", question)
    if not answer.was_asked_for:
        return question.not_asked(answer.why)
    return _NOT_GIVEN.get(answer.action) or json.dumps(dict(answer.content or {}))


async def _wait_for[T](awaitable: Awaitable[T], timeout: float) -> T:  # noqa: ASYNC109  as in asyncio
    async with asyncio.timeout(timeout) as deadline:
        with current_scope.get().questions.pauses.including(PausableDeadline(deadline)):
            return await awaitable
