"""Which request may carry which token: decided per request, by its origin and by the call that sends it."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs

import httpx
import httpx2
import pytest
import respx

from pallas_gateway.calls.call import Credentials
from pallas_gateway.errors import TokenExchangeError
from pallas_gateway.identity.secret import Secret
from pallas_gateway.identity.token_exchange import TokenExchange, TokenExchanger
from pallas_gateway.runtime.downstreams.credentials import CallAuth, bearer_for_peer, why_without_token
from pallas_gateway.runtime.protocols import Downstream, not_counted
from pallas_gateway.runtime.scope import CallScope, Operations, Presented, entered

URL = "https://tools.example.com/mcp"
ENDPOINT = "https://login.example.com/token"
SHARED = Downstream("shared", URL, forwards_bearer=True)
PLAIN = Downstream("plain", URL)
EXCHANGE = TokenExchange("exchanged", ENDPOINT, URL)
EXCHANGED = Downstream("exchanged", URL, forwards_bearer=True, token_exchange=EXCHANGE)
ANNS = Credentials(Secret("anns-token"))
BEARER = {"authorization": "Bearer anns-token"}
NEVER_ASKED = TokenExchanger()


def presenting(
    credentials: Credentials, downstreams: Mapping[str, Downstream], exchanger: TokenExchanger
) -> AbstractContextManager[None]:
    """The scope of a call with these credentials."""
    return entered(CallScope(presented=Presented(credentials, downstreams, exchanger)))


async def added(
    downstream: Downstream, *, url: str = URL, own: bool = False, headers: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """The headers a request has on its way, beside those that every request has."""
    request = httpx2.Request("POST", url, headers=headers)
    usual = set(httpx2.Request("POST", url).headers)
    flow = CallAuth(downstream.name, has_own_authorization=own).async_auth_flow(request)
    sent = await anext(flow)
    await flow.aclose()
    return {name: value for name, value in sent.headers.items() if name not in usual}


async def added_in_call(
    downstream: Downstream,
    *,
    credentials: Credentials = ANNS,
    url: str = URL,
    own: bool = False,
    headers: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    with presenting(credentials, {downstream.name: downstream}, NEVER_ASKED):
        return await added(downstream, url=url, own=own, headers=headers)


@pytest.mark.parametrize("downstream", [SHARED, EXCHANGED])
async def test_outside_a_call_nothing_is_added(downstream: Downstream) -> None:
    assert await added(downstream) == {}
    await added_in_call(downstream, url="https://other.example.com/mcp")
    assert await added(downstream) == {}  # and not after one either
    assert await added(downstream, headers=BEARER) == {}  # and what came along is taken off


OTHER_ORIGINS = [
    "https://other.example.com/mcp",
    "https://tools.example.com:8443/mcp",
    "http://tools.example.com/mcp",
    "https://tools.example.com.evil.example/mcp",
    "https://tools.example.com@evil.example/mcp",
    "https://sub.tools.example.com/mcp",
]


@pytest.mark.parametrize("downstream", [SHARED, EXCHANGED])
@pytest.mark.parametrize("url", [URL, OTHER_ORIGINS[0]])
async def test_a_servers_own_authorization_wins_and_stays_where_the_client_put_it(
    url: str, downstream: Downstream
) -> None:
    headers = {"authorization": "Bearer its-own"}
    assert await added_in_call(downstream, url=url, own=True, headers=headers) == headers


@pytest.mark.parametrize("downstream", [SHARED, EXCHANGED])
@pytest.mark.parametrize("url", OTHER_ORIGINS)
async def test_another_origin_gets_nothing(url: str, downstream: Downstream) -> None:
    assert await added_in_call(downstream, url=url) == {}


@pytest.mark.parametrize("downstream", [SHARED, EXCHANGED, PLAIN])
@pytest.mark.parametrize("url", OTHER_ORIGINS)
async def test_what_an_earlier_hop_was_given_is_taken_off_for_another_origin(url: str, downstream: Downstream) -> None:
    came_along = {**BEARER, "x-team": "blue"}
    assert await added_in_call(downstream, url=url, headers=came_along) == {"x-team": "blue"}


@pytest.mark.parametrize(
    "url", ["https://tools.example.com/other?x=1", "https://tools.example.com:443/mcp", "HTTPS://TOOLS.example.com/mcp"]
)
async def test_the_origin_is_what_counts_not_the_path_or_its_spelling(url: str) -> None:
    assert await added_in_call(SHARED, url=url) == BEARER


async def test_a_server_the_call_does_not_know_gets_nothing() -> None:
    with presenting(ANNS, {"other": SHARED}, NEVER_ASKED):
        assert await added(SHARED) == {}


async def test_a_server_without_an_address_gets_nothing() -> None:
    assert await added_in_call(Downstream("local", None, forwards_bearer=True)) == {}


async def test_an_upgrade_to_https_which_the_sdk_follows_is_another_origin() -> None:
    downstream = replace(SHARED, url="http://tools.example.com/mcp")

    def app(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers)
        moved = request.url.scheme == "http"
        return httpx2.Response(307, headers={"location": URL}) if moved else httpx2.Response(200)

    seen: list[httpx2.Headers] = []
    auth = CallAuth("shared", has_own_authorization=False)
    transport = httpx2.MockTransport(app)
    with presenting(ANNS, {"shared": downstream}, NEVER_ASKED):
        async with httpx2.AsyncClient(auth=auth, transport=transport) as client:
            moved = await client.post("http://tools.example.com/mcp", json={})
            assert moved.next_request is not None
            assert moved.next_request.headers["authorization"] == "Bearer anns-token"  # copied by the library
            await client.send(moved.next_request)

    assert [headers.get("authorization") for headers in seen] == ["Bearer anns-token", None]


def test_a_client_that_blocks_is_refused() -> None:
    with (
        httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200))) as client,
        pytest.raises(RuntimeError, match="asynchronous"),
    ):
        client.get(URL, auth=CallAuth("shared", has_own_authorization=False))


@dataclass
class World:
    """An authorization server that issues `1-anns-token`, `2-anns-token`, …, and a downstream that takes some."""

    exchanger: TokenExchanger
    taken: Callable[[str], bool] = lambda _: True
    refuses: bool = False
    issued: int = 0
    seen: list[str | None] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def token_endpoint(self, request: httpx.Request) -> httpx.Response:
        if self.refuses:
            return httpx.Response(400, json={"error": "invalid_grant"})
        self.issued += 1
        subject = parse_qs(request.content.decode())["subject_token"][0]
        answer = {"access_token": f"{self.issued}-{subject}", "token_type": "Bearer", "expires_in": 300}
        return httpx.Response(200, json=answer)

    async def downstream(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(request.headers.get("authorization"))
        self.bodies.append(await request.aread())
        token = (self.seen[-1] or "").removeprefix("Bearer ")
        return httpx2.Response(200 if self.taken(token) else 401)

    async def post(self, *names: str, content: object = b"{}", to: Downstream = EXCHANGED) -> Sequence[int]:
        """One request for each of these callers; the statuses they came to."""
        auth = CallAuth(to.name, has_own_authorization=False)
        statuses = []
        for name in names:
            with presenting(Credentials(Secret(name)), {to.name: to}, self.exchanger):
                async with httpx2.AsyncClient(auth=auth, transport=httpx2.MockTransport(self.downstream)) as client:
                    response = await client.post(URL, content=content)  # type: ignore[arg-type]  # bytes or an iterator
            statuses.append(response.status_code)
        return statuses


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with respx.mock(assert_all_called=False) as router:
        async with TokenExchanger() as exchanger:
            world = World(exchanger)
            router.post(ENDPOINT).mock(side_effect=world.token_endpoint)
            yield world


@pytest.mark.parametrize("status", [200, 401, 403, 404, 503])
@pytest.mark.parametrize(("downstream", "url"), [(SHARED, URL), (EXCHANGED, URL), (SHARED, OTHER_ORIGINS[0])])
async def test_refusal_of_the_callers_credential_is_reported(
    downstream: Downstream, url: str, status: int, world: World
) -> None:
    refused: list[str] = []
    operations = Operations(not_counted, {downstream.name}, on_refused=refused.append)
    scope = CallScope(presented=Presented(ANNS, {downstream.name: downstream}, world.exchanger), operations=operations)
    auth = CallAuth(downstream.name, has_own_authorization=False)
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status))
    with entered(scope):
        async with httpx2.AsyncClient(auth=auth, transport=transport) as client:
            await client.get(url)
    assert refused == ([downstream.name] if url == URL and status in (401, 403) else [])


async def pieces() -> AsyncIterator[bytes]:
    yield b"one "
    yield b"two"


@pytest.mark.parametrize("content", [lambda: b"one two", pieces], ids=["at once", "in pieces"])
async def test_a_kept_token_that_is_refused_is_exchanged_anew_once(content: Callable[[], object], world: World) -> None:
    await world.post("ann")
    world.taken = lambda token: token != "1-ann"
    assert await world.post("ann", content=content()) == [200]
    assert world.seen == ["Bearer 1-ann", "Bearer 1-ann", "Bearer 2-ann"]
    assert world.bodies[1:] == [b"one two"] * 2


async def test_a_server_that_takes_nothing_is_not_asked_for_ever(world: World) -> None:
    world.taken = lambda _: False
    assert await world.post("ann") == [401]  # issued just now: another one would not be taken either
    assert (world.issued, world.seen) == (1, ["Bearer 1-ann"])
    assert await world.post("ann") == [401]
    assert (world.issued, world.seen[1:]) == (2, ["Bearer 2-ann"])  # and it is not kept either


@pytest.mark.parametrize("kept", [False, True])
async def test_without_a_token_nothing_is_sent(world: World, kept: bool) -> None:
    if kept:
        await world.post("ann")
        world.taken = lambda _: False
    world.refuses = True
    with pytest.raises(TokenExchangeError, match="invalid_grant"):
        await world.post("ann")
    assert world.seen == ["Bearer 1-ann", "Bearer 1-ann"][: 2 * kept]


async def test_why_nothing_was_sent_is_known_to_its_call_until_the_next_request(world: World) -> None:
    auth = CallAuth("exchanged", has_own_authorization=False)
    transport = httpx2.MockTransport(world.downstream)
    with presenting(ANNS, {"exchanged": EXCHANGED}, world.exchanger):
        async with httpx2.AsyncClient(auth=auth, transport=transport) as client:
            world.refuses = True
            with pytest.raises(TokenExchangeError):
                await client.get(URL)
            assert str(why_without_token("exchanged")) == f"no token for server 'exchanged' from {ENDPOINT}: " + (
                "HTTP 400, invalid_grant"
            )
            assert why_without_token("shared") is None
            world.refuses = False
            await client.get(URL)
            assert why_without_token("exchanged") is None
    assert why_without_token("exchanged") is None


@pytest.mark.parametrize(
    ("peer", "bearer"),
    [
        (Downstream("peer", URL, peer="research"), None),
        (Downstream("peer", URL, peer="research", forwards_bearer=True), "anns-token"),
        (Downstream("peer", URL, {"AUTHORIZATION": "Bearer its-own"}, peer="research"), "its-own"),
        (Downstream("peer", URL, {"Authorization": "Basic x"}, peer="research"), None),
        (replace(EXCHANGED, peer="research"), "1-anns-token"),
    ],
    ids=["plain", "forwarding", "own token", "own password", "exchanged"],
)
async def test_a_peer_is_called_with_the_token_that_its_entry_says(
    peer: Downstream, bearer: str | None, world: World
) -> None:
    with presenting(ANNS, {peer.name: peer}, world.exchanger):
        token = await bearer_for_peer(peer)
    assert (token.reveal() if token else None) == bearer
    with presenting(Credentials(None), {peer.name: peer}, world.exchanger):
        anonymous = await bearer_for_peer(peer)
    assert (anonymous.reveal() if anonymous else None) == (bearer if bearer == "its-own" else None)
