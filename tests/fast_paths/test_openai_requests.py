"""Requests made from a template are those of the OpenAI library."""

from collections.abc import Iterator
from functools import partial
from typing import Any, override

import httpx2
import pytest
from fast_agent.llm.provider_types import Provider
from openai import AsyncOpenAI, AsyncStream
from openai._base_client import AsyncAPIClient, BaseClient
from openai._models import FinalRequestOptions
from openai._utils import is_given
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pallas_gateway.calls.current import AgentCall, LlmTurn, calling
from pallas_gateway.fast_paths._request_templates import KEPT_TEMPLATES
from pallas_gateway.fast_paths._streamed_bodies import PlainMessages
from tests.support.loaded_providers import load
from tests.support.pairs import pairs

THEIRS: Any = BaseClient._build_request
OF_A_TURN = AgentCall(turn=LlmTurn())


@pytest.fixture
def client() -> Iterator[Any]:
    load(Provider.OPENAI)
    with calling(OF_A_TURN):
        yield AsyncOpenAI(api_key="key-1", base_url="http://llm.invalid/v1", default_headers={"X-Team": "a"})


class ForUsers(AsyncOpenAI):
    """A client of an agent's own code, with a header of the user that asks."""

    user = "alice"

    @property
    @override
    def default_headers(self) -> dict[str, Any]:
        return {**super().default_headers, "X-User": self.user}


@pytest.mark.parametrize(
    ("kind", "setting", "header", "call"),
    [
        *((ForUsers, "user", "X-User", call) for call in (AgentCall(), OF_A_TURN)),
        (AsyncOpenAI, "organization", "OpenAI-Organization", AgentCall()),
    ],
)
def test_each_request_of_an_agents_own_client_has_its_present_setting(
    kind: type[AsyncOpenAI], setting: str, header: str, call: AgentCall
) -> None:
    load(Provider.OPENAI)
    client, seen = kind(api_key="key-1", base_url="http://llm.invalid/v1"), []
    for value in ("alice", "bob"):
        setattr(client, setting, value)
        options = FinalRequestOptions.construct(method="post", url="/chat/completions", json_data={"model": "m"})
        with calling(call):
            seen.append(client._build_request(options).headers[header])
    assert seen == ["alice", "bob"]


@pairs(
    {
        "more": {
            "nothing else": {},
            "headers": {"headers": {"X-One": "1"}},
            "a query": {"params": {"a": "b"}},
            "a larger body": {"extra_json": {"more": True}},
            "a timeout": {"timeout": 3.0},
            "other credentials": {"security": {"bearer_auth": True, "admin_api_key_auth": False}},
            "no body": {"json_data": None},
            "a list": {"json_data": [1]},
            "another method": {"method": "get", "json_data": None},
        },
        "retries_taken": [0, 1],
    }
)
def test_a_request_is_the_one_that_the_library_builds(client: Any, more: dict[str, Any], retries_taken: int) -> None:
    for number in range(3):
        options = FinalRequestOptions.construct(
            **{
                "method": "post",
                "url": "/chat/completions",
                "security": {"bearer_auth": True},
                "json_data": {"model": "m", "messages": ["ä" * number]},
                **more,
            }
        )
        client.api_key = f"key-{number // 2}"

        ours = client._build_request(options, retries_taken=retries_taken)

        theirs = THEIRS(client, options, retries_taken=retries_taken)
        assert (ours.method, ours.url, ours.headers.raw) == (theirs.method, theirs.url, theirs.headers.raw)
        assert ours.headers["user-agent"].startswith("AsyncOpenAI/Python ")
        assert (ours.content, ours.extensions) == (theirs.content, theirs.extensions)


@pytest.mark.parametrize("text", ["plain", 'ä\u2028\x07\\"', "\U0001f600", ""])
def test_a_plain_body_is_the_one_that_the_library_writes(client: Any, text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}], "n": 10**30, "t": -0.5, "f": 0.1, "b": True, "o": None}
    options: dict[str, Any] = {"method": "post", "url": "/chat/completions", "security": {"bearer_auth": True}}
    theirs = THEIRS(client, FinalRequestOptions.construct(**options, json_data=body))
    plain = {**body, "messages": PlainMessages(body["messages"])}  # type: ignore[call-overload]

    for _ in range(2):
        ours = client._build_request(FinalRequestOptions.construct(**options, json_data=plain))
        assert ours.content == theirs.content


def test_an_idempotency_key_is_of_one_request(client: Any) -> None:
    client._idempotency_header = "Idempotency-Key"
    requests = [
        FinalRequestOptions.construct(method="post", url="/c", json_data={}, idempotency_key=key)
        for key in ("one", "two")
    ]

    sent = [client._build_request(request).headers["idempotency-key"] for request in requests]

    assert sent == ["one", "two"]


async def test_a_streamed_response_is_the_librarys_stream(client: Any) -> None:
    options = FinalRequestOptions.construct(method="post", url="/c")
    response = httpx2.Response(200, request=httpx2.Request("POST", "http://llm.invalid/c"))
    stream: dict[str, Any] = {"stream": True, "stream_cls": AsyncStream[ChatCompletionChunk]}
    ours, theirs = [
        vars(await process(cast_to=ChatCompletion, options=options, response=response, **stream))
        for process in (client._process_response, partial(AsyncAPIClient._process_response, client))
    ]
    assert all(ours[name] is theirs[name] for name in ("_cast_to", "response", "_options", "_client"))


def test_templates_of_old_keys_are_dropped(client: Any) -> None:
    options = FinalRequestOptions.construct(method="post", url="/c", json_data={}, security={"bearer_auth": True})
    kept = []
    for number in range(3 * KEPT_TEMPLATES):
        client.api_key = f"key-{number}"
        assert client._build_request(options).headers["authorization"] == f"Bearer key-{number}"
        kept.append(len(vars(client)["_pallas_templates"]))

    assert max(kept) == KEPT_TEMPLATES


def test_a_change_of_one_request_is_not_in_the_next(client: Any) -> None:
    options = FinalRequestOptions.construct(method="post", url="/c", json_data={})
    for _ in range(3):
        request = client._build_request(options)
        assert "noted" not in request.extensions
        assert "x-noted" not in request.headers
        request.extensions["noted"] = True
        request.headers["x-noted"] = "1"


def test_the_defaults_of_a_request_are_not_copied(client: Any) -> None:
    del client  # whose class was accelerated

    options = FinalRequestOptions.construct(method="post", url="/chat/completions")

    assert options.headers is FinalRequestOptions.model_fields["headers"].default
    assert not is_given(options.timeout)
    assert options.params == {}
    assert options.params is not FinalRequestOptions.construct(method="post", url="/").params
