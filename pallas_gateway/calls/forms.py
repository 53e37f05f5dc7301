"""Forms: whether an answer fits the schema of its question. Pure.

MCP restricts these schemas to flat objects of texts, numbers, booleans and choices. A schema is a downstream's text, so
it is read by hand: no pattern, no reference and no nesting of it is evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from typing import Any

from pallas_gateway.telemetry.redaction import quoted

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
}

_SCALARS = (str, int, float)


def misfit(schema: Mapping[str, Any], content: Mapping[str, Any] | None) -> str | None:
    """Return why a filled form does not fit, as a clause that names the field; None if it fits."""
    content, fields = content or {}, fields_of(schema)
    for name in required_in(schema):
        if name not in content:
            return f"{quoted(name)} is missing"
    for name, value in content.items():
        if name not in fields:
            return f"{quoted(name)} is not asked for"
        if (why := misfit_of_field(_mapping(fields[name]), value)) is not None:
            return f"{quoted(name)} {why}"
    return None


def fields_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a form by name."""
    return _mapping(schema.get("properties"))


def required_in(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that a form cannot be sent without."""
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def size_of(schema: Mapping[str, Any]) -> float:
    """Return the number of characters of a form as JSON."""
    try:
        return len(json.dumps(schema, ensure_ascii=False))
    except RecursionError:
        return inf


def visible(value: Any) -> Any:
    r"""Return JSON data whose texts are Unicode: half of a surrogate pair becomes its escape, as `\ud800`."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {visible(key): visible(one) for key, one in value.items()}
    return [visible(one) for one in value] if isinstance(value, list) else value


def plain_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a form whose fields have one plain type each, as MCP requires of `requestedSchema`.

    Servers of the MCP SDK 1 give optional fields the alternative `null`, and the default `null`.
    """
    fields = {
        name: {key: value for key, value in without_null(field).items() if key != "default" or value is not None}
        for name, field in fields_of(schema).items()
        if isinstance(field, dict)
    }
    return {**schema, "properties": {**fields_of(schema), **fields}}


def without_null(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a field without its alternative `null`, which servers of the MCP SDK 1 give to optional fields.

    It is the field itself if it has no such alternative, or several others.
    """
    kinds, alternatives = field.get("type"), field.get("anyOf")
    if isinstance(kinds, list):
        others = [kind for kind in kinds if kind != "null"]
        return {**field, "type": others[0]} if "null" in kinds and len(others) == 1 else field
    if not isinstance(alternatives, list):
        return field
    rest = [one for one in map(_mapping, alternatives) if one.get("type") != "null"]
    if len(rest) == len(alternatives) or len(rest) != 1:
        return field
    return {**rest[0], **{key: value for key, value in field.items() if key != "anyOf"}}


def misfit_of_field(field: Mapping[str, Any], value: Any) -> str | None:
    """Return why a value does not fit a field, as a clause without its subject; None if it fits."""
    plain = without_null(field)
    if value is None and plain is not field:
        return None
    return _misfit_of_type(plain, value) or _misfit_of_value(plain, value)


def _misfit_of_type(field: Mapping[str, Any], value: Any) -> str | None:
    kind = field.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        is_bool = isinstance(value, bool)
        if not isinstance(value, _TYPES[kind]) or (is_bool and kind != "boolean"):
            return f"must be of type {kind}"
    return "is not Unicode text" if visible(value) != value else None


def _misfit_of_value(field: Mapping[str, Any], value: Any) -> str | None:
    if isinstance(value, list):
        choices = choices_of(_mapping(field.get("items")))
        return _out_of(field, "Items", len(value), "choices") or _all_in(value, choices)
    if isinstance(value, str):
        return _out_of(field, "Length", len(value), "characters") or _all_in([value], choices_of(field))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _beyond(field, value) or _all_in([value], choices_of(field))
    return None


def choices_of(field: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a field may have; None if it is free."""
    if isinstance(field.get("enum"), list):
        return list(field["enum"])
    titled = field.get("oneOf") or field.get("anyOf")
    choices = [_mapping(one) for one in titled] if isinstance(titled, list) else []
    return [one["const"] for one in choices] if choices and all("const" in one for one in choices) else None


def _all_in(values: list[Any], choices: list[Any] | None) -> str | None:
    if choices is None:
        return None
    allowed = {choice for choice in choices if isinstance(choice, _SCALARS)}  # both lists may be long
    fit = all(isinstance(value, _SCALARS) and value in allowed for value in values)
    return None if fit else "is not one of the choices"


def _out_of(field: Mapping[str, Any], what: str, size: int, unit: str) -> str | None:
    least, most = field.get(f"min{what}"), field.get(f"max{what}")
    if isinstance(least, int) and size < least:
        return f"must have at least {least} {unit}"
    return f"must have at most {most} {unit}" if isinstance(most, int) and size > most else None


def _beyond(field: Mapping[str, Any], value: float) -> str | None:
    least, most = field.get("minimum"), field.get("maximum")
    if isinstance(least, (int, float)) and value < least:
        return f"must be at least {least}"
    return f"must be at most {most}" if isinstance(most, (int, float)) and value > most else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
