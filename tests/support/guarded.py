"""A gateway that wants tokens, the server that issues them, and requests whose refusals can be compared."""

import hashlib
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pallas_gateway.config.loading.loader import Overrides
from tests.support.authorization_server import AuthorizationServer, authorization_server
from tests.support.challenges import challenge_of
from tests.support.clients import MODERN_VERSION, RawClient, raw_client, tool_params
from tests.support.gateway import Agent, Running, running, write_project

STATIC_KEY = "pgw_the-key-of-ci"
METADATA = "/.well-known/oauth-protected-resource"
BOTH = ("research", "other")  # the agents, unless a test wants others


@dataclass(frozen=True)
class Refusal:
    """What a client is told: the status, and the challenge without its sentence for people."""

    status: int
    challenge: Mapping[str, str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    text: str = field(default="", compare=False)


OK = Refusal(200)


@dataclass(frozen=True)
class Guarded:
    served: Running
    server: AuthorizationServer

    @property
    def public(self) -> str:
        return self.served.gateway.configuration.public_base_url

    def url(self, agent: str = "research") -> str:
        return f"{self.public}/agents/{agent}/mcp"

    def metadata(self, agent: str = "research") -> str:
        return f"{self.public}{METADATA}/agents/{agent}/mcp"

    def token(self, scope: Any = "run:agents", **changes: Any) -> str:
        """A good token for `research`, but for the changes (as `AuthorizationServer.mint` takes them)."""
        return self.server.mint(**{"aud": self.url(), "scope": scope, **changes})

    def unauthorized(self, agent: str | None = "research") -> Refusal:
        """The answer to a request that brought no token."""
        return Refusal(401, {"resource_metadata": self.metadata(agent), "scope": self.scope(agent)} if agent else {})

    def scope(self, agent: str) -> str:
        """What a client is told to ask for."""
        return f"run:agents:{agent}"

    def invalid(self, agent: str | None = "research") -> Refusal:
        """The answer to a token that is not accepted."""
        return Refusal(401, {**(self.unauthorized(agent).challenge or {}), "error": "invalid_token"})

    def forbidden(self, agent: str = "research") -> Refusal:
        """The answer to a call by somebody who may only look."""
        metadata = {"resource_metadata": self.metadata(agent)}
        return Refusal(403, {**metadata, "error": "insufficient_scope", "scope": f"run:agents:{agent}"})

    @property
    def answered(self) -> float:
        return sum(
            self.served.metric("pallas_send_message_total", agent=name, outcome="ok")
            for name in self.served.gateway.agents
        )


@asynccontextmanager
async def guarded(
    path: Path,
    *,
    agents: Mapping[str, Agent] | tuple[str, ...] = BOTH,
    auth: Mapping[str, Any] | None = None,
    jwt: Mapping[str, Any] | None = None,
    gateway: Mapping[str, Any] | None = None,
    server: AuthorizationServer | None = None,
    overrides: Overrides | None = None,
    **project: Any,
) -> AsyncIterator[Guarded]:
    """Serve agents that take tokens of an authorization server, its own unless another is given.

    `auth`, `jwt` and `gateway` are more of these sections; `jwt: None` in the first leaves the server out of it.
    """
    async with AsyncExitStack() as stack:
        issues = await stack.enter_async_context(authorization_server()) if server is None else server
        issuer = {"issuer": issues.issuer, "jwks_uri": issues.jwks_uri, **(jwt or {})}
        section = {key: value for key, value in {"jwt": issuer, **(auth or {})}.items() if value is not None}
        written = write_project(
            path,
            agents if not isinstance(agents, tuple) else {name: Agent() for name in agents},
            gateway={**(gateway or {}), "auth": section},
            **{"deployment": {"host": "127.0.0.1"}, **project},
        )
        yield Guarded(await stack.enter_async_context(running(written, overrides=overrides)), issues)


def static_key(*grants: str, key: str = STATIC_KEY, name: str = "ci") -> dict[str, Any]:
    return {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), "grants": list(grants)}


async def attempt(
    url: str,
    authorization: str | bytes | None = None,
    *,
    version: str = MODERN_VERSION,
    tool: str = "send_message",
    tls: ssl.SSLContext | None = None,
) -> Refusal:
    """Call a tool with an Authorization header, and say what came of it: `OK` or how it was refused."""
    async with raw_client(url, protocol_version=version, tls=tls) as client:
        return await attempt_on(client, authorization, tool=tool)


async def attempt_on(client: RawClient, authorization: str | bytes | None, *, tool: str = "send_message") -> Refusal:
    """`attempt` on a connection there is."""
    headers: Any = {} if authorization is None else {"authorization": authorization}
    arguments = {"message": "hello"} if tool != "get_health" else None
    reply = await client.request("tools/call", tool_params(tool, arguments), headers=headers)
    if reply.status == OK.status:
        assert not reply.result.get("isError"), reply.result
    return refusal_of(reply.status, reply.headers, reply.text)


def refusal_of(status: int, headers: Any, text: str = "") -> Refusal:
    """What a response says about why it refused; checks what holds for every one."""
    challenge = challenge_of(headers)
    assert (challenge is not None) == (status in {401, 403}), (status, headers)
    if challenge is None:
        return Refusal(status, None, headers, text)
    assert challenge.scheme == "Bearer"
    told = dict(challenge.parameters)
    assert told.pop("realm") == "pallas-gateway"  # RFC 6750 wants at least one parameter
    description = told.pop("error_description", None)
    assert (description is not None) == ("error" in told), challenge
    return Refusal(status, told, headers, text)


def bearer(token: str) -> str:
    return f"Bearer {token}"
