"""What may be written at the prompt: a message, or one of the commands. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Literal

from pallas_gateway.cli.usage import UsageError
from pallas_gateway.config.problems import did_you_mean

Completes = Literal["nothing", "parameter", "thread", "image", "system", "file"]


@dataclass(frozen=True, slots=True)
class Command:
    """One command; `completes` is what Tab offers behind it."""

    name: str
    arguments: str
    does: str
    completes: Completes = "nothing"

    @property
    def usage(self) -> str:
        """As one writes it."""
        return f"/{self.name} {self.arguments}".rstrip()


COMMANDS = {
    command.name: command
    for command in (
        Command("set", "[NAME [VALUE]]", "set a parameter of the next calls; alone: show which there are", "parameter"),
        Command("unset", "[NAME]", "take a parameter back; alone: all", "parameter"),
        Command("system", "[append|override] [TEXT|off]", "add to the agent's instruction, or replace it", "system"),
        Command("tools", "", "the agent's tools, how it and its servers are, and what it used in this thread"),
        Command("image", "PATH [TEXT]|off", "send an image with TEXT, or with the next message", "image"),
        Command("clear", "", "begin a new thread; the present one is kept"),
        Command("save", "NAME", "give the thread a name"),
        Command("threads", "", "list the threads with this agent"),
        Command("resume", "[NAME]", "go on with a thread, by name or number; alone: the latest other one", "thread"),
        Command("export", "[FILE]", "the thread as Markdown, or as JSON into a FILE.json", "file"),
        Command("help", "", "this list"),
        Command("quit", "", "leave; so does Ctrl-D"),
    )
}
KEYS = (
    ("Enter", "send"),
    ("Alt-Enter, or \\ before Enter", "a new line"),
    ("Ctrl-C", "cancel the answer, or the line"),
    ("//…", "a message that begins with /"),
)


@dataclass(frozen=True, slots=True)
class Order:
    """A command that was given, and the rest of the line."""

    command: Command
    rest: str


def read(line: str) -> Order | str:
    """The command in a line, or else the message.

    Raises:
        UsageError: there is no such command; says which there are.
    """
    if line.startswith("//") or not line.startswith("/"):
        return line.removeprefix("/") if line.startswith("//") else line
    name, rest = _first_word(line[1:])
    if name not in COMMANDS:
        known = ", ".join(f"/{one}" for one in COMMANDS)
        near = did_you_mean(f"/{name}", [f"/{one}" for one in COMMANDS])
        raise UsageError(
            f"No command '/{name}'{near}. There are: {known}. A message that begins with / begins with //."
        )
    return Order(COMMANDS[name], rest)


def two_words(rest: str) -> tuple[str, str]:
    """The first word, and what follows it."""
    return _first_word(rest)


def path_and_text(rest: str) -> tuple[Path, str]:
    """A path, in quotes or with backslashes where it holds spaces, and what follows it.

    Raises:
        UsageError: there is none, or a quote is left open.
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


def name_in(rest: str) -> str:
    """The name for a thread.

    Raises:
        UsageError: it is none.
    """
    if not rest or rest.startswith("#") or not rest.isprintable() or len(rest) > LONGEST_NAME:
        raise UsageError(f"A thread's name is 1 to {LONGEST_NAME} characters on one line, and begins with no #.")
    return rest


LONGEST_NAME = 80


def _first_word(text: str) -> tuple[str, str]:
    first, *rest = text.split(maxsplit=1) or [""]
    return first, rest[0].strip() if rest else ""
