"""Values of union types made at once where OpenAI's and Anthropic's libraries try each type. Used once an LLM is.

An event of a stream belongs to a union of up to 60 types. Both libraries have pydantic try them all, because pydantic
does not know that the field `type` tells them apart. Here the one type that a value names is tried. A value that does
not fit it, and values of all other types, are left to the library.
"""

from __future__ import annotations

from importlib import import_module
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    type _Members = Mapping[Any, type[BaseModel]]

KEPT_TYPES = 1024
_MODULES = ("_models", "_base_client")
"""Of a library; each calls the function by a name of its own."""
_TAG = "type"
_SCALARS = frozenset({str, int, bool})


def install(library: str) -> None:
    """Have OpenAI's or Anthropic's library make its values here; safe to call again."""
    modules = [cast("Any", import_module(f"{library}.{name}")) for name in _MODULES]
    models = modules[0]
    if hasattr(models.construct_type, "original"):
        return
    construct = constructing(models.construct_type, models.BaseModel)
    for module in modules:
        module.construct_type = construct


def constructing(
    original: Callable[..., Any], model: type[BaseModel], *, kept_types: int = KEPT_TYPES
) -> Callable[..., Any]:
    """`construct_type`, but for scalars, the library's models, and members of a union that `type` tells apart."""
    known: dict[int, _Known] = {}

    def construct_type(*, value: Any, type_: Any, metadata: list[Any] | None = None) -> Any:
        kind = type(value)
        if kind is type_ and kind in _SCALARS:
            return value
        if (kind is dict or kind in _SCALARS) and not metadata:
            if (found := known.get(id(type_))) is None:
                if len(known) >= kept_types:
                    known.clear()
                found = known[id(type_)] = _Known(type_, model)
            made = found.made_of(value) if kind is dict else found.scalar(value)
            if made is not None:
                return made
        return original(value=value, type_=type_, metadata=metadata)

    construct_type.original = original  # type: ignore[attr-defined]
    return construct_type


class _Known:
    """A type, found by its identity. It is kept with what is known of it, so that no other has its identity."""

    def __init__(self, type_: Any, model: type[BaseModel]) -> None:
        self._type = type_
        is_model = isinstance(type_, type) and issubclass(type_, model)
        self._construct: Any = type_.construct if is_model else None
        self._members = members_of(type_)
        self._is_literal = get_origin(type_) is Literal

    def scalar(self, value: Any) -> Any:
        """The value if it stays as it is; None if the library has to look at it."""
        return value if self._is_literal else None

    def made_of(self, value: dict[str, Any]) -> Any:
        """The model that a dict is; None if the library has to make it."""
        if self._construct is not None:
            return self._construct(**value)
        tag = value.get(_TAG)
        member = self._members.get(tag) if type(tag) is str else None
        if member is None:
            return None
        try:
            return member.model_validate(value)
        except ValidationError:
            return None  # the library makes something of any value


def members_of(type_: Any) -> _Members:
    """The members of a union by their tags; empty if it is no union, or if tags do not tell all members apart."""
    union = get_args(type_)[0] if get_origin(type_) is Annotated else type_
    if get_origin(union) not in (Union, UnionType):
        return {}
    members: dict[Any, type[BaseModel]] = {}
    for member in get_args(union):
        tags = _tags_of(member)
        if not tags or not members.keys().isdisjoint(tags):
            return {}
        members |= dict.fromkeys(tags, member)
    return members


def _tags_of(member: Any) -> tuple[Any, ...]:
    if not (isinstance(member, type) and issubclass(member, BaseModel)):
        return ()
    field = member.model_fields.get(_TAG)
    if field is None or field.alias is not None or get_origin(field.annotation) is not Literal:
        return ()
    tags = get_args(field.annotation)
    return tags if all(type(tag) is str for tag in tags) else ()
