"""Checks the schemas of tools by the metaschema: a strict provider refuses each turn that has a broken one.

`jsonschema` takes 5 ms for a property. So schemas of the usual keywords are checked by pydantic, others in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Annotated, Any, Literal, TypedDict

from jsonschema import SchemaError
from jsonschema.validators import Draft7Validator, Draft201909Validator, Draft202012Validator, validator_for
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from pallas_gateway.telemetry.redaction import shortened

_LONGEST_MESSAGE = 120
_LARGEST = 64 * 1024
"""Bytes of the largest schema that `jsonschema` checks."""
_MOST_VERDICTS = 5000
_verdicts: dict[bytes, str | None] = {}
_threads = ThreadPoolExecutor(2, thread_name_prefix="schemas")
"""Not those of the event loop: a check may take a third of a second, and calls need those, as for names of hosts."""
_DIALECTS = (Draft202012Validator, Draft201909Validator, Draft7Validator)


def _distinct(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError("not distinct")
    return values


_Type = Literal["null", "boolean", "object", "array", "number", "string", "integer"]
_Number = int | float
_Count = Annotated[int, Field(ge=0)]
_Keywords = TypedDict(
    "_Keywords",
    {
        "$schema": Literal["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"],
        "$ref": str,
        "$defs": dict[str, "_Schema"],
        "definitions": dict[str, "_Schema"],
        "title": str,
        "description": str,
        "format": str,
        "pattern": str,
        "default": Any,
        "const": Any,
        "enum": list[Any],
        "examples": list[Any],
        "type": _Type | Annotated[list[_Type], Field(min_length=1), AfterValidator(_distinct)],
        "properties": dict[str, "_Schema"],
        "required": Annotated[list[str], AfterValidator(_distinct)],
        "additionalProperties": "_Schema",
        "items": "_Schema",
        "anyOf": Annotated[list["_Schema"], Field(min_length=1)],
        "oneOf": Annotated[list["_Schema"], Field(min_length=1)],
        "allOf": Annotated[list["_Schema"], Field(min_length=1)],
        "minimum": _Number,
        "maximum": _Number,
        "exclusiveMinimum": _Number,
        "exclusiveMaximum": _Number,
        "minLength": _Count,
        "minItems": _Count,
        "minProperties": _Count,
        "maxLength": _Count,
        "maxItems": _Count,
        "maxProperties": _Count,
        "uniqueItems": bool,
        "deprecated": bool,
        "readOnly": bool,
    },
    total=False,
)
_Keywords.__pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # type: ignore[attr-defined]
type _Schema = bool | _Keywords
_usual = TypeAdapter(_Schema)


async def schema_fault(place: str, schema: Mapping[str, Any] | None) -> str | None:
    """Return why `schema` is none, with the place; None if it is one. Equal schemas are checked once, mostly."""
    if schema is None or _is_usual(schema):
        return None
    try:
        encoded = to_json(schema)
    except ValueError:
        return f"{place} is nested too deeply"
    key = blake2b(place.encode() + encoded).digest()
    if len(encoded) > _LARGEST or key in _verdicts:
        return _verdicts.get(key)
    verdict = await asyncio.get_running_loop().run_in_executor(_threads, _checked, place, schema)
    if len(_verdicts) >= _MOST_VERDICTS:
        _verdicts.clear()
    _verdicts[key] = verdict
    return verdict


def _is_usual(schema: Mapping[str, Any]) -> bool:
    try:
        _usual.validate_python(schema)
    except ValidationError:
        return False
    return True


def _checked(place: str, schema: Mapping[str, Any]) -> str | None:
    if not isinstance(schema.get("$schema", ""), str):
        return f"{place}.$schema is not text"
    try:
        dialect = validator_for({"$schema": schema.get("$schema", "")}, default=Draft202012Validator)
        if dialect in _DIALECTS:  # the metaschemas of older ones compare all values of an `enum` with each other
            dialect.check_schema(dict(schema))
    except SchemaError as error:
        where = ".".join(map(str, (place, *error.absolute_path)))
        return f"{where}: {shortened(error.message, _LONGEST_MESSAGE)}"
    except RecursionError:
        return f"{place} is nested too deeply"
    return None
