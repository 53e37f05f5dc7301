"""A caller's token becomes one for one downstream, is kept no longer than both live, and is shown by nothing."""

import asyncio
import base64
import json
import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
import respx

from pallas_gateway.errors import TokenExchangeError
from pallas_gateway.identity.secret import Secret
from pallas_gateway.identity.token_exchange import TokenExchange, TokenExchanger, end_of
from tests.support.waiting import Gate, cancelled

ENDPOINT = "https://login.example/token"
NOTES = TokenExchange(
    "notes", ENDPOINT, "https://notes.example/mcp", client_id="pallas", client_secret=Secret("s3cret")
)
KEYED = replace(NOTES, token_endpoint="https://user:s3cret@login.example/token?key=s3cret")
ANN, BOB = Secret("anns-token"), Secret("bobs-token")


@dataclass
class Clock:
    """A clock that goes on when the test says so; `wall` is Unix time."""

    now: float = 1000.0
    wall: float = 1_700_000_000.0

    def go_on(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


@dataclass
class AuthorizationServer:
    """Gives `for-<subject>-<n>`, with what `answer` adds to it, or answers whatever `answers` makes."""

    answer: dict[str, Any] = field(default_factory=lambda: {"expires_in": 300})
    answers: Callable[[httpx.Request], httpx.Response] | None = None
    gate: Gate | None = None
    asked: list[httpx.Request] = field(default_factory=list)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if self.gate is not None:
            await self.gate.enter()
        if self.answers is not None:
            return self.answers(request)
        token = f"for-{form(request)['subject_token']}-{len(self.asked)}"
        return httpx.Response(200, json={"access_token": token, "token_type": "Bearer", **self.answer})


def form(request: httpx.Request) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(request.content.decode()).items()}


def jwt(claims: Mapping[str, Any], *, header: Mapping[str, Any] | None = None, signature: bytes = b"signed") -> Secret:
    parts = [json.dumps(header or {"alg": "RS256"}).encode(), json.dumps(claims).encode(), signature]
    return Secret(".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(respx_mock: respx.MockRouter) -> AuthorizationServer:
    server = AuthorizationServer()
    respx_mock.post(ENDPOINT).mock(side_effect=server)
    return server


@pytest.fixture
def respx_mock() -> Any:
    with respx.mock(assert_all_called=False) as router:
        yield router


@pytest.fixture
async def exchanger(clock: Clock) -> Any:
    async with TokenExchanger(monotonic=lambda: clock.now, wall=lambda: clock.wall) as exchanger:
        yield exchanger


async def test_a_token_is_exchanged_as_rfc_8693_says(server: AuthorizationServer, exchanger: TokenExchanger) -> None:
    assert (await exchanger.exchange(ANN, NOTES)).reveal() == "for-anns-token-1"
    assert form(server.asked[0]) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": "anns-token",
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "resource": "https://notes.example/mcp",
    }
    assert server.asked[0].headers["authorization"] == f"Basic {base64.b64encode(b'pallas:s3cret').decode()}"


@pytest.mark.parametrize(
    ("to", "authorization", "in_body"),
    [
        (replace(NOTES, client_secret=Secret("a:b c&ä")), b"pallas:a%3Ab+c%26%C3%A4", {}),
        (replace(NOTES, client_auth="post"), None, {"client_id": "pallas", "client_secret": "s3cret"}),
        (replace(NOTES, client_secret=None), None, {"client_id": "pallas"}),
        (replace(NOTES, client_secret=None, client_id=None), None, {}),
    ],
    ids=["basic, encoded", "post", "public", "nobody"],
)
async def test_the_client_shows_itself_as_configured(
    to: TokenExchange,
    authorization: bytes | None,
    in_body: Mapping[str, str],
    server: AuthorizationServer,
    exchanger: TokenExchanger,
) -> None:
    await exchanger.exchange(ANN, to)
    shown = f"Basic {base64.b64encode(authorization).decode()}" if authorization else None
    assert server.asked[0].headers.get("authorization") == shown
    assert {name: value for name, value in form(server.asked[0]).items() if name.startswith("client")} == in_body


async def test_audience_and_scope_are_asked_for(server: AuthorizationServer, exchanger: TokenExchanger) -> None:
    await exchanger.exchange(ANN, replace(NOTES, audience="notes", scope="read write"))
    sent = form(server.asked[0])
    assert (sent["audience"], sent["scope"]) == ("notes", "read write")


async def test_a_kept_token_is_used_again_until_shortly_before_its_end(
    server: AuthorizationServer, exchanger: TokenExchanger, clock: Clock
) -> None:
    first = await exchanger.exchange(ANN, NOTES)
    clock.go_on(289)
    assert await exchanger.exchange(ANN, NOTES) == first
    clock.go_on(1)
    assert (await exchanger.exchange(ANN, NOTES)).reveal() == "for-anns-token-2"
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("expires_in", "kept_for"),
    [
        (None, 60),
        ("300", 290),
        (70.5, 60.5),
        (10, 0),
        (0, 0),
        (-5, 0),
        ("soon", 60),
        (True, 60),
        ([300], 60),
        (float("inf"), 60),
        (float("nan"), 60),
        (10**400, 60),
        ("9" * 400, 60),
    ],
)
async def test_a_token_is_kept_for_as_long_as_its_server_says(
    expires_in: object, kept_for: float, server: AuthorizationServer, exchanger: TokenExchanger, clock: Clock
) -> None:
    body = json.dumps({"access_token": "t", "token_type": "Bearer", "expires_in": expires_in})
    server.answers = lambda _: httpx.Response(200, content=body)
    await is_kept_for(kept_for, ANN, exchanger, clock)


async def is_kept_for(seconds: float, subject: Secret, exchanger: TokenExchanger, clock: Clock) -> None:
    await exchanger.exchange(subject, NOTES)
    if seconds:
        clock.go_on(seconds - 0.1)
        assert exchanger.kept(subject, NOTES) is not None
        clock.go_on(0.1)
    assert exchanger.kept(subject, NOTES) is None


@pytest.mark.parametrize(("lives", "kept_for"), [(30, 30), (100_000, 290), (-1, 0)])
async def test_a_token_is_kept_no_longer_than_the_callers_lives(
    lives: int, kept_for: float, server: AuthorizationServer, exchanger: TokenExchanger, clock: Clock
) -> None:
    await is_kept_for(kept_for, jwt({"exp": clock.wall + lives}), exchanger, clock)
    assert len(server.asked) == 1  # also if the caller's has expired: what it is worth is the server's to say


@pytest.mark.parametrize(
    "subject",
    [
        jwt({"exp": 42}),
        jwt({"exp": 42.0}),
        jwt(
            {"exp": 42, "groups": ["x" * 200_000]}, header={"alg": "RS256", "x5c": ["x" * 4000]}, signature=b"x" * 4000
        ),
    ],
)
def test_the_end_of_a_jwt_is_its_exp_however_large_it_is(subject: Secret) -> None:
    assert end_of(subject) == 42


@pytest.mark.parametrize(
    "subject",
    [
        Secret("opaque"),
        Secret("a.b.c"),
        Secret("ä.ö.ü"),
        Secret("...."),
        Secret(""),
        jwt({}),
        jwt({"exp": "42"}),
        jwt({"exp": True}),
        jwt({"exp": None}),
        jwt({"exp": 10**400}),
        Secret("eyJhbGciOiJub25lIn0.W10."),  # the claims are a list
        Secret("W10.eyJleHAiOjQyfQ.x"),  # the header is one
        Secret("bnVsbA.eyJleHAiOjQyfQ.x"),  # or null
        Secret(f"eyJhbGciOiJub25lIn0.{base64.urlsafe_b64encode(b'[' * 99_999).decode()}."),
    ],
)
def test_a_token_that_tells_no_end_has_none(subject: Secret) -> None:
    assert end_of(subject) is None


async def test_two_callers_and_two_servers_never_share_a_token(
    server: AuthorizationServer, exchanger: TokenExchanger
) -> None:
    others = [replace(NOTES, resource="https://other.example/mcp"), replace(NOTES, client_secret=Secret("new"))]
    pairs = [(caller, to) for caller in (ANN, BOB) for to in (NOTES, *others)]
    tokens = [await exchanger.exchange(*pair) for pair in pairs]
    assert len({token.reveal() for token in tokens}) == len(pairs) == len(server.asked)
    assert [await exchanger.exchange(*pair) for pair in pairs] == tokens
    assert [form(request)["subject_token"] for request in server.asked] == ["anns-token"] * 3 + ["bobs-token"] * 3


async def test_calls_of_one_caller_at_once_share_one_exchange_and_callers_do_not(
    server: AuthorizationServer, exchanger: TokenExchanger
) -> None:
    server.gate = Gate()
    waiting = [asyncio.create_task(exchanger.exchange(who, NOTES)) for who in (ANN, BOB) * 20]
    await server.gate.wait_for_entered(2)
    assert exchanger.is_under_way(ANN, NOTES)
    server.gate.open()
    tokens = [token.reveal() for token in await asyncio.gather(*waiting)]
    assert len(server.asked) == 2
    assert {token.rpartition("-")[0] for token in tokens[::2]} == {"for-anns-token"}
    assert {token.rpartition("-")[0] for token in tokens[1::2]} == {"for-bobs-token"}
    assert not exchanger.is_under_way(ANN, NOTES)


async def test_a_waiter_that_is_cancelled_leaves_the_exchange_to_the_others(
    server: AuthorizationServer, exchanger: TokenExchanger
) -> None:
    server.gate = Gate()
    first, second = (asyncio.create_task(exchanger.exchange(ANN, NOTES)) for _ in range(2))
    await server.gate.wait_for_entered()
    await cancelled(first)
    server.gate.open()
    assert (await second).reveal() == "for-anns-token-1"
    assert len(server.asked) == 1


async def test_the_oldest_token_is_forgotten_when_there_are_too_many(server: AuthorizationServer) -> None:
    callers = [Secret(f"caller-{number}") for number in range(3)]
    async with TokenExchanger(most_kept=2) as exchanger:
        for caller in callers:
            await exchanger.exchange(caller, NOTES)
        assert [exchanger.kept(caller, NOTES) is not None for caller in callers] == [False, True, True]
    assert len(server.asked) == 3


async def test_what_has_expired_is_forgotten_with_the_next_exchange(
    server: AuthorizationServer, exchanger: TokenExchanger, clock: Clock
) -> None:
    await exchanger.exchange(ANN, NOTES)
    clock.go_on(290)
    await exchanger.exchange(BOB, NOTES)
    assert len(exchanger) == 1
    assert len(server.asked) == 2


async def test_only_the_refused_token_is_forgotten(server: AuthorizationServer, exchanger: TokenExchanger) -> None:
    old = await exchanger.exchange(ANN, NOTES)
    exchanger.forget(ANN, NOTES, old)
    new = await exchanger.exchange(ANN, NOTES)
    exchanger.forget(ANN, NOTES, old)  # another request was refused with it too, and comes late
    assert exchanger.kept(ANN, NOTES) == new
    assert new != old
    assert len(server.asked) == 2


def fails(error: Exception) -> Callable[[httpx.Request], httpx.Response]:
    def answers(_: httpx.Request) -> httpx.Response:
        raise error

    return answers


def says(status: int, body: object, **headers: str) -> Callable[[httpx.Request], httpx.Response]:
    content = body if isinstance(body, str) else json.dumps(body)
    return lambda _: httpx.Response(status, content=content, headers=headers)


def issues(**changes: object) -> Callable[[httpx.Request], httpx.Response]:
    return says(200, {"access_token": "issued-token", "token_type": "Bearer", "expires_in": 300, **changes})


FAILURES: Mapping[str, tuple[Callable[[httpx.Request], httpx.Response], str]] = {
    "refused": (
        says(400, {"error": "invalid_grant", "error_description": "anns-token is bad"}),
        "HTTP 400, invalid_grant",
    ),
    "client": (says(401, {"error": "invalid_client"}), "HTTP 401, invalid_client"),
    "target": (says(400, {"error": "invalid_target"}), "HTTP 400, invalid_target"),
    "repeating": (says(400, {"error": "anns-token"}), "HTTP 400"),
    "odd error": (says(400, {"error": ["invalid_grant"]}), "HTTP 400"),
    "broken": (says(503, "<html>anns-token</html>"), "HTTP 503"),
    "created": (says(201, {"access_token": "t", "token_type": "Bearer"}), "HTTP 201"),
    "redirect": (says(307, "", location="https://evil.example/"), "it redirects, which is not followed"),
    "garbage": (says(200, "<html>s3cret</html>"), "its answer is not a JSON object"),
    "a list": (says(200, ["issued-token"]), "its answer is not a JSON object"),
    "deep": (says(200, "[" * 99_999), "its answer is not a JSON object"),
    "binary": (lambda _: httpx.Response(200, content=b"\xff\xfe\x00"), "its answer is not a JSON object"),
    "no bearer": (issues(token_type="N_A"), "its answer has another token_type than Bearer"),
    "mac": (issues(token_type="MAC"), "its answer has another token_type than Bearer"),
    "untyped": (issues(token_type=None), "its answer has another token_type than Bearer"),
    "refresh": (
        issues(issued_token_type="urn:ietf:params:oauth:token-type:refresh_token"),
        "its answer has another issued_token_type than an access token's",
    ),
    "odd type": (issues(issued_token_type=[1]), "its answer has another issued_token_type than an access token's"),
    "no token": (issues(access_token=None), "its answer has no access_token that a header could carry"),
    "empty": (issues(access_token=""), "its answer has no access_token that a header could carry"),
    "two lines": (issues(access_token="a\r\nX-Evil: b"), "its answer has no access_token that a header could carry"),
    "unreachable": (fails(httpx.ConnectError("anns-token")), "it cannot be reached"),
    "cut": (fails(httpx.RemoteProtocolError("anns-token")), "RemoteProtocolError"),
    "header": (fails(httpx.LocalProtocolError("Illegal header value b'Basic s3cret'")), "LocalProtocolError"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failed_exchange_says_where_and_why_and_nothing_more(
    failure: str, server: AuthorizationServer, exchanger: TokenExchanger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="pallas")
    server.answers, why = FAILURES[failure]
    with pytest.raises(TokenExchangeError) as caught:
        await exchanger.exchange(ANN, KEYED)
    assert str(caught.value) == f"no token for server 'notes' from {ENDPOINT}: {why}"
    assert (caught.value.why, caught.value.reason) == (why, "token_exchange_failed")
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
    for secret in ("anns-token", "s3cret", "issued-token"):
        assert secret not in shown


async def test_a_failure_is_not_remembered(server: AuthorizationServer, exchanger: TokenExchanger) -> None:
    server.answers = says(503, "")
    for _ in range(2):
        with pytest.raises(TokenExchangeError):
            await exchanger.exchange(ANN, NOTES)
    server.answers = None
    assert (await exchanger.exchange(ANN, NOTES)).reveal() == "for-anns-token-3"


async def test_everyone_who_waits_for_a_failing_exchange_is_told(
    server: AuthorizationServer, exchanger: TokenExchanger
) -> None:
    server.gate, server.answers = Gate(), says(400, {"error": "invalid_grant"})
    waiting = [asyncio.create_task(exchanger.exchange(ANN, NOTES)) for _ in range(3)]
    await server.gate.wait_for_entered()
    server.gate.open()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TokenExchangeError] * 3
    assert len(server.asked) == 1


async def test_a_silent_server_is_not_waited_for_for_ever(server: AuthorizationServer) -> None:
    server.gate = Gate()
    async with TokenExchanger(exchange_seconds=0.01) as exchanger:
        with pytest.raises(TokenExchangeError, match=r": no answer within 0\.01 s$"):
            await exchanger.exchange(ANN, NOTES)


@pytest.mark.parametrize("token_type", ["Bearer", "bearer", "BEARER"])
async def test_the_case_of_bearer_does_not_matter(
    token_type: str, server: AuthorizationServer, exchanger: TokenExchanger
) -> None:
    server.answers = issues(token_type=token_type, issued_token_type="urn:ietf:params:oauth:token-type:jwt")
    assert (await exchanger.exchange(ANN, NOTES)).reveal() == "issued-token"


async def test_a_session_of_one_caller_does_not_come_along_with_the_next(
    server: AuthorizationServer, exchanger: TokenExchanger
) -> None:
    server.answers = lambda _: httpx.Response(
        200, json={"access_token": "t", "token_type": "Bearer"}, headers={"set-cookie": "session=anns; Path=/"}
    )
    await exchanger.exchange(ANN, NOTES)
    await exchanger.exchange(BOB, NOTES)
    assert "cookie" not in server.asked[1].headers


async def test_closing_ends_what_is_under_way_and_forgets_everything(server: AuthorizationServer) -> None:
    async with TokenExchanger() as exchanger:
        await exchanger.exchange(ANN, NOTES)
        server.gate = Gate()
        waiting = asyncio.create_task(exchanger.exchange(BOB, NOTES))
        await server.gate.wait_for_entered()
    with pytest.raises(TokenExchangeError, match="the gateway is stopping"):
        await waiting
    assert exchanger.kept(ANN, NOTES) is None
    with pytest.raises(TokenExchangeError, match="the gateway is stopping"):
        await exchanger.exchange(ANN, NOTES)


def test_the_value_shows_no_secret() -> None:
    assert "s3cret" not in repr(NOTES)
    assert "s3cret" not in str(NOTES)
    assert replace(NOTES, client_secret=Secret("another")) != NOTES


@pytest.mark.usefixtures("server")
async def test_the_memory_shows_no_token(exchanger: TokenExchanger) -> None:
    await exchanger.exchange(ANN, NOTES)
    assert exchanger.kept(ANN, NOTES) is not None
    assert "anns-token" not in repr(vars(exchanger))


async def test_a_token_of_which_nothing_was_said_is_kept_no_longer_than_it_lives(
    clock: Clock, server: AuthorizationServer, exchanger: TokenExchanger
) -> None:
    issued = jwt({"exp": clock.wall + 5}).reveal()
    server.answers = lambda _: httpx.Response(200, json={"access_token": issued, "token_type": "Bearer"})
    await is_kept_for(5, ANN, exchanger, clock)


async def test_an_answer_of_any_length_is_not_read(server: AuthorizationServer, exchanger: TokenExchanger) -> None:
    server.answers = lambda _: httpx.Response(200, content=bytes(2**20 + 1))

    with pytest.raises(TokenExchangeError, match="its answer is larger than 1 MiB"):
        await exchanger.exchange(ANN, NOTES)
