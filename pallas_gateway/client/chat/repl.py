"""A chat from its options: one message, or prompt and answer until Ctrl-D."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, override

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, PathCompleter, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.shortcuts import CompleteStyle

from pallas_gateway.client.agent_client import AgentClient
from pallas_gateway.client.arguments import UsageError, image_of
from pallas_gateway.client.call_settings import SYSTEM_PARAMETERS, values_of
from pallas_gateway.client.chat.chat_commands import COMMANDS, go_on, read, resume, thread_name
from pallas_gateway.client.chat.chat_files import ChatFiles, StoreError, import_older, older_path
from pallas_gateway.client.chat.command import ChatOptions
from pallas_gateway.client.chat.kept_conversation import KeptConversation
from pallas_gateway.client.chat.local_conversation import LocalConversation
from pallas_gateway.client.chat.screen import Screen
from pallas_gateway.client.output import CANCELLED, counted, problem
from pallas_gateway.client.private_files import state_folder
from pallas_gateway.client.question_prompts import person_for
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.key_binding import KeyPressEvent

    from pallas_gateway.client.chat.conversation import Conversation

CONTINUED = "\\"
IN_MEMORY = ":memory:"


async def run(options: ChatOptions) -> None:
    """The whole chat.

    Raises:
        GatewayError: the agent cannot be reached, the options do not fit it or its questions, threads cannot be kept,
            or the only message got no answer.
        asyncio.CancelledError: Ctrl-C cancelled the only message.
    """
    files, inputs = None, None
    if options.db == IN_MEMORY and not options.keep_on_gateway:
        files = ChatFiles(None)
    elif not options.keep_on_gateway:
        state = state_folder(os.environ, Path.home())
        files, inputs = ChatFiles(state / "chats"), state / "chat-inputs"
        try:
            older = Path(options.db) if options.db else older_path(os.environ, Path.home())
            if not import_older(older, files) and options.db:
                problem(f"{older} does not exist; threads are kept in {state / 'chats'}.")
        except StoreError as error:
            problem(str(error))
    conversation = await start_conversation(options, files)
    if options.message is None:
        await _converse(conversation, inputs)
    else:
        with _interruptible():
            await conversation.send(options.message)
    if conversation.client.person is not None:
        conversation.client.person.finish()


async def start_conversation(options: ChatOptions, files: ChatFiles | None) -> Conversation:
    """A conversation that is ready for its first message; without files, the gateway keeps its threads.

    Raises:
        GatewayError: the agent cannot be reached, or the options do not fit it.
    """
    images = [image_of(path) for path in options.images]
    person = person_for(options.answers, options.approve, asks=options.asks)
    client, screen = AgentClient(options.url, options.agent, options.bearer, person), Screen()
    async with client.open(screen) as connection:
        capabilities = connection.capabilities
    conversation: Conversation
    if files is None:
        conversation = KeptConversation(client=client, screen=screen, capabilities=capabilities)
        await conversation.check()
    else:
        conversation = LocalConversation(client=client, screen=screen, capabilities=capabilities, files=files)
    if options.resume:
        await resume(conversation, options.thread or "")
    elif options.thread is not None:
        name = thread_name(options.thread)
        if (thread := await conversation.find(name)) is None:
            conversation.name = name
        else:
            await go_on(conversation, thread)
    conversation.images = images
    conversation.parameters.update(values_of(options.settings, conversation.capabilities.parameters))
    return conversation


async def _converse(conversation: Conversation, inputs: Path | None) -> None:
    session = _prompt_session(
        inputs, Choices(lambda: conversation.capabilities.parameters, lambda: conversation.labels)
    )
    await conversation.threads()
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


def _prompt_session(inputs: Path | None, choices: Choices) -> PromptSession[str]:
    """A prompt that stores its inputs in the file `inputs`; with None they last for this chat only."""
    return PromptSession(
        multiline=True,
        key_bindings=_keys(),
        history=InMemoryHistory() if inputs is None else _PrivateHistory(str(inputs)),
        completer=choices,
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        prompt_continuation=lambda width, _line, _wrapped: "." * (width - 1) + " ",
    )


class _PrivateHistory(FileHistory):
    """A history that its owner alone can read; ignores a file that cannot be written."""

    @override
    def store_string(self, string: str) -> None:
        with suppress(OSError):
            Path(str(self.filename)).touch(mode=0o600)
            super().store_string(string)


class Choices(Completer):
    """Completions: commands, and the arguments of a command.

    `parameters` returns the names of the present parameters, `threads` the labels of the threads.
    """

    def __init__(self, parameters: Callable[[], Iterable[str]], threads: Callable[[], Iterable[str]]) -> None:
        self._completers: dict[str, Completer] = {
            "parameter": WordCompleter(lambda: [*parameters()], sentence=True),
            "thread": WordCompleter(lambda: [*threads()], sentence=True),
            "system": WordCompleter([*SYSTEM_PARAMETERS, "off"], sentence=True),
            "file": PathCompleter(expanduser=True),
        }

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """The completions of the text before the cursor."""
        text = document.text_before_cursor
        name, has_arguments, rest = text.removeprefix("/").partition(" ")
        if not text.startswith("/"):
            return ()
        if not has_arguments:
            words = [f"/{one}{' ' * (' ' in command.usage)}" for one, command in COMMANDS.items()]
            return WordCompleter(words, sentence=True).get_completions(document, complete_event)
        completer = self._completers.get(COMMANDS[name].completes) if name in COMMANDS else None
        return completer.get_completions(Document(rest), complete_event) if completer else ()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith(CONTINUED):
            buffer.delete_before_cursor(len(CONTINUED))
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    return keys
