"""How each provider of fast-agent wants a call's parameters. Pure.

fast-agent's `RequestParams` has fields for some of them, which its provider classes put where they belong or drop; what
has no field there goes into the body of the request by `extra_body`, which the SDKs of OpenAI and Anthropic merge into
it. (`RequestParams.metadata` is fast-agent's way to give any argument to a provider's client.) What a protocol does not
know is not sent, because some servers refuse a request over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fast_agent.types import RequestParams

    from pallas_gateway.calls.parameters import JsonObject, Parameters

_FIELDS = {"stop": "stop_sequences"}
"""Where fast-agent's field has another name than the parameter."""


@dataclass(frozen=True, slots=True)
class ParameterMapping:
    """One protocol: which parameters are fields of `RequestParams`, which go into the body, and how tools are chosen.

    `schema_field` says that a JSON schema for the answer goes by fast-agent's own `structured_schema`, which it
    translates; else `response_format` is passed on as it is. `schema_in_prompt`: it translates it into words.
    `runs_tools`: the provider may run tools by itself. `one_tool` writes the choice of one tool.
    """

    fields: frozenset[str] = frozenset()
    body: frozenset[str] = frozenset()
    schema_field: bool = False
    schema_in_prompt: bool = False
    runs_tools: bool = True
    one_tool: Callable[[str], JsonObject] | None = None

    def said_in_prompt(self, parameters: Parameters) -> set[str]:
        """Those of the parameters that the model reads in its messages, where no request shows them."""
        return {"response_format"} if self.schema_in_prompt and _schema_of(parameters) is not None else set()

    def request_params(self, parameters: Parameters, present: RequestParams, *, is_first_turn: bool) -> JsonObject:
        """The fields of `RequestParams` to set for one LLM turn; `present` are those of the loop."""
        given = parameters.given()
        fields: JsonObject = {_FIELDS.get(name, name): None for name in self.fields & parameters.cleared}
        fields.pop("max_tokens", None)  # some providers demand one; fast-agent's own is the model's limit
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
        """Word for all tools, and the choice of one. What forces a tool holds once, or the loop would never end."""
        choice = parameters.tool_choice
        if isinstance(choice, dict):
            if not is_first_turn or self.one_tool is None:
                return None, {}
            return None, {"tool_choice": self.one_tool(choice["function"]["name"])}
        if choice == "required" and not is_first_turn:
            return None, {}
        # Said outright, `auto` keeps tools away that a provider runs by itself: no list allows those.
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
"""Its endpoint takes no limit, and fast-agent raises over one; it also writes the choice of tools, as a word."""
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
"""fast-agent's own test models, and whatever came after this table."""

# By fast-agent's provider classes, of which the providers' own are made; a name does not import its SDK.
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
    """The dialect of a provider's class."""
    return next((_BY_CLASS[kind.__name__] for kind in type(llm).__mro__ if kind.__name__ in _BY_CLASS), _NONE)
