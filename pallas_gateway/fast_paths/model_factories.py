"""The provider and the class that a model means, found once for each started agent.

fast-agent finds them again for every instance, in files of overlays and in the environment. An agent whose settings,
model or files change is started again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import FAST_PATH, Change, Name

CHANGE = Change(
    "model_factories",
    FAST_PATH,
    ("fast-agent-mcp",),
    replaces=(
        Name(
            "fast_agent.core.fastagent:FastAgent._build_model_factory_func",
            ("self", "cli_model_override", "model_endpoint_override"),
        ),
    ),
)


def changed(original: Callable[..., Callable[..., Any]], _: Any) -> Callable[..., Any]:
    """Have each agent remember its models."""

    @wraps(original)
    def build_model_factory_func(self: Any, *arguments: Any, **options: Any) -> Any:
        return remembering(original(self, *arguments, **options))

    return build_model_factory_func


def remembering(find: Callable[..., Any]) -> Callable[..., Any]:
    """`find` for a model and request parameters; the result for a model without parameters is remembered."""
    found: dict[Any, Any] = {}

    def model_factory(model: Any = None, request_params: Any = None) -> Any:
        if request_params is not None or not (model is None or isinstance(model, str)):
            return find(model=model, request_params=request_params)
        if model not in found:
            found[model] = find(model=model)
        return found[model]

    return model_factory
