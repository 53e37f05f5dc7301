"""The conversation at a terminal: prompt, answer, prompt, until Ctrl-D."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pallas_gateway.cli.chat.actions import QuitError, carry_out, images_told
from pallas_gateway.cli.chat.commands import read
from pallas_gateway.cli.chat.options import CANCELLED
from pallas_gateway.cli.chat.prompt import Choices, prompt_session
from pallas_gateway.cli.parameters import described
from pallas_gateway.cli.usage import UsageError
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from prompt_toolkit import PromptSession

    from pallas_gateway.cli.chat.conversation import Conversation


async def converse(talk: Conversation, inputs: Path | None) -> None:
    """Until the user leaves. Whatever goes wrong with a turn is one line, and the next may be better."""
    session = prompt_session(inputs, _choices(talk))
    talk.screen.note(f"Talking to {talk.line.agent}. /help shows what there is, Ctrl-D leaves.")
    while True:
        try:
            line = await _next_input(session, talk)
            if line.strip():
                await answer(talk, line)
        except (EOFError, QuitError):
            return


async def answer(talk: Conversation, line: str) -> None:
    """One input: a command or a message.

    Raises:
        QuitError: it was `/quit`.
    """
    try:
        with interruptible():
            order = read(line)
            if isinstance(order, str):
                await talk.say(order)
            else:
                await carry_out(order, talk)
    except UsageError as error:
        talk.screen.problem(str(error))
    except asyncio.CancelledError:
        talk.screen.problem(CANCELLED)
        _tell_images(talk)
    except GatewayError as error:
        talk.screen.problem(str(error))
        _tell_images(talk)


def _tell_images(talk: Conversation) -> None:
    if talk.images:
        told = images_told(len(talk.images))
        talk.screen.note(f"({told} will go with your next message; /image off takes that back)")


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C cancels what the block does, which closes its connections, and that ends the call at the gateway, too.

    Raises:
        asyncio.CancelledError: it was pressed.
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


async def _next_input(session: PromptSession[str], talk: Conversation) -> str:
    while True:
        try:
            return await session.prompt_async(_prompt(talk))
        except KeyboardInterrupt:
            continue  # the line was given up; Ctrl-D leaves


def _prompt(talk: Conversation) -> str:
    thread = talk.thread.name if talk.thread is not None else talk.name
    images = f" +{len(talk.images)} image{'s' if len(talk.images) > 1 else ''}" if talk.images else ""
    return f"{talk.line.agent}{f' [{thread}]' if thread else ''}{images}> "


def _choices(talk: Conversation) -> Choices:
    return Choices(
        parameters=lambda: {name: described(schema) for name, schema in talk.capabilities.parameters.items()},
        threads=lambda: [one.thread.label for one in talk.store.summaries(talk.place)],
    )
