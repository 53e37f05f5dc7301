"""Chunks of Gemini's that are made in short are those that Google's library makes."""

import json
from copy import deepcopy
from types import MethodType
from typing import Any

import pytest
from fast_agent.llm.provider_types import Provider
from google.genai import _common, models, types
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.loaded_providers import load
from tests.support.model_values import taken_apart

USAGE = {
    "promptTokenCount": 7,
    "candidatesTokenCount": 2,
    "totalTokenCount": 9,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 7, "unknown": 1}],
    "trafficType": "ON_DEMAND",
    "unknown": {"a": 1},
}
DETAILS = [
    {"modality": "TEXT", "tokenCount": 7},
    {"modality": "NEW", "tokenCount": 1},
    {"modality": "AUDIO"},
    {},
    "one",
]
DETAILS += [{"modality": "text", "tokenCount": 7}, {"modality": "TEXT", "tokenCount": True}]
USAGES = st.one_of(
    st.just(USAGE),
    st.dictionaries(st.sampled_from(["promptTokenCount", "total_token_count"]), st.sampled_from([1, 2**70, "3", True])),
    st.builds(
        lambda details, more: {"totalTokenCount": 9, "promptTokensDetails": details, **more},
        st.lists(st.sampled_from(DETAILS), max_size=2),
        st.sampled_from([{}, {}, {"cacheTokensDetails": []}, {"trafficType": "ON_DEMAND"}, {"unknown": 1}]),
    ),
)
INDEX = [{}, {"index": 0}, {"index": 1}, {"index": "1"}, {"index": None}, {"index": True}, {"finishReason": "STOP"}]
INDEX += [{"finishReason": "NEW"}, {"safetyRatings": []}, {"index": 0, "tokenCount": 3}, {"unknown": 1}]
PARTS: list[Any] = [{"text": "a"}, {"text": ""}, {"text": "t", "thought": True}, {"text": "t", "thought": False}]
PARTS += [{"text": None}, {"text": 5}, {}, {"thought": True}, {"text": "s", "thoughtSignature": "c2ln"}, "none"]
PARTS += [{"functionCall": {"name": "search", "args": {"q": 1}}}, {"text": "u", "unknown": 1}]
REST = [{}, {"modelVersion": "gemini", "responseId": "r"}, {"modelVersion": None}, {"modelVersion": 5}, {"unknown": 1}]
REST += [{"usageMetadata": USAGE}, {"usageMetadata": {"totalTokenCount": "many"}}, {"usageMetadata": 1}]
REST += [{"promptFeedback": {"blockReason": "SAFETY"}}, {"createTime": "2026-01-01T00:00:00Z"}]
CONTENTS = st.builds(
    lambda parts, more: {"parts": parts, **more},
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=2),
    st.sampled_from([{"role": "model"}, {"role": "model"}, {}, {"role": "user"}, {"role": "model", "unknown": 1}]),
)
CHUNKS = st.one_of(
    st.builds(
        lambda contents, index, rest: {"candidates": [{"content": one, **index} for one in contents], **rest},
        st.lists(CONTENTS, min_size=1, max_size=2),
        st.sampled_from(INDEX),
        st.one_of(st.sampled_from(REST), USAGES.map(lambda usage: {"responseId": "r", "usageMetadata": usage})),
    ),
    st.sampled_from([{}, {"candidates": []}, {"candidates": None}, {"candidates": [{}]}, {"candidates": 5}, *REST]),
)
CONFIGS = st.sampled_from(
    [
        None,
        types.GenerateContentConfig(),
        types.GenerateContentConfig(temperature=0.5),
        types.GenerateContentConfig(response_schema={"type": "OBJECT"}),
        types.GenerateContentConfig(response_json_schema={"type": "object"}),
    ]
)


@pytest.fixture(scope="module")
def both() -> Any:
    """The library's two functions, ours and its own."""
    load(Provider.GOOGLE)
    convert: Any = models._GenerateContentResponse_from_mldev
    from_response: Any = types.GenerateContentResponse._from_response
    original = from_response.__func__.__wrapped__
    return (convert, from_response), (convert.__wrapped__, MethodType(original, types.GenerateContentResponse))


def outcome(functions: Any, chunk: Any, config: Any) -> Any:
    """What the library makes of a chunk, in its own words."""
    convert, from_response = functions
    kept = {"config": {name: getattr(config, name, None) for name in ("response_schema", "response_json_schema")}}
    parameters = types._GenerateContentParameters(model="m", contents="c", config=config)
    try:
        converted = convert(deepcopy(chunk), None, parameters)
        return taken_apart(from_response(response=converted, kwargs=kept if config else {}))
    except Exception as error:  # noqa: BLE001  whatever the library raises
        return type(error)


@settings(max_examples=100)
@given(CHUNKS, CONFIGS)
@pytest.mark.filterwarnings("ignore:.* is not a valid:UserWarning")
def test_a_chunk_is_what_the_library_makes_of_it(both: Any, chunk: Any, config: Any) -> None:
    ours, theirs = both

    assert outcome(ours, chunk, config) == outcome(theirs, chunk, config)


def test_no_chunk_shares_anything_that_changes(both: Any) -> None:
    ours, _ = both
    parameters = types._GenerateContentParameters(model="m", contents="c", config=types.GenerateContentConfig())
    chunk = {"candidates": [{"content": {"parts": [{"text": "a"}], "role": "model"}}]}

    one, other = (ours[1](response=ours[0](chunk, None, parameters), kwargs={}) for _ in range(2))
    one.candidates[0].content.parts[0].text = "b"
    one.candidates[0].content.parts.append(types.Part(text="c"))
    one.sdk_http_response = types.HttpResponse(headers={})

    assert json.loads(other.model_dump_json(exclude_none=True, by_alias=True)) == chunk


def test_a_chunk_of_text_is_not_looked_through(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = both
    looked: list[Any] = []
    monkeypatch.setattr(_common, "_remove_extra_fields", lambda model, response: looked.append((model, response)))
    chunk = {
        "candidates": [{"content": {"parts": [{"text": "a"}], "role": "model"}, "index": 0}],
        "responseId": "r",
        "usageMetadata": {"totalTokenCount": 7, "promptTokensDetails": DETAILS[:1]},
    }
    config = types.GenerateContentConfig()

    assert outcome(ours, chunk, config) == outcome(theirs, chunk, config)

    assert len(looked) == 1
