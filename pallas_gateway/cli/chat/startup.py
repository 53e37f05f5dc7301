"""How a conversation begins: the agent asked what it offers, the thread found, what goes along laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.cli.agent_client import AgentClient
from pallas_gateway.cli.attachments import image_of
from pallas_gateway.cli.chat.actions import resumed
from pallas_gateway.cli.chat.commands import name_in
from pallas_gateway.cli.chat.conversation import Conversation
from pallas_gateway.cli.chat.screen import Screen
from pallas_gateway.cli.parameters import values_of

if TYPE_CHECKING:
    from pallas_gateway.cli.chat.options import Wanted
    from pallas_gateway.cli.chat.store import Store


async def begun(wanted: Wanted, store: Store) -> Conversation:
    """A conversation that waits for its first message.

    Raises:
        GatewayError: the agent cannot be reached, or what is wanted cannot be had.
    """
    images = [image_of(path) for path in wanted.images]
    line = AgentClient(wanted.url, wanted.agent, wanted.bearer)
    async with line.open() as connection:
        talk = Conversation(line, store, Screen(), connection.capabilities)
    if wanted.resume:
        resumed(talk, wanted.thread)
    elif wanted.thread is not None:
        _open(talk, name_in(wanted.thread))
    talk.images = images
    talk.parameters.update(values_of(wanted.settings, talk.capabilities.parameters))
    return talk


def _open(talk: Conversation, name: str) -> None:
    if talk.store.find(talk.place, name) is None:
        talk.name = name
    else:
        resumed(talk, name)
