"""What an authorization server answers, as far as no test with a whole one has it."""

import base64
import json

import pytest

from pallas_gateway.client.sign_in.authorization_server import Offer, login_of

OFFER = Offer(issuer="https://login.example", client_id="pallas", scopes=(), resource=None)
HUGE = 10**400  # JSON has it, and no float


def token_until(end: int) -> str:
    """Return a token with that end."""
    parts = (json.dumps(one).encode() for one in ({"alg": "none"}, {"exp": end}))
    return ".".join([*(base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts), "signature"])


@pytest.mark.parametrize(
    ("seconds", "end", "expected"),
    [(HUGE, 1000, 1000), (HUGE, HUGE, None), (None, HUGE, None)],
    ids=["seconds", "both", "end"],
)
def test_a_time_that_is_too_large_is_none(seconds: int | None, end: int, expected: float | None) -> None:
    login = login_of({"access_token": token_until(end), "expires_in": seconds}, OFFER)
    assert login.expires_at == expected
