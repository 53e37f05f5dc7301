"""A chat from its options: one message, or prompt and answer until Ctrl-D."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_gateway.cli.agent_client import AgentClient
from pallas_gateway.cli.attachments import image_of
from pallas_gateway.cli.chat.command import ChatOptions
from pallas_gateway.cli.chat.commands import read, resume, thread_name
from pallas_gateway.cli.chat.conversation import Conversation
from pallas_gateway.cli.chat.prompt import Choices, prompt_session
from pallas_gateway.cli.chat.screen import Screen
from pallas_gateway.cli.chat.store import IN_MEMORY, Store, default_path, opened
from pallas_gateway.cli.output import CANCELLED, counted
from pallas_gateway.cli.parameters import described, values_of
from pallas_gateway.cli.usage import UsageError
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Iterator


async def run(options: ChatOptions) -> None:
    """The whole chat.

    Raises:
        GatewayError: the agent cannot be reached, the options do not fit it, or the only message got no answer.
        asyncio.CancelledError: Ctrl-C cancelled the only message.
    """
    path = options.db or str(default_path(os.environ, Path.home()))
    with opened(path) as store:
        conversation = await start_conversation(options, store)
        if options.message is None:
            await _converse(conversation, None if path == IN_MEMORY else Path(f"{path}-inputs"))
        else:
            with _interruptible():
                await conversation.send(options.message)


async def start_conversation(options: ChatOptions, store: Store) -> Conversation:
    """A conversation that is ready for its first message.

    Raises:
        GatewayError: the agent cannot be reached, or the options do not fit it.
    """
    images = [image_of(path) for path in options.images]
    client, screen = AgentClient(options.url, options.agent, options.bearer), Screen()
    async with client.open(screen) as connection:
        conversation = Conversation(client, store, screen, connection.capabilities)
    if options.resume:
        resume(conversation, options.thread)
    elif options.thread is not None:
        name = thread_name(options.thread)
        if store.find(conversation.place, name) is None:
            conversation.name = name
        else:
            resume(conversation, name)
    conversation.images = images
    conversation.parameters.update(values_of(options.settings, conversation.capabilities.parameters))
    return conversation


async def _converse(conversation: Conversation, inputs: Path | None) -> None:
    choices = Choices(
        lambda: {name: described(schema) for name, schema in conversation.capabilities.parameters.items()},
        lambda: [one.thread.label for one in conversation.store.summaries(conversation.place)],
    )
    session = prompt_session(inputs, choices)
    conversation.screen.note(f"Talking to {conversation.client.agent}. /help shows what there is, Ctrl-D leaves.")
    while True:
        try:
            line = await session.prompt_async(_prompt(conversation))
            if line.strip():
                await answer(conversation, line)
        except KeyboardInterrupt:
            continue  # Ctrl-C at the prompt discards the line
        except EOFError:
            return


async def answer(conversation: Conversation, line: str) -> None:
    """Run one input, a command or a message, and show its errors.

    Raises:
        EOFError: it was `/quit`.
    """
    try:
        with _interruptible():
            command, rest = read(line)
            await (conversation.send(rest) if command is None else command.run(conversation, rest))
    except (GatewayError, asyncio.CancelledError) as error:
        conversation.screen.problem(CANCELLED if isinstance(error, asyncio.CancelledError) else str(error))
        if conversation.images and not isinstance(error, UsageError):
            kept = counted(len(conversation.images), "image")
            conversation.screen.note(f"({kept} will go with your next message; /image off takes that back)")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C cancel the block, which closes its connections and so ends the call at the gateway.

    Raises:
        asyncio.CancelledError: Ctrl-C was pressed.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None:
        raise RuntimeError("there is no task to interrupt")
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        while task.cancelling():
            task.uncancel()


def _prompt(conversation: Conversation) -> str:
    thread = conversation.thread.name if conversation.thread is not None else conversation.name
    images = f" +{counted(len(conversation.images), 'image')}" if conversation.images else ""
    return f"{conversation.client.agent}{f' [{thread}]' if thread else ''}{images}> "
