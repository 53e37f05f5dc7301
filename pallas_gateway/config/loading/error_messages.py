"""Translates pydantic's errors into this project's messages."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pallas_gateway.config.model.agents import MAKINGS
from pallas_gateway.config.model.deployment import OLDER_NAMES
from pallas_gateway.config.model.parameters import OTHER_NAMES
from pallas_gateway.config.problems import did_you_mean

type Location = Sequence[int | str]

_OTHER_NAMES = {**OTHER_NAMES, **OLDER_NAMES}
PLACEHOLDER_TEXT = "missing"
ANY_NAME, ANY_INDEX = "NAME", "0"
FOR_A_HASH = frozenset({"key", "token", "secret", "value", "hash"})
"""Keys that are likely to be written in place of `sha256`."""

SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "missing": lambda _: "is required",
    "string_type": lambda _: "must be text; put a number, a date or true/false in quotes",
    "string_too_short": lambda _: "must not be empty",
    "string_too_long": lambda context: f"must have at most {context['max_length']} characters",
    "too_long": lambda context: f"must have at most {context['max_length']} entries",
    "too_short": lambda _: "must have at least one entry",
    "int_type": lambda _: "must be a whole number",
    "float_type": lambda _: "must be a number",
    "finite_number": lambda _: "must be a finite number",
    "bool_type": lambda _: "must be true or false",
    "greater_than": lambda context: f"must be more than {context['gt']:g}",
    "greater_than_equal": lambda context: f"must be at least {context['ge']:g}",
    "less_than_equal": lambda context: f"must be at most {context['le']:g}",
    "tuple_type": lambda _: "must be a list",
    "dict_type": lambda _: "must be a mapping (indented 'key: value' lines)",
    "model_type": lambda _: "must be a mapping (indented 'key: value' lines)",
    "literal_error": lambda context: f"must be {context['expected']}",
    "value_error": lambda context: str(context["error"]),
}


def validated[Model: BaseModel](model: type[Model], data: object) -> tuple[Model | None, list[ErrorDetails]]:
    """Return the model of `data`, or pydantic's errors."""
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        return None, [_at_key(one) for one in error.errors(include_url=False, include_input=False)]


def _at_key(error: ErrorDetails) -> ErrorDetails:
    """Return the error of a mapping's key with the place of the key; pydantic adds a step of its own."""
    *around, last = error["loc"] or ("",)
    return {**error, "loc": tuple(around)} if last == "[key]" else error


def mended(data: object, errors: Sequence[ErrorDetails]) -> object:
    """Return a copy of `data` without wrong values, so that rules between the valid ones can be checked."""
    copy = deepcopy(data)
    for error in errors:
        if isinstance(copy, dict) and error["loc"]:
            _mend(copy, error)
    return copy


def wrong_places(errors: Sequence[ErrorDetails]) -> list[Location]:
    """Return the place of each wrong value, and for a missing key the place of the mapping that lacks it."""
    return [error["loc"][:-1] if error["type"] == "missing" else error["loc"] for error in errors]


def without(data: object, places: Iterable[Location]) -> Any:
    """Return a copy of `data` without the values at `places`.

    pydantic's locations continue into lists and kinds of a union: the innermost value in a mapping is removed.
    """
    copy = deepcopy(data)
    for holder, key in [_in_mapping(copy, place) for place in places]:
        holder.pop(key, None)
    return copy


def located(model: type[BaseModel], errors: Sequence[ErrorDetails]) -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the message of every error."""
    for error in errors:
        yield ".".join(str(step) for step in error["loc"]), _sentence(model, error)


def _sentence(model: type[BaseModel], error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return _of_unknown_key(model, error["loc"])
    sentence = SENTENCES.get(error["type"])
    return sentence(error.get("ctx", {})) if sentence else error["msg"]


def _of_unknown_key(model: type[BaseModel], location: Location) -> str:
    *around, last = location
    key, sections = str(last), dict(_sections(model))
    here = next(path for path in sections if _is_at(path, around))
    if (name := _OTHER_NAMES.get(key)) in sections[here].model_fields:
        return f"is another name of '{name}', which is given as well; keep one of them"
    return f"unknown key{_hint(key, around, here, sections)}"


def _hint(
    key: str, around: Location, here: tuple[str, ...], sections: Mapping[tuple[str, ...], type[BaseModel]]
) -> str:
    """Suggest a key: one of another section, or a similar one of this section."""
    if key in FOR_A_HASH and "sha256" in sections[here].model_fields:
        return "; only its hash stands here, as sha256: 'pallas-gateway token new NAME' makes both"
    homes = [path for path, section in sections.items() if key in section.model_fields]
    inside = [path for path in homes if path[: len(here)] == here and not {ANY_NAME, ANY_INDEX} & {*path[len(here) :]}]
    similar = did_you_mean(key, sections[here].model_fields)
    if inside or (len(homes) == 1 and not similar):
        return f"; it belongs {_place((inside or homes)[0], around)}"
    return similar


def _place(home: tuple[str, ...], around: Location) -> str:
    if not home:
        return f"beside {around[0]}"
    known = max(length for length in range(len(around) + 1) if _is_at(home[:length], around[:length]))
    path = [*(str(step) for step in around[:known]), *home[known:]]
    return f"in an entry of {'.'.join(path[:-1])}" if path[-1] == ANY_INDEX else f"under {'.'.join(path)}"


def _sections(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """Yield every section with its path, in which `ANY_NAME` and `ANY_INDEX` stand for entries of collections."""
    yield path, model
    for name, field in model.model_fields.items():
        if (section := _section_in(field.annotation)) is not None:
            yield from _sections(section, (*path, name, *_entry_of(field.annotation)))


def _is_at(path: tuple[str, ...], location: Location) -> bool:
    pairs = zip(path, location, strict=False)
    return len(path) == len(location) and all(part in (step, ANY_NAME, ANY_INDEX) for part, step in pairs)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)


def _entry_of(annotation: Any) -> tuple[str, ...]:
    optional = [part for part in get_args(annotation) if part is not NoneType]
    inner = optional[0] if get_origin(annotation) is UnionType and len(optional) == 1 else annotation
    kind = get_origin(inner)
    return (ANY_NAME,) if kind is dict else (ANY_INDEX,) if kind is tuple else ()


def _in_mapping(data: Any, place: Location) -> tuple[dict[int | str, Any], int | str]:
    """Return the innermost mapping on the way to `place`, and its key there."""
    holder: dict[int | str, Any] = {}
    key: int | str = ""
    for step in place:
        if not isinstance(data, dict) or step not in data:
            break
        holder, key, data = data, step, data[step]
    return holder, key


def _mend(data: Any, error: ErrorDetails) -> None:
    *around, last = _to_first_list(error["loc"])
    for step in around:
        data = data.get(step, {})
    is_making = len(around) == len(("agents", ANY_NAME)) and around[0] == "agents" and last in MAKINGS
    if is_making or (error["type"] == "missing" and error["loc"][-1] == last):
        data[last] = PLACEHOLDER_TEXT  # so that the agent is still made of something
    elif around == ["agents"]:
        data[last] = {"module": PLACEHOLDER_TEXT}  # so that other agents may name it
    else:
        data.pop(last, None)


def _to_first_list(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    index = next((place for place, step in enumerate(location) if isinstance(step, int)), len(location))
    return location[:index]
