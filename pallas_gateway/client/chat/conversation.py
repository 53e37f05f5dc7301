"""A conversation in progress, wherever its threads are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.call_settings import without_effect
from pallas_gateway.client.chat.chat_turns import place_of
from pallas_gateway.client.output import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.client.agent_client import AgentClient, ChatCapabilities
    from pallas_gateway.client.chat.chat_turns import ChatExchange, ChatThread
    from pallas_gateway.client.chat.screen import Screen

NORMAL_STOP = "endTurn"


@dataclass(kw_only=True)
class Conversation(ABC):
    """The agent, the thread, and the parameters and images of the next message.

    `name` is for a thread that has no turns yet, `labels` are those of the threads that `threads` returned last.
    `noted` (parameters without effect) and `left_out` (turns that are not sent any more) were reported already.
    """

    client: AgentClient
    screen: Screen
    capabilities: ChatCapabilities
    thread: ChatThread | None = None
    name: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    images: list[dict[str, str]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    noted: str = ""
    left_out: int = 0

    @property
    def place(self) -> tuple[str, str]:
        """The gateway and agent that its threads belong to."""
        return place_of(self.client.url, self.client.agent)

    async def threads(self) -> list[ChatThread]:
        """The threads with the agent, by their last turn, newest first."""
        found = await self.list_threads()
        self.labels = [one.label for one in found]
        return found

    async def find(self, name: str) -> ChatThread | None:
        """The thread of that name or id."""
        return next((one for one in await self.threads() if name in (one.name, one.id)), None)

    async def save(self, name: str) -> None:
        """Name the present thread.

        Raises:
            UsageError: another thread with this agent has that name.
        """
        if any(one.name == name and not self.is_present(one) for one in await self.threads()):
            raise UsageError(f"There is a thread '{name}' already; /resume {name} continues it.")
        if self.thread is None:
            self.name = name
        else:
            self.thread = await self.renamed(self.thread, name)

    def is_present(self, thread: ChatThread) -> bool:
        """True for the present thread."""
        return self.thread is not None and self.thread.id == thread.id

    async def switch_to(self, thread: ChatThread | None) -> list[ChatExchange]:
        """Continue a thread, and return its turns; None begins a new thread."""
        self.thread, self.name, self.images, self.left_out = thread, None, [], 0
        return await self.turns()

    @abstractmethod
    async def turns(self) -> list[ChatExchange]:
        """The turns of the present thread."""

    @abstractmethod
    async def list_threads(self) -> list[ChatThread]:
        """The threads with the agent, for `threads`."""

    @abstractmethod
    async def renamed(self, thread: ChatThread, name: str) -> ChatThread:
        """Rename a thread, and return it."""

    @abstractmethod
    async def catch_up(self, turns: Sequence[ChatExchange]) -> None:
        """Report or wait for what is to be known of the thread that was switched to, after its turns were shown."""

    @abstractmethod
    async def send(self, text: str) -> None:
        """Run one turn. Images without an answer stay for the next.

        Raises:
            GatewayError: there is no answer.
        """

    def note_left_out(self, turns: int, why: str = "") -> None:
        """Report how many turns are not sent any more, if they are more than before."""
        if turns > self.left_out:
            self.screen.note(f"(the oldest {counted(turns, 'turn')} of this thread no longer go along{why})")
        self.left_out = turns

    def note_end(self, stop_reason: str, parameters: Mapping[str, Any], others: Sequence[str] = ()) -> None:
        """Report how a turn ended: parts that were not shown, parameters without effect, and why it stopped."""
        if others:
            self.screen.note(f"(not shown: {', '.join(others)}; `pallas-gateway call --json` has it)")
        if (note := without_effect(parameters)) != self.noted:
            self.noted = note
            if note:
                self.screen.note(f"({note})")
        if stop_reason != NORMAL_STOP:
            self.screen.note(f"(stopped: {stop_reason})")


def sendable_text(text: str) -> str:
    """Return a line as it can be sent: a terminal in another encoding lets surrogates through."""
    return text.encode("utf-8", "replace").decode()
