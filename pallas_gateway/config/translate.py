"""pydantic's findings as this project's sentences; which values are allowed is the schema's business, not its own."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pallas_gateway.config.problems import did_you_mean

PLACEHOLDER_TEXT = "missing"

SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "missing": lambda _: "is required",
    "string_type": lambda _: "must be text; put a number, a date or true/false in quotes",
    "string_too_short": lambda _: "must not be empty",
    "string_too_long": lambda context: f"must have at most {context['max_length']} characters",
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
    """The model made from `data`, or pydantic's list of what is wrong."""
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        return None, error.errors(include_url=False, include_input=False)


def mended(data: object, errors: Sequence[ErrorDetails]) -> object:
    """A copy of `data` without its wrong values, so that rules between the right ones can still be looked at."""
    copy = deepcopy(data)
    for error in errors:
        if isinstance(copy, dict) and error["loc"]:
            _mend(copy, error)
    return copy


def located(model: type[BaseModel], errors: Sequence[ErrorDetails]) -> Iterator[tuple[str, str]]:
    """Dotted path and sentence of every finding."""
    for error in errors:
        yield ".".join(str(step) for step in error["loc"]), _sentence(model, error)


def _sentence(model: type[BaseModel], error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return f"unknown key{did_you_mean(str(error['loc'][-1]), _known_keys(model, error['loc'][:-1]))}"
    sentence = SENTENCES.get(error["type"])
    return sentence(error.get("ctx", {})) if sentence else error["msg"]


def _known_keys(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """The keys of the section at `path`, whose steps are field names, in collections followed by a key or an index."""
    section, steps = model, iter(path)
    for step in steps:
        annotation = section.model_fields[str(step)].annotation
        section = _section_in(annotation) or section
        if _is_collection(annotation):
            next(steps, None)
    return list(section.model_fields)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)


def _is_collection(annotation: Any) -> bool:
    optional = [part for part in get_args(annotation) if part is not NoneType]
    inner = optional[0] if get_origin(annotation) is UnionType and len(optional) == 1 else annotation
    return get_origin(inner) in {dict, tuple}


def _mend(data: Any, error: ErrorDetails) -> None:
    *around, last = _to_first_list(error["loc"])
    for step in around:
        data = data.get(step, {})
    if error["type"] == "missing" and error["loc"][-1] == last:
        data[last] = PLACEHOLDER_TEXT
    elif around == ["agents"]:
        data[last] = {"module": PLACEHOLDER_TEXT}  # it is still an agent that others may name
    else:
        data.pop(last, None)


def _to_first_list(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    index = next((place for place, step in enumerate(location) if isinstance(step, int)), len(location))
    return location[:index]
