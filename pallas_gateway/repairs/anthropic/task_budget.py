"""A task budget that is not set causes a warning.

Symptom: "Task budget ignored for model without Anthropic task budget support." is logged in each call without a
`task_budget`.

Repair: a section without a `task_budget` is not read for one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.anthropic.llm_anthropic"
CHANGE = Change(
    "anthropic-task-budget",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(
        Name(
            f"{_MODULE}:AnthropicLLM._configure_anthropic_task_budget",
            takes=("self", "raw_task_budget", "config", "model_name"),
        ),
    ),
    gone_when="fast-agent warns about what is set",
)


def changed(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Pass no section without a budget."""
    del holder

    @wraps(original)
    def configure(self: Any, raw_task_budget: Any, config: Any, model_name: str) -> Any:
        is_set = getattr(config, "task_budget", None) is not None
        return original(self, raw_task_budget, config if is_set else None, model_name)

    return configure
