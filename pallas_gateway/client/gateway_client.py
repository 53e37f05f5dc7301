"""A running gateway as a client sees it: its registry, and MCP calls to its agents."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from pallas_gateway.client.address import DEFAULT_URL, URL_VARIABLE
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.config.loading.cross_checks import slug
from pallas_gateway.config.model.values import authority
from pallas_gateway.config.problems import did_you_mean
from pallas_gateway.errors import GatewayError
from pallas_gateway.urls import LOOPBACK_NAMES, SIGN_IN, WELL_KNOWN, bypass_proxies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from urllib.parse import SplitResult

    import httpx
    import httpx2
    from mcp.client import Client
    from mcp.client.session import ElicitationFnT, LoggingFnT

REGISTRY_SECONDS = 10.0
PUBLISHER = "io.modelcontextprotocol.registry/publisher-provided"
"""Key of what the gateway says of an agent beyond the registry's schema, in `_meta`."""
_REFUSING = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE)
CALL_SECONDS = 3600.0
"""Longest silence of a stream; the gateway's own limits end a call before."""

BearerOption = Annotated[
    str | None,
    typer.Option(
        "--bearer",
        envvar="PALLAS_BEARER",
        help="Token to send as Authorization: Bearer; without it, that of `pallas-gateway login`.",
    ),
]


class UnreachableError(GatewayError):
    """No gateway answers at the address."""

    reason = "unreachable"


class GatewayRefusedError(GatewayError):
    """The gateway, or a proxy, refuses the request."""

    reason = "refused"


class NoAccessError(GatewayRefusedError):
    """The caller has no grant for the agent."""

    reason = "no_access"


# The MCP client's messages for a stream that ended early; its code for that, -32000, is used by servers for anything.
_CUT_OFF = ("SSE stream ended without a response", "Connection closed")


class UnavailableError(GatewayRefusedError):
    """The gateway is stopping, or a proxy finds no gateway."""

    reason = "unavailable"


NOTHING_SHOWN = (
    "the registry shows no agents. A filtered one shows those that the token "
    "(--bearer, PALLAS_BEARER, or of `pallas-gateway login`) may view."
)

_FOREIGN_ADDRESS = (
    "The registry gives this address, made from `host` in its agents.yaml; it must be reachable from here."
)


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """One registry entry, as far as the command line needs it.

    `is_at_home`: its URL has the scheme and host that the registry was asked at; only then is the token sent there.
    `home` is the base URL of that registry.
    """

    name: str
    title: str
    description: str
    url: str
    document: dict[str, Any]
    is_at_home: bool = True
    model: str = ""
    home: str = ""


async def fetch_agents(base_url: str, bearer: str | None = None) -> list[RemoteAgent]:
    """Return the agents that a gateway lists; a filtered registry lists those that `bearer` may view.

    Raises:
        RefusedError: it requires a token, or another one.
        UnavailableError: it takes no requests now (HTTP 503).
        UnreachableError: nothing answers, the certificate is not accepted, or the answer is not a registry.
        UsageError: `base_url` is no URL.
    """
    base_url = base_url.rstrip("/")
    response = await send("GET", base_url, WELL_KNOWN, await authorization(base_url, bearer))
    if response.status_code in _REFUSING:
        is_unavailable = response.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        refused = UnavailableError if is_unavailable else GatewayRefusedError
        raise refused(f"{base_url} refused: {await why_refused(base_url, response, bearer)}")
    if not response.is_success:
        hint = f"--url is the gateway's base address, such as {DEFAULT_URL}, without a path."
        raise UnreachableError(f"{base_url} has no registry (HTTP {response.status_code}). {hint}")
    try:
        return [_agent(base_url, entry["server"]) for entry in response.json()["servers"]]
    except (ValueError, LookupError, TypeError) as error:
        raise UnreachableError(f"What answers at {base_url}{WELL_KNOWN} is not a registry.") from error


async def send(
    method: str,
    base_url: str,
    path: str,
    headers: Mapping[str, str],
    *,
    body: Any = None,
    seconds: float = REGISTRY_SECONDS,
) -> httpx.Response:
    """Send a request, with `body` as JSON; return the response of any status within `seconds`.

    Raises:
        UnreachableError: nothing answers, or the certificate is not accepted.
        UsageError: `base_url` is no URL.
    """
    if not base_url.startswith(("http://", "https://")):
        raise UsageError(f"--url must begin with http:// or https://, got '{base_url}'.")
    # Imported here, as below: these take a second, which `--help`, `serve` and `check` should not cost.
    import httpx  # noqa: PLC0415

    from pallas_gateway.http_answers import limited  # noqa: PLC0415

    bypass_proxies()
    try:
        async with limited(httpx.AsyncClient(timeout=seconds)) as client:
            return await client.request(method, f"{base_url}{path}", headers=headers, json=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise not_reached(base_url, error) from error


def not_reached(base_url: str, error: Exception) -> UnreachableError:
    """Return the error for a gateway that does not answer, from that of the HTTP client."""
    why = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in why:
        hint = "The variable SSL_CERT_FILE names a file of certificates to trust."
        return UnreachableError(f"The certificate of {base_url} is not accepted ({why}). {hint}")
    hint = f"Is it running? `pallas-gateway serve` starts it; --url or {URL_VARIABLE} names another."
    return UnreachableError(f"No gateway answers at {base_url} ({why}). {hint}")


@dataclass(frozen=True, slots=True)
class Readiness:
    """What `/readyz` says.

    Attributes:
        state_of: a function from an agent to its state and reason; `unknown` if `/readyz` is not served.
        lacks_stored_agents: the database of agents cannot be read, so agents of it may be missing in lists.
    """

    state_of: Callable[[RemoteAgent], tuple[str, str]]
    lacks_stored_agents: bool = False


async def fetch_readiness(base_url: str, bearer: str | None = None) -> Readiness:
    """Ask `/readyz`."""
    base_url = base_url.rstrip("/")
    try:
        document = (await send("GET", base_url, "/readyz", await authorization(base_url, bearer))).json()
        not_up: dict[str, Any] = document["not_up"]
        down = {slug(name): (str(one["state"]), str(one["reason"] or "")) for name, one in not_up.items()}
    except (UnreachableError, ValueError, LookupError, TypeError, AttributeError):
        return Readiness(lambda _: ("unknown", ""))
    is_away = document.get("database") == {"agents": "away"}
    return Readiness(lambda agent: down.get(slug(agent.name), ("ready", "")), is_away)


def _agent(base_url: str, server: dict[str, Any]) -> RemoteAgent:
    urls = [remote["url"] for remote in server["remotes"] if remote["type"] == "streamable-http"]
    url, base = urls[0], urlsplit(base_url)
    public = urlsplit(url)
    published = server.get("_meta", {}).get(PUBLISHER, {})
    name = str(published.get("agent") or server["name"].rpartition("/")[2])
    # The public address may be an ingress, or a name of a network, that is not reachable from here; the base URL is.
    if public.path.startswith("/agents/"):
        name, url = public.path.split("/")[2], f"{base_url}{public.path}"
    elif public.path == "/mcp" and base.hostname in LOOPBACK_NAMES and base.scheme == public.scheme:
        url = f"{authority(base.scheme, base.hostname, public.port)}/mcp"
    at_home = is_same_place(url, base_url)
    title = server.get("title") or name
    description = server.get("description") or ""
    # The registry repeats the title where an agent has no description, because the schema requires one.
    description = "" if description == title else description
    return RemoteAgent(name, title, description, url, server, at_home, str(published.get("model") or ""), base_url)


def is_same_place(one: str, other: str) -> bool:
    """Return True if two URLs have the same scheme and host."""
    return _place(urlsplit(one)) == _place(urlsplit(other))


def _place(url: SplitResult) -> tuple[str, str]:
    """Return scheme and host; the port differs in per-port mode, and all names of this machine count as one."""
    return url.scheme, "localhost" if url.hostname in LOOPBACK_NAMES else url.hostname or ""


def find_agent(agents: list[RemoteAgent], name: str) -> RemoteAgent:
    """Return the agent called `name`.

    Raises:
        UsageError: there is none; names the nearest.
    """
    for agent in agents:
        if slug(agent.name) == slug(name):
            return agent
    if not agents:
        raise UsageError(f"No agent '{name}': {NOTHING_SHOWN}")
    known = [agent.name for agent in agents]
    raise UsageError(f"No agent '{name}'{did_you_mean(name, known)}. There are: {', '.join(known) or 'none'}.")


@asynccontextmanager
async def connected(
    agent: RemoteAgent,
    *,
    bearer: str | None = None,
    on_message: LoggingFnT | None = None,
    on_question: ElicitationFnT | None = None,
) -> AsyncIterator[Client]:
    """Connect an MCP client to one agent, in the newest protocol era of both sides.

    Args:
        agent: connects to this agent.
        bearer: sent with every request.
        on_message: called with each log message; without it none are requested.
        on_question: answers questions of the agent; without it the client declares that it cannot be asked.

    Raises:
        UnreachableError: the agent's endpoint does not answer, or the connection is lost.
        RefusedError: the endpoint answers with an HTTP or protocol error.
    """
    import httpx2  # noqa: PLC0415
    from mcp import MCPError  # noqa: PLC0415
    from mcp.client import Client  # noqa: PLC0415
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

    from pallas_gateway.http_answers import LARGEST_ANSWER_BYTES, MCP_STREAMS, limited  # noqa: PLC0415

    timeout = httpx2.Timeout(REGISTRY_SECONDS, read=CALL_SECONDS)
    if bearer and not agent.is_at_home:
        why = "the registry names an address on another host, or without TLS; the token was not sent"
        raise GatewayRefusedError(f"Agent '{agent.name}' is at {agent.url}: {why}. Give its gateway's own --url.")
    responses: list[httpx2.Response] = []
    home = agent.home if agent.is_at_home else ""
    await authorization(home, bearer)  # what ends a sign-in is raised here, not within the MCP client
    try:
        async with (
            limited(
                httpx2.AsyncClient(
                    timeout=timeout,
                    event_hooks={
                        "request": [partial(_authorize, home, bearer)],
                        "response": [partial(_keep, responses)],
                    },
                ),
                streams=MCP_STREAMS,
            ) as http,
            Client(
                streamable_http_client(agent.url, http_client=http, max_sse_event_size=LARGEST_ANSWER_BYTES),
                logging_callback=on_message,
                elicitation_callback=on_question,
                log_level="info" if on_message else None,
            ) as client,
        ):
            yield client
    except Exception as error:
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if isinstance(first, GatewayError):  # raised inside the block: the client puts it into groups
            raise first from error
        if isinstance(first, (httpx2.HTTPError, httpx2.InvalidURL, OSError)):
            why = str(first) or type(first).__name__
            hint = "" if agent.is_at_home else f" {_FOREIGN_ADDRESS}"
            raise UnreachableError(f"Agent '{agent.name}' does not answer at {agent.url} ({why}).{hint}") from error
        if isinstance(first, MCPError):
            if str(first) in _CUT_OFF:
                why = "the gateway, or the connection to it, went away before the answer was whole"
                raise UnreachableError(f"Agent '{agent.name}' at {agent.url}: {why}.") from error
            raise await _refusal(agent, responses, str(first), bearer) from error
        raise


async def _authorize(home: str, bearer: str | None, request: httpx2.Request) -> None:
    """Set the token of a request; a connection may outlive the token of a sign-in."""
    request.headers.update(await authorization(home, bearer))


async def _keep(last: list[httpx2.Response], response: httpx2.Response) -> None:
    last[:] = [response]
    if response.is_error:
        await response.aread()


async def _refusal(
    agent: RemoteAgent, last: list[httpx2.Response], why: str, bearer: str | None
) -> GatewayRefusedError:
    """Return the error for the last response of an agent's endpoint; `why` is the MCP client's message."""
    refused = f"Agent '{agent.name}' refused at {agent.url}"
    if not last or not last[0].is_error:
        return GatewayRefusedError(f"{refused}: {why}")
    kind = NoAccessError if _has_no_access(last[0]) else GatewayRefusedError
    return kind(f"{refused}: {await why_refused(agent.home, last[0], bearer)}")


def _has_no_access(response: httpx2.Response) -> bool:
    """True if the caller may not use a listed agent: 404 in the gateway's own words, or 401 without a token."""
    if response.status_code == HTTPStatus.NOT_FOUND and _had_token(response):
        return '"no agent ' in response.text
    return response.status_code == HTTPStatus.UNAUTHORIZED and not _had_token(response)


def _had_token(response: httpx.Response | httpx2.Response) -> bool:
    return "authorization" in response.request.headers


async def authorization(base_url: str, bearer: str | None) -> dict[str, str]:
    """Return the header with the token for a gateway: `bearer`, else that of the sign-in there.

    Raises:
        GatewayError: as `stored_token`.
    """
    if not bearer and base_url:
        from pallas_gateway.client.sign_in.logins import stored_token  # noqa: PLC0415  --help needs none

        bearer = await stored_token(base_url)
    return {"Authorization": f"Bearer {bearer}"} if bearer else {}


async def fetch_sign_in(base_url: str) -> dict[str, Any] | None:
    """Return what a gateway says about signing in, unchecked; None if it offers no sign-in.

    Raises:
        UnreachableError: nothing answers.
    """
    from pallas_gateway.http_answers import decoded  # noqa: PLC0415

    response = await send("GET", base_url, SIGN_IN, {})
    document = decoded(response.content) if response.is_success else None
    offer = document.get("sign_in") if isinstance(document, dict) else None
    return offer if isinstance(offer, dict) else None


async def _how_to_get_in(base_url: str) -> str:
    """Return what to do about a missing or rejected token."""
    from pallas_gateway.client.sign_in.logins import Logins  # noqa: PLC0415  as above

    if base_url and Logins.of_user().find(base_url) is not None:
        return f"Sign in again: pallas-gateway login --url {base_url}"
    give = "with --bearer or PALLAS_BEARER."
    try:
        offers = base_url and await fetch_sign_in(base_url) is not None
    except UnreachableError:
        offers = False
    if offers:
        return f"Sign in by `pallas-gateway login --url {base_url}`, or give a token {give}"
    return f"Give one {give}"


async def why_refused(base_url: str, response: httpx.Response | httpx2.Response, bearer: str | None) -> str:
    """Describe a refusal: the status, the server's message about the token, and what to do."""
    status = f"HTTP {response.status_code}"
    said = re.search(r'error_description="([^"]*)"', response.headers.get("www-authenticate", ""))
    if response.status_code == HTTPStatus.NOT_FOUND and _had_token(response):
        return f"it is not there, or the token has no grant for it ({status})"
    if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE and "retry-after" in response.headers:
        return f"{status}; try again in {response.headers['retry-after']} s"
    if response.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return f"the request, with its history and images, is larger than it takes ({status})"
    if response.status_code not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return status
    why = said[1] if said else "a token is required"
    if not bearer:
        is_granted_less = response.status_code == HTTPStatus.FORBIDDEN and _had_token(response)
        return f"{why} ({status})." if is_granted_less else f"{why} ({status}). {await _how_to_get_in(base_url)}"
    hint = " Give the token alone, without the word Bearer." if bearer.lower().startswith("bearer ") else ""
    return f"{why} ({status}).{hint}"
