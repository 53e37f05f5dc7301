"""Repairs of fast-agent's class for Amazon Bedrock. Installed when an agent first uses it."""

from __future__ import annotations

from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fast_agent.llm.stream_types import StreamChunk
from fast_agent.llm.usage_tracking import PromptTokenUsage, TurnUsage
from fast_agent.types.llm_stop_reason import LlmStopReason

from pallas_gateway.calls import current
from pallas_gateway.calls.current import LlmTurn, say_repeated
from pallas_gateway.errors import ProviderError
from pallas_gateway.limits import MOST_REQUESTS
from pallas_gateway.runtime.compat.requirements import check_names
from pallas_gateway.runtime.llm.anthropic import takes_one_of_two
from pallas_gateway.runtime.llm.bedrock_turns import BedrockTurn, current_turn, in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pallas_gateway.runtime.compat.requirements import ReliedOn

_MODULE = "fast_agent.llm.provider.bedrock.llm_bedrock"
RELIED_ON: ReliedOn = (
    (f"{_MODULE}:BedrockLLM", "_bedrock_completion", ("self", "message_param", "request_params", "tools", "history")),
    (f"{_MODULE}:BedrockLLM", "_get_bedrock_runtime_client", ("self",)),
    (f"{_MODULE}:BedrockLLM", "_bedrock_error_response", ("self", "model", "caps", "last_error_msg")),
    (f"{_MODULE}:BedrockLLM", "_try_non_streaming_fallback", ("self", "client", "attempt", "model", "caps")),
    (_MODULE, "BedrockFallbackResult", ()),
    (f"{_MODULE}:BedrockLLM", "_handle_stream_text_delta", ("self", "text", "model", "state")),
    (f"{_MODULE}:BedrockLLM", "_bedrock_stream_response", ("self", "model", "state")),
    (f"{_MODULE}:BedrockLLM", "_process_non_streaming_response", ("self", "response", "model")),
    (f"{_MODULE}:BedrockLLM", "_structured_json_params", ("self", "request_params")),
    (f"{_MODULE}:BedrockLLM", "_apply_bedrock_inference_config", ("self", "converse_args", "params", "model", "caps")),
    (_MODULE, "usage_from_bedrock", ("usage", "model")),
    (_MODULE, "BEDROCK_STOP_REASON_MAP", ()),
    (_MODULE, "_boto3", ()),
)
_STOP_REASONS = {
    "error": LlmStopReason.ERROR,
    "content_filtered": LlmStopReason.SAFETY,
    "guardrail_intervened": LlmStopReason.SAFETY,
}
_BEFORE_ITS_MESSAGE = " operation: "
"""Part of the message of boto3's exceptions."""
_CACHED = {"cache_read": "cacheReadInputTokens", "cache_write": "cacheWriteInputTokens"}


def prepare(llm_class: type[Any], module: Any) -> None:
    """Repair fast-agent's class for Bedrock; safe to call again."""
    if llm_class.__name__ != "BedrockLLM" or hasattr(llm_class._bedrock_completion, "original"):
        return
    if module._boto3 is None:
        return  # the class reports why it cannot be used
    from pallas_gateway.runtime.llm import bedrock_client  # noqa: PLC0415  boto3 is optional

    check_names((*RELIED_ON, *bedrock_client.RELIED_ON))
    _complete_in_threads(llm_class)
    client_of = bedrock_client.client_of
    llm_class._get_bedrock_runtime_client = lambda self: client_of(self.aws_profile, self.aws_region)
    _stream_unless_refused(llm_class, module)
    _send_live_text(llm_class)
    _count_cached_tokens(llm_class, module)
    _raise_errors(llm_class)
    _sample_as_asked(llm_class)
    module.BEDROCK_STOP_REASON_MAP.update(_STOP_REASONS)


def _complete_in_threads(llm_class: Any) -> None:
    original = llm_class._bedrock_completion

    @wraps(original)
    async def complete(self: Any, message: Any, request_params: Any = None, *more: Any, **options: Any) -> Any:
        requests = current.current_turn()
        if requests.failure is not None:
            raise requests.failure  # with a schema, fast-agent repeats the request after any failure
        if requests.is_answered:
            _repeat_for_schema(requests)
        turn = BedrockTurn(getattr(request_params, "streaming_timeout", None))
        try:
            answer = await in_thread(turn, original(self, message, request_params, *more, **options))
        except Exception as error:
            requests.failure = error
            raise
        requests.is_answered = True
        return answer

    complete.original = original  # type: ignore[attr-defined]
    llm_class._bedrock_completion = complete


def _repeat_for_schema(requests: LlmTurn) -> None:
    why = "the answer does not fit the schema"
    if requests.sent >= MOST_REQUESTS:
        raise ProviderError(why)
    say_repeated(why, requests.sent)


def _stream_unless_refused(llm_class: Any, module: Any) -> None:
    """Repeat a request without a stream only if streams are refused; fast-agent does so after every refusal."""
    original = llm_class._try_non_streaming_fallback

    @wraps(original)
    def without_stream(self: Any, client: Any, *arguments: Any, **options: Any) -> Any:
        if not client.refuses_streams:
            return module.BedrockFallbackResult()
        return original(self, client, *arguments, **options)

    llm_class._try_non_streaming_fallback = without_stream


def _send_live_text(llm_class: Any) -> None:
    original = llm_class._handle_stream_text_delta

    @wraps(original)
    def handle(self: Any, text: str, *arguments: Any) -> None:
        original(self, text, *arguments)
        if (turn := current_turn()) is not None and text:
            turn.loop.call_soon_threadsafe(self._notify_stream_listeners, StreamChunk(text=text))

    llm_class._handle_stream_text_delta = handle


def _count_cached_tokens(llm_class: Any, module: Any) -> None:
    """Add cached tokens to the usage; fast-agent keeps only input and output tokens."""
    of_stream, of_response = llm_class._bedrock_stream_response, llm_class._process_non_streaming_response

    @wraps(of_stream)
    def stream_response(self: Any, model: str, state: Any) -> Any:
        return _with_cached(of_stream(self, model, state), state.usage)

    @wraps(of_response)
    def non_streaming_response(self: Any, response: Any, model: str) -> Any:
        return _with_cached(of_response(self, response, model), response.get("usage", {}))

    llm_class._bedrock_stream_response = stream_response
    llm_class._process_non_streaming_response = non_streaming_response
    module.usage_from_bedrock = _disjoint(module.usage_from_bedrock)


def _with_cached(processed: dict[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
    cached = {name: usage.get(sent) or 0 for name, sent in _CACHED.items()}
    return {**processed, "usage": {**processed["usage"], **cached}}


def _disjoint(original: Callable[..., TurnUsage]) -> Callable[..., TurnUsage]:
    @wraps(original)
    def usage_from_bedrock(usage: Mapping[str, Any], *, model: str) -> TurnUsage:
        turn = original(usage, model=model)
        read, written, uncached = usage.get("cache_read", 0), usage.get("cache_write", 0), turn.prompt.total or 0
        total = uncached + read + written
        prompt = PromptTokenUsage(total=total, uncached=uncached, cache_read=read, cache_write=written)
        return turn.model_copy(update={"prompt": prompt})

    return usage_from_bedrock


def _raise_errors(llm_class: Any) -> None:
    """Raise errors; fast-agent returns them as the answer, and then calls this model without tools in every call."""

    def error_response(self: Any, model: str, caps: Any, last_error_msg: str | None) -> Any:
        del self, model, caps
        raise ProviderError((last_error_msg or "").rpartition(_BEFORE_ITS_MESSAGE)[2], status=HTTPStatus.BAD_REQUEST)

    llm_class._bedrock_error_response = error_response


def _sample_as_asked(llm_class: Any) -> None:
    """Send sampling parameters as set; fast-agent sends temperature 0 with schemas, no `top_p`, `topK` 1 to Nova."""
    of_schema, of_sampling = llm_class._structured_json_params, llm_class._apply_bedrock_inference_config

    @wraps(of_schema)
    def structured_json_params(self: Any, request_params: Any) -> Any:
        asked = self.get_request_params(request_params).temperature
        prepared = of_schema(self, request_params)
        return prepared if asked is None else prepared.model_copy(update={"temperature": asked})

    @wraps(of_sampling)
    def apply_inference_config(self: Any, converse_args: Any, params: Any, model: str, caps: Any) -> Any:
        asks_sampling = params.temperature is not None or params.top_p is not None
        effort = of_sampling(self, converse_args, params, model, caps)
        if effort is None and asks_sampling:
            converse_args.pop("additionalModelRequestFields", None)  # contains only Nova's `topK`
            inference = converse_args.setdefault("inferenceConfig", {})
            if params.top_p is None or (params.temperature is not None and takes_one_of_two(model)):
                inference.pop("topP", None)
            else:
                inference["topP"] = params.top_p
        return effort

    llm_class._structured_json_params = structured_json_params
    llm_class._apply_bedrock_inference_config = apply_inference_config
