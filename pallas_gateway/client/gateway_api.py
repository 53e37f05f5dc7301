"""Requests to `/api/v1` of a running gateway."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pallas_gateway.client.gateway_client import (
    CALL_SECONDS,
    REGISTRY_SECONDS,
    GatewayRefusedError,
    UnavailableError,
    UnreachableError,
    authorization,
    not_reached,
    send,
    why_refused,
)
from pallas_gateway.errors import GatewayError
from pallas_gateway.urls import AGENT_DETAILS, bypass_proxies

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence

    import httpx

EVENTS = "text/event-stream"
_DATA = "data: "
_LAST = "data: [DONE]"


@dataclass(frozen=True, slots=True)
class Response:
    """The JSON of a response, None without a body, and its `ETag`."""

    document: Any
    etag: str | None = None


class BrokenOffError(UnreachableError):
    """A response ended before it was whole."""

    def __init__(self) -> None:
        super().__init__("The gateway, or the connection to it, went away before the answer was whole.")


class ApiRefusedError(GatewayRefusedError):
    """The gateway refuses a request, with its own sentence.

    Attributes:
        error: the API's word for the reason.
        problems: path and message of each value that breaks a rule.
    """

    reason = "refused"

    def __init__(self, message: str, *, error: str = "", problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.error = error
        self.problems = tuple(problems)


async def request(method: str, base_url: str, path: str, bearer: str | None) -> Any:
    """Return the JSON of a response; None for one without a body. Raises as `ask`."""
    return (await ask(method, base_url, path, bearer)).document


async def fetch_server_tools(base_url: str, agent: str, bearer: str | None = None) -> list[tuple[str, str, str]] | None:
    """Return the tools of an agent's servers as (server, tool, description); None where the gateway does not list them.

    A server whose tools are unknown has one row without a tool, with the reason.
    """
    rows = []
    try:
        document = await request("GET", base_url, f"{AGENT_DETAILS}{quote(agent)}", bearer)
        for server in document["servers"] or ():
            tools = server["tools"] or [{"name": "", "description": server.get("reason", "")}]
            rows += [(server["name"], str(one["name"]), str(one.get("description") or "")) for one in tools]
    except (GatewayError, LookupError, TypeError, AttributeError):
        return None
    return rows


async def ask(
    method: str,
    base_url: str,
    path: str,
    bearer: str | None,
    *,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    seconds: float = REGISTRY_SECONDS,
) -> Response:
    """Send a request, with `body` as JSON, and return the response; `seconds` is the longest wait for it.

    Raises:
        ApiRefusedError: the gateway refuses the request.
        RefusedError: it requires a token, or another one.
        UnavailableError: it cannot answer now (HTTP 503).
        UnreachableError: nothing answers, or the answer is none of the gateway.
        UsageError: `base_url` is no URL.
    """
    sent = {**await authorization(base_url, bearer), **(headers or {})}
    response = await send(method, base_url, path, sent, body=body, seconds=seconds)
    if response.is_error:
        raise await _refusal(base_url, path, response, bearer)
    if not response.content:
        return Response(None)
    with reading(base_url, path):
        return Response(response.json(), response.headers.get("etag"))


@contextmanager
def reading(base_url: str, path: str) -> Iterator[None]:
    """Read an answer, which may be of another form.

    Raises:
        UnreachableError: it is.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise UnreachableError(f"What answers at {base_url}{path} is not a gateway.") from error


@asynccontextmanager
async def events(
    base_url: str, path: str, bearer: str | None, body: Mapping[str, Any]
) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
    """Send `body` as JSON, and yield the events of the response; leaving the block ends it.

    Raises:
        GatewayError: as `ask`; `UnreachableError` also if the response breaks off.
    """
    import httpx  # noqa: PLC0415  see `send`

    from pallas_gateway.http_answers import limited  # noqa: PLC0415

    bypass_proxies()
    headers = {**await authorization(base_url, bearer), "Accept": EVENTS}
    timeout = httpx.Timeout(REGISTRY_SECONDS, read=CALL_SECONDS)
    has_begun = False
    try:
        async with (
            limited(httpx.AsyncClient(timeout=timeout), streams=("POST",)) as client,
            client.stream("POST", f"{base_url}{path}", headers=headers, json=dict(body)) as response,
        ):
            if response.is_error:
                await response.aread()
                raise await _refusal(base_url, path, response, bearer)
            has_begun = True
            yield _events_in(response)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise (BrokenOffError() if has_begun else not_reached(base_url, error)) from error


async def _events_in(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if not line.startswith(_DATA) or line == _LAST:
            continue
        try:
            event = json.loads(line.removeprefix(_DATA))
        except ValueError:
            raise UnreachableError("What answers there is not a gateway: its events are not JSON.") from None
        if isinstance(event, dict):
            yield event


async def _refusal(base_url: str, path: str, response: httpx.Response, bearer: str | None) -> Exception:
    from pallas_gateway.http_answers import decoded  # noqa: PLC0415  see `send`

    found = decoded(response.content)
    document = found if isinstance(found, dict) else {}
    said, error = document.get("error_description"), document.get("error")
    sentence = said.rstrip(".") if isinstance(said, str) else None
    if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        return UnavailableError(f"{base_url} refused: {sentence or await why_refused(base_url, response, bearer)}")
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        return GatewayRefusedError(f"{base_url} refused: {await why_refused(base_url, response, bearer)}")
    if response.status_code == HTTPStatus.INTERNAL_SERVER_ERROR:
        return UnreachableError(f"{base_url} failed (HTTP 500): its log has the error.")
    if sentence is None:
        # The gateway's own reason for a path that it does not serve is such as a setting.
        why = error if "path" in document and isinstance(error, str) else "it may be an older gateway"
        return UnreachableError(f"{base_url} has no {path.partition('?')[0]} (HTTP {response.status_code}): {why}.")
    message = f"{base_url} refused: {sentence} (HTTP {response.status_code})"
    return ApiRefusedError(message, error=str(error), problems=_problems(document.get("problems")))


def _problems(found: Any) -> list[tuple[str, str]]:
    rows = found if isinstance(found, list) else ()
    return [(str(one.get("path", "")), str(one.get("message", ""))) for one in rows if isinstance(one, dict)]
