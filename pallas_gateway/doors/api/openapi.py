"""The OpenAPI document of `/api/v1`, made of its operations and their models.

Format: OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1.html), whose schemas are JSON Schema 2020-12.
"""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from types import GenericAlias
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast, override

from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from pallas_gateway import __version__
from pallas_gateway.calls.call import PDF
from pallas_gateway.calls.image_bytes import BASE64_PATTERNS
from pallas_gateway.calls.parameters import params_schema
from pallas_gateway.doors.api.base import template
from pallas_gateway.doors.api.errors import BY_REASON
from pallas_gateway.doors.api.models import SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydantic.json_schema import JsonSchemaMode

    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.doors.api.base import Operation

type Json = dict[str, Any]

ALWAYS = (400, 401, 403, 404, 405, 421, 503)
OF_BODIES = (408, 413, 415)
ERRORS = {
    400: "The request is malformed; says how.",
    401: "A bearer token is needed, or this one is not accepted.",
    403: "The token does not allow this, or the Origin is not one that may call.",
    404: "There is no such thing for this caller.",
    405: "Another method is wanted.",
    406: "Nothing that is accepted can be answered.",
    408: "The body did not arrive in time.",
    409: "It does not fit what there is now: the reason says what to read again, or to try again.",
    412: "The agent has another version than If-Match names; read it again.",
    413: "The body or the message is too large, as are the turns to copy, or all threads of the caller.",
    415: "The body is not JSON.",
    421: "The Host is not one that this gateway answers to.",
    422: "The agent's model cannot take this, or an answer or a definition breaks rules.",
    428: "If-Match is missing: the ETag of the agent as it was read, or `*`.",
    429: "A limit of the gateway refuses it; Retry-After says when to try again.",
    502: "The agent could not answer.",
    503: "Busy, stopping, or the agent or the database cannot be used now; try again.",
    504: "The model did not answer in time.",
}
_PATHS: Json = {
    "id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "call": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    "name": {"type": "string", "minLength": 1},
    "version": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "try": {"type": "string", "pattern": "^[0-9a-f]+\\.[0-9a-f]{32}$"},
    "turn": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
}
_IF_MATCH: Json = {
    "name": "If-Match",
    "in": "header",
    "required": True,
    "description": "The ETag of the agent as it was read, several of them, or `*` for any version.",
    "schema": {"type": "string", "pattern": '^(\\*|(W/)?"[!#-~]*"(, (W/)?"[!#-~]*")*)$'},
}
_DOCSTRINGS = ConfigDict(use_attribute_docstrings=True)
_HEADERS = {"ETag": "Of the definition, for If-Match.", "Location": "The address of what was made."}


class Problem(TypedDict):
    """A problem of a definition."""

    path: str
    """Of the value, such as `servers.0`; empty for the whole body."""
    message: str


class Error(TypedDict):
    """A refused request, or a failed call."""

    error: str
    """One word that says why."""
    error_description: str
    """A sentence for people."""
    threadId: NotRequired[str]
    turnIndex: NotRequired[int]
    limit: NotRequired[dict[str, Any]]
    """Of `limited`: `rule` and `retryAfterSeconds`."""
    users: NotRequired[list[str]]
    """Of `agent_in_use`: agents that the caller may see."""
    problems: NotRequired[list[Problem]]
    """Of `invalid_definition`: all of them."""


def document(operations: Iterable[Operation], agents: Sequence[HostedAgent]) -> Json:
    """Return the document for a caller who may view `agents`; they decide the types of images and the `params`."""
    paths, schemas = _described(tuple(operations))
    if "Image" in schemas:
        schemas = {**schemas, "SentImage": _sent_image(agents, schemas["Image"]), "Params": _params(agents)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pallas Gateway: agents, threads, calls", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "Where `gateway.auth` asks for one."}
            },
        },
        "security": [{}, {"bearer": []}],
    }


class _Schemas(GenerateJsonSchema):
    """The schemas of pydantic without titles of fields, such as `Createdat`, by which generators name their types."""

    @override
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def _described(operations: tuple[Operation, ...]) -> tuple[Json, Json]:
    """Return the paths, and the schemas of all models."""
    types = [kind for one in operations for kind in (one.body, one.answer, one.events)]
    unique = dict.fromkeys([kind for kind in types if kind not in {None, Any}] + [Error])
    inputs: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = [
        (kind, "validation", TypeAdapter(cast("Any", GenericAlias(list, kind)), config=_DOCSTRINGS)) for kind in unique
    ]
    _, found = TypeAdapter.json_schemas(inputs, ref_template=f"{SCHEMAS}{{model}}", schema_generator=_Schemas)
    paths: Json = {}
    for one in operations:
        paths.setdefault(template(one.path), {})[one.method.lower()] = _operation(one)
    return paths, found["$defs"]


def _operation(one: Operation) -> Json:
    described: Json = {"operationId": one.id, "summary": one.summary}
    if one.requires:
        described["description"] = f"Requires: {one.requires}."
    if parameters := [*_parameters(one)]:
        described["parameters"] = parameters
    if one.body is not None:
        media = ["application/json", *(["application/merge-patch+json"] if one.patches else [])]
        content = {kind: {"schema": _schema(one.body)} for kind in media}
        described["requestBody"] = {"required": one.body_required, "content": content}
    return {**described, "responses": {str(status): answer for status, answer in _responses(one)}}


def _parameters(one: Operation) -> Iterator[Json]:
    for name in re.findall(r"\{(\w+)", one.path):
        yield {"name": name, "in": "path", "required": True, "schema": _PATHS[name]}
    if one.conditional:
        yield _IF_MATCH
    properties = one.query.model_json_schema(schema_generator=_Schemas).get("properties", {}) if one.query else {}
    for name, schema in properties.items():
        described = schema.pop("description", None)
        [bare] = [kind for kind in schema.pop("anyOf", [{}]) if kind != {"type": "null"}]
        if schema.get("default", 0) is None:
            del schema["default"]
        described = bare.pop("description", described)
        place = {"name": name, "in": "query", "required": False}
        yield {**place, "schema": {**bare, **schema}, "description": described}


def _responses(one: Operation) -> Iterator[tuple[int, Json]]:
    yield one.status, {**_answer(one.says, one.answer, one.events), **_headers(one)}
    if one.dry_run_says:
        yield HTTPStatus.OK, _answer(one.dry_run_says, one.answer)
    streamed = (406,) if one.events else ()
    for status in sorted({*ALWAYS, *(OF_BODIES if one.body is not None else ()), *one.errors, *streamed}):
        yield status, _answer(f"{ERRORS[status]}{_reasons(status)}", Error)


def _reasons(status: int) -> str:
    """Return the reasons of a status, if it has several."""
    found = [f"`{reason}`" for reason, its in BY_REASON.items() if its == status]
    return f" Reasons: {', '.join(found)}." if len(found) > 1 else ""


def _answer(says: str, kind: Any, events: Any = None) -> Json:
    if kind is None:
        return {"description": says}
    content: Json = {"application/json": {"schema": _schema(kind)}}
    if events is not None:
        says = f"{says} As JSON or as events, whichever `Accept` prefers."
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": says, "content": content}


def _headers(one: Operation) -> Json:
    named = {name: {"description": _HEADERS[name], "schema": {"type": "string"}} for name in one.headers}
    return {"headers": named} if named else {}


def _schema(kind: Any) -> Json:
    return {"type": "object"} if kind is Any else {"$ref": f"{SCHEMAS}{kind.__name__}"}


def _sent_image(agents: Sequence[HostedAgent], image: Json) -> Json:
    """An image or a PDF of a type that the model of any running agent accepts."""
    types = sorted({kind for agent in agents if agent.model is not None for kind in agent.model.attachment_types})
    if not types:
        return image
    data, name = image["properties"]["data"], {"name": image["properties"]["name"]}
    by_type = {kind: {**data, "pattern": BASE64_PATTERNS.get(kind, data["pattern"])} for kind in types}
    return {
        "anyOf": [
            {**image, "properties": {"data": data, "mime_type": {"const": kind}, **(name if kind == PDF else {})}}
            for kind, data in by_type.items()
        ]
    }


def _params(agents: Sequence[HostedAgent]) -> Json:
    """The parameters of all agents; `GET /api/v1/agents/{name}` has those of one agent."""
    schemas = [schema for agent in agents if (schema := params_schema(agent.settings)) is not None]
    properties = {name: schema for one in schemas for name, schema in one["properties"].items()}
    return {
        "type": "object",
        "description": "Parameters of this one call. Which of them an agent takes, its own `params` says.",
        "properties": properties,
        "additionalProperties": False,
    }
