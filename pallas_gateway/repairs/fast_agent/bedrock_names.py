"""AWS is asked about every unknown model.

Symptom: with `boto3` installed, each call of an agent whose model fast-agent does not know lists Bedrock's models on
the event loop.

Repair: a name without a provider is Bedrock's if it has the form of its ids, `amazon.nova-lite-v1:0`.
"""

from __future__ import annotations

import re
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Name

CHANGE = Change(
    "bedrock-names",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    replaces=(Name("fast_agent.llm.model_factory:ModelFactory._bedrock_pattern_matches", ("model_name",)),),
    gone_when="`BedrockLLM.matches_model_pattern` asks nothing",
)
_BEDROCK_ID = re.compile(
    r"(?:[a-z]{2,6}(?:-gov)?\.)?"  # a cross-region inference profile: `us.`, `eu.`, `apac.`, `global.`
    r"(?:ai21|amazon|anthropic|cohere|deepseek|google|luma|meta|minimax|mistral|moonshot|nvidia|openai|qwen|stability"
    r"|twelvelabs|writer|zai)\.[\w.-]+:\d+"
)


def changed(original: Any, holder: Any) -> Any:
    """Recognize a model of Bedrock by its name, such as `us.amazon.nova-lite-v1:0`."""
    del original, holder

    def is_bedrock_id(model_name: str) -> bool:
        return _BEDROCK_ID.fullmatch(model_name) is not None

    return is_bedrock_id
