"""What stands beside the agents once they want tokens: metadata, registry, metrics, probes, other modes, other hops."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.config.loading.loader import Overrides
from tests.support.calling import EACH_VERSION, ask
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.challenges import challenge_of
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent
from tests.support.guarded import (
    BOTH,
    METADATA,
    OK,
    STATIC_KEY,
    Guarded,
    Refusal,
    attempt,
    bearer,
    guarded,
    refusal_of,
    static_key,
)
from tests.support.listener import reserved_port
from tests.support.pairs import pairs
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, say, scripted_llm
from tests.support.watching import relay, speaker

each_version = pytest.mark.parametrize("version", EACH_VERSION)
REGISTRY = ("/.well-known/mcp/server.json", "/v0.1/servers")
PUBLIC = "https://agents.example.test"


async def get(
    url: str, token: str | None = None, *, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> httpx.Response:
    said = {**(headers or {}), **({"authorization": bearer(token)} if token is not None else {})}
    async with httpx.AsyncClient(verify=tls or True, trust_env=False) as http:
        return await http.get(url, headers=said)


# Metadata (RFC 9728)


async def test_metadata_says_where_tokens_for_an_agent_come_from(tmp_path: Path) -> None:
    async with guarded(tmp_path) as g:
        reply = await get(g.metadata(), headers={"origin": PUBLIC})
        document = reply.json()

    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers.get_list("access-control-allow-origin") == ["*"]
    assert document == {
        "resource": g.url(),
        "authorization_servers": [g.server.issuer],
        "scopes_supported": document["scopes_supported"],
        "bearer_methods_supported": ["header"],
    }
    assert "run:agents:research" in document["scopes_supported"]


async def test_metadata_does_not_tell_which_agents_there_are(tmp_path: Path) -> None:
    async with guarded(tmp_path) as g:
        there, not_there = [await get(g.metadata(name)) for name in ("research", "nobody")]
        nonsense = [
            (await get(f"{g.public}{METADATA}{path}")).status_code
            for path in ("", "/", "/agents/", "/agents//mcp", "/agents/a b/mcp", "/agents/%22/mcp", "/agents/a")
        ]

    assert there.text.replace("research", "nobody") == not_there.text
    assert (there.status_code, not_there.status_code) == (200, 200)
    assert set(nonsense) == {404}


async def test_metadata_may_be_read_by_pages_of_any_origin(tmp_path: Path) -> None:
    async with guarded(tmp_path, gateway={"allowed_origins": [PUBLIC]}) as g:
        for origin in (PUBLIC, "https://elsewhere.example.test"):
            allowed = (await get(g.metadata(), headers={"origin": origin})).headers.get_list(
                "access-control-allow-origin"
            )
            assert allowed in (["*"], [origin])
        challenged = await get(g.url(), headers={"origin": PUBLIC})

    assert challenged.status_code == 401
    assert "WWW-Authenticate" in challenged.headers["access-control-expose-headers"]


@each_version
async def test_public_url_is_what_clients_are_shown_and_tokens_are_for(version: str, tmp_path: Path) -> None:
    async with guarded(tmp_path, gateway={"public_url": PUBLIC}) as g:
        local = g.served.url("research")
        seen = {
            what: await attempt(local, value, version=version)
            for what, value in {
                "no token": None,
                "here": bearer(g.token()),
                "the port behind": bearer(g.token(aud=local)),
                "look": bearer(g.token("view:agents")),
            }.items()
        }
        metadata = (await get(f"{g.served.base_url}{METADATA}/agents/research/mcp")).json()

    assert g.metadata() == f"{PUBLIC}{METADATA}/agents/research/mcp"
    expected = {"no token": g.unauthorized(), "here": OK, "the port behind": g.invalid(), "look": g.forbidden()}
    assert seen == expected
    assert metadata["resource"] == f"{PUBLIC}/agents/research/mcp"


# Registry, metrics, probes


async def test_open_registry_shows_everything_to_everybody(tmp_path: Path) -> None:
    async with guarded(tmp_path) as g:
        tokens = (None, "garbage", g.token(""))
        replies = [await get(f"{g.public}{path}", token) for path in REGISTRY for token in tokens]

    assert [sorted(listed(reply)) for reply in replies] == [sorted(BOTH)] * 6


@pytest.mark.parametrize("path", REGISTRY)
async def test_filtered_registry_shows_each_caller_what_it_may_view(path: str, tmp_path: Path) -> None:
    auth = {
        "registry": "filtered", "anonymous": ["view:agents:third"], "tokens": [static_key("run:agents:other")],
    }  # fmt: skip
    async with guarded(tmp_path, agents=(*BOTH, "third"), auth=auth) as g:
        url = f"{g.public}{path}"
        tokens = {
            None: ["third"],
            STATIC_KEY: ["other"],
            g.token("view:agents", aud=g.public): [*BOTH, "third"],
            g.token("view:agents:research run:agents:third", aud=g.public): ["research", "third"],
            g.token("view:metrics", aud=g.public): [],
        }
        replies = {token: await get(url, token) for token in tokens}
        rejected = [await get(url, token) for token in ("garbage", g.token(aud=g.url()), g.token(exp=1, aud=g.public))]
        full = next(reply for token, reply in replies.items() if len(tokens[token]) == 3)
        again = await get(url, headers={"if-none-match": full.headers["etag"]})
        names = [entry["server"]["name"] for entry in full.json()["servers"]]
        shown = [(await get(f"{g.public}/v0.1/servers/{name}/versions/latest")).status_code for name in sorted(names)]

    assert shown == [404, 404, 200]  # without a token: other, research, third
    assert {token: sorted(listed(reply)) for token, reply in replies.items()} == {
        token: sorted(names) for token, names in tokens.items()
    }
    assert {reply.headers["vary"].lower() for reply in (*replies.values(), again)} == {"authorization"}
    assert [refusal_of(one.status_code, one.headers) for one in rejected] == [
        Refusal(401, {"error": "invalid_token"})
    ] * 3
    assert again.status_code == 200  # what another caller knows already is nothing this one has


def listed(reply: httpx.Response) -> list[str]:
    assert reply.status_code == 200
    urls = [entry["server"]["remotes"][0]["url"] for entry in reply.json()["servers"]]
    return [url.split("/")[-2] for url in urls]


async def test_metrics_want_their_grant_and_probes_want_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth={"tokens": [static_key("view:metrics")]}) as g:
        tokens = {
            None: 401, "garbage": 401, STATIC_KEY: 200, g.token("view:metrics", aud=g.public): 200,
            g.token("view:metrics", aud=g.url()): 401, g.token("run:agents view:agents", aud=g.public): 403,
        }  # fmt: skip
        replies = {token: await get(f"{g.public}/metrics", token) for token in tokens}
        probes = [
            await get(f"{g.public}{path}", token) for path in ("/livez", "/readyz") for token in (None, "garbage")
        ]

    assert {token: reply.status_code for token, reply in replies.items()} == tokens
    told = [challenge.parameters for reply in replies.values() if (challenge := challenge_of(reply.headers))]
    assert [one.get("error") for one in told] == [None, "invalid_token", "invalid_token", "insufficient_scope"]
    assert told[-1]["scope"] == "view:metrics"
    assert [reply.status_code for reply in probes] == [200] * 4


async def test_only_callers_that_may_view_an_agent_read_why_it_is_not_up(tmp_path: Path) -> None:
    agents = {"research": Agent(), "other": Agent(source="raise ValueError('no key in /srv/agents')")}
    async with guarded(tmp_path, agents=agents) as g:
        readers = (g.token("view:agents", aud=g.public), g.token("run:agents:other", aud=g.public))
        others = (None, "garbage", g.token("run:agents:research", aud=g.public))
        accepts = {"accept": "application/json"}
        for path in ("/readyz", "/"):
            informed = [await get(f"{g.public}{path}", token, headers=accepts) for token in readers]
            uninformed = [await get(f"{g.public}{path}", token, headers=accepts) for token in others]
            assert {reply.status_code for reply in (*informed, *uninformed)} == {200}
            assert ["/srv/agents" in reply.text for reply in informed] == [True] * 2
            assert ["/srv/agents" in reply.text for reply in uninformed] == [False] * 3
            assert ["other" in reply.text and "failed" in reply.text for reply in uninformed] == [True] * 3


async def test_no_cache_may_keep_what_the_apis_answer(tmp_path: Path) -> None:
    gateway = {"openai_api": True, "database": "sqlite:///threads.db"}
    async with guarded(tmp_path, gateway=gateway) as g:
        token = g.token("run:agents", aud=g.public)
        paths = ("/v1/models", "/v1/nothing", "/api/v1/agents", "/api/v1/threads", "/api/v1/nothing")
        replies = [await get(f"{g.public}{path}", one) for path in paths for one in (token, None)]
        async with httpx.AsyncClient(headers={"authorization": bearer(token)}, trust_env=False) as http:
            asked = {"model": "research", "messages": [{"role": "user", "content": "hi"}], "stream": True}
            replies.append(await http.post(f"{g.public}/v1/chat/completions", json=asked))
    assert replies[-1].status_code == 200
    assert {reply.headers["cache-control"].partition(",")[0] for reply in replies} == {"no-store"}


# Other modes


@each_version
async def test_each_port_is_a_resource_of_its_own(version: str, tmp_path: Path) -> None:
    with reserved_port() as registry, reserved_port() as one, reserved_port() as two:
        ports = {"research": one, "other": two}
        agents = {name: Agent(settings={"port": port}) for name, port in ports.items()}
        deployment = {"registry_port": registry, "host": "127.0.0.1"}
        settings: dict[str, Any] = {"gateway": {"host": "127.0.0.1"}, "deployment": deployment}
        async with guarded(tmp_path, agents=agents, overrides=Overrides(per_port=True), **settings) as g:
            bases = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
            url = f"{bases['research']}/mcp"
            seen = [
                await attempt(url, value, version=version)
                for value in (
                    None, bearer(g.token(aud=url)), bearer(g.token(aud=f"{bases['other']}/mcp")),
                    bearer(g.token("view:agents", aud=url)), bearer(g.token("run:agents:other", aud=url)),
                )
            ]  # fmt: skip
            documents = {name: (await get(f"{base}{METADATA}/mcp")).json() for name, base in bases.items()}
            elsewhere = [
                await attempt(f"http://127.0.0.1:{port}/agents/{name}/mcp", token, version=version)
                for port in (registry, one)
                for name in (*BOTH, "nobody")
                for token in (None, bearer(g.token(aud=url)))
            ]

    metadata = {"resource_metadata": f"{bases['research']}{METADATA}/mcp", "scope": "run:agents:research"}
    scope = {**metadata, "error": "insufficient_scope"}
    invalid = Refusal(401, {**metadata, "error": "invalid_token"})
    assert seen == [Refusal(401, metadata), OK, invalid, Refusal(403, scope), Refusal(404)]
    assert {name: document["resource"] for name, document in documents.items()} == {
        name: f"{base}/mcp" for name, base in bases.items()
    }
    assert {one.status for one in elsewhere} <= {401, 404}


@each_version
async def test_tokens_open_agents_behind_tls(version: str, tmp_path: Path) -> None:
    trusting = write_certificate(tmp_path)
    async with guarded(tmp_path, gateway={"tls": TLS_FILES}) as g:
        seen = [
            await attempt(g.url(), value, version=version, tls=trusting)
            for value in (None, bearer(g.token()), bearer(g.token(aud=g.url().replace("https", "http"))))
        ]
        metadata = (await get(g.metadata(), tls=trusting)).json()

    assert g.url().startswith("https://")
    assert seen == [g.unauthorized(), OK, g.invalid()]
    assert metadata["resource"] == g.url()


# Other hops


@asynccontextmanager
async def family(path: Path, llm: ScriptedLlm, **auth: Any) -> AsyncIterator[Guarded]:
    """`parent`, who asks `peer`."""
    with reserved_port() as port:
        agents = {"parent": Agent(servers=["peer"]), "peer": Agent(settings={"port": port})}
        servers = {"peer": {"transport": "http", "url": f"http://localhost:{port}/mcp"}}
        async with guarded(path, agents=agents, auth=auth, llm_url=llm.base_url, servers=servers) as g:
            yield g


def stubborn(request: LlmRequest) -> Turn:
    """Like `relay`, but `parent` answers by itself when it has no peer."""
    if speaker(request) == "parent" and "peer__send_message" not in request.tools:
        return say("told: nobody there")
    return relay(request)


@pairs(
    {
        "peer_grants, scope, reached": [
            ("inherited", "run:agents:parent", True),
            ("strict", "run:agents:parent", False),
            ("strict", "run:agents:parent view:agents:peer", False),
            ("strict", "run:agents:parent run:agents:peer", True),
        ],
        "version": EACH_VERSION,
    }
)
async def test_caller_needs_grants_for_peers_only_where_they_are_strict(
    peer_grants: str, scope: str, reached: bool, version: str, tmp_path: Path
) -> None:
    async with scripted_llm(stubborn) as llm, family(tmp_path, llm, peer_grants=peer_grants) as g:
        token = g.token(scope, aud=g.url("parent"))
        answer = await ask(g.url("parent"), "tea?", version=version, bearer=token)
        others = g.token("run:agents", aud=g.public)  # whoever comes next finds the peer as it should be
        assert (await ask(g.url("parent"), "more?", version=version, bearer=others)).text == "told: peer heard more?"

    assert not answer.is_error
    assert ("peer heard tea?" in answer.text) == reached
    assert any("tea?" in request.last_user_text for request in llm.requests if speaker(request) == "peer") == reached


@each_version
async def test_downstream_that_opted_in_gets_jwts_and_never_static_keys(version: str, tmp_path: Path) -> None:
    def adds(request: LlmRequest) -> Turn:
        return say("done") if request.tool_results else call_tools([("tools__add", {"a": 1, "b": 2})])

    async with scripted_llm(adds) as llm, stateless_downstream() as tools:
        servers = {"tools": {"url": tools.url, "forward_inbound_auth": True}}
        settings: dict[str, Any] = {"llm_url": llm.base_url, "servers": servers}
        agents = {"research": Agent(servers=["tools"])}
        async with guarded(tmp_path, agents=agents, auth={"tokens": [static_key("run:agents")]}, **settings) as g:
            token = g.token()
            for one in (STATIC_KEY, token):
                assert (await ask(g.url(), version=version, bearer=one)).text == "done"
        bearers = [request.bearer for request in tools.recorder.calls("add")]
        everything = str([request.headers for request in tools.recorder.requests])

    assert bearers == [None, token]
    assert STATIC_KEY not in everything
    assert STATIC_KEY not in str([request.headers for request in llm.requests])
    assert token not in str([request.headers for request in llm.requests])
