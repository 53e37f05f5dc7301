"""A call's parameters in the form of each provider of fast-agent, and found again in its requests.

fast-agent's `RequestParams` has fields for some of them, which its provider classes send or drop. Others go into the
request by `extra_body`, which the SDKs of OpenAI and Anthropic merge into the body. (`RequestParams.metadata` passes
any argument to a provider's client.) Parameters that a protocol does not know are not sent, because some servers refuse
requests with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fast_agent.types import RequestParams

    from pallas_gateway.calls.parameters import JsonObject, Parameters

_FIELDS = {"stop": "stop_sequences"}
"""fast-agent's fields whose name differs from the parameter's."""


_ON_THE_WIRE = {
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "top_k": ("top_k",),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "stop": ("stop", "stop_sequences"),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    "seed": ("seed",),
    "response_format": ("response_format",),
    "tool_choice": ("tool_choice",),
}
_WITHOUT_TOOLS = ("auto", "none")
"""Choices that hold without being sent if there is no tool."""
_SCHEMA_TOOL = "return_structured_output"
"""fast-agent's tool for models of Anthropic without schemas; its arguments are the answer."""


@dataclass(frozen=True, slots=True)
class ParameterMapping:
    """One protocol of providers.

    Attributes:
        builder: the method of fast-agent's class that builds a request.
        read: returns the parameters in what it has built.
        fields: parameters that are passed in fields of `RequestParams`.
        body: parameters that are passed in the body.
        schema_field: a JSON schema for the answer is passed as fast-agent's `structured_schema`, which it translates;
            otherwise `response_format` is passed unchanged.
        schema_in_prompt: it translates the schema into words.
        runs_tools: the provider may run tools by itself.
        one_tool: returns the choice of one tool.
    """

    builder: str = ""
    read: Callable[[Any], JsonObject] = dict
    fields: frozenset[str] = frozenset()
    body: frozenset[str] = frozenset()
    schema_field: bool = False
    schema_in_prompt: bool = False
    runs_tools: bool = True
    one_tool: Callable[[str], JsonObject] | None = None

    def watch(self, llm: Any, seen: Callable[[Mapping[str, Any]], None]) -> None:
        """Have `seen` called with the parameters of every request of one LLM.

        These are the final requests: the provider's class has removed parameters that the model does not accept.
        """
        original = getattr(llm, self.builder, None) if self.builder else None
        if original is None:
            return

        def build(*arguments: Any, **options: Any) -> Any:
            built = original(*arguments, **options)
            seen(self.read(built))
            return built

        setattr(llm, self.builder, build)

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


def seen_in(request: Mapping[str, Any], parameters: Parameters) -> set[str]:
    """The parameters that a request holds."""
    found = {name for name, keys in _ON_THE_WIRE.items() if any(request.get(key) is not None for key in keys)}
    if isinstance(parameters.tool_choice, dict) and isinstance(request.get("tool_choice"), str):
        found.discard("tool_choice")  # a word for all tools, and the request has only tools of the provider
    if parameters.tool_choice in _WITHOUT_TOOLS and not request.get("tools"):
        found.add("tool_choice")
    if parameters.response_format == {"type": "text"}:
        found.add("response_format")
    if parameters.extra is not None and parameters.extra.keys() <= request.keys():
        found.add("extra")
    return found & parameters.given().keys()


def sent_max_tokens(request: Mapping[str, Any]) -> int | None:
    """The longest answer that a request asks for, in tokens."""
    return next((request[key] for key in _ON_THE_WIRE["max_tokens"] if request.get(key) is not None), None)


def _of_arguments(arguments: Mapping[str, Any]) -> JsonObject:
    """Merge `extra_body` into the body, as OpenAI's SDK does."""
    return {**arguments, **(arguments.get("extra_body") or {})}


def _of_responses(arguments: Mapping[str, Any]) -> JsonObject:
    body = _of_arguments(arguments)
    return {**body, "response_format": (body.get("text") or {}).get("format")}


def _of_anthropic(arguments: Mapping[str, Any]) -> JsonObject:
    body = _of_arguments(arguments)
    wanted = (body.get("output_config") or {}).get("format")
    if (body.get("tool_choice") or {}).get("name") == _SCHEMA_TOOL:
        wanted, body["tool_choice"] = _SCHEMA_TOOL, None
    return {**body, "response_format": wanted}


def _of_google(config: Any) -> JsonObject:
    calling = config.tool_config and config.tool_config.function_calling_config
    choice = calling.mode.value if calling else None
    return {**vars(config), "response_format": config.response_schema, "tool_choice": choice}


def _of_bedrock(attempt: Any) -> JsonObject:
    """Read the request's fields. A schema is in the messages, where it cannot be told from user text."""
    request = attempt.converse_args
    inference, tools = request.get("inferenceConfig", {}), request.get("toolConfig", {})
    (choice,) = tools.get("toolChoice") or (None,)
    return {
        "temperature": inference.get("temperature"),
        "top_p": inference.get("topP"),
        "max_tokens": inference.get("maxTokens"),
        "stop_sequences": inference.get("stopSequences"),
        "tools": tools,
        "tool_choice": choice,
    }


_SAMPLING = frozenset({"temperature", "top_p", "max_tokens"})
_PENALTIES = frozenset({"presence_penalty", "frequency_penalty"})
_CHAT = ParameterMapping(
    "_prepare_api_request",
    _of_arguments,
    fields=_SAMPLING | _PENALTIES | {"response_format"},
    body=frozenset({"stop", "seed", "extra"}),
    one_tool=lambda name: {"type": "function", "function": {"name": name}},
)
_CHAT_WITH_TOP_K = replace(_CHAT, body=_CHAT.body | {"top_k"})
_RESPONSES = ParameterMapping(
    "_build_response_args",
    _of_responses,
    fields=_SAMPLING | {"response_format"},
    body=frozenset({"extra"}),
    one_tool=lambda name: {"type": "function", "name": name},
)
_CODEX = replace(_RESPONSES, fields=_RESPONSES.fields - {"max_tokens"}, one_tool=None)
"""Its API accepts no token limit, and fast-agent raises an error for one; it sends the choice of tools as a word."""
_OPEN_RESPONSES = replace(_RESPONSES, body=_RESPONSES.body | _PENALTIES | {"top_k"})
_MESSAGES = ParameterMapping(
    "prepare_provider_arguments",
    _of_anthropic,
    fields=_SAMPLING | {"top_k", "stop", "response_format"},
    body=frozenset({"extra"}),
    schema_field=True,
    one_tool=lambda name: {"type": "tool", "name": name},
)
_GOOGLE = ParameterMapping(
    "_google_generate_content_config",
    _of_google,
    fields=_SAMPLING | _PENALTIES | {"top_k", "stop", "response_format"},
    schema_field=True,
)
_BEDROCK = ParameterMapping(
    "_prepare_bedrock_attempt",
    _of_bedrock,
    fields=_SAMPLING | {"stop", "response_format"},
    schema_field=True,
    schema_in_prompt=True,
    runs_tools=False,
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
