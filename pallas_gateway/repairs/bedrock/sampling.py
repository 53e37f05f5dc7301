"""Bedrock samples otherwise than asked.

Symptom: a request with a schema has `temperature` 0, `top_p` is never sent, and Nova models get `topK` 1.

Repair: sampling parameters are sent as set; Claude's newer models get no `top_p` beside `temperature`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.repairs.anthropic._models import takes_one_of_two

_LLM = "fast_agent.llm.provider.bedrock.llm_bedrock:BedrockLLM"
_SAMPLING = ("self", "converse_args", "params", "model", "caps")
CHANGE = Change(
    "bedrock-sampling",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded("boto3"),
    replaces=(
        Name(f"{_LLM}._structured_json_params", takes=("self", "request_params"), by="with_schemas"),
        Name(f"{_LLM}._apply_bedrock_inference_config", takes=_SAMPLING, by="as_asked"),
    ),
    gone_when="both methods keep what they are given",
)


def with_schemas(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Keep the temperature of a request with a schema."""
    del holder

    @wraps(original)
    def structured_json_params(self: Any, request_params: Any) -> Any:
        asked = self.get_request_params(request_params).temperature
        prepared = original(self, request_params)
        return prepared if asked is None else prepared.model_copy(update={"temperature": asked})

    return structured_json_params


def as_asked(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Send `top_p`, and no `topK` that was not asked for."""
    del holder

    @wraps(original)
    def apply_inference_config(self: Any, converse_args: Any, params: Any, model: str, caps: Any) -> Any:
        asks_sampling = params.temperature is not None or params.top_p is not None
        effort = original(self, converse_args, params, model, caps)
        if effort is None and asks_sampling:
            converse_args.pop("additionalModelRequestFields", None)  # contains only Nova's `topK`
            inference = converse_args.setdefault("inferenceConfig", {})
            if params.top_p is None or (params.temperature is not None and takes_one_of_two(model)):
                inference.pop("topP", None)
            else:
                inference["topP"] = params.top_p
        return effort

    return apply_inference_config
