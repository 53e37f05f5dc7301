"""`pallas-gateway call`: one call, live progress on stderr, the answer on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.agent_client import AgentClient, CallResult
from pallas_gateway.client.arguments import (
    AnswersOption,
    ApproveOption,
    NoAskOption,
    UsageError,
    image_of,
    message_text,
    read,
)
from pallas_gateway.client.call_settings import PARAMS, SettingsOption, values_of, without_effect
from pallas_gateway.client.gateway_client import BearerOption
from pallas_gateway.client.output import CANCELLED, problem, result
from pallas_gateway.client.progress_view import EventView, TerminalView, View, terminal_view

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from mcp_types import CallToolResult


def call(
    agent: Annotated[str, typer.Argument(help="The agent to call.")],
    message: Annotated[str, typer.Argument(help="The message; - reads standard input.")],
    image: Annotated[
        list[Path] | None, typer.Option("--image", "--file", help="An image or a PDF to send along; may be repeated.")
    ] = None,
    history: Annotated[Path | None, typer.Option(help="A JSON file with earlier turns: [{role, content}, …].")] = None,
    settings: SettingsOption = None,
    conversation_id: Annotated[str | None, typer.Option(help="Your own identifier, logged and returned.")] = None,
    bearer: BearerOption = None,
    url: UrlOption = None,
    answer: AnswersOption = None,
    approve: ApproveOption = None,
    *,
    no_ask: NoAskOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what agents and their tools do.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Show the answer while it is written.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
) -> None:
    """Call one agent of a running gateway and print its answer."""
    arguments: dict[str, Any] = {"message": message_text(message, has_images=bool(image))}
    if image:
        arguments["images"] = [image_of(path) for path in image]
    if history is not None:
        arguments["history"] = _history(history)
    if conversation_id is not None:
        arguments["conversation_id"] = conversation_id
    from pallas_gateway.client.question_prompts import person_for  # noqa: PLC0415  most commands ask nothing

    person = person_for(answer or (), approve or (), asks=not no_ask)
    client = AgentClient(gateway_url(url), agent, bearer, person)
    opening: AbstractContextManager[EventView | TerminalView] = (
        nullcontext(EventView()) if as_json else terminal_view(f"{agent} …", verbose=verbose, stream=stream)
    )
    try:
        with opening as view:
            called = asyncio.run(_call(client, view, arguments, settings or (), stream=stream))
    except KeyboardInterrupt:
        problem(CANCELLED)  # closing the connection has cancelled the call
        raise typer.Exit(1) from None
    if isinstance(view, EventView):
        view.result(called)
    else:
        _print(CallResult.of(called), view.last_live_text)
    if person is not None:
        person.finish()
    if called.is_error:
        raise typer.Exit(1)


async def _call(
    client: AgentClient, view: View, arguments: dict[str, Any], settings: Sequence[str], *, stream: bool
) -> CallToolResult:
    async with client.open(view) as connection:
        if params := values_of(settings, connection.capabilities.parameters):
            arguments = {**arguments, PARAMS: params}
        return await connection.call(arguments, live=stream)


def _print(answer: CallResult, shown: str) -> None:
    if skipped := answer.meta.get("history_skipped"):
        problem(f"(malformed entries of the history that were skipped: {skipped})")
    if answer.is_error:
        problem(answer.text)
        return
    if notes := without_effect(answer.params):
        problem(f"({notes})")
    if not (sys.stdout.isatty() and shown == answer.text):  # else the terminal shows it already
        result(answer.text)


def _history(path: Path) -> list[Any]:
    try:
        rows = json.loads(read(path))
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(rows, list):
        raise UsageError(f"{path}: must be a list of {{role, content}} objects.")
    return rows
