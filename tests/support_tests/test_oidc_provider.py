"""The OpenID provider of the tests refuses what one in production does."""

from collections.abc import Generator
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.support.oidc_provider import CLIENT_ID, OidcProvider, oidc_provider

pytestmark = pytest.mark.needs("oidc-provider")


@pytest.fixture(scope="module")
def shared() -> Generator[OidcProvider]:
    with oidc_provider("http://127.0.0.1:1/console/") as provider:
        yield provider


@pytest.fixture
def provider(shared: OidcProvider) -> OidcProvider:
    shared.behave()
    return shared


def authorization_url(provider: OidcProvider, **changes: str) -> str:
    query = {
        "client_id": CLIENT_ID, "response_type": "code", "redirect_uri": "http://127.0.0.1:7/callback",
        "scope": "openid", "state": "s", "code_challenge": "c" * 43, "code_challenge_method": "S256", **changes,
    }  # fmt: skip
    return f"{provider.issuer}/auth?{urlencode({name: value for name, value in query.items() if value})}"


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
