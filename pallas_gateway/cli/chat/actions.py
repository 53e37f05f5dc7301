"""What each command does to a conversation."""

from __future__ import annotations

import json
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.cli.attachments import image_of
from pallas_gateway.cli.chat import export
from pallas_gateway.cli.chat.commands import COMMANDS, KEYS, Order, name_in, path_and_text, two_words
from pallas_gateway.cli.chat.screen import harmless
from pallas_gateway.cli.health_view import Answer, print_answers
from pallas_gateway.cli.output import table
from pallas_gateway.cli.parameters import (
    SYSTEM_PARAMETERS,
    described,
    schema_of,
    system_parameter,
    table_of,
    value_of,
)
from pallas_gateway.cli.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pallas_gateway.cli.chat.conversation import Conversation
    from pallas_gateway.cli.chat.turns import Thread

_OFF = "off"


class QuitError(Exception):
    """The user is done."""


async def carry_out(order: Order, talk: Conversation) -> None:
    """Do it.

    Raises:
        UsageError: it cannot be done like that.
        GatewayError: it failed.
        QuitError: it was `/quit`.
    """
    await _ACTIONS[order.command.name](talk, order.rest)


def resumed(talk: Conversation, name: str | None) -> None:
    """Go on with a thread and show its end; without a name with the one that was talked in last, but not the present.

    Raises:
        UsageError: there is none.
    """
    thread = _found(talk, name)
    talk.turn_to(thread)
    turns = talk.turns()
    talk.screen.note(f"Thread {thread.label}, {len(turns)} turn{'' if len(turns) == 1 else 's'}.")
    if (hidden := len(turns) - export.RECALLED_TURNS) > 0:
        talk.screen.note(f"({hidden} earlier turn{'' if hidden == 1 else 's'} not shown; /export shows all)")
    for line in export.recalled(turns, talk.line.agent):
        talk.screen.note(line)
    talk.tell_what_fits()
    if talk.parameters:
        talk.screen.note(f"Its parameters: {_shown(talk.parameters)}")


def _found(talk: Conversation, name: str | None) -> Thread:
    summaries = talk.store.summaries(talk.place)
    if name:
        found = talk.store.find(talk.place, name)
        if found is None:
            known = ", ".join(one.thread.label for one in summaries)
            raise UsageError(f"No thread '{name}' with {talk.line.agent}. There are: {known or 'none'}.")
        return found
    others = [one.thread for one in summaries if talk.thread is None or one.thread.id != talk.thread.id]
    if not others:
        raise UsageError(f"There is no {'other ' if talk.thread else ''}thread with {talk.line.agent} to resume.")
    return others[0]


async def _set(talk: Conversation, rest: str) -> None:
    name, value = two_words(rest)
    offered = talk.capabilities.parameters
    if not name:
        rows = table_of(talk.parameters, offered)
        if not rows:
            raise UsageError("This agent takes no parameters from its callers.")
        table("PARAMETER", "VALUE", "TAKES", rows=rows)
        return
    if not value:
        schema = schema_of(name, offered)
        now = _shown({name: talk.parameters[name]}) if name in talk.parameters else f"{name} is not set"
        talk.screen.say(f"{now}. It takes {described(schema)}. {schema.get('description', '')}".rstrip())
        return
    talk.parameters[name] = value_of(name, value, offered)
    talk.screen.note(_shown({name: talk.parameters[name]}))


async def _unset(talk: Conversation, rest: str) -> None:
    if not rest:
        talk.parameters.clear()
    elif rest in talk.parameters:
        del talk.parameters[rest]
    else:
        raise UsageError(f"'{rest}' is not set. Set are: {', '.join(talk.parameters) or 'none'}.")
    talk.screen.note(f"Set now: {_shown(talk.parameters) or 'nothing'}")


async def _system(talk: Conversation, rest: str) -> None:
    first, text = two_words(rest)
    kind = first if first in SYSTEM_PARAMETERS and text else None
    text = text if kind else rest
    if text == _OFF:
        for name in [SYSTEM_PARAMETERS[kind]] if kind else SYSTEM_PARAMETERS.values():
            talk.parameters.pop(name, None)
    elif text:
        talk.parameters[system_parameter(kind, talk.capabilities.parameters)] = text
    present = {name: talk.parameters[name] for name in SYSTEM_PARAMETERS.values() if name in talk.parameters}
    talk.screen.note(_shown(present) or "The agent's own instruction, as it is.")


async def _tools(talk: Conversation, _rest: str) -> None:
    began = monotonic()
    async with talk.line.open() as connection:
        talk.capabilities = connection.capabilities
        tools = await connection.tools()
        document = await connection.health()
    table("TOOL", "DOES", rows=[(harmless(tool.name), harmless(_in_a_line(tool.description))) for tool in tools])
    talk.screen.say("")
    print_answers({talk.line.agent: Answer(document, monotonic() - began)})
    used = Counter(tool for turn in talk.turns() for tool in turn.tools)
    if used:
        talk.screen.say("")
        table("USED IN THIS THREAD", "TIMES", rows=[(tool, str(times)) for tool, times in used.most_common()])


def _in_a_line(text: str | None) -> str:
    return " ".join((text or "").split())


async def _image(talk: Conversation, rest: str) -> None:
    if rest == _OFF:
        talk.images = []
        talk.screen.note("No image will go with your next message.")
        return
    path, text = path_and_text(rest)
    image = image_of(path)
    if image not in talk.images:  # it is still there when its message got no answer and is sent again
        talk.images.append(image)
    if text:
        await talk.say(text)
        return
    talk.screen.note(f"{images_told(len(talk.images))} will go with your next message.")


async def _clear(talk: Conversation, _rest: str) -> None:
    before = talk.thread
    talk.turn_to(None)
    kept = f" The one before is kept: /resume {before.label}" if before is not None else ""
    talk.screen.note(f"A new thread begins with your next message.{kept}")


async def _save(talk: Conversation, rest: str) -> None:
    name = name_in(rest)
    if talk.thread is not None:
        talk.thread = talk.store.name_thread(talk.place, talk.thread, name)
    elif talk.store.find(talk.place, name) is not None:
        raise UsageError(f"There is a thread '{name}' already; /resume {name} continues it.")
    else:
        talk.name = name
    talk.screen.note(f"This thread is '{name}'; `--resume {name}` goes on with it.")


async def _threads(talk: Conversation, _rest: str) -> None:
    summaries = talk.store.summaries(talk.place)
    if not summaries:
        talk.screen.note(f"No threads with {talk.line.agent} yet.")
        return
    table("", "THREAD", "TURNS", "LAST (UTC)", "BEGINS", rows=export.listed(summaries, talk.thread))


async def _resume(talk: Conversation, rest: str) -> None:
    resumed(talk, rest or None)


async def _export(talk: Conversation, rest: str) -> None:
    if talk.thread is None:
        raise UsageError("Nothing has been said yet.")
    if not rest:
        talk.screen.say(export.as_markdown(talk.place, talk.thread, talk.turns()))
        return
    path = path_and_text(rest)[0]
    form = export.as_json if path.suffix == ".json" else export.as_markdown
    text = form(talk.place, talk.thread, talk.turns())
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{text}\n")
    except FileExistsError as error:
        raise UsageError(f"{path} is there already, nothing was written.") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    talk.screen.note(f"Written to {path}.")


async def _help(_talk: Conversation, _rest: str) -> None:
    rows = [(command.usage, command.does) for command in COMMANDS.values()]
    table("COMMAND OR KEY", "DOES", rows=[*rows, *KEYS])


async def _quit(_talk: Conversation, _rest: str) -> None:
    raise QuitError


def _shown(parameters: dict[str, object]) -> str:
    return ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in parameters.items())


def images_told(count: int) -> str:
    """How many images, in words."""
    return "1 image" if count == 1 else f"{count} images"


_ACTIONS: dict[str, Callable[[Conversation, str], Awaitable[None]]] = {
    "set": _set,
    "unset": _unset,
    "system": _system,
    "tools": _tools,
    "image": _image,
    "clear": _clear,
    "save": _save,
    "threads": _threads,
    "resume": _resume,
    "export": _export,
    "help": _help,
    "quit": _quit,
}
