"""`pallas-gateway health`: `get_health` of one agent or of all; the worst answer decides the exit code."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pallas_gateway.cli.address import UrlOption, gateway_url
from pallas_gateway.cli.health_view import Answer, Memory, print_answers, rows_of, watching
from pallas_gateway.cli.output import result
from pallas_gateway.cli.remote import (
    NOTHING_SHOWN,
    BearerOption,
    NoAccessError,
    RefusedError,
    RemoteAgent,
    UnavailableError,
    UnreachableError,
    connected,
    fetch_agents,
    find_agent,
)
from pallas_gateway.cli.usage import UsageError
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from pallas_gateway.cli.health_view import Answers

NO_ACCESS = "no access"
ROUND_SECONDS = 20.0
"""How long one agent may take to answer; the gateway's own limits are far below."""


class NoAgentsError(GatewayError):
    """A gateway that lists nothing to be asked; nothing is known to be well then."""

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
    """Ask agents of a running gateway how they are: exit 0 if all that you may see are ok, else 1."""
    if watch and as_json:
        raise UsageError("--watch draws a table; use --json without it.")
    asking = Asking(agent, gateway_url(url), bearer)
    if watch:
        _watch(asking, interval)
    else:
        _show(asyncio.run(asking.ask()), as_json=as_json)
    if not asking.is_well:
        raise typer.Exit(1)


def _show(answers: Answers, *, as_json: bool) -> None:
    if as_json:
        result(json.dumps({name: answer.document for name, answer in answers.items()}, indent=2))
    else:
        print_answers(answers)


@dataclass
class Asking:
    """Whom to ask, as whom, what they answered last, and why a later round got no answers."""

    agent: str | None
    url: str
    bearer: str | None = field(default=None, repr=False)
    latest: Answers = field(default_factory=dict)
    problem: str | None = None

    @property
    def is_well(self) -> bool:
        """True if the last round found at least one agent that the caller may see, and all of them were ok."""
        seen = {answer.status for answer in self.latest.values()} - {NO_ACCESS}
        return self.problem is None and seen == {"ok"}

    async def ask_again(self) -> None:
        """One more round; a gateway that is gone is a `problem`, and the latest answers stay.

        Raises:
            RefusedError: it wants another token, which waiting does not bring.
        """
        try:
            await self.ask()
            self.problem = None
        except (UnreachableError, UnavailableError, NoAgentsError, UsageError) as error:
            self.problem = str(error)

    async def ask(self) -> Answers:
        """One round.

        Raises:
            NoAgentsError: it shows no agents, or none to the holder of this token.
            RefusedError: it wants another token, or (`UnavailableError`) answers nobody for now.
            UnreachableError: no gateway answers.
            UsageError: it has no such agent.
        """
        agents = await fetch_agents(self.url, self.bearer)
        if not agents and self.agent is None:
            raise NoAgentsError(f"Nobody to ask: {NOTHING_SHOWN}")
        asked = agents if self.agent is None else [find_agent(agents, self.agent)]
        answers = await asyncio.gather(*(_health_of(agent, self.bearer) for agent in asked))
        self.latest = {agent.name: answer for agent, answer in zip(asked, answers, strict=True)}
        return self.latest


def _watch(asking: Asking, interval: float) -> None:
    """Until Ctrl-C; the first round must find a gateway, later ones wait for it to come back."""
    try:
        asyncio.run(ask_for_ever(asking, interval))
    except KeyboardInterrupt:
        sys.stdout.flush()


async def ask_for_ever(asking: Asking, interval: float) -> None:
    """Ask every `interval` seconds and show what was answered; a gateway that goes away is waited for.

    Raises:
        RefusedError: it wants another token, in whichever round.
        GatewayError: whatever else `Asking.ask` raises, in the first round.
    """
    await asking.ask()
    memory = Memory()
    with watching(Console(highlight=False, markup=False)) as show:
        while True:
            now = datetime.now().astimezone().strftime("%H:%M:%S")
            heading = f"{asking.url} at {now}" + (f": {asking.problem} Shown is what was." if asking.problem else "")
            show(memory.recall(rows_of(asking.latest), now), heading)
            sys.stdout.flush()
            await asyncio.sleep(interval)
            await asking.ask_again()


async def _health_of(agent: RemoteAgent, bearer: str | None) -> Answer:
    started = monotonic()
    document = await _document_of(agent, bearer)
    return Answer(document, monotonic() - started)


async def _document_of(agent: RemoteAgent, bearer: str | None) -> dict[str, Any]:
    try:
        async with asyncio.timeout(ROUND_SECONDS), connected(agent, bearer=bearer) as client:
            answer = await client.call_tool("get_health", {})
    except NoAccessError as error:
        return {"status": NO_ACCESS, "message": str(error)}
    except (UnreachableError, RefusedError) as error:
        return {"status": "error", "message": str(error)}
    except TimeoutError:
        return {"status": "error", "message": f"no answer within {ROUND_SECONDS:g} s"}
    text = "".join(getattr(block, "text", "") for block in answer.content)
    try:
        document = json.loads(text)
    except ValueError:
        return {"status": "error", "message": text}
    return document if isinstance(document, dict) else {"status": "error", "message": text}
