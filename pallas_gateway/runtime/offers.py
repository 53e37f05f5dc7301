"""What an agent's downstreams offer, asked beside the calls and ahead of them.

Only of downstreams that answer everybody alike: none that gets the caller's token, none with a login of its own. They
are asked without a call in the context, so nobody's token goes along. A call that finds nothing known, or nothing
certain, connects and asks by itself.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from http.cookiejar import DefaultCookiePolicy
from time import monotonic
from typing import TYPE_CHECKING

import httpx2
from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.runtime import platform
from pallas_gateway.runtime.call_connections import offer_of
from pallas_gateway.runtime.failures import one_line
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fast_agent.config import MCPServerSettings
    from fast_agent.context import Context as FastAgentContext

    from pallas_gateway.runtime.call_connections import Offer
    from pallas_gateway.runtime.ports import Downstream

FRESH_SECONDS = 30.0
"""After this time what is known is asked again, while calls go on with it."""
CERTAIN_SECONDS = 300.0
"""After this time without a call nobody knows: the next one asks by itself."""
ASK_SECONDS = 5.0
"""How long a downstream may take to answer."""
AGAIN_SECONDS = 5.0
"""After this time a downstream that could not be asked is asked again, if a call wants it."""
KEEP_ALIVE_SECONDS = 3.0
"""How long a socket waits for the next request: less than the 5 s after which common servers close theirs."""
KEPT_SOCKETS = 100

_log = logging.getLogger("pallas.runtime")


class Offers:
    """Those of one hosted agent's downstreams; closed with the agent."""

    def __init__(self, agent: str, servers: Mapping[str, MCPServerSettings], context: FastAgentContext | None) -> None:
        self._tasks = TaskOwner()
        self._sweep: asyncio.TimerHandle | None = None
        self._inquiries = {
            name: _Inquiry(agent, name, settings, context, self._tasks) for name, settings in servers.items()
        }

    def ask(self) -> None:
        """Begin to ask, so that the first call finds it known."""
        for inquiry in self._inquiries.values():
            inquiry.begin()

    def of(self, server: str) -> Offer | None:
        """What is known of `server`; if nothing certain is, it is asked beside the call that wants to know."""
        if (inquiry := self._inquiries.get(server)) is None:
            return None
        self._sweep_later()
        return inquiry.known()

    def doubt(self, server: str) -> None:
        """A call had trouble with `server`: what is known may be true no more."""
        if (inquiry := self._inquiries.get(server)) is not None:
            inquiry.doubt()

    async def close(self) -> None:
        """End all connections; no call may run any more."""
        if self._sweep is not None:
            self._sweep.cancel()
        await self._tasks.cancel_all()
        for inquiry in self._inquiries.values():
            await inquiry.close()

    def _sweep_later(self) -> None:
        """A pool looks for sockets that waited too long only when it is used: after the last call, nobody would."""
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(2 * KEEP_ALIVE_SECONDS, self._sweep_now)

    def _sweep_now(self) -> None:
        self._sweep = None
        self._tasks.spawn(self._close_idle(), name="close idle sockets", report=True)

    async def _close_idle(self) -> None:
        left = [await platform.close_idle(inquiry.http) for inquiry in self._inquiries.values()]
        if any(left):
            self._sweep_later()


def alike_for_all(
    servers: Mapping[str, MCPServerSettings], downstreams: Iterable[Downstream]
) -> dict[str, MCPServerSettings]:
    """Those of `servers` that answer every caller alike and are reached by HTTP."""
    return {
        downstream.name: server
        for downstream in downstreams
        if (server := servers.get(downstream.name)) is not None and _is_alike_for_all(server, downstream)
    }


def _is_alike_for_all(server: MCPServerSettings, downstream: Downstream) -> bool:
    has_login = server.auth is not None and bool(server.auth.oauth or server.auth.forward)
    depends_on_caller = (
        downstream.forwards_bearer or downstream.token_exchange is not None or downstream.peer is not None
    )
    return server.transport == "http" and server.load_on_start and not has_login and not depends_on_caller


class _Inquiry:
    """What is known of one downstream, and the connection that asks and listens; none of a call's requests use it."""

    def __init__(
        self, agent: str, server: str, settings: MCPServerSettings, context: FastAgentContext | None, tasks: TaskOwner
    ) -> None:
        self._agent = agent
        self._server = server
        self._settings = settings
        self._context = context
        self._tasks = tasks
        self.http = _http_client(settings)
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._offer: Offer | None = None
        self._asked_at = float("-inf")
        self._failed_at = float("-inf")

    def known(self) -> Offer | None:
        """See `Offers.of`."""
        age = monotonic() - self._asked_at
        if age > FRESH_SECONDS:
            self.begin()
        return self._offer if age <= CERTAIN_SECONDS else None

    def doubt(self) -> None:
        """See `Offers.doubt`."""
        self._offer = None
        self._asked_at = float("-inf")
        self.begin()

    def begin(self) -> None:
        """Ask, unless it is being asked, or could not be a moment ago."""
        self._wanted.set()
        if self._task is None and monotonic() - self._failed_at > AGAIN_SECONDS:
            work = self._ask_and_listen()
            # In a context of its own: in that of a call, its token would go along.
            self._task = Context().run(self._tasks.spawn, work, name=f"ask {self._server}")

    async def close(self) -> None:
        """Give up the sockets."""
        self._offer = None
        await self.http.aclose()

    async def _ask_and_listen(self) -> None:
        try:
            await self._with_connection()
        except Exception as error:  # noqa: BLE001  only this shortcut is lost: calls connect by themselves and say why
            self._offer, self._failed_at = None, monotonic()
            extra = {"agent": self._agent, "server": self._server, "error": one_line(error)}
            _log.debug("server could not be asked ahead of the calls", extra=extra)
        finally:
            self._task = None

    async def _with_connection(self) -> None:
        aggregator = _Asking([self._server], context=self._context, name=self._agent)
        with platform.connecting(_later):
            async with aggregator:
                async with asyncio.timeout(ASK_SECONDS):
                    await platform.attach(aggregator, self._server)
                self._learn(aggregator)
                aggregator.on_answer = self._learn
                while platform.tells_of_changes(aggregator, self._server):
                    await self._wanted.wait()
                    self._wanted.clear()
                    async with asyncio.timeout(ASK_SECONDS):
                        await aggregator.refresh_subscription_state(self._server)

    def _learn(self, aggregator: MCPAggregator) -> None:
        self._offer = offer_of(aggregator, self._server, self.http)
        self._asked_at = monotonic()
        self._wanted.clear()


class _Asking(MCPAggregator):
    """Connects to one server on nobody's behalf; `on_answer` hears when it was asked again, for whatever reason."""

    on_answer: Callable[[MCPAggregator], None] | None = None

    async def refresh_subscription_state(self, server_name: str) -> tuple[str, ...]:
        """Ask again."""
        uris = await super().refresh_subscription_state(server_name)
        if self.on_answer is not None:
            self.on_answer(self)
        return uris


def _http_client(settings: MCPServerSettings) -> httpx2.AsyncClient:
    """For the requests of all calls: each is authorised by itself, and what a server wants remembered is not."""
    client = platform.http_client(
        settings, httpx2.Limits(max_keepalive_connections=KEPT_SOCKETS, keepalive_expiry=KEEP_ALIVE_SECONDS)
    )
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
    return client


async def _later(_: MCPAggregator) -> None:
    """It is attached by name."""
