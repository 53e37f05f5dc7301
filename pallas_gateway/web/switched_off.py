"""The 404 of a disabled route, which names the setting to callers that may view an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.identity.errors import TokenRejectedError, VerificationUnavailableError
from pallas_gateway.web import agent_routes, openai, refusals
from pallas_gateway.web.access import caller_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.hosting.gateway import Gateway

THREADS_PREFIX = "/api/v1/"


def reason(configuration: Configuration, path: str) -> str | None:
    """A sentence on the setting that enables a path on the shared port; None if there is no such setting."""
    gateway = configuration.deployment.gateway
    if openai.is_path(path) and not gateway.openai_api:
        return "the OpenAI API is off; `gateway.openai_api: true` in agents.yaml enables it"
    if f"{path}/".startswith(THREADS_PREFIX) and gateway.threads is None:
        return "the threads API is off; `gateway.threads` in agents.yaml, the URL of a database, enables it"
    if agent_routes.is_own_port_path(path) and configuration.per_port:
        return "each agent is at /mcp on a port of its own; without `gateway.per_port` (--per-port) all are here"
    return None


class SwitchedOff:
    """Answers 404 for a disabled path."""

    def __init__(self, gateway: Gateway, why: str) -> None:
        """Answer with `why` to callers that may view an agent of `gateway`."""
        self._gateway = gateway
        self._why = why

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        why = self._why if await self._may_know(scope) else refusals.NOTHING_HERE
        await refusals.not_found(scope, why)(scope, receive, send)

    async def _may_know(self, scope: Scope) -> bool:
        try:
            caller = await caller_of(self._gateway, scope)
        except TokenRejectedError as error:
            refusals.note(self._gateway, scope, "invalid_token", str(error))
            return False
        except VerificationUnavailableError:
            return False
        return any(map(caller.grants.may_view, self._gateway.servers))
