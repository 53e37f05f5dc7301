"""Questions of agents to the person at the client: answered by options, or at the client's terminal.

The text of servers is shown without control characters and in limited length. A page is opened only on request.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import unicodedata
import webbrowser
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pallas_gateway.calls.forms import misfit
from pallas_gateway.calls.questions import ORIGIN_META_KEY, ORIGINS_META_KEY
from pallas_gateway.client.arguments import CommandError, UsageError
from pallas_gateway.client.form_fields import NO_WORDS, FormField, fields_in, harmless
from pallas_gateway.client.gateway_client import GatewayRefusedError
from pallas_gateway.client.output import problem

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext
    from mcp_types import ElicitRequestParams, ElicitResult, InputRequiredResult, InputResponses


class PreparedAnswers:
    """The values of `--answer` by their names, and what became of them in the questions of a command.

    `declined` are the reasons why forms were declined.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._used: set[str] = set()
        self._asked: dict[str, None] = {}
        self.declined: list[str] = []

    def values_for(self, fields: Sequence[FormField]) -> tuple[dict[str, Any], list[str]]:
        """Return the values for a form by the names of its fields, and why others do not fit, as texts to show."""
        values: dict[str, Any] = {}
        unfit = []
        counts = Counter(name for field in fields for name in {field.name, field.title})
        for field in fields:
            self._asked[field.name] = None
            # By its key, else by its title if no other field has that.
            name = field.title if field.name not in self._texts and counts[field.title] == 1 else field.name
            if name not in self._texts:
                continue
            self._used.add(name)
            value = field.value_of(self._texts[name])
            if (why := field.misfit(value)) is None:
                values[field.name] = value
            else:
                unfit.append(f"--answer {name}: {why}")
        return values, unfit

    def finish(self) -> None:
        """Print a warning for each name that no question had.

        Raises:
            CommandError: a question was declined because a value does not fit.
        """
        asked = f"asked: {', '.join(self._asked)}" if self._asked else "no form was asked"
        for name in self._texts:
            if name not in self._used:
                problem(harmless(f"--answer {name}: no question had this field ({asked})"))
        if self.declined:
            reasons = "; ".join(dict.fromkeys(self.declined))
            raise CommandError(harmless(f"A question was declined: {reasons}."))


type Read = Callable[[str, bool], Awaitable[str]]
"""Reads a line at a prompt; with True, without showing it. Raises `EOFError` when the person ends the input."""

_APPROVED = {"decision": "once"}
_DECISIONS = {"y": "once", "yes": "once", "n": "deny", "no": "deny"}
"""Words for decisions besides their own."""


class Person:
    """Answers questions: by `answers` (fields) and `approve` (globs over tools), else by what is read at a terminal.

    Questions that are open together are asked one after the other. Without `read`, a question that the options do not
    answer, or answer by a value that does not fit, is declined. `answers` approve no tool.
    """

    def __init__(self, answers: Mapping[str, str], approve: Sequence[str], read: Read | None) -> None:
        self.pause: Callable[[], AbstractContextManager[object]] = nullcontext
        self.open_page: Callable[[str], object] = webbrowser.open
        self._given = PreparedAnswers(answers)
        self._approve = approve
        self._read = read
        self._asking = asyncio.Lock()

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """Answer a request of the initialize era."""
        return await self.answer(params, (context.meta or {}).get(ORIGIN_META_KEY))

    async def answers_to(self, asked: InputRequiredResult) -> InputResponses:
        """Answer the questions of a result of 2026-07-28.

        Raises:
            RefusedError: the result asks for nothing that a person can answer.
        """
        from mcp_types import ElicitRequest  # noqa: PLC0415  other commands need no MCP

        origins = (asked.meta or {}).get(ORIGINS_META_KEY)
        responses: InputResponses = {}
        for id_, request in (asked.input_requests or {}).items():
            if isinstance(request, ElicitRequest):
                origin = origins.get(id_) if isinstance(origins, dict) else None
                responses[id_] = await self.answer(request.params, origin)
        if not responses:
            raise GatewayRefusedError("The agent's endpoint requires input of a kind that this client does not offer.")
        return responses

    def finish(self) -> None:
        """Print, at the end of a command, a warning for each of `answers` that no question had.

        Raises:
            CommandError: a question was declined because one of `answers` does not fit.
        """
        self._given.finish()

    async def answer(self, params: ElicitRequestParams, origin: object = None) -> ElicitResult:
        """Return the answer to an elicitation; `origin` is what the gateway says of it, which no server can write."""
        from mcp_types import ElicitRequestURLParams, ElicitResult  # noqa: PLC0415  other commands need no MCP

        answering: Callable[[], Awaitable[dict[str, Any] | None]]
        if isinstance(params, ElicitRequestURLParams):
            answering = partial(self._open, params.url)
        elif (tool := _tool_under_approval(origin)) is None:
            answering = partial(self._fill_in, list(fields_in(params.requested_schema)), self._given)
        elif self._approves(tool, params.requested_schema):
            return ElicitResult(action="accept", content={**_APPROVED})
        else:
            answering = partial(self._decide, list(fields_in(params.requested_schema)), tool)
        async with self._asking:
            with self.pause():
                problem(f"\n{harmless(params.message)}")
                try:
                    return ElicitResult(action="accept", content=await answering())
                except _DeclinedError as declined:
                    problem(f"(declined{harmless(f': {why}') if (why := str(declined)) else ''})")
                    return ElicitResult(action="decline")
                except (EOFError, KeyboardInterrupt):
                    problem("(cancelled)")
                    return ElicitResult(action="cancel")

    def _approves(self, tool: str, schema: Mapping[str, Any]) -> bool:
        return misfit(schema, _APPROVED) is None and any(fnmatchcase(tool, glob) for glob in self._approve)

    async def _open(self, url: str) -> None:
        """Open a page.

        Raises:
            _DeclinedError: it must not be opened.
        """
        problem(f"Page: {harmless(url)}")
        if (host := host_of(url)) is None:
            problem("(not opened: it is no address of a web page, or browsers may read its host in another way)")
            raise _DeclinedError
        await self._consent(f"Open {host} in the browser? [y/N] ")
        if not self.open_page(url):
            problem("(no browser was found: open the page yourself)")

    async def _decide(self, fields: Sequence[FormField], tool: str) -> dict[str, Any]:
        """Return a person's decision on a tool.

        Raises:
            _DeclinedError: there is no terminal.
        """
        if self._read is None:
            raise _DeclinedError(f"--approve {shlex.quote(tool)} approves this tool")
        return await self._fill_in(fields, PreparedAnswers({}), _DECISIONS)

    async def _fill_in(
        self, fields: Sequence[FormField], given: PreparedAnswers, words: Mapping[str, str] = NO_WORDS
    ) -> dict[str, Any]:
        """Return the values of a form; `words` are others for typed values.

        Raises:
            _DeclinedError: neither a person nor `given` answers it.
        """
        values, unfit = given.values_for(fields)
        if not fields:  # the message is the question
            await self._consent("Accept? [y/N] ")
        elif self._read is None and unfit:
            given.declined += unfit
            raise _DeclinedError("; ".join(unfit))
        elif self._read is None and not values:
            raise _DeclinedError
        for why in unfit:
            problem(f"({harmless(why)})")
        content = {
            field.name: values[field.name] if field.name in values else await self._value(field, words)
            for field in fields
        }
        return {name: value for name, value in content.items() if value is not None}

    async def _consent(self, prompt: str) -> None:
        if self._read is None or (await self._read(prompt, False)).strip() != "y":
            raise _DeclinedError

    async def _value(self, field: FormField, words: Mapping[str, str]) -> Any:
        """Return the value of a field, None for one that is left out.

        Raises:
            EOFError: the person has ended the input.
            _DeclinedError: the options give no value, and the form cannot be sent without it.
        """
        default = field.default
        while self._read is not None:
            text = (await self._read(field.prompt(words), field.is_hidden)).strip()
            if not text and (default is not None or not field.is_required):
                return default
            value = field.value_typed(words.get(text.casefold(), text))
            if (why := field.misfit(value)) is None:
                return value
            problem(f"({harmless(why)})")
        if default is None and field.is_required:
            raise _DeclinedError(f"{field.title} has no --answer and no default")
        return default


class _DeclinedError(Exception):
    """The question is not accepted; the text is the reason, if it is not the person's decision."""


def _tool_under_approval(origin: object) -> str | None:
    if not isinstance(origin, Mapping) or origin.get("kind") != "approval":
        return None
    return str(origin.get("tool"))


def person_for(answers: Sequence[str], approve: Sequence[str], *, asks: bool) -> Person | None:
    """Return who answers the questions of a call; None declares that this client cannot be asked.

    Raises:
        UsageError: an answer is not `FIELD=VALUE`, a tool not `SERVER/TOOL`, or one is given although nothing is asked.
    """
    if not asks and (answers or approve):
        raise UsageError("--no-ask declines every question: give it without --answer and --approve.")
    for glob in approve:
        if "/" not in glob:
            raise UsageError(
                f"--approve {glob}: write SERVER/TOOL, such as '*/{glob}'; '*' and '?' match any characters."
            )
    given = dict(_pair(one) for one in answers)
    read = _read_line if sys.stdin.isatty() and sys.stderr.isatty() else None
    if not asks or (read is None and not given and not approve):
        return None
    return Person(given, approve, read)


def host_of(url: str) -> str | None:
    """Return the host of a web page as every browser reads it; None if the address is another, or ambiguous."""
    if "\\" in url or any(one.isspace() or unicodedata.category(one)[0] == "C" for one in url):
        return None  # browsers read a backslash as a slash
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.scheme in {"http", "https"} else None
    except ValueError:
        return None
    # Browsers decode percent signs, and letters beyond ASCII by rules of their own; `xn--` shows that there are some.
    return host if host and host.isascii() and "%" not in host else None


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
