"""How people sign in: what clients are told, tokens of a real OpenID provider, and how the SDK's own client gets in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp_types import Implementation

from tests.support.clients import CLIENT_INFO, MODERN_VERSION, text_of
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.guarded import attempt, bearer, guarded
from tests.support.oidc_provider import CLIENT_ID, OidcProvider, oidc_provider

PATH = "/api/sign-in"
ELSEWHERE = {"issuer": "https://login.example", "jwks_uri": "https://login.example/jwks"}
CLIENT = {"jwt": ELSEWHERE, "console_client_id": "pallas"}


@pytest.fixture(scope="module")
def shared() -> Generator[OidcProvider]:
    with oidc_provider() as one:
        yield one


@pytest.fixture
def provider(shared: OidcProvider) -> OidcProvider:
    shared.behave()
    return shared


@asynccontextmanager
async def serving(path: Path, auth: dict[str, Any] | None, **gateway: Any) -> AsyncGenerator[Running]:
    section = {**gateway, **({"auth": auth} if auth is not None else {})}
    async with running(write_project(path, {"echo": Agent(), "other": Agent()}, gateway=section)) as served:
        yield served


async def asked(served: Running, **headers: str) -> httpx.Response:
    return await served.request("GET", PATH, headers=headers)


@pytest.mark.parametrize(
    ("more", "changes"),
    [
        ({}, {}),
        ({"console_scopes": ["openid"]}, {"scopes": ["openid"]}),
        ({"console_send_resource": False}, {"resource": None}),
        ({"jwt": {**ELSEWHERE, "grants_claim": "roles"}}, {"scopes": ["openid", "offline_access"]}),
        (
            {"jwt": {**ELSEWHERE, "grants_claim": "roles", "scopes_supported": ["api://pallas/agents"]}},
            {"scopes": ["openid", "offline_access", "api://pallas/agents"]},
        ),
    ],
)
async def test_clients_are_told_how_people_sign_in(
    more: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    async with serving(tmp_path, {**CLIENT, **more}, console=False) as served:
        answer = await asked(served, Authorization="Bearer nonsense")  # open: the token is not looked at
        public = served.gateway.configuration.public_base_url
    scopes = ["openid", "offline_access", "run:agents"]
    usual = {"issuer": "https://login.example", "client_id": "pallas", "scopes": scopes, "resource": public}
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert answer.json() == {"sign_in": {**usual, **changes}, "project": "test"}


async def test_the_console_is_told_that_people_do_not_sign_in(tmp_path: Path) -> None:
    async with serving(tmp_path, {"jwt": ELSEWHERE}, console=True) as served:
        answer = await asked(served)
    assert (answer.status_code, answer.json()) == (200, {"sign_in": None, "project": "test"})


async def test_without_console_and_sign_in_there_is_no_endpoint(tmp_path: Path) -> None:
    async with serving(tmp_path, {"jwt": ELSEWHERE, "anonymous": ["view:agents"]}, console=False) as served:
        answer = await asked(served)
    why = "people do not sign in here; `gateway.auth.console_client_id` in agents.yaml enables it"
    assert (answer.status_code, answer.json()["error"]) == (404, why)


async def test_the_guards_hold(tmp_path: Path) -> None:
    async with serving(tmp_path, CLIENT) as served:
        rebound = await asked(served, Host="rebound.example")
        foreign = await asked(served, Origin="https://foreign.example")
        posted = await served.request("POST", PATH)
    assert [one.status_code for one in (rebound, foreign, posted)] == [421, 403, 405]


@pytest.mark.needs("oidc-provider")
async def test_a_token_of_a_sign_in_has_the_grants_of_its_scopes(provider: OidcProvider, tmp_path: Path) -> None:
    provider.behave(scopes=["run:agents:echo", "view:gateway"])
    async with serving(tmp_path, provider.auth(), console=True) as served:
        told = (await asked(served)).json()["sign_in"]
        assert (told["issuer"], told["client_id"]) == (provider.issuer, CLIENT_ID)
        token = bearer(provider.tokens(told["resource"], "run:agents:echo")["access_token"])
        called = [(await attempt(served.url(name), token)).status for name in ("echo", "other")]
        state = await served.request("GET", "/api/gateway", headers={"Authorization": token})
        both = bearer(provider.tokens(told["resource"], "run:agents:echo", "view:gateway")["access_token"])
        allowed = await served.request("GET", "/api/gateway", headers={"Authorization": both})
    assert called == [200, 404]
    assert (state.status_code, allowed.status_code) == (403, 200)


@pytest.mark.needs("oidc-provider")
async def test_a_token_without_resource_is_accepted_for_the_audience_of_the_settings(
    provider: OidcProvider, tmp_path: Path
) -> None:
    provider.behave(default_resource="api://pallas")
    auth = provider.auth(console_send_resource=False)
    auth["jwt"]["audience"] = "api://pallas"
    async with serving(tmp_path, auth) as served:
        told = (await asked(served)).json()["sign_in"]
        token = provider.tokens(told["resource"], "run:agents")["access_token"]
        assert (await attempt(served.url("echo"), bearer(token))).status == 200


# --- the SDK's own client, which knows nothing but an agent's URL -----------------------------------------------------

REDIRECT = "http://127.0.0.1:1/callback"  # nobody listens there: the user below reads the address only
EACH_MODE = pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", MODERN_VERSION)])


class Memory:
    """A client's token storage, which outlives its connections."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class User:
    """Somebody whose browser follows redirects, up to the one back to the client."""

    def __init__(self) -> None:
        self.visits: list[httpx2.URL] = []
        self._sent_back: dict[str, str] = {}

    async def visit(self, url: str) -> None:
        async with httpx2.AsyncClient(trust_env=False) as browser:
            answer = await browser.get(url)
        assert answer.status_code == 302, answer.text
        assert answer.headers["location"].startswith(REDIRECT)
        self.visits.append(httpx2.URL(url))
        self._sent_back = dict(httpx2.URL(answer.headers["location"]).params)

    async def come_back(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(**self._sent_back)


def oauth_for(url: str, memory: Memory, user: User) -> OAuthClientProvider:
    """The SDK's OAuth for one agent; no token is given to it."""
    described = OAuthClientMetadata.model_validate({"client_name": "tests", "redirect_uris": [REDIRECT]})
    return OAuthClientProvider(url, described, memory, user.visit, user.come_back)


@asynccontextmanager
async def connected(oauth: OAuthClientProvider, mode: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(auth=oauth, trust_env=False, timeout=30) as http,
        Client(
            streamable_http_client(oauth.context.server_url, http_client=http),
            mode=mode,
            client_info=Implementation.model_validate(CLIENT_INFO),
            cache=None,
        ) as client,
    ):
        yield client


async def say(client: Client, message: str) -> str:
    result = await client.call_tool("send_message", {"message": message})
    assert not result.is_error
    return text_of(result)


@EACH_MODE
async def test_client_that_knows_only_the_url_registers_logs_in_and_is_answered(
    mode: str, version: str, tmp_path: Path
) -> None:
    memory, user = Memory(), User()
    async with guarded(tmp_path) as g:
        async with connected(oauth_for(g.url(), memory, user), mode) as client:
            assert client.protocol_version == version
            assert await say(client, "let me in") == "let me in"
        tokens_asked = [request.status for request in g.server.requests("/token")]

    assert [visit.params["resource"] for visit in user.visits] == [g.url()]
    assert [visit.path for visit in user.visits] == ["/authorize"]
    assert tokens_asked == [200]
    assert [request.path for request in g.server.recorder.requests if request.path != "/jwks"] == [
        "/.well-known/oauth-authorization-server", "/register", "/authorize", "/token",
    ]  # fmt: skip


@EACH_MODE
async def test_token_of_one_agent_does_not_open_another(mode: str, version: str, tmp_path: Path) -> None:
    memory, user = Memory(), User()
    async with guarded(tmp_path) as g:
        for agent in ("research", "other"):
            async with connected(oauth_for(g.url(agent), memory, user), mode) as client:
                assert client.protocol_version == version
                assert await say(client, agent) == agent

    # The second agent refused the token that the client remembered; its user had to be asked for another one.
    assert [visit.params["resource"] for visit in user.visits] == [g.url(), g.url("other")]


@EACH_MODE
async def test_client_whose_token_has_ended_gets_another_without_its_user(
    mode: str, version: str, tmp_path: Path
) -> None:
    memory, user = Memory(), User()
    async with guarded(tmp_path) as g:
        oauth = oauth_for(g.url(), memory, user)
        async with connected(oauth, mode) as client:
            assert client.protocol_version == version
            assert await say(client, "first") == "first"
            before, oauth.context.token_expiry_time = memory.tokens, 1  # long ago
            assert await say(client, "second") == "second"
            after = memory.tokens
        statuses = [request.status for request in g.server.requests("/token")]

    assert before is not None
    assert after is not None
    assert before.refresh_token != after.refresh_token
    assert statuses == [200, 200]
    assert len(user.visits) == 1


@EACH_MODE
async def test_client_that_may_only_look_is_told_what_to_ask_for_and_then_may_call(
    mode: str, version: str, tmp_path: Path
) -> None:
    memory, user = Memory(), User()
    async with guarded(tmp_path) as g:
        g.server.approve = lambda _: frozenset({"view:agents"})
        async with connected(oauth_for(g.url(), memory, user), mode) as client:
            assert client.protocol_version == version
            assert (await client.list_tools()).tools
            assert memory.tokens is not None
            assert memory.tokens.scope == "view:agents"
            g.server.approve = lambda asked: asked
            assert await say(client, "now?") == "now?"

    looked, called = (set(visit.params["scope"].split()) for visit in user.visits)
    assert {"run:agents:research", "view:agents"} <= called
    assert looked <= called
