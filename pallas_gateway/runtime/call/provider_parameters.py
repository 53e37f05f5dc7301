"""A call's parameters in the form of each provider of fast-agent. Pure.

fast-agent's `RequestParams` has fields for some of them, which its provider classes send or drop. Others go into the
request by `extra_body`, which the SDKs of OpenAI and Anthropic merge into the body. (`RequestParams.metadata` passes
any argument to a provider's client.) Parameters that a protocol does not know are not sent, because some servers refuse
requests with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fast_agent.types import RequestParams

    from pallas_gateway.calls.parameters import JsonObject, Parameters

_FIELDS = {"stop": "stop_sequences"}
"""fast-agent's fields whose name differs from the parameter's."""


@dataclass(frozen=True, slots=True)
class ParameterMapping:
    """One protocol: the parameters in fields of `RequestParams` and in the body, and the form of the choice of tools.

    With `schema_field`, a JSON schema for the answer is passed as fast-agent's `structured_schema`, which it
    translates (with `schema_in_prompt`, into words); otherwise `response_format` is passed unchanged. `runs_tools`: the
    provider may run tools by itself. `one_tool` returns the choice of one tool.
    """

    fields: frozenset[str] = frozenset()
    body: frozenset[str] = frozenset()
    schema_field: bool = False
    schema_in_prompt: bool = False
    runs_tools: bool = True
    one_tool: Callable[[str], JsonObject] | None = None

    def said_in_prompt(self, parameters: Parameters) -> set[str]:
        """The parameters that the model reads in its messages; the request has no field for them."""
        return {"response_format"} if self.schema_in_prompt and _schema_of(parameters) is not None else set()

    def request_params(self, parameters: Parameters, present: RequestParams, *, is_first_turn: bool) -> JsonObject:
        """The fields of `RequestParams` to set for one LLM turn; `present` are the loop's."""
        given = parameters.given()
        fields: JsonObject = {_FIELDS.get(name, name): None for name in self.fields & parameters.cleared}
        fields.pop("max_tokens", None)  # some providers require one; fast-agent's default is the model's limit
        fields |= {_FIELDS.get(name, name): given[name] for name in self.fields & given.keys()}
        if "stop_sequences" in fields and parameters.stop is not None:
            fields["stop_sequences"] = list(parameters.stop)
        if self.schema_field and fields.pop("response_format", None) is not None:
            fields["structured_schema"] = _schema_of(parameters)
        choice, one_tool = self._tool_choice(parameters, is_first_turn=is_first_turn)
        metadata = {**(present.metadata or {})}
        metadata.pop("tool_choice", None)
        if body := self._body(parameters):
            metadata["extra_body"] = body
        return {**fields, "sampling_tool_choice": choice, "metadata": {**metadata, **one_tool} or None}

    def _body(self, parameters: Parameters) -> JsonObject:
        given = parameters.given()
        body = {name: given[name] for name in self.body & given.keys() if name != "extra"}
        if "stop" in body:
            body["stop"] = list(body["stop"])
        return {**body, **(given.get("extra") or {})} if "extra" in self.body else body

    def _tool_choice(self, parameters: Parameters, *, is_first_turn: bool) -> tuple[str | None, JsonObject]:
        """The word for all tools, and the choice of one. A tool is forced only once, else the loop would not end."""
        choice = parameters.tool_choice
        if isinstance(choice, dict):
            if not is_first_turn or self.one_tool is None:
                return None, {}
            return None, {"tool_choice": self.one_tool(choice["function"]["name"])}
        if choice == "required" and not is_first_turn:
            return None, {}
        # An explicit `auto` excludes tools that the provider runs by itself, which no list allows.
        return choice or ("auto" if parameters.tool_lists and self.runs_tools else None), {}


def _schema_of(parameters: Parameters) -> JsonObject | None:
    schema: JsonObject | None = ((parameters.response_format or {}).get("json_schema") or {}).get("schema")
    return schema


_SAMPLING = frozenset({"temperature", "top_p", "max_tokens"})
_PENALTIES = frozenset({"presence_penalty", "frequency_penalty"})
_CHAT = ParameterMapping(
    fields=_SAMPLING | _PENALTIES | {"response_format"},
    body=frozenset({"stop", "seed", "extra"}),
    one_tool=lambda name: {"type": "function", "function": {"name": name}},
)
_CHAT_WITH_TOP_K = ParameterMapping(_CHAT.fields, _CHAT.body | {"top_k"}, one_tool=_CHAT.one_tool)
_RESPONSES = ParameterMapping(
    fields=_SAMPLING | {"response_format"},
    body=frozenset({"extra"}),
    one_tool=lambda name: {"type": "function", "name": name},
)
_CODEX = ParameterMapping(_RESPONSES.fields - {"max_tokens"}, _RESPONSES.body)
"""Its API accepts no token limit, and fast-agent raises an error for one; it sends the choice of tools as a word."""
_OPEN_RESPONSES = ParameterMapping(
    _RESPONSES.fields, _RESPONSES.body | _PENALTIES | {"top_k"}, one_tool=_RESPONSES.one_tool
)
_MESSAGES = ParameterMapping(
    fields=_SAMPLING | {"top_k", "stop", "response_format"},
    body=frozenset({"extra"}),
    schema_field=True,
    one_tool=lambda name: {"type": "tool", "name": name},
)
_GOOGLE = ParameterMapping(_SAMPLING | _PENALTIES | {"top_k", "stop", "response_format"}, schema_field=True)
_BEDROCK = ParameterMapping(
    _SAMPLING | {"stop", "response_format"}, schema_field=True, schema_in_prompt=True, runs_tools=False
)
_NONE = ParameterMapping()
"""fast-agent's test models, and providers that are newer than this table."""

# By the name of fast-agent's base class of the provider; a name does not import its SDK.
_BY_CLASS = {
    "OpenResponsesLLM": _OPEN_RESPONSES,
    "CodexResponsesLLM": _CODEX,
    "ResponsesLLM": _RESPONSES,
    "OpenRouterLLM": _CHAT_WITH_TOP_K,
    "GenericLLM": _CHAT_WITH_TOP_K,
    "HuggingFaceLLM": _CHAT_WITH_TOP_K,
    "AliyunLLM": _CHAT_WITH_TOP_K,
    "OpenAILLM": _CHAT,
    "AnthropicLLM": _MESSAGES,
    "GoogleNativeLLM": _GOOGLE,
    "BedrockLLM": _BEDROCK,
}


def parameter_mapping_of(llm: object) -> ParameterMapping:
    """The mapping of an LLM's provider class."""
    return next((_BY_CLASS[kind.__name__] for kind in type(llm).__mro__ if kind.__name__ in _BY_CLASS), _NONE)
