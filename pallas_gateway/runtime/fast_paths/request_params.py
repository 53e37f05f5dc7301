"""Parameters of a request, which fast-agent merges nine times a turn, merged without validating them again.

Only where nothing nested is merged. fast-agent merges all others.
"""

from __future__ import annotations

from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any

from fast_agent.llm import fastagent_llm
from fast_agent.types import RequestParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pallas_gateway.runtime.compat.requirements import ReliedOn

_PLAIN = frozenset({str, int, float, bool, type(None)})
_MADE_ANEW = ("messages", "template_vars")
_DUMPED = frozenset(name for name, field in RequestParams.model_fields.items() if not field.exclude)
_DUMPED_AUTOMATICALLY = _DUMPED - {"streaming_timeout"}
RELIED_ON: ReliedOn = ((fastagent_llm, "merge_request_params", ("default_params", "provided_params")),)


def install() -> None:
    """Replace fast-agent's function."""
    turns: Any = fastagent_llm
    turns.merge_request_params = merging_plainly(turns.merge_request_params)


def merging_plainly(
    merge: Callable[[RequestParams, RequestParams], RequestParams],
) -> Callable[[RequestParams, RequestParams], RequestParams]:
    """`merge_request_params` without a validation, where nothing nested is merged."""

    @wraps(merge)
    def merge_request_params(default_params: RequestParams, provided_params: RequestParams) -> RequestParams:
        default, provided, given = default_params.__dict__, provided_params.__dict__, provided_params.model_fields_set
        if provided_params.model_extra or not _are_plain(provided) or not _are_plain(default):
            return merge(default_params, provided_params)
        values = {**default, **{name: provided[name] for name in given}, "messages": [], "template_vars": {}}
        is_automatic = "streaming_timeout" not in default_params.model_fields_set | given
        return _made(default_params, values, _DUMPED_AUTOMATICALLY if is_automatic else _DUMPED)

    return merge_request_params


def _are_plain(params: Mapping[str, Any]) -> bool:
    """True if none holds anything that could change, but for those that are made anew, which must be empty."""
    return not any(value or name not in _MADE_ANEW for name, value in params.items() if type(value) not in _PLAIN)


def _made(like: RequestParams, values: dict[str, Any], given: frozenset[str]) -> RequestParams:
    """As `model_copy` makes one."""
    params = type(like).__new__(type(like))
    object.__setattr__(params, "__dict__", values)
    object.__setattr__(params, "__pydantic_extra__", copy(like.__pydantic_extra__))
    object.__setattr__(params, "__pydantic_fields_set__", set(given))
    object.__setattr__(params, "__pydantic_private__", None)
    return params
