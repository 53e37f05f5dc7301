"""Models of bodies and queries: what all of them share, and how their errors are said.

Answers are described by `TypedDict`, which costs no time when an answer is made. `openapi.py` has the schemas of both.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from pallas_gateway.calls.conversation import is_text
from pallas_gateway.config.loading.error_messages import SENTENCES
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from pydantic_core import ErrorDetails
    from starlette.requests import Request

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
SCHEMAS = "#/components/schemas/"
_MOST_PROBLEMS = 10
_UNITS = {"Dictionary": "entries", "List": "entries"}
_SENTENCES = SENTENCES | {
    "string_type": lambda _: "must be text",
    "string_unicode": lambda _: "holds half a surrogate pair; send whole text",
    "string_pattern_mismatch": lambda context: f"must match {context['pattern']}",
    "too_long": lambda context: (
        f"must have at most {context['max_length']} {_UNITS.get(context['field_type'], 'characters')}"
    ),
    "greater_than_equal": lambda context: f"must be at least {context['ge']}",
    "less_than_equal": lambda context: f"must be at most {context['le']}",
    "dict_type": lambda _: "must be an object",
    "model_type": lambda _: "must be an object",
    "list_type": lambda _: "must be a list",
}


class Model(BaseModel):
    """Base of bodies: no other keys, and no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_keys(cls, given: Any) -> Any:
        """Refuse a great many keys at once: an error for each would take seconds."""
        if isinstance(given, dict) and len(given) > len(cls.model_fields) + _MOST_PROBLEMS:
            raise ValueError(f"has {len(given)} keys, of which most are unknown")
        return given


class Nothing(Model):
    """A body that says nothing: `{}`, or none."""


class Query(BaseModel):
    """Base of queries: each parameter once, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _whole(value: str) -> str:
    if "\0" in value or not is_text(value):
        raise ValueError("holds NUL or half a surrogate pair; send whole text")
    return value


def _number(value: object) -> object:
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None


def _switch(value: object) -> object:
    return {"true": True, "false": False}.get(str(value))


Key = Annotated[str, AfterValidator(_whole)]
"""Text that a database takes."""
Text = Annotated[Key, Field(json_schema_extra={"pattern": r"^[^\u0000]*$"})]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
DIGITS = BeforeValidator(_number)
"""Reads a whole number of a query; stands last, so that bounds are those of the number."""
Switch = Annotated[bool, BeforeValidator(_switch)]
"""`true` or `false` of a query."""


def parsed[Body: BaseModel](model: type[Body], given: Mapping[str, Any], what: str = "key") -> Body:
    """Return a body, or a query, as a model.

    Raises:
        CallRefusedError: `bad_input`, with all problems; it names keys and never repeats their values.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        shown = error.errors(include_url=False, include_input=False)[:_MOST_PROBLEMS]
        more = [f"and {left} more"] if (left := error.error_count() - len(shown)) else []
        said = "; ".join([*(_sentence(one, what) for one in shown), *more])
        if any(one["type"] == "extra_forbidden" and len(one["loc"]) == 1 for one in shown):
            known = [field.alias or name for name, field in model.model_fields.items()]
            said += f". Known are: {', '.join(known) or 'none'}"
        raise CallRefusedError(f"{said}.", reason="bad_input") from None


def query[Asked: Query](model: type[Asked], request: Request) -> Asked:
    """Return the query of a request; raises as `parsed`."""
    pairs = request.query_params.multi_items()
    twice = next((name for name in model.model_fields if len(request.query_params.getlist(name)) > 1), None)
    if twice is not None:
        raise CallRefusedError(f"Parameter '{twice}' is given twice.", reason="bad_input")
    return parsed(model, dict(pairs), "parameter")


def _sentence(error: ErrorDetails, what: str) -> str:
    place = ".".join(str(one) for one in error["loc"] if one != "[key]")
    if error["type"] == "extra_forbidden":
        return f"Unknown {what} {quoted(place)}"
    sentence = _SENTENCES.get(error["type"])
    said = sentence(error.get("ctx", {})) if sentence else error["msg"]
    return f"{quoted(place)} {said}" if place else f"The body {said}"


def written(time: datetime, timespec: Literal["seconds", "milliseconds"] = "milliseconds") -> str:
    """Return a time of UTC by RFC 3339, such as `2026-11-24T15:00:00.000Z`."""
    return time.isoformat(timespec=timespec).replace("+00:00", "Z")
