"""What is done in short comes out as fast-agent does it."""

from __future__ import annotations

from typing import Any

from fast_agent.llm.request_param_resolution import merge_request_params
from fast_agent.types import RequestParams
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_gateway.runtime.fast_paths.model_factories import remembering
from pallas_gateway.runtime.fast_paths.request_params import merging_plainly

PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["one", "two"]),
        "max_tokens": st.none() | st.integers(1, 99),
        "temperature": st.none() | st.floats(0, 2),
        "use_history": st.booleans(),
        "streaming_timeout": st.none() | st.floats(1, 9),
        "systemPrompt": st.text(max_size=3),
        "stop_sequences": st.lists(st.text(max_size=2), max_size=2),
        "metadata": st.none() | st.dictionaries(st.text(max_size=2), st.integers() | st.just({"a": 1}), max_size=2),
        "template_vars": st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
        "mcp_metadata": st.none() | st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
        "made_up": st.integers(),
    },
)


@settings(max_examples=300)
@given(PARAMS, PARAMS)
def test_parameters_merge_as_fast_agent_merges_them(default: dict[str, Any], provided: dict[str, Any]) -> None:
    theirs = merge_request_params(RequestParams(**default), RequestParams(**provided))
    ours = merging_plainly(merge_request_params)(RequestParams(**default), RequestParams(**provided))

    assert ours.model_dump() == theirs.model_dump()
    assert ours.model_fields_set == theirs.model_fields_set
    assert ours.model_extra == theirs.model_extra


def test_what_was_merged_shares_nothing_that_can_change() -> None:
    default = RequestParams(model="one", stop_sequences=[])
    provided = RequestParams(max_tokens=5, mcp_metadata={})

    merged = merging_plainly(merge_request_params)(default, provided)
    merged.template_vars["who"] = "me"
    merged.messages.append(None)  # type: ignore[arg-type]
    (merged.stop_sequences or []).append("stop")
    (merged.mcp_metadata or {})["who"] = "me"

    assert default.template_vars == provided.template_vars == {}
    assert default.messages == provided.messages == []
    assert (default.stop_sequences, provided.mcp_metadata) == ([], {})


def test_a_model_is_looked_for_once_and_one_with_parameters_each_time() -> None:
    asked: list[Any] = []

    def find(model: Any = None, request_params: Any = None) -> object:
        asked.append((model, request_params))
        return object()

    remembered = remembering(find)

    assert remembered(model="one") is remembered(model="one")
    assert remembered(model="one") is not remembered(model="two")
    assert remembered(model="one", request_params=1) is not remembered(model="one", request_params=1)
    assert asked == [("one", None), ("two", None), ("one", 1), ("one", 1)]
