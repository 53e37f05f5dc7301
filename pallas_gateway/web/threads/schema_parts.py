"""Parts of JSON Schemas, as the OpenAPI document uses them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

type Json = dict[str, Any]


def object_of(properties: Json, *, optional: Iterable[str] = (), closed: bool = False) -> Json:
    """An object with these properties, required unless they are `optional`; `closed` to others."""
    required = [name for name in properties if name not in optional]
    schema: Json = {"type": "object", "properties": properties}
    schema |= {"required": required} if required else {}
    return {**schema, "additionalProperties": False} if closed else schema


def event(type_: str, properties: Json, *, optional: Iterable[str] = ()) -> Json:
    """The data of a server-sent event."""
    return object_of({"type": {"const": type_}, **properties}, optional=optional)


def one_of(*values: str) -> Json:
    """A string of these values."""
    return {"type": "string", "enum": list(values)}


def ref(name: str) -> Json:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(of: Json) -> Json:
    """A list."""
    return {"type": "array", "items": of}


def or_null(schema: Json) -> Json:
    """A value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}
