"""How providers want parameters, as far as no request over HTTP shows it (tests/e2e/test_provider_parameters.py)."""

import importlib
from typing import Any

import pytest
from fast_agent.llm.internal.passthrough import PassthroughLLM
from fast_agent.types import RequestParams

from pallas_gateway.calls.parameters import Parameters
from pallas_gateway.runtime.call.provider_parameters import parameter_mapping_of, seen_in

WHERE = {
    "ResponsesLLM": "openai.responses",
    "OpenAILLM": "openai.llm_openai",
    "AnthropicLLM": "anthropic.llm_anthropic",
    "GoogleNativeLLM": "google.llm_google_native",
    "BedrockLLM": "bedrock.llm_bedrock",
}
SCHEMA = {"type": "object"}
EVERYTHING = Parameters(
    temperature=1,
    top_p=1,
    top_k=1,
    max_tokens=1,
    stop=("x",),
    presence_penalty=1,
    frequency_penalty=1,
    seed=1,
    response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    tool_choice="required",
    extra={"a": 1},
)


def an_llm(name: str) -> Any:
    """Something of a class of this name."""
    return type(name, (), {})()


@pytest.mark.parametrize("name", WHERE)
def test_the_places_where_requests_are_watched_are_there(name: str) -> None:
    kind = getattr(importlib.import_module(f"fast_agent.llm.provider.{WHERE[name]}"), name)
    assert callable(getattr(kind, parameter_mapping_of(an_llm(name)).builder))


def test_of_other_models_no_request_is_seen() -> None:
    llm = PassthroughLLM.__new__(PassthroughLLM)
    parameter_mapping_of(llm).watch(llm, lambda _: None)
    assert vars(llm) == {}
    assert parameter_mapping_of(llm).said_in_prompt(EVERYTHING) == set()


def test_a_schema_is_taken_where_plain_json_is_not() -> None:
    dialect, plain = parameter_mapping_of(an_llm("AnthropicLLM")), Parameters(response_format={"type": "json_object"})
    assert dialect.request_params(EVERYTHING, RequestParams(), is_first_turn=True)["structured_schema"] == SCHEMA
    assert dialect.request_params(plain, RequestParams(), is_first_turn=True)["structured_schema"] is None


def test_what_clears_a_default_clears_the_modules_own_but_for_the_length_that_some_providers_demand() -> None:
    cleared = Parameters(cleared=frozenset({"temperature", "max_tokens", "seed"}))
    fields = parameter_mapping_of(an_llm("OpenAILLM")).request_params(cleared, RequestParams(), is_first_turn=True)
    assert fields == {"temperature": None, "sampling_tool_choice": None, "metadata": None}


def test_a_modules_own_arguments_for_its_provider_stay() -> None:
    present = RequestParams(metadata={"user": "u-1", "tool_choice": {"old": 1}})
    fields = parameter_mapping_of(an_llm("OpenAILLM")).request_params(EVERYTHING, present, is_first_turn=False)
    assert fields["metadata"] == {"user": "u-1", "extra_body": {"stop": ["x"], "seed": 1, "a": 1}}
    assert fields["sampling_tool_choice"] is None


@pytest.mark.parametrize(
    ("parameters", "request_", "seen"),
    [
        (Parameters(tool_choice="auto"), {}, {"tool_choice"}),
        (Parameters(tool_choice="required"), {"tools": []}, set()),
        (Parameters(response_format={"type": "text"}), {}, {"response_format"}),
        (Parameters(tool_choice={"type": "function"}), {"tools": [1], "tool_choice": "AUTO"}, set()),
        (Parameters(extra={"a": 1, "b": 2}), {"a": 1}, set()),
        (Parameters(extra={"a": 1}), {"a": 1, "temperature": 1}, {"extra"}),
        (Parameters(temperature=1), {"temperature": None}, set()),
    ],
)
def test_a_parameter_took_effect_if_the_request_says_something_of_it(
    parameters: Parameters, request_: dict[str, Any], seen: set[str]
) -> None:
    assert seen_in(request_, parameters) == seen
