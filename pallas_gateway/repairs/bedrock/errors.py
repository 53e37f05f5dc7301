"""Bedrock's errors are answers.

Symptom: a refused key, a quota or a stopped server gives a *successful* answer, `Error during generation: …`, and the
model gets no tools in later calls of the process. An answer that a filter has cut off ends like any other.

Repair: such errors end the turn, or [repeat the request](operate/providers-at-work.md#requests-that-are-repeated).
`content_filtered` and `guardrail_intervened` are `safety`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.errors import ProviderError

_MODULE = "fast_agent.llm.provider.bedrock.llm_bedrock"
_LLM = f"{_MODULE}:BedrockLLM"
CHANGE = Change(
    "bedrock-errors",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded("boto3"),
    replaces=(
        Name(f"{_LLM}._bedrock_error_response", takes=("self", "model", "caps", "last_error_msg"), by="raising"),
        Name(f"{_LLM}._get_bedrock_runtime_client", takes=("self",), by="plain_client"),
        Name(f"{_MODULE}:BEDROCK_STOP_REASON_MAP", by="stop_reasons"),
    ),
    needs=("bedrock-threads",),
    gone_when="`_bedrock_error_response` returns `LlmStopReason.ERROR` and leaves `capabilities` alone",
)
_BEFORE_ITS_MESSAGE = re.compile(r"when calling the \w{1,100} operation(?: \(reached max retries: \d{1,9}\))?: ")
"""The end of what boto3's exceptions have before the message of the server."""


def raising(original: Any, holder: Any) -> Callable[..., Any]:
    """Raise the last refusal, after which there is no other form of the request."""
    del original, holder

    def error_response(self: Any, model: str, caps: Any, last_error_msg: str | None) -> Any:
        del self, model, caps
        raise ProviderError(_BEFORE_ITS_MESSAGE.split(last_error_msg or "", 1)[-1], status=HTTPStatus.BAD_REQUEST)

    return error_response


def plain_client(original: Callable[[Any], Any], holder: Any) -> Callable[[Any], Any]:
    """Have the client raise errors that end the turn, or that are repeated."""
    del holder
    from pallas_gateway.repairs.bedrock._failures import PlainClient, translated  # noqa: PLC0415  boto3 is optional

    def client_of(self: Any) -> PlainClient:
        with translated():
            return PlainClient(original(self))

    return client_of


def stop_reasons(original: Mapping[str, Any], holder: Any) -> dict[str, Any]:
    """Add the stop reasons of filters and of failed turns."""
    del holder
    from fast_agent.types.llm_stop_reason import LlmStopReason  # noqa: PLC0415  not before it is used

    filtered = dict.fromkeys(("content_filtered", "guardrail_intervened"), LlmStopReason.SAFETY)
    return {**original, **filtered, "error": LlmStopReason.ERROR}
