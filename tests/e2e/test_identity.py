"""Who gets in, and what the others are told: every kind of token, each with its exact status and challenge."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import OctKey
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from tests.support.authorization_server import authorization_server
from tests.support.calling import EACH_VERSION
from tests.support.clients import raw_client, tool_params
from tests.support.gateway import record_calls
from tests.support.guarded import (
    BOTH,
    OK,
    STATIC_KEY,
    Guarded,
    Refusal,
    attempt,
    attempt_on,
    bearer,
    guarded,
    refusal_of,
    static_key,
)
from tests.support.tokens import forge, keys_of
from tests.support.waiting import Gate

each_version = pytest.mark.parametrize("version", EACH_VERSION)
ELSEWHERE = "https://elsewhere.example.test"
STRANGER = keys_of("stranger", 1)  # keys of somebody else, under the very names that the authorization server uses
SOON, LONG_AGO, LATER = 300, 1_000_000, 4_000_000_000  # seconds

NOT_A_BEARER: dict[str, str | None] = {
    "no header": None,
    "no token": "Bearer",
    "another scheme": "Basic Y2k6c2VjcmV0",
    "another scheme with the key": f"Token {STATIC_KEY}",
    "the key alone": STATIC_KEY,
    "an empty header": "",
    "scheme and key in one": f"Bearer{STATIC_KEY}",
}

BAD_TOKENS: dict[str, Callable[[Guarded], str | bytes]] = {
    # no token of anybody's
    "garbage": lambda _: "garbage",
    "three parts of garbage": lambda _: "a.b.c",
    "nothing but dots": lambda _: "..",
    "five parts, as of an encrypted one": lambda _: "a.b.c.d.e",
    "two tokens": lambda g: f"{g.token()} {g.token()}",
    "not ASCII": lambda _: b"\xff\xfe.\xe9.\x80",
    "very long": lambda _: "x" * 8000,
    "the hash of a key": lambda _: hashlib.sha256(STATIC_KEY.encode()).hexdigest(),
    "a key in another case": lambda _: STATIC_KEY.upper(),
    "a key nobody has": lambda _: "pgw_no-such-key",
    # time
    "expired": lambda g: g.token(exp=LONG_AGO),
    "expired a minute ago": lambda g: g.token(exp=int(time.time()) - 60),
    "not yet valid": lambda g: g.token(nbf=int(time.time()) + SOON),
    "without exp": lambda g: g.token(exp=None),
    "exp is no number": lambda g: g.token(exp="never"),
    "exp is a number as text": lambda g: g.token(exp=str(LATER)),
    "exp is true": lambda g: g.token(exp=True),
    "exp is NaN": lambda g: g.token(exp=float("nan")),
    "exp is infinite": lambda g: g.token(exp=float("inf")),
    "nbf is NaN": lambda g: g.token(nbf=float("nan")),
    "nbf is no number": lambda g: g.token(nbf="long ago"),
    # issuer
    "without iss": lambda g: g.token(iss=None),
    "another issuer": lambda g: g.token(iss=ELSEWHERE),
    "almost the issuer": lambda g: g.token(iss=f"{g.server.issuer}/"),
    # audience
    "without aud": lambda g: g.token(aud=None),
    "another audience": lambda g: g.token(aud=ELSEWHERE),
    "audiences, none of them here": lambda g: g.token(aud=[ELSEWHERE, g.url("other")]),
    "another agent's": lambda g: g.token(aud=g.url("other")),
    "an agent's that is not there": lambda g: g.token(aud=g.url("nobody")),
    "aud is empty": lambda g: g.token(aud=""),
    "aud is an empty list": lambda g: g.token(aud=[]),
    "aud is part of the right one": lambda g: g.token(aud=g.url()[:-4]),
    "aud begins like the right one": lambda g: g.token(aud=f"{g.url()}/more"),
    "aud is one letter": lambda g: g.token(aud="h"),
    "aud is an object": lambda g: g.token(aud={g.url(): 1}),
    "aud is a list in a list": lambda g: g.token(aud=[[g.url()]]),
    "aud is a number": lambda g: g.token(aud=1),
    # signature
    "unknown kid": lambda g: g.token(header={"kid": "made-up"}),
    "kid is a list": lambda g: g.token(header={"kid": ["rsa-1"]}),
    "kid is an object": lambda g: g.token(header={"kid": {}}),
    "alg none": lambda g: g.token(alg="none"),
    "alg none in capitals": lambda g: g.token(alg="none", header={"alg": "NoNe"}),
    "alg none over a signature": lambda g: g.token(header={"alg": "none"}),
    "alg left out": lambda g: g.token(header={"alg": None}),
    "alg is a list": lambda g: g.token(header={"alg": ["RS256"]}),
    "alg of another kind of key": lambda g: g.token(header={"alg": "ES256"}),
    "HS256 with the public key, as PEM": lambda g: g.token(key=_pem(g), header={"kid": "rsa-1"}),
    "HS256 with the public key, trimmed": lambda g: g.token(key=_pem(g).strip(), header={"kid": "rsa-1"}),
    "HS256 with the public key, without kid": lambda g: g.token(key=_pem(g), header={"kid": None}),
    "HS256 with the public key, as JWK": lambda g: g.token(key=_jwk(g), header={"kid": "rsa-1"}),
    "HS256 that says RS256": lambda g: g.token(key=_pem(g), header={"kid": "rsa-1", "alg": "RS256"}),
    "a stranger's key under a known name": lambda g: g.token(key=STRANGER.rsa),
    "a stranger's key in the header": lambda g: g.token(
        key=STRANGER.rsa, header={"jwk": STRANGER.rsa.as_dict(private=False)}
    ),
    "a stranger's key behind a URL": lambda g: g.token(
        key=STRANGER.rsa, header={"jku": f"{g.server.issuer}/stranger", "x5u": f"{g.server.issuer}/stranger"}
    ),
    "signature cut off": lambda g: g.token().rpartition(".")[0] + ".",
    "signature of another token": lambda g: _with_signature_of(g.token(), g.token("view:agents")),
    "unknown critical header": lambda g: g.token(header={"crit": ["x-pay"], "x-pay": 1}),
    "critical header that is not there": lambda g: g.token(header={"crit": ["x-pay"]}),
    "critical headers are a number": lambda g: g.token(header={"crit": 1}),
    "unencoded payload": lambda g: g.token(header={"crit": ["b64"], "b64": False}),
    # claims
    "claims are a list": lambda g: _over(g, ["run:agents"]),
    "claims are a text": lambda g: _over(g, "run:agents"),
    "claims are nothing": lambda g: _over(g, None),
    "sub is a list": lambda g: g.token(sub=["alice"]),
}

GOOD_TOKENS: dict[str, Callable[[Guarded], str]] = {
    "RS256": lambda g: g.token(),
    "ES256": lambda g: g.token(key=g.server.keys.ec),
    "EdDSA": lambda g: g.token(key=g.server.keys.ed),
    "Ed25519": lambda g: g.token(key=g.server.keys.ed, alg="Ed25519"),
    "PS256": lambda g: g.token(alg="PS256"),
    "the public URL as audience": lambda g: g.token(aud=g.public),
    "the configured audience": lambda g: g.token(aud="pallas"),
    "one audience of several": lambda g: g.token(aud=[ELSEWHERE, g.url()]),
    "the grant of one agent": lambda g: g.token("run:agents:research"),
    "a grant among other words": lambda g: g.token("openid email run:agents:research run:agents: :"),
    "grants as a list": lambda g: g.token(["openid", "run:agents", 5]),
    "no typ": lambda g: g.token(header={"typ": None}),
    "a header nobody knows": lambda g: g.token(header={"x5t": "abc", "x-new": {"a": 1}}),
    "a life with fractions": lambda g: g.token(exp=time.time() + SOON, nbf=time.time() - 0.5),
    "no sub": lambda g: g.token(sub=None),
    "a static key": lambda _: STATIC_KEY,
}


def _pem(g: Guarded) -> bytes:
    return g.server.keys.rsa.as_pem(private=False)


def _jwk(g: Guarded) -> bytes:
    return json.dumps(g.server.keys.rsa.as_dict(private=False)).encode()


def _with_signature_of(token: str, other: str) -> str:
    return f"{token.rpartition('.')[0]}.{other.rpartition('.')[2]}"


def _over(g: Guarded, claims: object) -> str:
    return forge({"alg": "RS256", "kid": "rsa-1"}, claims, g.server.keys.rsa, "RS256")


@each_version
async def test_request_without_a_token_is_told_where_to_get_one_and_of_no_error(version: str, tmp_path: Path) -> None:
    async with guarded(tmp_path, auth={"tokens": [static_key("run:agents")]}) as g:
        seen = {what: await attempt(g.url(), value, version=version) for what, value in NOT_A_BEARER.items()}
        in_the_query = await attempt(f"{g.url()}?access_token={g.token()}", version=version)
        answered = g.answered

    assert seen == dict.fromkeys(NOT_A_BEARER, g.unauthorized())
    assert in_the_query == g.unauthorized()
    assert answered == 0


@each_version
async def test_no_bad_token_gets_in(version: str, tmp_path: Path) -> None:
    auth = {"tokens": [static_key("run:agents")], "anonymous": ["run:agents"]}  # which no bad token falls back to
    async with guarded(tmp_path, auth=auth) as g, raw_client(g.url(), protocol_version=version) as client:
        seen = {}
        for what, make in BAD_TOKENS.items():
            token = make(g)
            value = b"Bearer " + token if isinstance(token, bytes) else bearer(token)
            seen[what] = await attempt_on(client, value)
            said = json.dumps([seen[what].text, dict(seen[what].headers)])
            assert str(token) not in said, what
        answered = g.answered

    assert seen == dict.fromkeys(BAD_TOKENS, g.invalid())
    assert answered == 0
    assert g.server.requests("/stranger") == []


@each_version
async def test_every_good_token_gets_in(version: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"auth": {"tokens": [static_key("run:agents")]}, "jwt": {"audience": ["pallas", "x"]}}
    async with guarded(tmp_path, **settings) as g, raw_client(g.url(), protocol_version=version) as client:
        seen = {what: await attempt_on(client, bearer(make(g))) for what, make in GOOD_TOKENS.items()}
        scheme = [await attempt_on(client, f"{word} {g.token()}") for word in ("bearer", "BEARER")]
        two = [("authorization", bearer(g.token())), ("authorization", bearer("garbage"))]
        both = [await client.http.post(g.url(), content=b"{}", headers=headers) for headers in (two, two[::-1])]

    assert seen == dict.fromkeys(GOOD_TOKENS, OK)
    assert scheme == [OK, OK]
    assert [refusal_of(reply.status_code, reply.headers) for reply in both] == [g.invalid()] * 2


async def test_strange_claims_break_nothing(tmp_path: Path) -> None:
    names = ("scope", "sub", "client_id", "jti", "iat", "typ", "cnf")
    strange: list[Any] = [5, -1, True, [], {}, {"run:agents": 1}, [["run:agents"]], "", "\x00", "é" * 400, 10**30]
    async with guarded(tmp_path) as g, raw_client(g.url()) as client:
        for name, value in ((name, value) for name in names for value in strange):
            seen = await attempt_on(client, bearer(g.token(**{name: value})))
            assert seen.status in {200, 401, 404}, (name, value)


@each_version
async def test_with_static_keys_alone_no_authorization_server_is_named(version: str, tmp_path: Path) -> None:
    async with guarded(tmp_path, auth={"jwt": None, "tokens": [static_key("view:agents")]}) as g:
        seen = [await attempt(g.url(), value, version=version) for value in (None, bearer("x"), bearer(STATIC_KEY))]
        async with httpx.AsyncClient() as http:
            metadata = await http.get(g.metadata())

    forbidden = {"error": "insufficient_scope", "scope": "run:agents:research"}
    assert seen == [Refusal(401, {}), Refusal(401, {"error": "invalid_token"}), Refusal(403, forbidden)]
    assert metadata.status_code == 404


async def test_static_key_that_was_removed_from_the_file_opens_nothing(tmp_path: Path) -> None:
    seen = []
    for name, keys in (("before", [static_key("run:agents")]), ("after", [])):
        async with guarded(tmp_path / name, auth={"tokens": keys}) as g:
            seen.append(await attempt(g.url(), bearer(STATIC_KEY)))
            invalid = g.invalid()

    assert seen == [OK, invalid]


@each_version
async def test_each_request_of_a_connection_is_looked_at_anew(version: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as g, httpx.AsyncClient(limits=httpx.Limits(max_connections=1)) as http:
        ports, seen = set(), []
        async with raw_client(g.url(), protocol_version=version) as shaped:
            body = shaped.body_of("tools/call", tool_params("send_message", {"message": "hello"}), request_id=1)
            headers = shaped.headers_of("tools/call", tool_params("send_message"))
        for token in (g.token(), g.token(exp=LONG_AGO), g.token(), None, g.token("view:agents"), g.token()):
            said = {"authorization": bearer(token)} if token else {}
            reply = await http.post(g.url(), json=body, headers={**headers, **said})
            seen.append(reply.status_code)
            ports.add(reply.extensions["network_stream"].get_extra_info("client_addr"))

    assert seen == [200, 401, 200, 401, 403, 200]
    assert len(ports) == 1


GRANTS: dict[str, tuple[str, str, str]] = {
    # scope → what comes of: looking (tools/list, get_health), calling, calling the other agent
    "run:agents": ("ok", "ok", "ok"),
    "run:agents:research": ("ok", "ok", "not found"),
    "run:agents:other": ("not found", "not found", "ok"),
    "view:agents": ("ok", "forbidden", "forbidden"),
    "view:agents:research": ("ok", "forbidden", "not found"),
    "view:agents run:agents:other": ("ok", "forbidden", "ok"),
    "view:metrics": ("not found", "not found", "not found"),
    "run:agent": ("not found", "not found", "not found"),
    "run:agents:*": ("not found", "not found", "not found"),
    "run:agents:resear": ("not found", "not found", "not found"),
    "RUN:AGENTS": ("not found", "not found", "not found"),
    "": ("not found", "not found", "not found"),
}


@each_version
async def test_right_token_does_what_its_grants_say_and_no_more(version: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as g:
        seen = {scope: await _outcomes(g, scope, version) for scope in GRANTS}

    assert seen == GRANTS


async def _outcomes(g: Guarded, scope: str, version: str) -> tuple[str, str, str]:
    token, words = bearer(g.token(scope, aud=g.public)), {}
    for agent in BOTH:
        async with raw_client(g.url(agent), protocol_version=version) as client:
            listed = await client.request("tools/list", headers={"authorization": token})
            seen = [
                refusal_of(listed.status, listed.headers),
                *[await attempt_on(client, token, tool=tool) for tool in ("get_health", "send_message", agent)],
            ]
        words[agent] = [_word(one, g.forbidden(agent)) for one in seen]
    look, health, call, by_name = words["research"]
    assert (look, call) == (health, by_name)
    return look, call, words["other"][2]


def _word(seen: Refusal, forbidden: Refusal) -> str:
    known = [(OK, "ok"), (forbidden, "forbidden"), (Refusal(404), "not found")]
    return next((word for refusal, word in known if refusal == seen), str(seen))


@each_version
async def test_agent_one_may_not_see_is_like_one_that_is_not_there(version: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as g:
        without = {agent: await attempt(g.url(agent), version=version) for agent in ("other", "nobody")}
        token = bearer(g.token("run:agents:research", aud=g.public))
        hidden, absent = [await attempt(g.url(agent), token, version=version) for agent in ("other", "nobody")]

    assert without == {agent: g.unauthorized(agent) for agent in ("other", "nobody")}
    assert hidden == absent == Refusal(404)
    assert hidden.text.replace("other", "nobody") == absent.text
    assert _told(hidden) == _told(absent)


def _told(refusal: Refusal) -> dict[str, str]:
    return {name: value for name, value in refusal.headers.items() if name not in {"date", "content-length"}}


@each_version
async def test_whoever_may_only_look_cannot_call_by_any_trick(version: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as g, raw_client(g.url(), protocol_version=version) as client:
        token = bearer(g.token("view:agents"))
        call = client.body_of("tools/call", tool_params("send_message", {"message": "hello"}), request_id=1)
        text = json.dumps(call)
        looking = {**client.headers_of("tools/list"), "authorization": token}
        calling = {**client.headers_of("tools/call", tool_params("send_message")), "authorization": token}
        healthy = {**client.headers_of("tools/call", tool_params("get_health")), "authorization": token}
        bodies: list[bytes] = [
            text.encode(),
            json.dumps([call]).encode(),
            text.replace('"tools/call"', '"tools\\u002fcall"').encode(),
            text.replace('"method"', '"method": "tools/list", "method"', 1).encode(),
            f'{text[:-1]}, "method": "tools/list"}}'.encode(),
            text.replace('"name": "send', '"name": "get_health", "name": "send').encode(),
            text.replace('"message": "hello"', f'"message": "hello", "x": {"9" * 5000}').encode(),
            text.replace('"message": "hello"', '"message": "hello", "x": NaN').encode(),
            text.replace("hello", "\\ud800").encode(),
            b"\xef\xbb\xbf" + text.encode(),
            text.encode("utf-16"),
            b" " * 200_000 + text.encode(),
            text.replace('"id": 1, ', "").encode(),
        ]
        statuses = [
            (await client.post(body, headers=headers)).status_code
            for body in bodies
            for headers in (calling, looking, healthy)
        ]
        answered = g.answered

    assert answered == 0
    assert max(statuses) < 500
    assert statuses[0] == 403


STRANGE_PATHS = [
    "/", "/research", "/research/mcp/", "/research/other", "/research/mcp/x", "//mcp", '/a"b/mcp', "/%22, x=%22/mcp",
    "/a%0d%0ax: y/mcp", "/%C3%A9/mcp", "/%ff/mcp", f"/{'a' * 4000}/mcp", "/.%2e/research/mcp",
]  # fmt: skip


async def test_every_path_below_agents_wants_a_token(tmp_path: Path) -> None:
    async with guarded(tmp_path) as g, httpx.AsyncClient(base_url=f"{g.public}/agents") as http:
        paths = [path for path in STRANGE_PATHS if path]
        replies = [
            await http.request(method, path) for path in paths for method in ("POST", "GET", "DELETE", "OPTIONS")
        ]
        seen = [refusal_of(reply.status_code, reply.headers) for reply in replies]
        slash = await attempt(f"{g.url()}/", bearer(g.token()))
        without = await attempt(f"{g.url()}/")

    assert {one.status for one in seen} == {401}
    assert all("error" not in (one.challenge or {}) for one in seen)
    assert (slash, without) == (OK, g.unauthorized())


@each_version
async def test_callers_without_a_token_may_do_what_is_granted_to_them(version: str, tmp_path: Path) -> None:
    anonymous = ["run:agents:research", "view:agents:other", "view:metrics"]
    async with guarded(tmp_path, agents=(*BOTH, "third"), auth={"anonymous": anonymous}) as g:
        seen = {agent: await attempt(g.url(agent), version=version) for agent in (*BOTH, "third", "nobody")}
        look = await attempt(g.url("other"), version=version, tool="get_health")
        with_a_token = await attempt(g.url(), bearer(g.token("")), version=version)
        async with httpx.AsyncClient() as http:
            metrics = await http.get(f"{g.public}/metrics")

    # 401 where a token might help, without an error: nothing was wrong with the request.
    assert seen == {"research": OK, **{agent: g.unauthorized(agent) for agent in ("other", "third", "nobody")}}
    assert look == OK
    assert with_a_token == Refusal(404)
    assert metrics.status_code == 200


async def test_caller_is_named_by_its_key_or_its_claim_and_only_a_jwt_may_travel_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"auth": {"tokens": [static_key("run:agents")]}, "jwt": {"name_claim": "email"}}
    async with guarded(tmp_path, **settings) as g:
        calls = record_calls(g.served, "research", monkeypatch)
        token = g.token(email="bob@example.test")
        for one in (STATIC_KEY, token):
            assert await attempt(g.url(), bearer(one)) == OK

    assert [call.caller.name for call in calls] == ["ci", "bob@example.test"]
    assert [call.caller.bearer and call.caller.bearer.reveal() for call in calls] == [None, token]


async def test_grants_are_read_from_the_claim_that_is_configured(tmp_path: Path) -> None:
    async with guarded(tmp_path, jwt={"grants_claim": "permissions"}) as g:
        for claims, expected in (
            ({"permissions": ["run:agents"]}, OK),
            ({"permissions": "run:agents:research"}, OK),
            ({"permissions": None}, Refusal(404)),
        ):
            assert await attempt(g.url(), bearer(g.token("run:agents", **claims))) == expected
            assert await attempt(g.url(), bearer(g.token(None, **claims))) == expected


# --- The authorization server's keys: fetched seldom, renewed when they change, and kept when it is in trouble


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
