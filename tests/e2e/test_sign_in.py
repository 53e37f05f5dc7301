"""How people sign in: what the gateway tells clients, and that it accepts the tokens of a real OpenID provider."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.gateway import Agent, Running, running, write_project
from tests.support.guarded import attempt, bearer
from tests.support.oidc_provider import CLIENT_ID, OidcProvider, oidc_provider

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path

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
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(f"{served.base_url}{PATH}", headers=headers)


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
        async with httpx.AsyncClient(trust_env=False) as http:
            posted = await http.post(f"{served.base_url}{PATH}")
    assert [one.status_code for one in (rebound, foreign, posted)] == [421, 403, 405]


@pytest.mark.needs("oidc-provider")
async def test_a_token_of_a_sign_in_has_the_grants_of_its_scopes(provider: OidcProvider, tmp_path: Path) -> None:
    provider.behave(scopes=["run:agents:echo", "view:gateway"])
    async with serving(tmp_path, provider.auth(), console=True) as served:
        told = (await asked(served)).json()["sign_in"]
        assert (told["issuer"], told["client_id"]) == (provider.issuer, CLIENT_ID)
        token = bearer(provider.tokens(told["resource"], "run:agents:echo")["access_token"])
        called = [(await attempt(served.url(name), token)).status for name in ("echo", "other")]
        state = await asked_for_state(served, token)
        both = bearer(provider.tokens(told["resource"], "run:agents:echo", "view:gateway")["access_token"])
        allowed = await asked_for_state(served, both)
    assert called == [200, 404]
    assert (state, allowed) == (403, 200)


async def asked_for_state(served: Running, authorization: str) -> int:
    async with httpx.AsyncClient(trust_env=False, headers={"Authorization": authorization}) as http:
        return (await http.get(f"{served.base_url}/api/gateway")).status_code


@pytest.mark.needs("oidc-provider")
@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": 1}, "the token has expired"),
        ({"aud": "http://other.example"}, "the token is for another audience"),
        ({"iss": "http://other.example"}, "the token is of another issuer"),
    ],
)
async def test_other_tokens_of_the_provider_are_refused(
    claims: dict[str, Any], why: str, provider: OidcProvider, tmp_path: Path
) -> None:
    provider.behave(access_token_claims=claims)
    async with serving(tmp_path, provider.auth()) as served:
        token = provider.tokens(served.base_url, "run:agents")["access_token"]
        refused = await attempt(served.url("echo"), bearer(token))
    assert (refused.status, why in refused.headers["www-authenticate"]) == (401, True)


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
