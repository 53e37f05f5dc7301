"""A conversation in progress, wherever its threads are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_gateway.client.call_settings import without_effect
from pallas_gateway.client.chat.chat_turns import ChatPlace
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.client.agent_client import AgentClient, ChatCapabilities
    from pallas_gateway.client.chat.chat_turns import ChatThread, ChatTurn, Summary
    from pallas_gateway.client.chat.screen import Screen

NORMAL_STOP = "endTurn"
NAME_TAKEN = "There is a thread '{0}' already; /resume {0} continues it."


class TurnFailedError(GatewayError):
    """The call failed; the message is the agent's sentence."""

    reason = "turn_failed"


@dataclass(kw_only=True)
class Conversation(ABC):
    """The agent, the thread, and the parameters and images of the next message.

    `name` is for a thread that has no turns yet. `noted` (parameters without effect) was reported already.
    """

    client: AgentClient
    screen: Screen
    capabilities: ChatCapabilities
    thread: ChatThread | None = None
    name: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    images: list[dict[str, str]] = field(default_factory=list)
    noted: str = ""

    @property
    def place(self) -> ChatPlace:
        """The agent that its threads belong to."""
        return ChatPlace.of(self.client.url, self.client.agent)

    @property
    @abstractmethod
    def labels(self) -> Sequence[str]:
        """The labels of threads that can be continued, as far as they are known without waiting."""

    @abstractmethod
    async def turns(self) -> list[ChatTurn]:
        """The turns of the present thread."""

    @abstractmethod
    async def summaries(self) -> list[Summary]:
        """The threads with the agent, by their last turn, newest first."""

    @abstractmethod
    async def find(self, name: str) -> ChatThread | None:
        """The thread of that name, number or id."""

    @abstractmethod
    async def save(self, name: str) -> None:
        """Name the present thread.

        Raises:
            UsageError: another thread with this agent has that name.
        """

    @abstractmethod
    async def switch_to(self, thread: ChatThread | None) -> list[ChatTurn]:
        """Continue a thread, and return its turns; None begins a new thread."""

    @abstractmethod
    def note_window(self, turns: Sequence[ChatTurn]) -> None:
        """Report turns that no longer fit into the model's window, if that is known before they are sent."""

    @abstractmethod
    async def catch_up(self, turns: Sequence[ChatTurn]) -> None:
        """Wait for the answer of the last of `turns`, if it runs without its client."""

    @abstractmethod
    async def send(self, text: str) -> None:
        """Run one turn. Images without an answer stay for the next.

        Raises:
            GatewayError: there is no answer.
        """

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
