"""Questions of agents to the person at the client: answered by options, or at the client's terminal.

Whatever a server wrote is shown without control characters and in limited length. A page is opened only on request.
"""

from __future__ import annotations

import asyncio
import re
import sys
import unicodedata
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pallas_gateway.calls.forms import choices_of, fields_of, misfit, required_in
from pallas_gateway.cli.output import problem
from pallas_gateway.cli.usage import UsageError
from pallas_gateway.config.loading.secret_values import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mcp_types import ElicitRequestParams, ElicitResult

type Read = Callable[[str, bool], Awaitable[str]]
"""Reads a line at a prompt; with True, without showing it. Raises `EOFError` when the person ends the input."""

LONGEST_TEXT, MOST_CHOICES = 20_000, 50
_APPROVAL = re.compile(r"(?P<agent>[A-Za-z0-9_.-]+): May the tool (?P<tool>\S+) run with these arguments\?\n")
_WORDS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


class Person:
    """Answers questions: by `answers` (fields) and `approve` (globs over tools), else by what is read at a terminal.

    `agents` are the names of the gateway's agents: only they ask for approvals. Without `read`, a question that the
    options do not answer is declined.
    """

    def __init__(
        self, answers: Mapping[str, str], approve: Sequence[str], agents: Collection[str], read: Read | None
    ) -> None:
        self.pause: Callable[[], AbstractContextManager[object]] = nullcontext
        self.open_page: Callable[[str], object] = webbrowser.open
        self._answers = answers
        self._approve = approve
        self._agents = agents
        self._read = read
        self._asking = asyncio.Lock()

    async def __call__(self, context: object, params: ElicitRequestParams) -> ElicitResult:
        """Return the answer to an elicitation."""
        from mcp_types import ElicitRequestURLParams, ElicitResult  # noqa: PLC0415  other commands need no MCP

        del context
        if self._approves(params.message):
            return ElicitResult(action="accept", content={"decision": "once"})
        async with self._asking:  # tools that run at once may ask at once
            with self.pause():
                problem(f"\n{harmless(params.message)}")
                try:
                    if isinstance(params, ElicitRequestURLParams):
                        return ElicitResult(action="accept" if await self._opened(params.url) else "decline")
                    fields = fields_of(params.requested_schema)
                    if not await self._consents(fields):
                        return ElicitResult(action="decline")
                    return ElicitResult(action="accept", content=await self._filled(fields, params.requested_schema))
                except _NoValueError:
                    problem("(declined)")
                    return ElicitResult(action="decline")
                except (EOFError, KeyboardInterrupt):
                    problem("(cancelled)")
                    return ElicitResult(action="cancel")

    def _approves(self, message: str) -> bool:
        asked = _APPROVAL.match(message)
        return (
            asked is not None
            and asked["agent"] in self._agents
            and any(fnmatchcase(asked["tool"], glob) for glob in self._approve)
        )

    async def _opened(self, url: str) -> bool:
        problem(f"Page: {harmless(url)}")
        if (host := host_of(url)) is None:
            problem("(not opened: it is no address of a web page)")
            return False
        if not await self._says_yes(f"Open {host} in the browser? [y/N] "):
            return False
        self.open_page(url)
        return True

    async def _consents(self, fields: Mapping[str, Any]) -> bool:
        """Return whether a form may be filled in: no form is accepted that neither a person nor `--answer` answers."""
        if not fields:  # the message is the question
            return await self._says_yes("Accept? [y/N] ")
        return self._read is not None or any(name in self._answers for name in fields)

    async def _says_yes(self, prompt: str) -> bool:
        return self._read is not None and (await self._read(prompt, False)).strip() == "y"

    async def _filled(self, fields: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        required = required_in(schema)
        content: dict[str, Any] = {}
        for name, field in fields.items():
            field = field if isinstance(field, dict) else {}  # noqa: PLW2901  a hostile schema
            value = await self._value(name, field, is_required=name in required)
            if value is not None:
                content[name] = value
        return content

    async def _value(self, name: str, field: Mapping[str, Any], *, is_required: bool) -> Any:
        """Return the value of a field, None for one that is left out.

        Raises:
            EOFError: the person has ended the input.
            _NoValueError: the options give no value, and the form cannot be sent without it.
        """
        if name in self._answers:
            value = value_of(self._answers[name], field)
            if (why := misfit({"properties": {name: field}}, {name: value})) is None:
                return value
            problem(f"(--answer: {why})")
        default = field.get("default")
        while self._read is not None:
            hidden = field.get("format") == "password" or is_secret_name(name)
            text = (await self._read(prompt_of(name, field, is_required=is_required), hidden)).strip()
            if not text and (default is not None or not is_required):
                return default
            value = value_of(text, field)
            if (why := misfit({"properties": {name: field}}, {name: value})) is None:
                return value
            problem(f"({why})")
        if default is None and is_required:
            raise _NoValueError
        return default


class _NoValueError(Exception):
    """A form cannot be filled in."""


def person_for(answers: Sequence[str], approve: Sequence[str], agents: Collection[str], *, asks: bool) -> Person | None:
    """Return who answers the questions of a call; None declares that this client cannot be asked.

    Raises:
        UsageError: an answer is not `FIELD=VALUE`.
    """
    given = dict(_pair(one) for one in answers)
    read = _read_line if sys.stdin.isatty() and sys.stderr.isatty() else None
    if not asks or (read is None and not given and not approve):
        return None
    return Person(given, approve, agents, read)


def value_of(text: str, field: Mapping[str, Any]) -> Any:
    """Return what was typed as a value of the field's type; the text itself if it is none."""
    choices = choices_of(field) or []
    if text.isdecimal() and 1 <= int(text[:9]) <= len(choices) and text not in choices:
        return choices[int(text) - 1]
    kind = field.get("type")
    if kind == "boolean":
        return _WORDS.get(text.lower(), text)
    if kind == "array":
        return [one.strip() for one in text.split(",") if one.strip()]
    try:
        return int(text) if kind == "integer" else float(text) if kind == "number" else text
    except ValueError:
        return text


def prompt_of(name: str, field: Mapping[str, Any], *, is_required: bool) -> str:
    """Return the prompt of a field: its title and description, its choices and its default."""
    title, about = str(field.get("title") or name), field.get("description")
    lines = [f"{title} ({about})" if about else title]
    items = field.get("items")
    choices = choices_of(field) or choices_of(items if isinstance(items, dict) else {}) or []
    lines += [f"  {number}. {choice}" for number, choice in enumerate(choices[:MOST_CHOICES], 1)]
    if len(choices) > MOST_CHOICES:
        lines.append(f"  … and {len(choices) - MOST_CHOICES} more")
    default = field.get("default")
    hint = f" [{default}]" if default is not None else "" if is_required else " [leave out]"
    return harmless("\n".join(lines) + hint) + ": "


def host_of(url: str) -> str | None:
    """Return the host of a web page as every browser reads it; None if the address is another, or ambiguous."""
    if "\\" in url or any(one.isspace() or unicodedata.category(one)[0] == "C" for one in url):
        return None  # browsers read a backslash as a slash
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.scheme in {"http", "https"} else None
    except ValueError:
        return None


def harmless(text: str) -> str:
    """Return a text without control characters, bidirectional ones included, and in limited length."""
    cut = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
    return "".join(one if one == "\n" or unicodedata.category(one)[0] != "C" else "\ufffd" for one in cut)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--answer {text}: write FIELD=VALUE.")
    return name, value


async def _read_line(prompt: str, hidden: bool) -> str:
    from prompt_toolkit import PromptSession  # noqa: PLC0415  not needed where nothing is asked
    from prompt_toolkit.output import create_output  # noqa: PLC0415

    session: PromptSession[str] = PromptSession(output=create_output(stdout=sys.stderr))
    # Its own handler of SIGINT would replace the chat's; at the prompt, Ctrl-C is a key.
    return await session.prompt_async(prompt, is_password=hidden, handle_sigint=False)
