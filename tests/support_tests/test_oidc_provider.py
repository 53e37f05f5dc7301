"""The OpenID provider of the tests: what it grants, and each way in which a test has it fail."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from tests.support.oidc_provider import CLIENT_ID, OidcProvider, oidc_provider

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.needs("oidc-provider")
RESOURCE = "http://127.0.0.1:24200"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


@pytest.fixture(scope="module")
def shared() -> Generator[OidcProvider]:
    with oidc_provider("http://127.0.0.1:1/console/") as provider:
        yield provider


@pytest.fixture
def provider(shared: OidcProvider) -> OidcProvider:
    shared.behave()
    return shared


def claims_of(token: str) -> Any:
    return json.loads(urlsafe_b64decode(f"{token.split('.')[1]}=="))


def authorization_url(provider: OidcProvider, **changes: str) -> str:
    query = {
        "client_id": CLIENT_ID, "response_type": "code", "redirect_uri": "http://127.0.0.1:7/callback",
        "scope": "openid", "state": "s", "code_challenge": "c" * 43, "code_challenge_method": "S256", **changes,
    }  # fmt: skip
    return f"{provider.issuer}/auth?{urlencode({name: value for name, value in query.items() if value})}"


def test_a_sign_in_gives_a_jwt_for_the_resource_with_the_scopes_that_exist(provider: OidcProvider) -> None:
    answer = provider.tokens(RESOURCE, "run:agents", "unknown")
    token, identity = claims_of(answer["access_token"]), claims_of(answer["id_token"])
    assert (token["aud"], token["scope"], token["sub"], token["iss"]) == (
        RESOURCE, "run:agents", "alice", provider.issuer,
    )  # fmt: skip
    assert (identity["aud"], identity["nonce"]) == (CLIENT_ID, "n")


def test_refresh_tokens_rotate_and_are_revoked(provider: OidcProvider) -> None:
    first = provider.tokens(RESOURCE, "run:agents")["refresh_token"]
    second = provider.token("refresh_token", refresh_token=first, resource=RESOURCE).json()["refresh_token"]
    assert first != second
    form = {"token": second, "client_id": CLIENT_ID}
    httpx.post(f"{provider.issuer}/token/revocation", data=form, trust_env=False).raise_for_status()
    assert provider.token("refresh_token", refresh_token=second).json()["error"] == "invalid_grant"


def test_a_device_waits_until_its_code_is_approved_or_refused(provider: OidcProvider) -> None:
    form = {"client_id": CLIENT_ID, "scope": "openid offline_access run:agents", "resource": RESOURCE}
    for refuse, expected in ((False, None), (True, "access_denied")):
        begun = httpx.post(f"{provider.issuer}/device/auth", data=form, trust_env=False).json()
        waiting = provider.token(DEVICE, device_code=begun["device_code"], resource=RESOURCE)
        provider.approve_device(begun["verification_uri_complete"], refuse=refuse)
        ended = provider.token(DEVICE, device_code=begun["device_code"], resource=RESOURCE).json()
        assert waiting.json()["error"] == "authorization_pending"
        assert ended.get("error") == expected
        assert ("refresh_token" in ended) is not refuse


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"code_challenge": "", "code_challenge_method": ""}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"prompt": "none"}, "login_required"),
    ],
)
def test_errors_go_to_the_client(provider: OidcProvider, changes: dict[str, str], error: str) -> None:
    answer = parse_qs(urlsplit(provider.redirect(authorization_url(provider, **changes))).query)
    assert answer["error"] == [error]
    assert answer["iss"] == [provider.issuer]


def test_a_foreign_redirect_is_refused_on_its_own_page(provider: OidcProvider) -> None:
    page = provider.sign_in(authorization_url(provider, redirect_uri="http://evil.example/callback"))
    assert page.status_code == 400
    assert str(page.url).startswith(provider.issuer)


def test_the_person_may_refuse(provider: OidcProvider) -> None:
    assert "error=access_denied" in provider.redirect(authorization_url(provider), answer="no")


def test_pages_of_loopback_addresses_may_ask(provider: OidcProvider) -> None:
    form = {"grant_type": "refresh_token", "refresh_token": "unknown", "client_id": CLIENT_ID}
    with httpx.Client(trust_env=False, base_url=provider.issuer) as http:
        for origin, allowed in (("http://127.0.0.1:999", True), ("https://other.example", False)):
            answered = http.post("/token", data=form, headers={"Origin": origin})
            assert ("access-control-allow-origin" in answered.headers) is allowed
            metadata = http.get("/.well-known/openid-configuration", headers={"Origin": origin})
            assert "access-control-allow-origin" in metadata.headers


def test_each_failure_can_be_chosen(provider: OidcProvider) -> None:
    provider.behave(access_token_seconds=7, default_resource="http://default.example", id_token_claims={"nonce": "no"})
    answer = provider.tokens(None)
    assert answer["expires_in"] == 7
    assert claims_of(answer["access_token"])["aud"] == "http://default.example"
    assert claims_of(answer["id_token"])["nonce"] == "no"
    provider.behave(refuse_refresh=True, access_token_claims={"aud": "x", "exp": 1}, iss="http://other.example")
    token = claims_of(provider.tokens(RESOURCE)["access_token"])
    assert (token["aud"], token["exp"]) == ("x", 1)
    assert "iss=http%3A%2F%2Fother.example" in provider.redirect(authorization_url(provider))
    refused = provider.token("refresh_token", refresh_token=answer["refresh_token"])
    assert refused.json()["error"] == "invalid_grant"
    provider.behave(refuse_resource=True, rfc8414=True, metadata={"issuer": "http://x", "jwks_uri": None})
    with httpx.Client(trust_env=False, base_url=provider.issuer) as http:
        assert http.get(authorization_url(provider, resource=RESOURCE)).json()["error"] == "invalid_target"
        for path in ("oauth-authorization-server", "openid-configuration"):
            document = http.get(f"/.well-known/{path}").json()
            assert document["issuer"] == "http://x"
            assert "jwks_uri" not in document
