"""The provider and the class that a model means, found once for each started agent.

fast-agent finds them again for every instance, in files of overlays and in the environment. An agent whose settings,
model or files change is started again (`loading/fingerprint.py`).
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from fast_agent.core.fastagent import FastAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.runtime.compat.requirements import ReliedOn

RELIED_ON: ReliedOn = (
    (FastAgent, "_build_model_factory_func", ("self", "cli_model_override", "model_endpoint_override")),
)


def install() -> None:
    """Replace fast-agent's method."""
    original = FastAgent._build_model_factory_func

    @wraps(original)
    def build_model_factory_func(self: FastAgent, *arguments: Any, **options: Any) -> Any:
        return remembering(original(self, *arguments, **options))

    FastAgent._build_model_factory_func = build_model_factory_func  # type: ignore[method-assign]


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
