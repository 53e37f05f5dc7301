"""`pallas-gateway calls`: the running and the recent calls of a gateway, and the end of one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, NoReturn
from urllib.parse import quote

import typer
from pydantic import BaseModel, BeforeValidator, Field

from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.gateway_api import ApiRefusedError, reading, request
from pallas_gateway.client.gateway_client import BearerOption, UnavailableError, UnreachableError
from pallas_gateway.client.output import counted, local_time, problem, redrawn, result, shown, table, table_lines
from pallas_gateway.errors import GatewayError

PATH = "/api/v1/calls"
MOST_RECENT = 1000
calls = typer.Typer(help="Running and recent calls of a gateway.")


@dataclass
class CallList:
    """The calls of one gateway, asked for again and again.

    Attributes:
        url: base URL of the gateway.
        bearer: the token to send.
        missing: workers that gave no answer to the last request.
        tasks_missing: nor did the database of long calls.
    """

    url: str
    bearer: str | None = field(default=None, repr=False)
    missing: Sequence[int] = ()
    tasks_missing: bool = False

    async def fetch(self, recent: int | None = None) -> list[RemoteCall]:
        """Return the running calls, or the last `recent` ended ones.

        Raises:
            GatewayError: the gateway does not answer, or refuses.
        """
        document = await self.document(recent)
        with reading(self.url, PATH):
            self.missing = [int(number) for number in document.get("missing", ())]
            self.tasks_missing = bool(document.get("tasksMissing"))
            return [RemoteCall.model_validate(one) for one in document["calls"]]

    async def document(self, recent: int | None = None) -> Any:
        """Return the list as it is; raises as `fetch`."""
        query = "" if recent is None else f"?recent={recent}"
        return await request("GET", self.url, PATH + query, self.bearer)

    @property
    def note(self) -> str:
        """Sentences about workers, and a database, that did not answer, or nothing."""
        away = "The database cannot be used: long calls that no worker runs are not shown."
        of_tasks = away if self.tasks_missing else ""
        if not self.missing:
            return of_tasks
        who = f"{'worker' if len(self.missing) == 1 else 'workers'} {', '.join(map(str, self.missing))}"
        return f"No answer from {who}; their calls are not shown. {of_tasks}".rstrip()


@calls.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    url: UrlOption = None,
    bearer: BearerOption = None,
    last: Annotated[int, typer.Option(min=1, max=MOST_RECENT, help="Number of calls that --recent shows.")] = 20,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two lists of --watch.")] = 2.0,
    *,
    recent: Annotated[bool, typer.Option("--recent", help="Show ended calls, the latest first, with tools.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Ask again and again, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """Show the running calls of a gateway: your own, or all with the grant view:calls."""
    context.obj = url, bearer
    if context.invoked_subcommand is not None:
        return
    if watch and (recent or as_json):
        raise UsageError("--watch shows running calls as a table; use --recent and --json without it.")
    asked = CallList(gateway_url(url), bearer)
    if watch:
        try:
            asyncio.run(watch_calls(asked, interval))
        except KeyboardInterrupt:
            sys.stdout.flush()
    elif as_json:
        result(json.dumps(asyncio.run(asked.document(last if recent else None)), indent=2))
    else:
        _show(asked, asyncio.run(asked.fetch(last if recent else None)), recent=recent)


@calls.command()
def end(
    context: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of running calls.")],
    url: UrlOption = None,
    bearer: BearerOption = None,
) -> None:
    """End running calls: your own, or any with the grant cancel:calls; exit 1 if one does not run or is not yours."""
    url_before, bearer_before = context.obj
    base_url = gateway_url(url or url_before)
    if not asyncio.run(_end(base_url, bearer or bearer_before, ids)):
        raise typer.Exit(1)


async def _end(base_url: str, bearer: str | None, ids: Sequence[str]) -> bool:
    """End calls one after the other; return False if one was refused."""
    all_ended = True
    for call_id in ids:
        try:
            await request("DELETE", base_url, f"{PATH}/{quote(call_id, safe='')}", bearer)
        except (ApiRefusedError, UnavailableError) as error:
            problem(str(error))
            all_ended = False
        else:
            result(f"ended {call_id}")
    return all_ended


def _show(asked: CallList, found: Sequence[RemoteCall], *, recent: bool) -> None:
    if asked.note:
        problem(asked.note)
    if not found:
        problem("No call has ended yet." if recent else "No call is running.")
    elif recent:
        table(*RECENT_COLUMNS, rows=recent_lines(found))
    else:
        table(*RUNNING_COLUMNS, rows=running_lines(found))


async def watch_calls(asked: CallList, interval: float) -> NoReturn:
    """Show the calls every `interval` seconds; a gateway that goes away is waited for.

    Raises:
        GatewayError: the first request fails, or a later one is refused.
    """
    before: list[RemoteCall] = []
    now, trouble, told = await asked.fetch(), "", ""
    with redrawn() as draw:
        while True:
            stamp = datetime.now().astimezone().strftime("%H:%M:%S")
            if draw is not None:
                heading = f"{asked.url} at {stamp}: {counted(len(now), 'call')}. {trouble or asked.note}"
                draw("\n".join([heading, *table_lines(*RUNNING_COLUMNS, rows=running_lines(now))]))
            else:
                gone = {one.id for one in before} - {one.id for one in now}
                lines = [*changes(before, now, await _outcomes(asked) if gone else [])]
                if told != (told := trouble or asked.note):
                    lines.append(told or "All workers answer again.")
                for line in lines:
                    result(f"{stamp} {line}")
                sys.stdout.flush()
            await asyncio.sleep(interval)
            before = now
            try:
                now, trouble = await asked.fetch(), ""
            except (UnreachableError, UnavailableError) as error:
                trouble = f"{error} Shown is what was."


async def _outcomes(asked: CallList) -> list[RemoteCall]:
    try:
        return await asked.fetch(MOST_RECENT)
    except GatewayError:  # they are shown without their outcome
        return []


RUNNING_COLUMNS = ("CALL", "AGENT", "CALLER", "API", "STEP", "SECONDS", "TOKENS", "STATE", "WORKER")
RECENT_COLUMNS = ("CALL", "AGENT", "CALLER", "API", "STARTED", "SECONDS", "STEP", "TOKENS", "OUTCOME")
type Line = tuple[str, ...]


type _Shown = Annotated[str, BeforeValidator(shown)]
type _Optional = Annotated[str | None, BeforeValidator(lambda text: None if text is None else shown(text))]


class RemoteTool(BaseModel):
    """A tool call of an ended call."""

    name: _Shown
    start: float
    seconds: float
    ok: bool | None

    @property
    def outcome(self) -> str:
        """The end of the tool."""
        return "not ended" if self.ok is None else "ok" if self.ok else "failed"


class RemoteCall(BaseModel):
    """One call of a list of `/api/v1/calls`; `outcome` and `stop_reason` are None while it runs."""

    id: _Shown
    parent: _Optional = None
    agent: _Shown
    caller: _Shown
    api: _Shown
    started_at: _Shown = Field(alias="startedAt")
    seconds: float
    step: int
    tokens: int
    waiting: bool
    worker: int | None
    status_message: _Shown = Field(default="", alias="statusMessage")
    runs: int = 1
    at_rest: bool = Field(default=False, alias="atRest")
    outcome: _Optional = None
    stop_reason: _Optional = Field(default=None, alias="stopReason")
    tools: tuple[RemoteTool, ...] = Field(default=(), repr=False)
    tools_left_out: int = Field(default=0, alias="toolsLeftOut")

    @property
    def state(self) -> str:
        """What a running call does, and the last step of a long call that no worker runs."""
        here = "runs" if self.worker is not None else "at rest" if self.at_rest else "runs at another replica"
        facts = [self.status_message, f"run {self.runs}" if self.runs > 1 else ""]
        return ", ".join(["waits for its caller" if self.waiting else here, *filter(None, facts)])

    @property
    def ending(self) -> str:
        """The outcome with its reason."""
        return f"{self.outcome or 'ended'} ({self.stop_reason})" if self.stop_reason else self.outcome or "ended"


def running_lines(calls: Sequence[RemoteCall]) -> list[Line]:
    """Return the lines of running calls; nested ones stand below the call that has made them."""
    return [
        (
            one.id,
            "  " * depth + one.agent,
            one.caller,
            one.api,
            str(one.step),
            f"{one.seconds:.1f}",
            str(one.tokens),
            one.state,
            "" if one.worker is None else str(one.worker),
        )
        for depth, one in tree(calls)
    ]


def recent_lines(calls: Sequence[RemoteCall]) -> list[Line]:
    """Return the lines of ended calls, each with its tools by the time of their start, and its nested calls."""
    return [line for depth, one in tree(calls) for line in _ended(one, "  " * depth)]


def _ended(call: RemoteCall, indent: str) -> Iterator[Line]:
    started, seconds = local_time(call.started_at), f"{call.seconds:.1f}"
    counts = (str(call.step), str(call.tokens))
    yield (call.id, indent + call.agent, call.caller, call.api, started, seconds, *counts, call.ending)
    for tool in call.tools:
        start, taken = f"+{tool.start:.1f}", f"{tool.seconds:.1f}"
        yield ("", f"{indent}  - {tool.name}", "", "", start, taken, "", "", tool.outcome)
    if call.tools_left_out:
        yield ("", f"{indent}  - and {call.tools_left_out} more", *[""] * 7)


def tree(calls: Sequence[RemoteCall]) -> Iterator[tuple[int, RemoteCall]]:
    """Yield the calls in order with their depth, nested ones after their parents; one without a listed parent is 0."""
    ids = {one.id for one in calls}
    nested: dict[str | None, list[RemoteCall]] = {}
    for one in calls:
        nested.setdefault(one.parent if one.parent in ids else None, []).append(one)
    unseen = [(0, one) for one in reversed(nested.pop(None, []))]
    while unseen:
        depth, one = unseen.pop()
        yield depth, one
        # Popped, so that calls which name each other as parents end the walk.
        unseen += [(depth + 1, child) for child in reversed(nested.pop(one.id, []))]


def changes(before: Sequence[RemoteCall], now: Sequence[RemoteCall], ended: Sequence[RemoteCall]) -> Iterator[str]:
    """Yield a line for each call that began, ended, waits for its caller or goes on; `ended` has recent outcomes."""
    earlier, later = {one.id: one for one in before}, {one.id: one for one in now}
    outcomes = {one.id: one for one in ended}
    for one in now:
        if (known := earlier.get(one.id)) is None:
            below = f", called by {one.parent}" if one.parent else ""
            yield f"began    {one.id}  {one.agent}  {one.caller}  {one.api}{below}"
        elif one.waiting is not known.waiting:
            yield f"{'waits' if one.waiting else 'goes on':<8} {one.id}  {one.agent}"
    for one in before:
        if one.id not in later:
            last = outcomes.get(one.id, one)
            spent = f"{last.seconds:.1f} s  {last.step} turns  {last.tokens} tokens"
            yield f"ended    {one.id}  {one.agent}  {last.ending}  {spent}"
