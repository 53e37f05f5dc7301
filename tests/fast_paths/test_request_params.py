"""Parameters that are merged without validation are those that fast-agent merges."""

from typing import Any

import pytest
from fast_agent.llm import fastagent_llm
from fast_agent.llm.reasoning_effort import ReasoningEffortSetting
from fast_agent.llm.request_param_resolution import apply_reasoning_streaming_timeout as applied_by_fast_agent
from fast_agent.llm.request_param_resolution import merge_request_params as merged_by_fast_agent
from fast_agent.types import RequestParams
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_gateway.runtime import preparation

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["one", None, 5]),
    "max_tokens": st.sampled_from([None, 7, True, 7.0]),
    "temperature": st.sampled_from([None, 1, 0.5, "0.5"]),
    "use_history": st.sampled_from([False, 0]),
    "streaming_timeout": st.sampled_from([None, 2, 2.5]),
    "tool_result_mode": st.sampled_from(["selectable", "postprocess", "wrong"]),
    "stop_sequences": st.sampled_from([None, [], ["a"]]),
    "metadata": st.sampled_from([None, {}, {"a": {"b": 1}}, {"a": {"c": 2}}]),
    "template_vars": st.sampled_from([{}, {"a": 1}]),
    "messages": st.just(["not a message"]),
    "tool_execution_handler": st.just(print),
}
TURNS: Any = fastagent_llm
PARAMS = st.fixed_dictionaries({}, optional=VALUES)


def made(values: dict[str, Any]) -> RequestParams:
    """Parameters whose values were set later, which pydantic does not validate."""
    params = RequestParams()
    for name, value in values.items():
        setattr(params, name, value)
    return params


def outcome(merge: Any, default: dict[str, Any], provided: dict[str, Any]) -> Any:
    try:
        merged = merge(made(default), made(provided))
    except ValueError as error:
        return str(error)
    return [*map(type, vars(merged).values())], merged.__getstate__()


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@settings(max_examples=100, deadline=None)
@given(PARAMS, PARAMS)
def test_parameters_merge_as_fast_agent_merges_them(default: dict[str, Any], provided: dict[str, Any]) -> None:
    preparation.prepare()

    ours = outcome(TURNS.merge_request_params, default, provided)

    assert ours == outcome(merged_by_fast_agent, default, provided)


def test_merged_parameters_share_nothing_that_changes() -> None:
    preparation.prepare()
    default, provided = RequestParams(model="one"), RequestParams(max_tokens=5)

    for _ in range(2):
        merged: Any = TURNS.merge_request_params(default, provided)
        assert merged == merged_by_fast_agent(default, provided)
        merged.template_vars["who"] = "me"
        merged.messages.append(None)
        merged.streaming_timeout = 5
        assert "streaming_timeout" in merged.model_fields_set


@pytest.mark.parametrize("reasoning", [None, *(ReasoningEffortSetting("effort", one) for one in ("low", "high"))])
@pytest.mark.parametrize("given", [{}, {"streaming_timeout": 5}])
def test_the_time_out_is_that_of_fast_agent(reasoning: ReasoningEffortSetting | None, given: dict[str, Any]) -> None:
    preparation.prepare()
    params = RequestParams(**given)
    expected = applied_by_fast_agent(params, reasoning)

    applied = TURNS.apply_reasoning_streaming_timeout(params, reasoning)

    assert applied == expected
    assert applied.model_fields_set == expected.model_fields_set
