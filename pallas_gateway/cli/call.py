"""`pallas-gateway call`: one call, live progress on stderr, the answer on stdout."""

from __future__ import annotations

import asyncio
import base64
import json
import mimetypes
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pallas_gateway.cli.output import problem, result
from pallas_gateway.cli.remote import DEFAULT_URL, BearerOption, UrlOption, connected, fetch_agents, find_agent
from pallas_gateway.cli.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcp_types import CallToolResult

INTERRUPTED = 130


def call(
    agent: Annotated[str, typer.Argument(help="The agent to call.")],
    message: Annotated[str, typer.Argument(help="What to say to it; - reads standard input.")],
    image: Annotated[list[Path] | None, typer.Option(help="An image to send along; may be repeated.")] = None,
    history: Annotated[Path | None, typer.Option(help="A JSON file with earlier turns: [{role, content}, …].")] = None,
    conversation_id: Annotated[str | None, typer.Option(help="Your own identifier, logged and returned.")] = None,
    bearer: BearerOption = None,
    url: UrlOption = DEFAULT_URL,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Call one agent of a running gateway and print its answer."""
    arguments: dict[str, Any] = {"message": _standard_input() if message == "-" else message}
    if image:
        arguments["images"] = [_image(path) for path in image]
    if history is not None:
        arguments["history"] = _history(history)
    if conversation_id is not None:
        arguments["conversation_id"] = conversation_id
    try:
        answer = asyncio.run(_call(agent, arguments, url, bearer))
    except KeyboardInterrupt:
        problem("cancelled")
        raise typer.Exit(INTERRUPTED) from None
    _print(answer, as_json=as_json)


async def _call(name: str, arguments: dict[str, Any], url: str, bearer: str | None) -> CallToolResult:
    agent = find_agent(await fetch_agents(url), name)
    with _live_status(f"{agent.name} …") as show:

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            del progress, total
            if message:
                show(message)

        async with connected(agent, bearer=bearer) as client:
            tools = (await client.list_tools()).tools
            # The message tool comes first; `gateway.tool_names` may have named it otherwise.
            return await client.call_tool(tools[0].name, arguments, progress_callback=on_progress)


@contextmanager
def _live_status(first: str) -> Iterator[Callable[[str], None]]:
    """A status line on stderr that each message replaces; a line for each where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield problem
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Console(stderr=True).status(Text(first)) as status:
        yield lambda message: status.update(Text(message))


def _print(answer: CallToolResult, *, as_json: bool) -> None:
    text = "\n".join(block.text for block in answer.content if block.type == "text")
    if as_json:
        result(json.dumps(answer.model_dump(mode="json", by_alias=True, exclude_none=True), indent=2))
    elif not answer.is_error:
        result(text)
    if answer.is_error:
        problem(text)
        raise typer.Exit(1)


def _standard_input() -> str:
    return sys.stdin.read().removesuffix("\n")  # the one that `echo` and editors put at the end


def _image(path: Path) -> dict[str, str]:
    mime_type = mimetypes.guess_type(path.name)[0] or ""
    if not mime_type.startswith("image/"):
        raise UsageError(f"{path}: not a known image type; name it .png, .jpg, .webp or .gif.")
    return {"data": base64.b64encode(_read(path)).decode(), "mime_type": mime_type}


def _history(path: Path) -> list[Any]:
    try:
        rows = json.loads(_read(path))
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(rows, list):
        raise UsageError(f"{path}: must be a list of {{role, content}} objects.")
    return rows


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
