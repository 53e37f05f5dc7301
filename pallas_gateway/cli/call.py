"""`pallas-gateway call`: one call, live progress on stderr, the answer on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pallas_gateway.agent_server.client_notifications import STREAM_META_KEY
from pallas_gateway.agent_server.tools import PARAMS_META_KEY
from pallas_gateway.calls.conversation import parse_history
from pallas_gateway.cli.address import UrlOption, gateway_url
from pallas_gateway.cli.attachments import image_of, read
from pallas_gateway.cli.live import EventView, View, stream_payload, terminal_view
from pallas_gateway.cli.output import problem, result
from pallas_gateway.cli.parameters import PARAMS, SettingsOption, offered_by, values_of, without_effect
from pallas_gateway.cli.remote import (
    BearerOption,
    connected,
    fetch_agents,
    find_agent,
    message_tool,
)
from pallas_gateway.cli.usage import UsageError, refuse_empty

_SHOWN_ROWS = 5

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_types import CallToolResult, LoggingMessageNotificationParams


def call(
    agent: Annotated[str, typer.Argument(help="The agent to call.")],
    message: Annotated[str, typer.Argument(help="What to say to it; - reads standard input.")],
    image: Annotated[list[Path] | None, typer.Option(help="An image to send along; may be repeated.")] = None,
    history: Annotated[Path | None, typer.Option(help="A JSON file with earlier turns: [{role, content}, …].")] = None,
    settings: SettingsOption = None,
    conversation_id: Annotated[str | None, typer.Option(help="Your own identifier, logged and returned.")] = None,
    bearer: BearerOption = None,
    url: UrlOption = None,
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what agents and their tools do.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Show the answer while it is written.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
) -> None:
    """Call one agent of a running gateway and print its answer."""
    said = _standard_input() if message == "-" else message
    refuse_empty(said, images=bool(image))
    arguments: dict[str, Any] = {"message": said}
    if image:
        arguments["images"] = [image_of(path) for path in image]
    if history is not None:
        arguments["history"] = _history(history)
    if conversation_id is not None:
        arguments["conversation_id"] = conversation_id
    request = _Request(agent, arguments, gateway_url(url), bearer, settings=settings or (), stream=stream)
    try:
        if as_json:
            _call_with_events(request)
        else:
            _call_with_view(request, verbose=verbose)
    except KeyboardInterrupt:
        problem("cancelled")  # closing the connection, or telling so, is what stops the agent
        raise typer.Exit(1) from None


@dataclass(frozen=True, slots=True)
class _Request:
    agent: str
    arguments: dict[str, Any]
    url: str
    bearer: str | None = field(repr=False)
    settings: Sequence[str] = field(kw_only=True)
    stream: bool = field(kw_only=True)


def _call_with_events(request: _Request) -> None:
    view = EventView()
    answer = asyncio.run(_call(request, view))
    view.result(answer)
    if answer.is_error:
        raise typer.Exit(1)


def _call_with_view(request: _Request, *, verbose: bool) -> None:
    with terminal_view(f"{request.agent} …", verbose=verbose, stream=request.stream) as view:
        answer = asyncio.run(_call(request, view))
    text = "\n".join(block.text for block in answer.content if block.type == "text")
    if answer.is_error:
        problem(text)
        raise typer.Exit(1)
    notes = (answer.meta or {}).get(PARAMS_META_KEY)
    if told := without_effect(notes if isinstance(notes, dict) else {}):
        problem(f"({told})")
    if not (sys.stdout.isatty() and view.last_live_text == text):  # already on the screen, live
        result(text)


async def _call(request: _Request, view: View) -> CallToolResult:
    agent = find_agent(await fetch_agents(request.url, request.bearer), request.agent)

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        view.progress(progress, total, message)

    async def on_message(params: LoggingMessageNotificationParams) -> None:
        if (payload := stream_payload(params)) is not None:
            view.payload(payload)

    meta: Any = {STREAM_META_KEY: "delta"} if request.stream else {}
    async with connected(agent, bearer=request.bearer, on_message=on_message) as client:
        tool = await message_tool(client, request.agent)
        params = values_of(request.settings, offered_by(tool.input_schema))
        arguments = {**request.arguments, PARAMS: params} if params else request.arguments
        return await client.call_tool(tool.name, arguments, progress_callback=on_progress, meta=meta)


def _standard_input() -> str:
    return sys.stdin.read().removesuffix("\n")  # the one that `echo` and editors put at the end


def _history(path: Path) -> list[Any]:
    try:
        rows = json.loads(read(path))
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(rows, list):
        raise UsageError(f"{path}: must be a list of {{role, content}} objects.")
    _tell_of_skipped(path, rows)
    return rows


def _tell_of_skipped(path: Path, rows: list[Any]) -> None:
    """Entries that the gateway will skip, by its own rule; it says which in its log alone."""
    _, skipped = parse_history(rows)
    for row in skipped.first[:_SHOWN_ROWS]:
        problem(f"({path}: entry {row.index} is skipped: {row.why})")
    if skipped.count > _SHOWN_ROWS:
        problem(f"({path}: {skipped.count - _SHOWN_ROWS} more entries are skipped)")
