"""Parameters of a call as values: what is read, what is refused, and what counts when several have something to say."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from pallas_gateway.calls.call import Reply
from pallas_gateway.calls.parameters import (
    NO_PARAMETERS,
    BadParametersError,
    Parameters,
    clamped,
    params_schema,
    parse,
    resolved,
)
from pallas_gateway.config.loading.error_messages import validated
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.config.model.parameters import (
    CALLER_PARAMETERS,
    PARAMETERS,
    SAMPLING_KEYS,
    CallerParameters,
    CallParameters,
    DefaultParameters,
)
from pallas_gateway.core.hosted_agent import told_of_changes
from pallas_gateway.errors import CallRefusedError
from tests.support.memory_runtime import a_call

ONE_TOOL = {"type": "function", "function": {"name": "search"}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}}
EVERYTHING = CallerParameters(names=PARAMETERS, extra=("a", "user"))
ALL = AgentSettings(module="agents.jarvis", caller_params=EVERYTHING, models=("openai.gpt-4.1",))
USUAL = AgentSettings(module="agents.jarvis")


VALUES: dict[str, Any] = {
    "stop": "END",
    "response_format": JSON_SCHEMA,
    "tool_choice": ONE_TOOL,
    "tools_allowlist": ["a/b"],
    "system_append": "x",
    "system_override": "x",
    "extra": {"min_p": 0.5},
}


def a_format(**changes: object) -> dict[str, object]:
    """A `response_format` whose schema is as it should be but for `changes`."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, **changes}}


@pytest.mark.parametrize("asked", [None, {}])
def test_without_params_there_are_none(asked: object) -> None:
    assert parse(asked, USUAL) == NO_PARAMETERS
    assert NO_PARAMETERS.given() == {}


@pytest.mark.parametrize(
    ("asked", "read"),
    [
        ({"temperature": 0}, Parameters(temperature=0)),
        ({"temperature": 2, "top_p": 1.0}, Parameters(temperature=2, top_p=1)),
        ({"stop": "END"}, Parameters(stop=("END",))),
        ({"stop": ["\n", " "]}, Parameters(stop=("\n", " "))),
        ({"seed": -(2**63)}, Parameters(seed=-(2**63))),
        ({"tool_choice": "none"}, Parameters(tool_choice="none")),
        ({"tool_choice": ONE_TOOL}, Parameters(tool_choice=ONE_TOOL)),
        ({"response_format": {"type": "json_object"}}, Parameters(response_format={"type": "json_object"})),
        ({"response_format": JSON_SCHEMA}, Parameters(response_format=JSON_SCHEMA)),
        (
            {"response_format": a_format(name="A-z_9" + 59 * "x", strict=None, description="x")},
            Parameters(response_format=a_format(name="A-z_9" + 59 * "x", strict=None, description="x")),
        ),
        ({"tools_allowlist": []}, Parameters(tools_allowlist=())),
        ({"extra": {"min_p": -0.5, "mirostat": True}}, Parameters(extra={"min_p": -0.5, "mirostat": True})),
        ({"extra": {"dry_sequence_breakers": ["\n"]}}, Parameters(extra={"dry_sequence_breakers": ["\n"]})),
        ({"extra": {"dry_sequence_breakers": "x"}}, Parameters(extra={"dry_sequence_breakers": "x"})),
        ({"extra": {"a": {"b": [1, None]}}}, Parameters(extra={"a": {"b": [1, None]}})),
        ({"model": "openai.gpt-4.1"}, Parameters(model="openai.gpt-4.1")),
        ({"top_k": None, "model": None}, Parameters(cleared=frozenset({"top_k", "model"}))),
    ],
)
def test_what_is_in_range_is_taken_as_it_is(asked: dict[str, Any], read: Parameters) -> None:
    assert parse(asked, ALL) == read


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("hot", "Argument 'params' must be an object."),
        ({"temperature": -0.1}, "params.temperature must be 0 to 2."),
        ({"temperature": True}, "params.temperature must be 0 to 2."),
        ({"top_p": 1.1}, "params.top_p must be 0 to 1."),
        ({"top_k": 0}, "params.top_k must be a whole number from 1 to 2^63 - 1."),
        ({"max_tokens": 1.5}, "params.max_tokens must be a whole number from 1 to 2^63 - 1."),
        ({"stop": []}, "params.stop must be 1 to 4 texts."),
        ({"stop": [""]}, "params.stop must be 1 to 4 texts."),
        ({"presence_penalty": 3}, "params.presence_penalty must be -2 to 2."),
        ({"seed": 2**63}, "params.seed must be a whole number of 64 bits."),
        ({"response_format": {"type": "xml"}}, "params.response_format must have a type: text, json_object, "),
        ({"response_format": {"type": "json_schema"}}, "params.response_format must be like {"),
        ({"response_format": {"type": "text", "a": 1}}, "params.response_format must not hold 'a'."),
        ({"response_format": {"type": "text", "json_schema": 1}}, "params.response_format must be like {"),
        ({"response_format": {**a_format(), "name": "x"}}, "params.response_format must not hold 'name'."),
        ({"response_format": a_format(type="object")}, "params.response_format must not hold 'type'."),
        ({"response_format": a_format(name=7)}, "params.response_format must have a name of 1 to 64 "),
        ({"response_format": a_format(name=None)}, "params.response_format must have a name of 1 to 64 "),
        ({"response_format": a_format(name="")}, "params.response_format must have a name of 1 to 64 "),
        ({"response_format": a_format(name="two words")}, "params.response_format must have a name of "),
        ({"response_format": a_format(name="x\n")}, "params.response_format must have a name of 1 to 64 "),
        ({"response_format": a_format(name="x" * 65)}, "params.response_format must have a name of 1 to "),
        ({"response_format": a_format(strict="no")}, "params.response_format must have true or false as strict."),
        ({"response_format": a_format(description=1)}, "params.response_format must have a text as description."),
        ({"tool_choice": "search"}, "params.tool_choice must be auto, none, required or {"),
        ({"tool_choice": {"type": "function", "function": {"name": ""}}}, "params.tool_choice must be auto, none, "),
        ({"tools_allowlist": "search"}, "params.tools_allowlist must be a list of at most 1000 texts."),
        ({"tools_allowlist": ["x"] * 1001}, "params.tools_allowlist must be a list of at most 1000 texts."),
        ({"system_append": ""}, "params.system_append must be a text."),
        ({"extra": []}, "params.extra must be an object."),
        ({"extra": {"previous_response_id": "r-1"}}, "params.extra must not hold 'previous_response_id'; it takes "),
        ({"extra": {"Model": "another"}}, "params.extra must not hold 'Model'; it takes "),
        ({"extra": {"me\u017f\u017fages": []}}, "params.extra must not hold 'me\u017f\u017fages'; it takes "),
        ({"extra": {"web_search_options": {}}}, "params.extra must not hold 'web_search_options'; it takes a, dry_"),
        (
            {"extra": {"min_p": {}}},
            "params.extra.min_p must be a number, true, false or a text of at most 100 characters.",
        ),
        ({"extra": {"min_p": ["x"]}}, "params.extra.min_p must be a number, true, false or a text of at most 100 char"),
        ({"extra": {"min_p": "x" * 101}}, "params.extra.min_p must be a number, true, false or a text of at most 100 "),
        ({"extra": {"min_p": 10**400}}, "params.extra.min_p must be a number, true, false or a text of at most 100 ch"),
        ({"extra": {"dry_sequence_breakers": ["x"] * 101}}, "params.extra.dry_sequence_breakers must be a number, tru"),
        ({"extra": {"dry_sequence_breakers": [1]}}, "params.extra.dry_sequence_breakers must be a number, true, false"),
        ({"extra": {"dry_sequence_breakers": ["x" * 101]}}, "params.extra.dry_sequence_breakers must be a number, tru"),
        ({"extra": {"a": float("nan")}}, "params.extra holds what cannot be sent on: NaN, "),
        ({"extra": {"a": "\ud83d"}}, "params.extra holds what cannot be sent on: NaN, "),
        ({"model": "openai.gpt-5"}, "params.model is none that this agent's callers may choose."),
        ({"messages": []}, "Unknown parameter 'messages'."),
    ],
)
def test_anything_else_is_refused_by_a_sentence_that_ends_with_what_is_allowed(asked: object, sentence: str) -> None:
    with pytest.raises(CallRefusedError) as refused:
        parse(asked, ALL)
    assert str(refused.value).startswith(sentence)
    assert refused.value.reason == "bad_params"
    assert str(refused.value).endswith("system_override (a text), model (openai.gpt-4.1).")


@pytest.mark.parametrize(("levels", "refused"), [(90, False), (110, True), (5_000, True), (100_000, True)])
def test_a_schema_is_nested_only_so_deep(levels: int, refused: bool) -> None:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    asked = {"response_format": a_format(schema=schema)}
    if refused:
        with pytest.raises(CallRefusedError, match=r"^params.response_format is nested more than 100 levels deep\."):
            parse(asked, ALL)
    else:
        assert parse(asked, ALL).response_format == asked["response_format"]


@pytest.mark.parametrize("name", ["stop", "tools_allowlist"])
def test_of_a_list_that_is_too_long_no_entry_is_judged(name: str) -> None:
    _, errors = validated(CallParameters, {name: [7] * 10_000})
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("written", "name"),
    [("system_override", "system_override"), ("systemOverride", "system_override"), ("model", "model")],
)
def test_what_makes_another_agent_of_it_is_not_for_callers_by_default(written: str, name: str) -> None:
    with pytest.raises(CallRefusedError, match=f"^Parameter '{name}' is not for callers of this agent"):
        parse({written: "x"}, USUAL)
    assert name not in (params_schema(USUAL) or {})["properties"]


def test_the_request_counts_then_the_default_and_null_clears() -> None:
    defaults = DefaultParameters(temperature=0.5, seed=7, extra={"min_p": 1, "top_a": 2, "min_tokens": 3})
    asked = parse({"temperature": 1, "seed": None, "extra": {"top_a": None, "min_tokens": 4}}, USUAL)
    whole = resolved(asked, defaults)
    assert whole.given() == {"temperature": 1, "extra": {"min_p": 1, "min_tokens": 4}}
    assert resolved(NO_PARAMETERS, defaults).given() == {"temperature": 0.5, "seed": 7, "extra": defaults.extra}
    cleared = dict.fromkeys(("min_p", "top_a", "min_tokens"))
    assert resolved(parse({"extra": cleared}, USUAL), defaults).extra is None


@pytest.mark.parametrize("more", [{}, {"min_p": 0.1}])
def test_null_clears_no_default_that_callers_may_not_set(more: dict[str, Any]) -> None:
    defaults = DefaultParameters(extra={"enable_search": False, **more})
    settings = AgentSettings(module="agents.jarvis", default_params=defaults)
    assert resolved(parse({"extra": None}, settings), defaults).extra == {"enable_search": False}
    with pytest.raises(CallRefusedError, match="must not hold 'enable_search'"):
        parse({"extra": {"enable_search": None}}, settings)


FOREIGN = (
    "enable_search", "web_search", "web_search_options", "provider", "user_config", "custom_llm_provider", "plugins",
    "api_version", "aws_region_name", "aws_session_token", "metadata", "service_tier", "user", "safety_identifier",
    "prompt_cache_key", "reasoning_effort", "chat_template_kwargs", "guided_regex", "best_of", "Min_P", "min_p ", "",
)  # fmt: skip


@pytest.mark.parametrize("key", FOREIGN)
def test_extra_takes_no_key_that_does_more_than_sample(key: str) -> None:
    with pytest.raises(CallRefusedError, match=f"^params.extra must not hold '{key}'; it takes dry_allowed_length, "):
        parse({"extra": {"min_p": 0.1, key: True}}, USUAL)


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "model"])
def test_each_parameter_has_a_camel_case_name_in_calls_and_defaults(name: str) -> None:
    camel = to_camel(name)
    value = VALUES.get(name, 1)
    assert parse({camel: value}, ALL) == parse({name: value}, ALL)
    assert parse({camel: None}, ALL).cleared == parse({name: None}, ALL).cleared
    assert DefaultParameters.model_validate({camel: value}) == DefaultParameters.model_validate({name: value})
    one = AgentSettings.model_validate({"module": "agents.jarvis", "caller_params": [camel]})
    assert one.caller_params.names == (name,)


@pytest.mark.parametrize("asked", [{"max_tokens": 1, "maxTokens": 1}, {"maxTokens": None, "max_tokens": 1}])
def test_both_names_of_one_parameter_are_refused(asked: dict[str, Any]) -> None:
    message = (
        "Parameters 'max_tokens' and 'maxTokens' are two names of one parameter; send one of them. Callers of this"
    )
    with pytest.raises(BadParametersError, match=message) as refusal:
        parse(asked, ALL)
    assert refusal.value.parameter == "max_tokens"


def test_extra_takes_every_key_that_samples_and_those_that_the_agent_names() -> None:
    sampling = dict.fromkeys(SAMPLING_KEYS, 1)
    assert parse({"extra": sampling}, USUAL).extra == sampling
    opened = AgentSettings.model_validate({"module": "agents.jarvis", "caller_params": {"extra": ["enable_search"]}})
    assert parse({"seed": 1, "extra": {**sampling, "enable_search": True}}, opened).given().keys() == {"seed", "extra"}
    with pytest.raises(CallRefusedError, match=r"must not hold 'provider'; it takes .*, enable_search, "):
        parse({"extra": {"provider": {}}}, opened)


def test_the_document_lists_the_keys_that_extra_takes() -> None:
    document = (Path(__file__).parents[3] / "docs" / "use" / "parameters.md").read_text()
    [listed] = re.findall(r"takes the keys of this list, written like this, and no others: (.*?)\. Any", document, re.S)
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(SAMPLING_KEYS)


def test_the_document_has_a_row_for_each_parameter() -> None:
    document = (Path(__file__).parents[3] / "docs" / "use" / "parameters.md").read_text()
    table = document.partition("| parameter | value | |\n|---|---|---|\n")[2].partition("\n\n")[0]
    named = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(named))) == sorted(PARAMETERS)


@pytest.mark.parametrize(
    ("written", "allowed"),
    [
        ([], ()),
        (["seed", "temperature"], ("temperature", "seed")),
        ({}, CALLER_PARAMETERS),
        ({"extra": ["enable_search"]}, CALLER_PARAMETERS),
        ({"names": ["seed"]}, ("seed",)),
        ({"names": ["seed"], "extra": ["enable_search"]}, ("seed", "extra")),
    ],
)
def test_callers_may_set_what_a_list_or_a_mapping_names(written: object, allowed: tuple[str, ...]) -> None:
    settings = AgentSettings.model_validate({"module": "agents.jarvis", "caller_params": written})
    assert settings.caller_params.allowed == allowed
    assert list((params_schema(settings) or {"properties": {}})["properties"]) == list(allowed)


def test_an_agents_own_list_of_tools_holds_besides_the_callers_and_cannot_be_cleared() -> None:
    defaults = DefaultParameters(tools_allowlist=("a/*",))
    for asked, lists in (({}, 1), ({"tools_allowlist": None}, 1), ({"tools_allowlist": ["b/*"]}, 2)):
        assert len(resolved(parse(asked, USUAL), defaults).tool_lists) == lists
    assert resolved(NO_PARAMETERS, DefaultParameters()).tool_lists == ()


@pytest.mark.parametrize(("asked", "most", "sent"), [(None, 5, None), (9, None, 9), (5, 5, 5), (9, 5, 5)])
def test_no_answer_may_be_longer_than_the_model_can_write(
    asked: int | None, most: int | None, sent: int | None
) -> None:
    assert clamped(Parameters(max_tokens=asked), most).max_tokens == sent


def test_no_words_of_a_caller_are_shown_by_accident() -> None:
    shown = repr(parse({"system_append": "secret", "extra": {"user": "secret"}, "system_override": "secret"}, ALL))
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("asked", "told", "ignored", "changed"),
    [
        (Parameters(), Reply((), "endTurn", ignored=("seed",), changed={"max_tokens": 7}), (), {}),
        (Parameters(seed=1), Reply((), "endTurn", ignored=("seed", "top_k")), ("seed",), {}),
        (Parameters(max_tokens=9), Reply((), "endTurn"), (), {"max_tokens": 5}),
        (Parameters(max_tokens=9), Reply((), "endTurn", changed={"max_tokens": 7}), (), {"max_tokens": 7}),
        (Parameters(max_tokens=9), Reply((), "endTurn", ignored=("max_tokens",)), ("max_tokens",), {}),
        (Parameters(max_tokens=5), Reply((), "endTurn"), (), {}),
        (Parameters(top_k=5), Reply((), "endTurn", changed={"thinking": "off"}), (), {"thinking": "off"}),
        (Parameters(seed=5), Reply((), "endTurn", changed={"thinking": "off"}), (), {}),
    ],
)
def test_a_caller_is_told_of_what_it_asked_for_and_of_nothing_else(
    asked: Parameters, told: Reply, ignored: tuple[str, ...], changed: dict[str, Any]
) -> None:
    call = replace(a_call(), parameters=asked)
    reply = told_of_changes(told, call, replace(call, parameters=clamped(asked, 5)))
    assert (reply.ignored, reply.changed) == (ignored, changed)
