"""Sign-in by a browser: where one is opened, what it is sent, and a second answer."""

import json
import webbrowser
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import pytest

from pallas_gateway.client.sign_in import browser
from pallas_gateway.client.sign_in.authorization_server import AuthorizationServer, Metadata, Offer
from pallas_gateway.client.sign_in.browser import BrowserRequest, opens_a_browser
from tests.support.waiting import eventually

ISSUER = "https://login.example"
METADATA = Metadata(issuer=ISSUER, authorization_endpoint=f"{ISSUER}/auth?tenant=one", token_endpoint=f"{ISSUER}/token")
VERIFIER, CHALLENGE = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
"""The example of RFC 7636, appendix B."""


def offer(*scopes: str, resource: str | None = None) -> Offer:
    return Offer(issuer=ISSUER, client_id="pallas", scopes=scopes, resource=resource)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (offer("openid", "offline_access", resource=f"{ISSUER}/api"), {"nonce", "prompt", "resource"}),
        (offer("openid"), {"nonce"}),
        (offer("run:agents"), set()),
    ],
)
async def test_the_request_has_what_the_offer_asks_for(wanted: Offer, names: set[str]) -> None:
    async with httpx.AsyncClient() as http:
        url = BrowserRequest("http://127.0.0.1:1/callback", "s", "n", VERIFIER).url(
            AuthorizationServer(METADATA, http), wanted
        )
    query = dict(parse_qsl(urlsplit(url).query))
    usual = {
        "tenant", "response_type", "client_id", "redirect_uri", "scope", "state", "code_challenge",
        "code_challenge_method",
    }  # fmt: skip
    assert set(query) == usual | names
    assert query["code_challenge"] == CHALLENGE


async def test_a_second_answer_while_tokens_are_requested_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    targets: list[str] = []
    answers: list[int] = []

    def opened(url: str) -> bool:
        [redirect], [state] = (parse_qs(urlsplit(url).query)[name] for name in ("redirect_uri", "state"))
        targets.append(f"{redirect}?state={state}&code=")
        answers.append(httpx.get(f"{targets[0]}first", trust_env=False).status_code)
        return True

    async def answer(request: httpx.Request) -> httpx.Response:
        await eventually(lambda: bool(answers), what="the page of the first answer")
        async with httpx.AsyncClient(trust_env=False) as http:
            answers.append((await http.get(f"{targets[0]}second")).status_code)
        return httpx.Response(
            200, content=json.dumps({"access_token": request.content.decode(), "token_type": "Bearer"})
        )

    monkeypatch.setattr(webbrowser, "open", opened)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        found, _ = await browser.sign_in(AuthorizationServer(METADATA, http), offer("run:agents"), opens=True)
    assert answers == [200, 410]
    assert dict(parse_qsl(found["access_token"]))["code"] == "first"


@pytest.mark.parametrize(
    ("environ", "platform", "opens"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"BROWSER": "firefox"}, "linux", True),
        ({}, "darwin", True),
    ],
)
def test_a_browser_is_opened_where_there_are_windows(environ: dict[str, str], platform: str, opens: bool) -> None:
    assert opens_a_browser(environ, platform) is opens
