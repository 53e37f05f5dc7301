"""The authorization server's keys: fetched seldom, renewed when they change, and kept when it is in trouble."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from joserfc.jwk import OctKey
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from tests.support.authorization_server import authorization_server
from tests.support.clients import raw_client
from tests.support.guarded import OK, STATIC_KEY, attempt, attempt_on, bearer, guarded, static_key
from tests.support.tokens import keys_of
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FEW = 6  # fetches, whatever strangers send


async def test_keys_are_fetched_once_for_any_number_of_calls(tmp_path: Path) -> None:
    async with guarded(tmp_path) as g, raw_client(g.url()) as client:
        assert [await attempt_on(client, bearer(g.token())) for _ in range(10)] == [OK] * 10

    assert g.server.fetches == 1


async def test_new_keys_are_accepted_at_once_and_withdrawn_ones_no_longer(tmp_path: Path) -> None:
    async with guarded(tmp_path) as g, raw_client(g.url()) as client:
        first = bearer(g.token())
        assert await attempt_on(client, first) == OK
        g.server.rotate(keep_old=True)
        second = bearer(g.token())
        assert [await attempt_on(client, token) for token in (second, first)] == [OK, OK]
        g.server.rotate()
        third = bearer(g.token())
        assert [await attempt_on(client, token) for token in (third, first, second)] == [OK, g.invalid(), g.invalid()]


async def test_flood_of_made_up_key_ids_makes_few_fetches_and_disturbs_nobody(tmp_path: Path) -> None:
    async with guarded(tmp_path) as g, raw_client(g.url()) as client:
        good = bearer(g.token())
        floods = [bearer(g.token(header={"kid": f"made-up-{number}"})) for number in range(40)]
        at_once = await asyncio.gather(*(attempt(g.url(), flood) for flood in floods[:20]))
        in_turn = [await attempt_on(client, flood) for flood in floods[20:]]
        assert await attempt_on(client, good) == OK

    assert [*at_once, *in_turn] == [g.invalid()] * 40
    assert g.server.fetches <= FEW


async def test_keys_survive_while_their_server_is_down(tmp_path: Path) -> None:
    async with guarded(tmp_path) as g, raw_client(g.url()) as client:
        assert await attempt_on(client, bearer(g.token())) == OK
        await g.server.down()
        old = g.token()
        g.server.rotate()
        assert await attempt_on(client, bearer(g.token())) == g.invalid()  # its key cannot be had
        assert await attempt_on(client, bearer(old)) == OK
        await g.server.up()
        assert await attempt_on(client, bearer(g.token())) == OK


GARBAGE: dict[str, Callable[[], Response]] = {
    "an error": lambda: JSONResponse({"error": "oops"}, 500),
    "not found": lambda: JSONResponse({"keys": []}, 404),
    "a page": lambda: PlainTextResponse("<html>", media_type="text/html"),
    "no UTF-8": lambda: Response(b"\xff\xfe\x00{", media_type="application/json"),
    "nothing": lambda: Response(b"", 204),
    "a redirect": lambda: RedirectResponse("/jwks"),
    "a list": lambda: JSONResponse([]),
    "null": lambda: JSONResponse(None),
    "no keys": lambda: JSONResponse({}),
    "keys that are a text": lambda: JSONResponse({"keys": "rsa-1"}),
    "keys that are none": lambda: JSONResponse({"keys": [None, 1, "x", {}, {"kty": "RSA"}, {"kty": ["RSA"]}]}),
    "a deep nest": lambda: Response(b"[" * 100_000, media_type="application/json"),
}


ALIKE = {"not found", "no UTF-8", "null", "no keys", "keys that are a text", "a redirect"}


@pytest.mark.parametrize("what", [pytest.param(what, marks=[pytest.mark.whole] * (what in ALIKE)) for what in GARBAGE])
async def test_keys_survive_garbage_in_their_place(what: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as g, raw_client(g.url()) as client:
        good = bearer(g.token())
        assert await attempt_on(client, good) == OK
        g.server.jwks_reply = GARBAGE[what]()
        assert await attempt_on(client, bearer(g.token(header={"kid": "made-up"}))) == g.invalid()
        assert g.server.fetches == 2
        assert await attempt_on(client, good) == OK
        g.server.jwks_reply = None
        g.server.rotate()
        assert await attempt_on(client, bearer(g.token())) == OK


@pytest.mark.parametrize("trouble", ["down", "garbage"])
async def test_without_keys_nobody_can_be_judged_until_there_are_some(trouble: str, tmp_path: Path) -> None:
    async with authorization_server() as server:
        if trouble == "down":
            await server.down()
        else:
            server.jwks_reply = PlainTextResponse("oops")
        async with (
            guarded(tmp_path, server=server, auth={"tokens": [static_key("run:agents")]}) as g,
            raw_client(g.url()) as client,
        ):
            unavailable = await attempt_on(client, bearer(g.token()))
            assert unavailable.status == 503
            assert int(unavailable.headers["retry-after"]) > 0
            assert await attempt_on(client, None) == g.unauthorized()
            assert await attempt_on(client, bearer(STATIC_KEY)) == OK
            if trouble == "down":
                await server.up()
            server.jwks_reply = None
            assert await attempt_on(client, bearer(g.token())) == OK


async def test_callers_share_one_fetch_and_those_who_need_none_do_not_wait(tmp_path: Path) -> None:
    async with authorization_server() as server:
        server.jwks_gate = Gate()
        async with guarded(tmp_path, server=server, auth={"tokens": [static_key("run:agents")]}) as g:
            async with asyncio.TaskGroup() as group:
                waiting = [group.create_task(attempt(g.url(), bearer(g.token()))) for _ in range(5)]
                await server.jwks_gate.wait_for_entered()
                assert await attempt(g.url(), bearer(STATIC_KEY)) == OK
                assert await attempt(g.url()) == g.unauthorized()
                server.jwks_gate.open()
            assert [task.result() for task in waiting] == [OK] * 5

    assert server.fetches == 1


async def test_keys_that_are_for_something_else_verify_nothing(tmp_path: Path) -> None:
    stranger, shared = keys_of("stranger", 1), OctKey.generate_key(256, {"kid": "shared"})
    published: list[dict[str, Any]] = [
        {**stranger.rsa.as_dict(private=False), "kid": "encrypts", "use": "enc"},
        {**stranger.ec.as_dict(private=False), "kid": "derives", "use": None, "key_ops": ["deriveBits"]},
        {**stranger.rsa.as_dict(private=False), "kid": "other-alg", "alg": "RS512"},
        {**shared.as_dict(), "use": "sig"},
        {"kty": "LMS", "kid": "of the future", "pub": "AAAA"},
        {"kty": "EC", "crv": "P-256", "kid": "broken", "x": "!", "y": "!"},
    ]
    async with authorization_server() as server:
        fields = [{name: value for name, value in key.items() if value is not None} for key in published]
        server.jwks_reply = JSONResponse({"keys": [*fields, *server.jwks()["keys"]]})
        async with guarded(tmp_path, server=server) as g, raw_client(g.url()) as client:
            bad = [
                g.token(key=stranger.rsa, header={"kid": "encrypts"}),
                g.token(key=stranger.ec, header={"kid": "derives"}),
                g.token(key=stranger.rsa, header={"kid": "other-alg"}),
                g.token(key=shared),
                g.token(header={"kid": "broken"}),
            ]
            assert [await attempt_on(client, bearer(token)) for token in bad] == [g.invalid()] * len(bad)
            assert await attempt_on(client, bearer(g.token())) == OK  # one strange key spoils no other
