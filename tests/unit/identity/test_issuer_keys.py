"""The authorization server's keys: fetched rarely, kept when it is down, renewed when a token names a new one."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import respx
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from pallas_gateway.identity.issuer_keys import FRESH_SECONDS, MOST_FETCHES, PER_SECONDS, RETRY_SECONDS, IssuerKeys
from pallas_gateway.tasks import TaskOwner

URI = "https://login.example.com/jwks"
ONE = RSAKey.generate_key(2048, {"kid": "one"}).as_dict(private=False)
TWO = ECKey.generate_key("P-256", {"kid": "two"}).as_dict(private=False)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Issuer:
    """The keys under test and the address they come from."""

    def __init__(self, route: respx.Route, keys: IssuerKeys, clock: Clock) -> None:
        self.route = route
        self.keys = keys
        self.clock = clock

    def answers(self, *keys: Any) -> None:
        self.route.mock(return_value=httpx.Response(200, json={"keys": list(keys)}))

    @property
    def fetches(self) -> int:
        return self.route.call_count


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    clock = Clock()
    async with httpx.AsyncClient() as client, TaskOwner() as tasks:
        with respx.mock(assert_all_called=False) as router:
            yield Issuer(router.get(URI), IssuerKeys(URI, client=client, tasks=tasks, clock=clock), clock)


def ids(keys: KeySet | None) -> list[str | None] | None:
    return None if keys is None else [key.kid for key in keys]


async def test_keys_are_fetched_once_for_everybody_who_waits_for_them(issuer: Issuer) -> None:
    issuer.answers(ONE)
    found = await asyncio.gather(*(issuer.keys.current() for _ in range(20)))
    assert {tuple(ids(keys) or ()) for keys in found} == {("one",)}
    assert issuer.fetches == 1


async def test_another_look_finds_a_new_key_at_once(issuer: Issuer) -> None:
    issuer.answers(ONE)
    await issuer.keys.current()
    issuer.answers(ONE, TWO)
    assert ids(await issuer.keys.newer()) == ["one", "two"]


async def test_any_number_of_looks_makes_few_fetches_and_time_allows_more(issuer: Issuer) -> None:
    issuer.answers(ONE)
    for _ in range(50):
        await issuer.keys.newer()
    assert issuer.fetches == MOST_FETCHES
    issuer.clock.now = PER_SECONDS
    issuer.answers(TWO)
    assert ids(await issuer.keys.newer()) == ["two"]


async def test_keys_that_are_old_are_looked_at_again_before_they_are_used(issuer: Issuer) -> None:
    issuer.answers(ONE)
    await issuer.keys.current()
    issuer.clock.now = FRESH_SECONDS - 1
    issuer.answers(TWO)
    assert ids(await issuer.keys.current()) == ["one"]
    issuer.clock.now = FRESH_SECONDS
    assert ids(await issuer.keys.current()) == ["two"]
    assert issuer.fetches == 2


async def test_a_look_that_failed_is_repeated_after_a_minute_not_by_every_caller(issuer: Issuer) -> None:
    issuer.answers(ONE)
    await issuer.keys.current()
    issuer.clock.now = FRESH_SECONDS
    issuer.route.mock(side_effect=httpx.ConnectError("refused"))
    for _ in range(3):
        assert ids(await issuer.keys.current()) == ["one"]
    assert issuer.fetches == 2
    issuer.clock.now += RETRY_SECONDS
    issuer.answers(TWO)
    assert ids(await issuer.keys.current()) == ["two"]


async def test_an_issuer_without_keys_has_withdrawn_them_all(issuer: Issuer) -> None:
    issuer.answers(ONE)
    await issuer.keys.current()
    issuer.answers()
    assert ids(await issuer.keys.newer()) == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (httpx.Response(500), "HTTP 500"),
        (httpx.Response(302, headers={"Location": "https://elsewhere.example.com"}), "HTTP 302"),
        (httpx.Response(200, text="<html>"), "not a set of public keys"),
        (httpx.Response(200, json=[]), "not a set of public keys"),
        (httpx.Response(200, json={"keys": "none"}), "not a set of public keys"),
        (httpx.Response(200, json={"keys": [{"kty": "oct", "k": "AA"}]}), "not a set of public keys"),
        (httpx.Response(200, content=b"[" * 100_000), "not a set of public keys"),
        (httpx.ConnectError("refused"), "ConnectError"),
        (httpx.ReadTimeout("slow"), "ReadTimeout"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_keys_once_had_outlive_an_authorization_server_that_fails(
    issuer: Issuer, answer: httpx.Response | Exception, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.answers(ONE)
    await issuer.keys.current()
    broken = {"side_effect": answer} if isinstance(answer, Exception) else {"return_value": answer}
    issuer.route.mock(**broken)
    for _ in range(2):
        assert ids(await issuer.keys.newer()) == ["one"]
    issuer.answers(TWO)
    with caplog.at_level(logging.INFO, "pallas"):
        assert ids(await issuer.keys.newer()) == ["two"]
    said = [
        (record.levelname, getattr(record, "error", None))
        for record in caplog.records
        if record.name == "pallas.identity"
    ]
    assert said == [("WARNING", why), ("INFO", None)]  # once each, on the change


async def test_without_any_keys_there_are_none_until_the_server_is_back(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.route.mock(side_effect=httpx.ConnectError("refused"))
    assert await issuer.keys.current() is None
    assert [vars(record)["effect"] for record in caplog.records] == ["tokens cannot be verified"]
    issuer.answers(ONE)
    assert ids(await issuer.keys.current()) == ["one"]


async def test_a_server_that_never_answers_is_given_up(issuer: Issuer) -> None:
    async def hang(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    issuer.route.mock(side_effect=hang)
    async with httpx.AsyncClient() as client, TaskOwner() as tasks:
        keys = IssuerKeys(URI, client=client, tasks=tasks, fetch_seconds=0.0)
        assert await keys.current() is None


async def test_keys_that_cannot_verify_are_left_out(issuer: Issuer) -> None:
    secret = OctKey.generate_key(256, {"kid": "secret"}).as_dict(private=True)
    broken = {"kty": "RSA", "kid": "broken", "n": "?", "e": None}
    encrypting = {**ONE, "kid": "enc", "use": "enc"}
    issuer.answers(secret, broken, encrypting, {"kty": "AKP", "kid": "new"}, "text", None, ONE)
    assert ids(await issuer.keys.current()) == ["one"]
