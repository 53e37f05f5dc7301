"""Messages of a request to an OpenAI API, looked through faster and printed for no log.

The OpenAI library looks through a request, message by message, for values that need another form, and fast-agent
formats all messages for a log that does not take them. A message that does not fit exactly is left to the library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache, wraps
from importlib import import_module
from math import isfinite
from typing import Any, get_args, override

from typing_extensions import get_type_hints, is_typeddict

from pallas_gateway.calls.current import running_call
from pallas_gateway.changes.change import FAST_PATH, Change, EachClass, Loaded, Name
from pallas_gateway.fast_paths._streamed_bodies import PlainMessages
from pallas_gateway.tasks import give_way

_PROVIDERS = "fast_agent.llm.provider"
_CHAT = "openai.resources.chat.completions.completions"
_RESPONSES = "openai.resources.responses.responses"
_TAKES = ("data", "expected_type")
CHANGE = Change(
    "openai_messages",
    FAST_PATH,
    ("openai",),
    when=Loaded("openai"),
    replaces=(
        EachClass(_PROVIDERS, "_normalize_chat_completion_files", by="unprinted"),
        Name(f"{_CHAT}:async_maybe_transform", _TAKES),
        Name(f"{_RESPONSES}:async_maybe_transform", _TAKES),
    ),
    relies_on=(
        Name("openai._types:NotGiven"),
        Name("openai._types:Omit"),
        Name("openai._utils:PropertyInfo", ("alias", "format")),
    ),
    gone_when="the library knows which types have no values to change, and fast-agent formats messages that are logged",
)
_MANY = 100
"""Messages that are long work, even at fast-agent's 2 µs each."""
_PLAIN = frozenset({str, int, bool, type(None)})


class _Unprinted(list[Any]):
    """The messages of a request, which fast-agent would print for a log that does not take them."""

    @override
    def __repr__(self) -> str:
        return f"[{len(self)} messages]"


def unprinted(original: Callable[..., Awaitable[Any]], _: Any) -> Callable[..., Awaitable[Any]]:
    """Have messages be normalized as ones that are not printed."""
    import_module(_CHAT)  # which the library imports with the first request

    @wraps(original)
    async def normalized(*given: Any, **options: Any) -> Any:
        if len(given[-1]) >= _MANY or running_call.get().images:
            await give_way(0.0)  # fast-agent has just made them in one piece
        messages = await original(*given, **options)
        return _Unprinted(messages) if type(messages) is list else messages

    return normalized


def changed(original: Callable[[Any, Any], Awaitable[Any]], _: Any) -> Callable[[Any, Any], Awaitable[Any]]:
    """`async_maybe_transform`, but for requests that it would not change."""
    from openai._types import NotGiven, Omit  # noqa: PLC0415  not before an LLM is used

    @wraps(original)
    async def transform(data: Any, expected_type: Any) -> Any:
        if isinstance(data, dict) and has_no_annotations(expected_type):
            given = {name: value for name, value in data.items() if not isinstance(value, (NotGiven, Omit))}
            if type(given.get("messages")) is _Unprinted:
                given["messages"] = list(given["messages"])
            if is_plain(given):
                return {**given, "messages": PlainMessages(given["messages"])} if "messages" in given else given
        return await original(data, expected_type)

    return transform


def is_plain(value: Any) -> bool:
    """True if it is JSON's own types throughout."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return kind in _PLAIN or (kind is float and isfinite(value))
    for one in value.values() if kind is dict else value:
        if type(one) not in _PLAIN and not is_plain(one):  # most are plain: no call for each
            return False
    return True


@lru_cache(maxsize=64)
def has_no_annotations(expected_type: Any) -> bool:
    """True if nothing below this type of request has another name or form on the wire than in Python."""
    return not _annotated(expected_type, set())


def _annotated(annotation: Any, seen: set[Any]) -> bool:
    from openai._utils import PropertyInfo  # noqa: PLC0415  not before an LLM is used

    if isinstance(annotation, PropertyInfo):
        return annotation.alias is not None or annotation.format is not None
    if is_typeddict(annotation):
        if annotation in seen:
            return False
        seen.add(annotation)
        return any(_annotated(hint, seen) for hint in get_type_hints(annotation, include_extras=True).values())
    metadata = getattr(annotation, "__metadata__", ())
    return any(_annotated(one, seen) for one in (*get_args(annotation), *metadata))
