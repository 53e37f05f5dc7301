"""OpenAI's models: parameters that their API refuses. Installed when an agent first uses one.

`tools` is left out where there is none: the API requires at least one, and its types allow no null.
While a model reasons, the API refuses `temperature`, `top_p` and penalties; few of these models accept `stop`.
fast-agent sends them, and the call fails. Since GPT-5.1 reasoning can be switched off; then they are accepted.
"""

from __future__ import annotations

import re
from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.runtime.compat.requirements import check_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.runtime.compat.requirements import ReliedOn

_OPENAI = "fast_agent.llm.provider.openai"
_BUILDERS = {"OpenAILLM": "_prepare_api_request", "ResponsesLLM": "_build_response_args"}
RELIED_ON: ReliedOn = (
    (f"{_OPENAI}.llm_openai:OpenAILLM", "_prepare_api_request", ("self", "messages", "tools", "request_params")),
    (f"{_OPENAI}.responses:ResponsesLLM", "_build_response_args", ("self", "input_items", "request_params", "tools")),
    (f"{_OPENAI}.llm_openai:OpenAILLM", "_reasoning", ()),
    (f"{_OPENAI}.responses:ResponsesLLM", "_configure_reasoning_mode", ()),
)
_PROVIDERS = frozenset({"openai", "azure", "responses", "codexresponses"})
"""Other providers of OpenAI's models, such as OpenRouter, drop parameters that a model does not accept."""
_MAY_NOT_REASON = re.compile(r"gpt-5\.[1-9]")
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


def prepare(llm_class: type[Any]) -> None:
    """Repair one of fast-agent's classes for OpenAI; safe to call again."""
    name = _BUILDERS.get(llm_class.__name__)
    original = vars(llm_class).get(name or "")
    if name is None or original is None or hasattr(original, "original"):
        return
    check_names(tuple(one for one in RELIED_ON if one[0].endswith(llm_class.__name__)))  # the other's is not imported
    setattr(llm_class, name, _without_refused(original))


def _without_refused(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @wraps(original)
    def build(self: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        request = original(self, *arguments, **options)
        if not request.get("tools"):
            request.pop("tools", None)  # fast-agent sends an empty list or null
        if self._reasoning and self.provider.config_name in _PROVIDERS:
            for name in _refused(request):
                request.pop(name, None)
                (request.get("extra_body") or {}).pop(name, None)
        return request

    build.original = original  # type: ignore[attr-defined]
    return build


def _refused(request: dict[str, Any]) -> tuple[str, ...]:
    effort = request.get("reasoning_effort") or (request.get("reasoning") or {}).get("effort")
    does_not_reason = effort in {None, "none"} and _MAY_NOT_REASON.match(request["model"])
    return ("stop",) if does_not_reason else ("stop", *_SAMPLING)
