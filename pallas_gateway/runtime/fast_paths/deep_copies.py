"""Deep copies of what fast-agent copies over and over: every message of a conversation three times a turn.

`copy.deepcopy` asks of each value how it wants to be copied; here a few types are known. The outcome is the same, with
what occurs twice in the original occurring twice in the copy.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from fast_agent.types import PromptMessageExtended, RequestParams
from mcp_types import TextContent
from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable

_NEVER_CHANGING = frozenset({str, int, float, bool, bytes, type(None), datetime})
_set = object.__setattr__


def install() -> None:
    """Have the models of a conversation copied by `fast_deepcopy`."""
    for model in (PromptMessageExtended, TextContent, RequestParams):
        model.__deepcopy__ = fast_deepcopy  # type: ignore[method-assign,assignment]


def fast_deepcopy[T: BaseModel](model: T, memo: dict[int, Any] | None = None) -> T:
    """`BaseModel.__deepcopy__`, for models of ordinary values and without private attributes."""
    return _model(model, {} if memo is None else memo)


def _apart(value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _NEVER_CHANGING:
        return value
    if (known := memo.get(id(value))) is not None:
        return known
    if (copy := _KNOWN.get(kind)) is not None:
        return copy(value, memo)
    if isinstance(value, BaseModel) and _is_ordinary(value):
        return _model(value, memo)
    return value if isinstance(value, Enum) else deepcopy(value, memo)


def _list(values: list[Any], memo: dict[int, Any]) -> list[Any]:
    memo[id(values)] = made = []
    made.extend([value if type(value) in _NEVER_CHANGING else _apart(value, memo) for value in values])
    return made


def _dict(values: dict[Any, Any], memo: dict[int, Any]) -> dict[Any, Any]:
    memo[id(values)] = made = {}
    for key, value in values.items():
        made[_apart(key, memo)] = _apart(value, memo)
    return made


_KNOWN: dict[type, Callable[[Any, dict[int, Any]], Any]] = {list: _list, dict: _dict}


def _is_ordinary(model: BaseModel) -> bool:
    return type(model).__deepcopy__ in _ORDINARY and model.__pydantic_private__ is None


_ORDINARY = {BaseModel.__deepcopy__, fast_deepcopy}


def _model[T: BaseModel](model: T, memo: dict[int, Any]) -> T:
    if not _is_ordinary(model):
        return BaseModel.__deepcopy__(model, memo)
    memo[id(model)] = made = type(model).__new__(type(model))
    values = model.__dict__.items()
    apart = {name: value if type(value) in _NEVER_CHANGING else _apart(value, memo) for name, value in values}
    _set(made, "__dict__", apart)
    extra = model.__pydantic_extra__
    _set(made, "__pydantic_extra__", extra if extra is None else _dict(extra, memo))
    _set(made, "__pydantic_fields_set__", set(model.__pydantic_fields_set__))
    _set(made, "__pydantic_private__", None)
    return made
