"""For which gateways a sign-in requests a token: for the one that is asked, and for no other on its host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pallas_gateway.client.sign_in import signing
from pallas_gateway.client.sign_in.authorization_server import AuthorizationServer

if TYPE_CHECKING:
    from pathlib import Path


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
    with pytest.raises(signing.NoSignInError if is_refused else DiscoveredError):
        await signing.sign_in(base_url, by_code=False, no_browser=True)
