"""For which gateways a sign-in requests a token: for the one that is asked, and for no other on its host.

With a device code: how often the server is asked, and how the wait ends.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.client.arguments import CommandError
from pallas_gateway.client.sign_in import signing
from pallas_gateway.client.sign_in.authorization_server import AuthorizationServer, Metadata, OAuthError, Offer
from pallas_gateway.client.sign_in.signing import sign_in_by_code


class DiscoveredError(Exception):
    """The sign-in has gone on to the authorization server."""


@pytest.mark.parametrize(
    ("resource", "base_url", "is_refused"),
    [
        ("https://agents.example/a", "https://agents.example/a", False),
        ("https://agents.example/a", "https://AGENTS.example:443/a/", False),
        ("https://agents.example/b", "https://agents.example/a", True),
        ("https://agents.example", "https://agents.example/a", True),
        ("https://agents.example:8443", "https://agents.example", True),
        ("https://other.example", "https://agents.example", True),
        ("http://127.0.0.1:8000", "http://localhost:8000", False),
        ("http://127.0.0.1:8000", "http://localhost:9000", True),
        ("http://localhost:8000", "http://localhost:9000", True),
        ("http://127.0.0.1:8000/b", "http://localhost:8000/a", True),
    ],
)
async def test_a_token_is_requested_for_the_gateway_that_is_asked(
    resource: str, base_url: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def offered(_url: str) -> dict[str, object]:
        return {"issuer": "https://login.example", "client_id": "pallas", "scopes": [], "resource": resource}

    async def discovered(*_: object) -> None:
        raise DiscoveredError

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(signing, "fetch_sign_in", offered)
    monkeypatch.setattr(AuthorizationServer, "discover", discovered)
    with pytest.raises(CommandError if is_refused else DiscoveredError):
        await signing.sign_in(base_url, by_code=False, no_browser=True)


ISSUER = "https://login.example"
OFFER = Offer(issuer=ISSUER, client_id="pallas", scopes=("openid", "run:agents"), resource="https://agents.example")
METADATA = Metadata(
    issuer=ISSUER,
    authorization_endpoint=f"{ISSUER}/auth",
    token_endpoint=f"{ISSUER}/token",
    device_authorization_endpoint=f"{ISSUER}/device",
)
CODE = {"device_code": "d", "user_code": "ABCD", "verification_uri": f"{ISSUER}/enter", "expires_in": 600}
TOKEN = {"access_token": "t", "token_type": "bearer"}


class Server:
    """Answers requests for a code with `code`, and those for a token one after the other."""

    def __init__(self, *answers: Any, code: Any = CODE, metadata: Metadata = METADATA) -> None:
        self._answers, self._code, self._metadata = list(answers), code, metadata
        self.asked: list[str] = []
        self.pauses: list[float] = []

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.content.decode())
        answer = self._code if request.url.path == "/device" else self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(400 if "error" in answer else 200, content=json.dumps(answer))

    async def sign_in(self) -> dict[str, Any]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(self.answer)) as http:
            return await sign_in_by_code(AuthorizationServer(self._metadata, http), OFFER, pause=self.pause)


def refusal(code: str) -> dict[str, str]:
    return {"error": code}


async def test_the_server_is_asked_until_the_person_has_signed_in(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(refusal("authorization_pending"), refusal("slow_down"), httpx.ConnectError("gone"), TOKEN)
    assert await server.sign_in() == TOKEN
    assert server.pauses == [5.0, 5.0, 10.0, 20.0]
    assert server.asked[0] == "client_id=pallas&scope=openid+run%3Aagents&resource=https%3A%2F%2Fagents.example"
    assert server.asked[1].startswith(
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Adevice_code&client_id=pallas"
    )
    printed = capsys.readouterr().err
    assert "enter the code ABCD:" in printed
    assert f"{ISSUER}/enter" in printed


@pytest.mark.parametrize("code", ["access_denied", "expired_token", "invalid_grant"])
async def test_other_errors_end_the_wait(code: str) -> None:
    with pytest.raises(OAuthError, match=f"refused: {code}"):
        await Server(refusal(code)).sign_in()


async def test_an_expired_code_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 601.0])
    monkeypatch.setattr(signing, "monotonic", lambda: next(moments))
    with pytest.raises(OAuthError, match="The code has expired before anybody signed in with it"):
        await Server(refusal("authorization_pending")).sign_in()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"verification_uri": "http://evil.example"}, "verification_uri"),
        ({"verification_uri_complete": "javascript:alert(1)"}, "verification_uri_complete"),
        ({"expires_in": 0}, "expires_in"),
        ({"interval": -1}, "interval"),
        ({"device_code": ""}, "device_code"),
        ({"user_code": None}, "user_code"),
    ],
)
async def test_a_code_that_cannot_be_used_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(OAuthError, match=f"gave a code that cannot be used: {why}: "):
        await Server(code={**CODE, **changes}).sign_in()


async def test_a_server_without_codes_is_not_asked() -> None:
    server = Server(metadata=METADATA.model_copy(update={"device_authorization_endpoint": None}))
    with pytest.raises(OAuthError, match="offers no sign-in by a code"):
        await server.sign_in()
    assert server.asked == []
