"""The commands at the prompt: one function each, registered in `COMMANDS` with its usage and its line of `/help`."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal

from pallas_gateway.client.agent_client import health_document
from pallas_gateway.client.arguments import UsageError, image_of
from pallas_gateway.client.call_settings import (
    SYSTEM_PARAMETERS,
    described,
    name_in,
    schema_of,
    system_parameter,
    table_of,
    value_of,
)
from pallas_gateway.client.chat.chat_turns import (
    RECALLED_TURNS,
    Chat,
    ChatThread,
    as_json,
    as_markdown,
    listed,
    recalled,
)
from pallas_gateway.client.gateway_api import fetch_server_tools
from pallas_gateway.client.health import HealthAnswer, print_answers
from pallas_gateway.client.output import counted, one_line, table
from pallas_gateway.config.problems import nearest, suggesting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from pallas_gateway.client.chat.conversation import Conversation

    type Run = Callable[[Conversation, str], Awaitable[None]]

type Completes = Literal["nothing", "parameter", "thread", "file", "system"]

LONGEST_NAME = 80
LONGEST_DESCRIPTION = 100
KEYS = (
    ("Enter", "send"),
    ("Alt-Enter, or \\ before Enter", "a new line"),
    ("Ctrl-C", "cancel the answer, or the line"),
    ("//…", "a message that begins with /"),
)
_OFF = "off"


@dataclass(frozen=True, slots=True)
class Command:
    """One command; Tab completes its arguments with what `completes` names."""

    usage: str
    does: str
    completes: Completes
    run: Run


COMMANDS: dict[str, Command] = {}


def _command(usage: str, does: str, completes: Completes = "nothing") -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        COMMANDS[usage.split(maxsplit=1)[0].removeprefix("/")] = Command(usage, does, completes, run)
        return run

    return register


def read(line: str) -> tuple[Command, str] | tuple[None, str]:
    """The command in a line and its arguments, or None and the message.

    Raises:
        UsageError: there is no such command.
    """
    if line.startswith("//") or not line.startswith("/"):
        return None, line.replace("//", "/", 1) if line.startswith("//") else line
    name, rest = _first_word(line[1:])
    if name not in COMMANDS:
        meant = nearest(name, COMMANDS)  # without the slash, by which all commands are similar
        raise UsageError(
            f"No command '/{name}'{suggesting(f'/{meant}' if meant else None)}. "
            f"There are: {', '.join(f'/{one}' for one in COMMANDS)}. A message that begins with / begins with //."
        )
    return COMMANDS[name], rest


@_command("/set [NAME [VALUE]]", "set a parameter of the next calls; alone: show which there are", "parameter")
async def _set(conversation: Conversation, rest: str) -> None:
    name, value = _first_word(rest)
    offered, chosen = conversation.capabilities.parameters, conversation.parameters
    name = name_in(offered, name)
    if not name:
        rows = table_of(chosen, offered)
        if not rows:
            raise UsageError("This agent takes no parameters from its callers.")
        table("PARAMETER", "VALUE", "TAKES", rows=rows)
    elif not value:
        schema = schema_of(name, offered)
        now = _shown({name: chosen[name]}) if name in chosen else f"{name} is not set"
        conversation.screen.print(f"{now}. It takes {described(schema)}. {schema.get('description', '')}".rstrip())
    else:
        chosen[name] = value_of(name, value, offered)
        conversation.screen.note(_shown({name: chosen[name]}))


@_command("/unset [NAME]", "take a parameter back; alone: all", "parameter")
async def _unset(conversation: Conversation, rest: str) -> None:
    chosen = conversation.parameters
    wanted = name_in(chosen, rest)
    if wanted and wanted not in chosen:
        raise UsageError(f"'{rest}' is not set. Set are: {', '.join(chosen) or 'none'}.")
    for name in [wanted] if wanted else [*chosen]:
        del chosen[name]
    conversation.screen.note(f"Set now: {_shown(chosen) or 'nothing'}")


@_command("/system [append|override] [TEXT|off]", "add to the agent's instruction, or replace it", "system")
async def _system(conversation: Conversation, rest: str) -> None:
    chosen = conversation.parameters
    first, text = _first_word(rest)
    kind = first if first in SYSTEM_PARAMETERS and text else None
    text = text if kind else rest
    if text == _OFF:
        for name in [SYSTEM_PARAMETERS[kind]] if kind else SYSTEM_PARAMETERS.values():
            chosen.pop(name, None)
    elif text:
        chosen[system_parameter(kind, conversation.capabilities.parameters)] = text
    present = {name: chosen[name] for name in SYSTEM_PARAMETERS.values() if name in chosen}
    conversation.screen.note(_shown(present) or "The agent's own instruction, as it is.")


@_command("/tools", "the tools of the agent's servers, how they are, and what it used in this thread")
async def _tools(conversation: Conversation, _rest: str) -> None:
    screen, began = conversation.screen, monotonic()
    async with conversation.client.open(screen) as connection:
        conversation.capabilities = connection.capabilities
        health = {
            conversation.client.agent: HealthAnswer(await health_document(connection.client), monotonic() - began)
        }
    client = conversation.client
    tools = await fetch_server_tools(client.url, client.agent, client.bearer)
    if tools:
        table(
            "SERVER",
            "TOOL",
            "DOES",
            rows=[(server, tool, one_line(does, LONGEST_DESCRIPTION)) for server, tool, does in tools],
        )
    else:
        screen.note("No servers." if tools == [] else "The gateway lists the tools of servers where its console is on.")
    screen.print("")
    print_answers(health)
    used = Counter(tool for turn in await conversation.turns() for tool in turn.tools)
    if used:
        screen.print("")
        table("USED IN THIS THREAD", "TIMES", rows=[(tool, str(times)) for tool, times in used.most_common()])


@_command("/image PATH [TEXT]|off", "send an image or a PDF with TEXT, or with the next message", "file")
async def _image(conversation: Conversation, rest: str) -> None:
    if rest == _OFF:
        conversation.images = []
        conversation.screen.note("No image will go with your next message.")
        return
    path, text = path_and_text(rest)
    image = image_of(path)
    if image not in conversation.images:  # it is there already if its message got no answer and is sent again
        conversation.images.append(image)
    if text:
        await conversation.send(text)
    else:
        conversation.screen.note(f"{counted(len(conversation.images), 'image')} will go with your next message.")


@_command("/clear", "begin a new thread; the present one is kept")
async def _clear(conversation: Conversation, _rest: str) -> None:
    before = conversation.thread
    await conversation.switch_to(None)
    kept = f" The one before is kept: /resume {before.label}" if before is not None else ""
    conversation.screen.note(f"A new thread begins with your next message.{kept}")


@_command("/save NAME", "give the thread a name")
async def _save(conversation: Conversation, rest: str) -> None:
    name = thread_name(rest)
    await conversation.save(name)
    conversation.screen.note(f"This thread is '{name}'; `--resume {shlex.quote(name)}` goes on with it.")


@_command("/threads", "list the threads with this agent")
async def _threads(conversation: Conversation, _rest: str) -> None:
    threads = await conversation.threads()
    if threads:
        table("", "THREAD", "TURNS", "LAST (UTC)", "BEGINS", rows=listed(threads, conversation.thread))
    else:
        conversation.screen.note(f"No threads with {conversation.client.agent} yet.")


@_command("/resume [NAME]", "go on with a thread, by name or id; alone: the latest other one", "thread")
async def resume(conversation: Conversation, name: str) -> None:
    """Continue a thread and show its end; without a name the latest thread other than the present one.

    Raises:
        UsageError: there is no such thread.
    """
    agent = conversation.client.agent
    if name:
        thread = await conversation.find(name)
    else:
        others = (one for one in await conversation.threads() if not conversation.is_present(one))
        thread = next(others, None)
    if thread is None and name:
        raise UsageError(f"No thread '{name}' with {agent}. There are: {', '.join(conversation.labels) or 'none'}.")
    if thread is None:
        raise UsageError(f"There is no {'other ' if conversation.thread else ''}thread with {agent} to resume.")
    await go_on(conversation, thread)


async def go_on(conversation: Conversation, thread: ChatThread) -> None:
    """Continue a thread and show its end."""
    screen = conversation.screen
    turns = await conversation.switch_to(thread)
    screen.note(f"Thread {thread.label}, {counted(len(turns), 'turn')}.")
    if (hidden := len(turns) - RECALLED_TURNS) > 0:
        screen.note(f"({counted(hidden, 'earlier turn')} not shown; /export shows all)")
    for line in recalled(turns, conversation.client.agent):
        screen.note(line)
    if conversation.parameters:
        screen.note(f"Its parameters: {_shown(conversation.parameters)}")
    await conversation.catch_up(turns)


@_command("/export [FILE]", "the thread as Markdown, or as JSON into a FILE.json", "file")
async def _export(conversation: Conversation, rest: str) -> None:
    if conversation.thread is None:
        raise UsageError("Nothing has been said yet.")
    path = path_and_text(rest)[0] if rest else None
    form = as_json if path is not None and path.suffix == ".json" else as_markdown
    thread = conversation.thread
    text = form(Chat(*conversation.place, thread.id, thread.name, tuple(await conversation.turns())))
    if path is None:
        conversation.screen.print(text)
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{text}\n")
    except FileExistsError as error:
        raise UsageError(f"{path} is there already, nothing was written.") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    conversation.screen.note(f"Written to {path}.")


@_command("/help", "this list")
async def _help(_conversation: Conversation, _rest: str) -> None:
    rows = [(command.usage, command.does) for command in COMMANDS.values()]
    table("COMMAND OR KEY", "DOES", rows=[*rows, *KEYS])


@_command("/exit", "the same as /quit")
@_command("/quit", "leave; so does Ctrl-D")
async def _quit(_conversation: Conversation, _rest: str) -> None:
    raise EOFError


def path_and_text(rest: str) -> tuple[Path, str]:
    """A path, quoted or escaped where it holds spaces, and the text after it.

    Raises:
        UsageError: the path is missing, or a quote is left open.
    """
    stream = StringIO(rest)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        first = lexer.get_token()
    except ValueError as error:
        raise UsageError(f"{rest:.60}: a quote is left open.") from error
    if not first:
        raise UsageError(f"Which file? {COMMANDS['image'].usage}")
    return Path(first).expanduser(), stream.read().strip()


def thread_name(rest: str) -> str:
    """The text, if it can name a thread.

    Raises:
        UsageError: it cannot.
    """
    if not rest or rest.startswith("#") or not rest.isprintable() or len(rest) > LONGEST_NAME:
        raise UsageError(f"A thread's name is 1 to {LONGEST_NAME} characters on one line, and begins with no #.")
    return rest


def _first_word(text: str) -> tuple[str, str]:
    first, *rest = text.split(maxsplit=1) or [""]
    return first, rest[0].strip() if rest else ""


def _shown(parameters: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in parameters.items())
