"""Request parameters, merged without validation.

fast-agent merges them eight times a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, get_args

from pallas_gateway.changes.change import FAST_PATH, Change, Name

_TURNS = "fast_agent.llm.fastagent_llm"
CHANGE = Change(
    "request_params",
    FAST_PATH,
    ("fast-agent-mcp", "pydantic"),
    replaces=(
        Name(f"{_TURNS}:merge_request_params", ("default_params", "provided_params"), by="merging"),
        Name(f"{_TURNS}:apply_reasoning_streaming_timeout", ("params", "reasoning"), by="applying"),
    ),
)
_TIMEOUT = "streaming_timeout"
_PLAIN = {str, int, float, bool, type(None)}


def merging(merge: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Merge values that pydantic would return unchanged: of exactly a type of their field, or its default."""
    from fast_agent.types import RequestParams  # noqa: PLC0415  as late as the library

    fields = RequestParams.model_fields.items()
    types = {name: _PLAIN.intersection(get_args(one.annotation) or (one.annotation,)) for name, one in fields}
    types |= {"messages": {list}, "template_vars": {dict}}
    defaults = {name: one.default for name, one in fields}
    state = merge(RequestParams(streaming_timeout=1), RequestParams()).__getstate__()
    every = state["__pydantic_fields_set__"]
    automatic = every - {_TIMEOUT}
    words = [name for name, one in defaults.items() if type(one) is str and str not in types[name]]
    usual = [defaults[name] for name in words]
    accepted: set[tuple[type, ...]] = set()
    """Types of all values that pydantic would return unchanged, if the `words` have their defaults."""

    @wraps(merge)
    def merge_request_params(default_params: RequestParams, provided_params: RequestParams) -> Any:
        default, provided, given = vars(default_params), vars(provided_params), provided_params.model_fields_set
        if given >= automatic:  # itself merged
            values = {**provided, _TIMEOUT: (provided if _TIMEOUT in given else default)[_TIMEOUT]}
        else:
            values = default | {name: provided[name] for name in given}
        if default["template_vars"] or values["template_vars"] or [*map(values.get, words)] != usual:
            return merge(default_params, provided_params)
        if (kinds := tuple(map(type, values.values()))) not in accepted:
            if any(type(one) not in types[name] and one is not defaults[name] for name, one in values.items()):
                return merge(default_params, provided_params)
            accepted.add(kinds)
        is_automatic = _TIMEOUT not in given and _TIMEOUT not in default_params.model_fields_set
        values["messages"], values["template_vars"] = [], {}
        merged = RequestParams.__new__(RequestParams)
        made = set(automatic if is_automatic else every)
        merged.__setstate__({**state, "__dict__": values, "__pydantic_fields_set__": made})
        return merged

    return merge_request_params


def applying(apply: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Set the time-out where fast-agent sets it in another copy of what it has just merged or copied."""

    @wraps(apply)
    def apply_reasoning_streaming_timeout(params: Any, reasoning: Any) -> Any:
        if reasoning is not None or _TIMEOUT in params.model_fields_set:
            return apply(params, reasoning)
        vars(params)[_TIMEOUT] = type(params).model_fields[_TIMEOUT].default
        return params

    return apply_reasoning_streaming_timeout
