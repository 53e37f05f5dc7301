"""What features offer to others, which find it by these interfaces and work without it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from starlette.responses import Response

    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.permit import Permit
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.agent_set import Changes
    from pallas_gateway.core.feature import PortRoutes

type Action = Literal["call", "search", "copy", "try"]


@dataclass(frozen=True, slots=True)
class CallEntry:
    """What the limits admit: a call, a search in threads or a copy of one, which count as calls, or the start of a try.

    Attributes:
        call_id: its id.
        agent: of the call; empty for all.
        caller: `key:NAME`, `token:NAME` or `anonymous`.
        account: the holder of counters; see `Caller.account`.
        is_nested: another call makes it; such a call counts no call.
        action: others than calls use no tokens.
        is_continued: another process has begun the call, which counts once among those of a minute.
    """

    call_id: str
    agent: str
    caller: str
    account: str
    is_nested: bool = False
    action: Action = "call"
    is_continued: bool = False

    @classmethod
    def of(cls, call: Call) -> CallEntry:
        """Return the entry of a call."""
        caller = call.caller
        of_caller = caller.principal, caller.account
        return cls(call.call_id, call.agent, *of_caller, call.is_nested, is_continued=call.is_continued)


class UsedLimit(NamedTuple):
    """What an account has used of one limit of a rule.

    Attributes:
        rule: the name of the rule.
        agent: for a rule per caller and agent; empty for one per caller.
        kind: `calls_per_minute`, `calls_at_once` or `tokens_per_day`.
        used: of the present minute, moment or day.
        reset_seconds: until the oldest call leaves the window, or the day ends; None for calls at once, and for a
            window without calls.
    """

    rule: str
    agent: str
    kind: str
    used: int
    reset_seconds: int | None


class CallLimits(ABC):
    """Limits of callers."""

    @abstractmethod
    async def begin(self, entry: CallEntry) -> Permit:
        """Admit a call, a search or a copy.

        Raises:
            CallLimitedError: a rule refuses it; nothing was counted.
            AgentUnavailableError: it cannot be decided now, and a rule may limit it.
        """

    @abstractmethod
    async def used(self, caller: str, account: str, agents: Sequence[str]) -> Sequence[UsedLimit]:
        """Return what an account has used of the limits that apply to these agents."""


class AgentSource(ABC):
    """Agents beside those of files, which come and go while the gateway runs.

    The reloader calls one method after the other, never two at once.

    Attributes:
        changed: set while there are changes to apply.
    """

    changed: asyncio.Event

    @property
    @abstractmethod
    def is_loaded(self) -> bool:
        """False until it is known which names are agents."""

    @property
    @abstractmethod
    def is_away(self) -> bool:
        """True while changes of the agents cannot be read."""

    @property
    @abstractmethod
    def retry_pause(self) -> float | None:
        """The seconds until `retry` may have something to do; None for never."""

    @abstractmethod
    def beside(self, files: Configuration) -> Configuration:
        """Return a configuration of files with the agents as they were read last."""

    @abstractmethod
    def applied(self, changes: Changes) -> None:
        """Note what came of the configuration that `beside` returned last."""

    @abstractmethod
    async def apply(self, files: Configuration) -> bool:
        """Host these agents and those of `files`; return True if there were changes."""

    @abstractmethod
    async def retry(self, files: Configuration) -> bool:
        """Try versions again that did not start, if it is time for that; return True if one has started."""

    @abstractmethod
    async def until_applied(self) -> bool:
        """Return True when this process has applied, or refused, the changes made before; False if it cannot know."""


class ThreadsOfAgents(ABC):
    """The threads with agents of the database."""

    @abstractmethod
    async def remove_of_agent(self, agent_id: str) -> None:
        """Delete all threads with a deleted agent of the database, of all owners; calls that run lose their thread."""


class PossibleOwners(ABC):
    """The people and programs to whom an agent can be handed over."""

    @abstractmethod
    async def note_caller(self, owner: str, name: str) -> None:
        """Note that a caller has opened the console."""


class PageForBrowsers(ABC):
    """A page that browsers get in place of the front page."""

    @abstractmethod
    def redirect(self, port: PortRoutes) -> Response | None:
        """Return the response that leads a browser there; None on ports without it."""
