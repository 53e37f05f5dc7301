"""The authorization server: what it refuses, that nothing works twice, and what the forge makes."""

import base64
import hashlib
import json
import warnings
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import KeySet, OctKey

from tests.support.authorization_server import AuthorizationServer, authorization_server
from tests.support.tokens import keys_of

REDIRECT = "http://127.0.0.1:1/callback"
RESOURCE = "http://gateway.test/agents/research/mcp"
VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()


class Browser:
    """A client and its user, by hand."""

    def __init__(self, http: httpx.AsyncClient, server: AuthorizationServer) -> None:
        self.http, self.server = http, server
        self.client: dict[str, Any] = {}

    async def register(self, method: str = "none") -> None:
        described = {"redirect_uris": [REDIRECT], "token_endpoint_auth_method": method}
        reply = await self.http.post("/register", json=described)
        assert reply.status_code == 201
        self.client = reply.json()

    async def authorize(self, **changes: str | None) -> httpx.Response:
        query = {
            "response_type": "code", "client_id": self.client["client_id"], "redirect_uri": REDIRECT, "state": "s t",
            "code_challenge": CHALLENGE, "code_challenge_method": "S256", "resource": RESOURCE,
            "scope": "view:agents run:agents", **changes,
        }  # fmt: skip
        return await self.http.get("/authorize", params={name: value for name, value in query.items() if value})

    async def code(self) -> str:
        location = (await self.authorize()).headers["location"]
        return dict(parse_qsl(urlsplit(location).query))["code"]

    async def redeem(self, code: str, /, **changes: str) -> httpx.Response:
        shown = {"code": code, "redirect_uri": REDIRECT, "code_verifier": VERIFIER}
        return await self.token(**{"grant_type": "authorization_code", **shown, **changes})

    async def refresh(self, token: str) -> httpx.Response:
        return await self.token(grant_type="refresh_token", refresh_token=token)

    async def token(self, **form: str) -> httpx.Response:
        credentials = {name: value for name, value in self.client.items() if name in {"client_id", "client_secret"}}
        return await self.http.post("/token", data={**credentials, **form})


def visiting(server: AuthorizationServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.issuer, trust_env=False)


async def claims_of(token: str, http: httpx.AsyncClient) -> dict[str, Any]:
    return verified(token, (await http.get("/jwks")).json()).claims


def verified(token: str, keys: Any) -> jwt.Token:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)  # RFC 9864 names Ed25519 what most servers still call EdDSA
        return jwt.decode(token, KeySet.import_key_set(keys), algorithms=["RS256", "ES256", "EdDSA"])


async def test_no_more_is_granted_than_is_approved() -> None:
    async with authorization_server() as server, visiting(server) as http:
        server.approve = lambda asked: asked & {"view:agents"}
        browser = Browser(http, server)
        await browser.register()
        token = (await browser.redeem(await browser.code())).json()

        assert token["scope"] == "view:agents"
        assert (await claims_of(token["access_token"], http))["scope"] == "view:agents"


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": "nobody"},
        {"redirect_uri": "http://evil.test/"},
        {"response_type": "token"},
        {"code_challenge_method": "plain"},
        {"code_challenge_method": None},
    ],
)
async def test_no_code_without_a_known_client_and_pkce(changes: dict[str, str | None]) -> None:
    async with authorization_server() as server, visiting(server) as http:
        browser = Browser(http, server)
        await browser.register()
        refused = await browser.authorize(**changes)

    assert (refused.status_code, refused.json()) == (400, {"error": "invalid_request"})
    assert server.codes == {}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"code": "made-up"}, "invalid_grant"),
        ({"code_verifier": "w" * 43}, "invalid_grant"),
        ({"redirect_uri": "http://evil.test/"}, "invalid_grant"),
        ({"client_id": "nobody"}, "invalid_client"),
        ({"client_secret": "made-up"}, "invalid_client"),
        ({"resource": "http://elsewhere.test/"}, "invalid_target"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
    ],
)
async def test_no_token_for_a_code_that_is_not_shown_as_it_was_got(changes: dict[str, str], error: str) -> None:
    async with authorization_server() as server, visiting(server) as http:
        browser = Browser(http, server)
        await browser.register()
        refused = await browser.redeem(await browser.code(), **changes)

    assert (refused.status_code, refused.json()) == (401 if error == "invalid_client" else 400, {"error": error})


async def test_codes_and_refresh_tokens_work_once() -> None:
    async with authorization_server() as server, visiting(server) as http:
        browser = Browser(http, server)
        await browser.register()
        code = await browser.code()
        first, again = await browser.redeem(code), await browser.redeem(code)
        refresh = first.json()["refresh_token"]
        refreshed = await browser.refresh(refresh)
        refreshed_again = await browser.refresh(refresh)

        assert (first.status_code, again.status_code) == (200, 400)
        assert (refreshed.status_code, refreshed_again.status_code) == (200, 400)
        assert refreshed.json()["refresh_token"] != refresh
        assert (await claims_of(refreshed.json()["access_token"], http))["aud"] == RESOURCE


def test_forged_tokens_are_what_they_pretend_to_be() -> None:
    server = AuthorizationServer()
    unsigned = server.mint(alg="none")
    symmetric = server.mint(key=b"x" * 64, header={"kid": "rsa-1"})
    critical = server.mint(header={"crit": ["x"], "x": 1, "typ": None})

    assert header_of(unsigned)["alg"] == "none"
    assert unsigned.endswith(".")
    assert jwt.decode(symmetric, OctKey.import_key(b"x" * 64), algorithms=["HS256"]).header == {
        "alg": "HS256", "typ": "at+jwt", "kid": "rsa-1",
    }  # fmt: skip
    assert header_of(critical) == {"alg": "RS256", "kid": "rsa-1", "crit": ["x"], "x": 1}
    for forged in (unsigned, critical, server.mint(key=keys_of("stranger", 1).rsa)):
        with pytest.raises(JoseError):
            verified(forged, server.jwks())


def header_of(token: str) -> dict[str, Any]:
    header = token.partition(".")[0]
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    return decoded
