"""Questions of downstreams and of `human_input` agents: each goes to the caller of the running call."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from fast_agent.mcp.elicitation_handlers import auto_cancel_elicitation_handler
from mcp import MCPError
from mcp_types import URL_ELICITATION_REQUIRED

from pallas_gateway.runtime.call.questions import (
    STILL_REQUIRED,
    CallerAsker,
    ask_human,
    cancel,
    capability_of,
    meaning_of,
    say_ignored,
)
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fast_agent.mcp.client_callback_runtime import MCPClientCallbackRuntime
    from fast_agent.mcp.client_connection import MCPClientConnection
    from mcp.client.session import ClientSession
    from mcp_types import ClientCapabilities

    from pallas_gateway.runtime.call.questions import Elicit


def resolve_elicitation_handler(
    original: Callable[[MCPClientCallbackRuntime], Elicit | None], _: type[MCPClientCallbackRuntime]
) -> Callable[[MCPClientCallbackRuntime], Elicit | None]:
    """Ask the caller, in place of the process's terminal and of handlers of agents."""

    @wraps(original)
    def resolve_elicitation_handler(self: MCPClientCallbackRuntime) -> Elicit | None:
        if self.custom_elicitation_handler is not None:
            say_ignored(self.agent_name or "unknown")
            return CallerAsker(self)
        configured = original(self)
        if configured is None:  # `elicitation: {mode: none}`
            return None
        return cancel if configured is auto_cancel_elicitation_handler else CallerAsker(self)

    return resolve_elicitation_handler


def build_capabilities(original: Callable[..., ClientCapabilities], _: type[ClientSession]) -> Callable[..., Any]:
    """Declare to a downstream what the caller of this call can be asked."""

    @wraps(original)
    def build_capabilities(self: ClientSession, version: str) -> ClientCapabilities:
        declared = original(self, version)
        if not isinstance(self._elicitation_callback, CallerAsker):
            return declared
        return declared.model_copy(update={"elicitation": capability_of(current_scope.get().questions.modes)})

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
            if (text := meaning_of(error)) is not None:
                asker.tell_model(text)
            if error.code != URL_ELICITATION_REQUIRED or not await asker.pages_accepted(error):
                raise
        try:
            return await original(self, *args, **options)
        except MCPError as error:
            if error.code == URL_ELICITATION_REQUIRED:
                asker.tell_model(STILL_REQUIRED)
            raise

    return repeated


def human_input_callback(original: Any, _: Any) -> Callable[[], Any]:
    """Return the function by which an agent gets the callback of its `__human_input` tool."""
    del original
    return lambda: ask_human
