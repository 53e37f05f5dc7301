"""Copies of the messages of a conversation, and of tools. Imported when agents start."""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any

from fast_agent.types import LlmStopReason, PromptMessageExtended
from mcp_types import TextContent, Tool
from pydantic import BaseModel

from pallas_gateway.calls.current import Unshared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fast_agent.agents.llm_decorator import LlmDecorator, _CallContext

_NEVER_CHANGING = frozenset({str, int, float, bool, bytes, type(None), datetime, LlmStopReason})
_set = object.__setattr__


def loading(original: Callable[..., None], _: Any) -> Callable[..., None]:
    """`load_message_history`, which takes messages that only its agent has as they are."""

    @wraps(original)
    def load(self: LlmDecorator, messages: list[PromptMessageExtended] | None, *, clear_state: bool = False) -> None:
        is_own = isinstance(messages, Unshared)
        original(self, None if is_own else messages, clear_state=clear_state)
        if messages is not None and is_own:
            from fast_agent.history.compaction import normalize_compaction_notice  # noqa: PLC0415  no start needs it

            self._message_history = Unshared(messages)
            for message in messages:
                if message.channels:  # which have the notice
                    normalize_compaction_notice(message)

    return load


def merging(merge: Callable[[list[PromptMessageExtended]], list[PromptMessageExtended]], _: Any) -> Any:
    """To append the results of tools to a message, fast-agent copies all messages, also when there are no results."""

    @wraps(merge)
    def merged(messages: list[PromptMessageExtended]) -> list[PromptMessageExtended]:
        return merge(messages) if any(one.tool_results for one in messages[-2:-1]) else messages

    return merged


def preparing(prepare: Callable[..., _CallContext], _: Any) -> Callable[..., _CallContext]:
    """`_prepare_llm_call`, which copies each message once."""

    @wraps(prepare)
    def prepared(self: LlmDecorator, *given: Any, **options: Any) -> _CallContext:
        history = self._message_history
        self._message_history = _to_copy(history)
        try:
            call = prepare(self, *given, **options)
        finally:
            self._message_history = history
        messages = call.full_history
        if len(messages) > 1:  # a single message is not copied
            uncopied = {id(message) for message in call.sanitized_messages}  # those of the history have been copied
            begin = len(messages) - len(call.sanitized_messages)
            messages[begin:] = [one.model_copy(deep=True) if id(one) in uncopied else one for one in messages[begin:]]
        return call

    return prepared


class _Uncopied:
    """A message in a history that is copied: its copy is the message."""

    __slots__ = ("is_template", "message")

    def __init__(self, message: PromptMessageExtended) -> None:
        self.message = message
        self.is_template = message.is_template

    def model_copy(self, **_: object) -> PromptMessageExtended:
        return self.message


def _to_copy(history: list[PromptMessageExtended]) -> list[Any]:
    """Return a history for fast-agent to copy; the last message may be changed."""
    return [*map(_Uncopied, history[:-1]), *history[-1:]] if isinstance(history, Unshared) else history


def changed(_original: Any, _: Any) -> Callable[..., Any]:
    """Copy a model of ordinary values without asking each how it wants to be copied."""
    return fast_deepcopy


def fast_deepcopy[T: BaseModel](model: T, memo: dict[int, Any] | None = None) -> T:
    """`BaseModel.__deepcopy__`, for models of ordinary values and without private attributes."""
    memo = {} if memo is None else memo
    return _model(model, memo) if _is_ordinary(model) else BaseModel.__deepcopy__(model, memo)


def copying_tools(original: Callable[..., Tool], _: Any) -> Callable[..., Tool]:
    """`Tool.model_copy`, with which fast-agent gives a deep copy another name."""

    @wraps(original)
    def model_copy(self: Tool, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Tool:
        if not deep or self.__pydantic_extra__ or self.__pydantic_private__:
            return original(self, update=update, deep=deep)
        made = original(self, update=update)
        values = made.__dict__
        values.update({name: _json_apart(value) for name, value in values.items() if name not in (update or ())})
        return made

    return model_copy


def _json_apart(value: Any) -> Any:
    kind = type(value)
    if kind in _NEVER_CHANGING:
        return value
    if kind is dict:
        return {key: one if type(one) in _NEVER_CHANGING else _json_apart(one) for key, one in value.items()}
    if kind is list:
        return [one if type(one) in _NEVER_CHANGING else _json_apart(one) for one in value]
    return deepcopy(value)


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


def _is_ordinary(model: BaseModel) -> bool:
    return type(model).__deepcopy__ in _ORDINARY and model.__pydantic_private__ is None


_ORDINARY = {BaseModel.__deepcopy__, fast_deepcopy}


def _model[T: BaseModel](model: T, memo: dict[int, Any]) -> T:
    memo[id(model)] = made = type(model).__new__(type(model))
    values = model.__dict__.copy()
    for name, value in values.items():
        if type(value) not in _NEVER_CHANGING:
            values[name] = _apart(value, memo)
    _set(made, "__dict__", values)
    extra = model.__pydantic_extra__
    _set(made, "__pydantic_extra__", extra if extra is None else _dict(extra, memo))
    _set(made, "__pydantic_fields_set__", model.__pydantic_fields_set__.copy())
    _set(made, "__pydantic_private__", None)
    return made


_KNOWN: dict[type, Callable[[Any, dict[int, Any]], Any]] = {list: _list, dict: _dict, TextContent: _model}
