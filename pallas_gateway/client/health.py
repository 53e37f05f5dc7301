"""`pallas-gateway health`: `get_health` of one agent or of all; the worst answer decides the exit code."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.agent_client import health_document
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
from pallas_gateway.client.health_view import HealthAnswer, MemoryUse, print_answers, rows_of, watching
from pallas_gateway.client.output import result
from pallas_gateway.client.usage import UsageError
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from pallas_gateway.client.health_view import HealthAnswers

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
    memory = MemoryUse()
    with watching(Console(highlight=False, markup=False)) as show:
        while True:
            now = datetime.now().astimezone().strftime("%H:%M:%S")
            heading = f"{asking.url} at {now}" + (f": {asking.problem} Shown is what was." if asking.problem else "")
            show(memory.recall(rows_of(asking.latest), now), heading)
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
