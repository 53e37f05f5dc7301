"""Reads the parameters of an LLM request from the arguments of its provider's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pallas_gateway.calls.parameters import JsonObject, Parameters

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


def watch_requests(llm: Any, seen: Callable[[Mapping[str, Any]], None]) -> None:
    """Have `seen` called with every request of one LLM, if its provider is known.

    These are the final requests: the provider's class has removed parameters that the model does not accept.
    """
    for kind in type(llm).__mro__:
        name, read = REQUEST_BUILDERS.get(kind.__name__, ("", _of_arguments))
        if name and hasattr(llm, name):
            _watch(llm, name, read, seen)
            return


def _watch(llm: Any, name: str, read: Callable[[Any], JsonObject], seen: Callable[[Mapping[str, Any]], None]) -> None:
    original = getattr(llm, name)

    def build(*arguments: Any, **options: Any) -> Any:
        built = original(*arguments, **options)
        seen(read(built))
        return built

    setattr(llm, name, build)


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


REQUEST_BUILDERS: Mapping[str, tuple[str, Callable[[Any], JsonObject]]] = {
    "ResponsesLLM": ("_build_response_args", _of_responses),
    "OpenAILLM": ("_prepare_api_request", _of_arguments),
    "AnthropicLLM": ("prepare_provider_arguments", _of_anthropic),
    "GoogleNativeLLM": ("_google_generate_content_config", _of_google),
    "BedrockLLM": ("_prepare_bedrock_attempt", _of_bedrock),
}
"""By the name of a provider class: the method that builds a request, and the function that reads it."""
