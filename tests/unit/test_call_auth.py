"""Which request may carry which token: decided per request, by its origin and by the call that sends it."""

import asyncio
from collections.abc import Mapping

import httpx2
import pytest

from pallas_gateway.calls.credentials import NESTED_CALL_HEADER, Credentials
from pallas_gateway.identity.secret import Secret
from pallas_gateway.runtime.credentials import CallAuth, presenting
from pallas_gateway.runtime.ports import Downstream
from tests.support.downstreams import refusing

URL = "https://tools.example.com/mcp"
SHARED = Downstream("shared", URL, forwards_bearer=True)
PLAIN = Downstream("plain", URL)
PEER = Downstream("peer", URL, peer="research")
SHARED_PEER = Downstream("peer", URL, forwards_bearer=True, peer="research")
BOTH = Credentials(Secret("anns-token"), Secret("call-token"))
BEARER, NESTED = {"authorization": "Bearer anns-token"}, {NESTED_CALL_HEADER: "call-token"}


def added(downstream: Downstream, *, url: str = URL, own: bool = False) -> Mapping[str, str]:
    """The headers a request gets on its way."""
    request = httpx2.Request("POST", url)
    before = set(request.headers)
    sent = next(CallAuth(downstream.name, has_own_authorization=own).auth_flow(request))
    return {name: value for name, value in sent.headers.items() if name not in before}


def added_in_call(
    downstream: Downstream, *, credentials: Credentials = BOTH, url: str = URL, own: bool = False
) -> Mapping[str, str]:
    with presenting(credentials, {downstream.name: downstream}):
        return added(downstream, url=url, own=own)


@pytest.mark.parametrize(
    ("downstream", "headers"),
    [(PLAIN, {}), (SHARED, BEARER), (PEER, NESTED), (SHARED_PEER, {**BEARER, **NESTED})],
    ids=["plain", "forwarding", "peer", "forwarding peer"],
)
def test_a_server_gets_what_it_was_marked_for(downstream: Downstream, headers: Mapping[str, str]) -> None:
    assert added_in_call(downstream) == headers


@pytest.mark.parametrize("downstream", [SHARED, PEER, SHARED_PEER])
def test_outside_a_call_nothing_is_added(downstream: Downstream) -> None:
    assert added(downstream) == {}
    added_in_call(downstream)
    assert added(downstream) == {}  # and not after one either


def test_a_servers_own_authorization_wins_over_the_callers() -> None:
    assert added_in_call(SHARED, own=True) == {}
    assert added_in_call(SHARED_PEER, own=True) == NESTED


def test_an_anonymous_caller_has_nothing_to_forward() -> None:
    assert added_in_call(SHARED_PEER, credentials=Credentials(None, Secret("call-token"))) == NESTED
    assert added_in_call(SHARED_PEER, credentials=Credentials(None, None)) == {}


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example.com/mcp",
        "https://tools.example.com:8443/mcp",
        "http://tools.example.com/mcp",
        "https://tools.example.com.evil.example/mcp",
        "https://tools.example.com@evil.example/mcp",
        "https://sub.tools.example.com/mcp",
    ],
)
def test_another_origin_gets_nothing(url: str) -> None:
    assert added_in_call(SHARED_PEER, url=url) == {}


@pytest.mark.parametrize(
    "url", ["https://tools.example.com/other?x=1", "https://tools.example.com:443/mcp", "HTTPS://TOOLS.example.com/mcp"]
)
def test_the_origin_is_what_counts_not_the_path_or_its_spelling(url: str) -> None:
    assert added_in_call(SHARED, url=url) == BEARER


def test_a_server_the_call_does_not_know_gets_nothing() -> None:
    with presenting(BOTH, {"other": SHARED}):
        assert added(SHARED) == {}


def test_a_server_without_an_address_gets_nothing() -> None:
    assert added_in_call(Downstream("local", None, forwards_bearer=True)) == {}


async def test_calls_side_by_side_each_present_their_own() -> None:
    barrier = asyncio.Barrier(20)

    async def present(name: str) -> str:
        with presenting(Credentials(Secret(name), None), {"shared": SHARED}):
            await barrier.wait()
            return added(SHARED)["authorization"]

    names = [f"caller-{number}" for number in range(20)]
    assert await asyncio.gather(*(present(name) for name in names)) == [f"Bearer {name}" for name in names]


async def test_a_request_that_is_redirected_to_another_origin_leaves_the_token_behind() -> None:
    async with refusing(401) as elsewhere, refusing(307, {"Location": elsewhere.url}) as server:
        downstream = Downstream("shared", server.url, forwards_bearer=True)
        auth = CallAuth("shared", has_own_authorization=False)
        with presenting(BOTH, {"shared": downstream}):
            async with httpx2.AsyncClient(auth=auth, follow_redirects=True) as client:
                response = await client.post(server.url, json={})

    assert response.status_code == 401
    assert [request.bearer for request in server.recorder.requests] == ["anns-token"]
    assert [request.bearer for request in elsewhere.recorder.requests] == [None]
