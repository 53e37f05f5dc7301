"""`pallas-gateway health`: `get_health` of one agent or of all; the worst answer decides the exit code."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.agent_client import health_document
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.gateway_client import (
    NOTHING_SHOWN,
    BearerOption,
    GatewayRefusedError,
    NoAccessError,
    RemoteAgent,
    UnavailableError,
    UnreachableError,
    connected,
    fetch_agents,
    find_agent,
)
from pallas_gateway.client.output import counted, local_time, redrawn, result, table, table_lines
from pallas_gateway.errors import GatewayError

NO_ACCESS = "no access"
ROUND_SECONDS = 20.0
"""Time limit for the answer of one agent; the gateway's own limits are far below."""


class NoAgentsError(GatewayError):
    """The gateway lists no agents."""

    reason = "no_agents"


def health(
    agent: Annotated[str | None, typer.Argument(help="One agent; without it, all.")] = None,
    url: UrlOption = None,
    bearer: BearerOption = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two rounds of --watch.")] = 5.0,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Ask again and again, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Show the health of the agents of a running gateway; exit 0 if all that you may view are ok, else 1."""
    if watch and as_json:
        raise UsageError("--watch draws a table; use --json without it.")
    asking = Asking(agent, gateway_url(url), bearer)
    try:
        answers = asyncio.run(ask_for_ever(asking, interval) if watch else asking.ask())
    except KeyboardInterrupt:
        if not watch:
            raise
        sys.stdout.flush()
    else:
        if as_json:
            result(json.dumps({name: answer.document for name, answer in answers.items()}, indent=2))
        else:
            print_answers(answers)
    if not asking.is_well:
        raise typer.Exit(1)


@dataclass
class Asking:
    """Asks the agents of one gateway, in rounds.

    Attributes:
        agent: the only agent to ask; None asks all.
        url: base URL of the gateway.
        bearer: the token to send.
        latest: the answers of the last successful round.
        problem: why a later round failed.
    """

    agent: str | None
    url: str
    bearer: str | None = field(default=None, repr=False)
    latest: HealthAnswers = field(default_factory=dict)
    problem: str | None = None

    @property
    def is_well(self) -> bool:
        """True if the last round found at least one agent that the caller may see, and all of them were ok."""
        seen = {answer.status for answer in self.latest.values()} - {NO_ACCESS}
        return self.problem is None and seen == {"ok"}

    async def ask_again(self) -> None:
        """Ask again. If the gateway is gone, this sets `problem` and keeps the latest answers.

        Raises:
            RefusedError: the gateway requires another token.
        """
        try:
            await self.ask()
            self.problem = None
        except (UnreachableError, UnavailableError, NoAgentsError, UsageError) as error:
            self.problem = str(error)

    async def ask(self) -> HealthAnswers:
        """Ask each agent once.

        Raises:
            NoAgentsError: the gateway lists no agents, or none for this token.
            RefusedError: it requires another token, or is unavailable (`UnavailableError`).
            UnreachableError: no gateway answers.
            UsageError: it has no such agent.
        """
        agents = await fetch_agents(self.url, self.bearer)
        if not agents and self.agent is None:
            raise NoAgentsError(f"No agent to ask: {NOTHING_SHOWN}")
        asked = agents if self.agent is None else [find_agent(agents, self.agent)]
        answers = await asyncio.gather(*(_health_of(agent, self.bearer) for agent in asked))
        self.latest = {agent.name: answer for agent, answer in zip(asked, answers, strict=True)}
        return self.latest


async def ask_for_ever(asking: Asking, interval: float) -> NoReturn:
    """Ask every `interval` seconds and show the answers; a gateway that goes away is waited for.

    Raises:
        RefusedError: the gateway requires another token, in any round.
        GatewayError: any other error of `Asking.ask`, in the first round.
    """
    await asking.ask()
    errors: dict[tuple[str, str], str] = {}
    with redrawn() as draw:
        while True:
            now = datetime.now().astimezone().strftime("%H:%M:%S")
            heading = f"{asking.url} at {now}" + (f": {asking.problem} Shown is what was." if asking.problem else "")
            rows = with_last_errors(rows_of(asking.latest), errors, now)
            text = "\n".join([heading, *table_lines(*_COLUMNS, rows=rows)])
            if draw is not None:
                draw(text)
            else:  # one table after the other
                result(f"{text}\n")
                sys.stdout.flush()
            await asyncio.sleep(interval)
            await asking.ask_again()


async def _health_of(agent: RemoteAgent, bearer: str | None) -> HealthAnswer:
    started = monotonic()
    try:
        async with asyncio.timeout(ROUND_SECONDS), connected(agent, bearer=bearer) as client:
            document = await health_document(client)
    except NoAccessError as error:
        document = {"status": NO_ACCESS, "message": str(error)}
    except (UnreachableError, GatewayRefusedError) as error:
        document = {"status": "error", "message": str(error)}
    except TimeoutError:
        document = {"status": "error", "message": f"no answer within {ROUND_SECONDS:g} s"}
    return HealthAnswer(document, monotonic() - started)


_COLUMNS = ("AGENT", "SERVER", "STATE", "STATUS", "LATENCY", "SINCE", "LAST ERROR")


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """The document that one agent answered, and the seconds it took."""

    document: Mapping[str, Any]
    seconds: float

    @property
    def status(self) -> str:
        """`ok`, `degraded` or `error`; `no access` if the caller may not see the agent."""
        return str(self.document.get("status"))


type HealthAnswers = Mapping[str, HealthAnswer]


class HealthRow(NamedTuple):
    """One line: an agent, one of its downstreams, or its model's provider."""

    agent: str
    server: str
    state: str
    status: str
    latency: str
    since: str
    error: str


def print_answers(answers: HealthAnswers) -> None:
    """Print a table of agents and one of their downstreams."""
    rows = rows_of(answers)
    table("AGENT", "STATUS", "MESSAGE", rows=[(row.agent, row.status, row.error) for row in rows if not row.server])
    if details := [(row.agent, row.server, *row[3:]) for row in rows if row.server]:
        result("")
        table("AGENT", "SERVER", "STATUS", "LATENCY", "SINCE", "ERROR", rows=details)


def rows_of(answers: HealthAnswers) -> list[HealthRow]:
    """Return a row for each agent, followed by those of its downstreams and provider."""
    rows = []
    for name, answer in answers.items():
        agent = _mapping(answer.document.get("agent"))
        message = str(answer.document.get("message", ""))
        state, since = _state(agent), local_time(agent.get("since"))
        rows += [HealthRow(name, "", state, answer.status, _seconds(answer.seconds), since, message)]
        rows += _parts(name, answer.document)
    return rows


def _state(agent: Mapping[str, Any]) -> str:
    state, questions = str(agent.get("state", "")), agent.get("open_questions")
    return f"{state}, {counted(questions, 'question')} open" if isinstance(questions, int) else state


def _parts(agent: str, document: Mapping[str, Any]) -> list[HealthRow]:
    parts = document.get("downstream")
    rows = [
        HealthRow(
            agent,
            str(one.get("name", "")),
            "",
            str(one.get("status", "")),
            _seconds(one.get("seconds")),
            local_time(one.get("since")),
            str(one.get("error", "")),
        )
        for one in (parts if isinstance(parts, list) else ())
        if isinstance(one, dict)
    ]
    if llm := _mapping(document.get("llm")):
        name = f"LLM {llm.get('provider', '')} {llm.get('model', '')}".rstrip()
        status, error = str(llm.get("status", "")), str(llm.get("error", ""))
        rows.append(HealthRow(agent, name, "", status, "", "", error))
    return rows


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _seconds(value: object) -> str:
    return f"{value:.3f} s" if isinstance(value, int | float) else ""


def with_last_errors(rows: Sequence[HealthRow], errors: dict[tuple[str, str], str], now: str) -> list[HealthRow]:
    """Return the rows, those without an error with their last one and its time; `errors` keeps these."""
    shown = []
    for row in rows:
        place = row.agent, row.server
        if row.error:
            errors[place] = f"{row.error} (last at {now})"
        shown.append(row if row.error else row._replace(error=errors.get(place, "")))
    return shown
