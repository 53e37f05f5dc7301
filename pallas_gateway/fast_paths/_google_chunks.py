"""Chunks of text of Gemini, with the response that each is. Imported once an agent uses Google's models."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from google.genai import types

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

_TEXT = types.Part.model_validate({"text": ""})
_THOUGHT = types.Part.model_validate({"text": "", "thought": True})
_CONTENT = types.Content.model_validate({"parts": [], "role": "model"})
_CANDIDATE = types.Candidate.model_validate({"content": None})
_RESPONSE = types.GenerateContentResponse.model_validate({"candidates": []})
_NAMES = {"modelVersion": "model_version", "responseId": "response_id"}
_DECIDE = ("response_schema", "response_json_schema", "include_all_fields")
"""Settings of a request that make the library do more."""
_USAGE = types.GenerateContentResponseUsageMetadata.model_validate({})
_DETAIL = types.ModalityTokenCount.model_validate({})
_MODALITIES = {one.value: one for one in types.MediaModality}


class _Made(dict[str, Any]):
    """A chunk in the library's form, with the response that it is."""

    def __init__(self, response: types.GenerateContentResponse) -> None:
        super().__init__()
        self.made = response


def changed(original: Callable[..., dict[str, Any]], _: Any) -> Callable[..., dict[str, Any]]:
    """Make chunks of text here."""

    @wraps(original)
    def convert(from_object: Any, parent_object: Any = None, root_object: Any = None) -> dict[str, Any]:
        config = getattr(root_object, "config", None)
        # Not by `getattr`: pydantic takes long to find that there is no such field.
        is_plain = config is not None and all(vars(config).get(name) is None for name in _DECIDE)
        made = response_of_text(from_object) if is_plain else None
        return _Made(made) if made is not None else original(from_object, parent_object, root_object)

    return convert


def taking(method: Any, _: Any) -> Any:
    """Take the responses of chunks that were made here."""
    original: Callable[..., Any] = method.__func__

    @wraps(original)
    def from_response(cls: Any, *, response: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        return response.made if type(response) is _Made else original(cls, response=response, kwargs=kwargs)

    return classmethod(from_response)


def response_of_text(chunk: Any) -> types.GenerateContentResponse | None:
    """The response that a chunk is; None if it holds anything but one text of the model, names and counts."""
    match chunk:
        case {"candidates": [{"content": {"parts": [dict(given)], "role": "model", **unknown}, **more}], **rest}:
            part, index, known = _part(given), _index(more), _names_and_counts(rest)
            if unknown or part is None or index is None or known is None:
                return None
        case _:
            return None
    content = _copied(_CONTENT, {"parts": [part]})
    candidate = _copied(_CANDIDATE, {"content": content, **index})
    return _copied(_RESPONSE, {"candidates": [candidate], **known})


def _part(given: dict[str, Any]) -> types.Part | None:
    text = given.get("text")
    is_thought = given.get("thought") is True
    if type(text) is not str or len(given) != 1 + is_thought:
        return None
    return _copied(_THOUGHT if is_thought else _TEXT, {"text": text})


def _index(given: dict[Any, Any]) -> dict[str, Any] | None:
    return given if not given or (len(given) == 1 and type(given.get("index")) is int) else None


def _names_and_counts(given: dict[Any, Any]) -> dict[str, Any] | None:
    known: dict[str, Any] = {}
    for name, value in given.items():
        if name in _NAMES and type(value) is str:
            known[_NAMES[name]] = value
        elif name == "usageMetadata" and type(value) is dict and (usage := _usage(value)) is not None:
            known["usage_metadata"] = usage
        else:
            return None
    return known


def _usage(given: dict[Any, Any]) -> types.GenerateContentResponseUsageMetadata | None:
    """Counts of tokens, which come with each chunk."""
    known: dict[str, Any] = {}
    for name, value in given.items():
        if type(value) is int and name in _COUNTS:
            known[_COUNTS[name]] = value
        elif type(value) is list and name in _DETAILS and None not in (details := [*map(_detail, value)]):
            known[_DETAILS[name]] = details
        else:
            return None
    return _copied(_USAGE, known)


def _detail(given: Any) -> types.ModalityTokenCount | None:
    match given:
        case {"modality": str(name), "tokenCount": int(count), **more}:
            if not more and type(count) is int and name in _MODALITIES:
                return _copied(_DETAIL, {"modality": _MODALITIES[name], "token_count": count})
    return None


def _copied[T: BaseModel](empty: T, values: dict[str, Any]) -> T:
    """As `model_copy` makes one, at a third of the cost: six are made for a chunk."""
    made = type(empty).__new__(type(empty))
    object.__setattr__(made, "__dict__", {**empty.__dict__, **values})
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_fields_set__", {*empty.model_fields_set, *values})
    object.__setattr__(made, "__pydantic_private__", None)
    return made


def _named(model: type[BaseModel], annotation: Any) -> dict[str, str]:
    """The names of a model's fields of this type by their names in JSON."""
    fields = model.model_fields.items()
    return {field.alias: name for name, field in fields if field.alias and field.annotation == annotation}


_COUNTS = _named(types.GenerateContentResponseUsageMetadata, int | None)
_DETAILS = _named(types.GenerateContentResponseUsageMetadata, list[types.ModalityTokenCount] | None)
