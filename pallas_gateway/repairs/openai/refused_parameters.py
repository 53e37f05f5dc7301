"""OpenAI's models refuse parameters that fast-agent sends.

Symptom: while a model reasons, OpenAI's API refuses `temperature`, `top_p`, the penalties and mostly `stop`, which
fast-agent sends; also empty `tools`.

Repair: they are left out for reasoning models of fast-agent's database at OpenAI and Azure
([which](use/parameters.md#what-had-no-effect)), and empty `tools` everywhere.
"""

from __future__ import annotations

import re
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_PACKAGE = "fast_agent.llm.provider.openai"
CHANGE = Change(
    "refused-parameters",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_PACKAGE),
    replaces=(
        Name(
            f"{_PACKAGE}.llm_openai:OpenAILLM._prepare_api_request",
            ("self", "messages", "tools", "request_params"),
        ),
        Name(
            f"{_PACKAGE}.responses:ResponsesLLM._build_response_args",
            ("self", "input_items", "request_params", "tools"),
        ),
    ),
    relies_on=(
        Name(f"{_PACKAGE}.llm_openai:OpenAILLM._reasoning"),
        Name(f"{_PACKAGE}.responses:ResponsesLLM._configure_reasoning_mode"),
    ),
    gone_when="fast-agent leaves them out",
)
_PROVIDERS = frozenset({"openai", "azure", "responses", "codexresponses"})
_MAY_NOT_REASON = re.compile(r"gpt-5\.[1-9]")
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


def changed(original: Any, holder: Any) -> Any:
    """Remove from a request what the API would refuse."""
    del holder

    @wraps(original)
    def build(self: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        request: dict[str, Any] = original(self, *arguments, **options)
        if not request.get("tools"):
            request.pop("tools", None)
        if self._reasoning and self.provider.config_name in _PROVIDERS:
            for name in _refused(request):
                request.pop(name, None)
                (request.get("extra_body") or {}).pop(name, None)
        return request

    return build


def _refused(request: dict[str, Any]) -> tuple[str, ...]:
    effort = request.get("reasoning_effort") or (request.get("reasoning") or {}).get("effort")
    does_not_reason = effort in {None, "none"} and _MAY_NOT_REASON.match(request["model"])
    return ("stop",) if does_not_reason else ("stop", *_SAMPLING)
