"""The OpenAPI document of `/api/v1`. It is exact, so that clients can be generated from it.

Format: OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1.html), whose schemas are JSON Schema 2020-12.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway import __version__
from pallas_gateway.calls.image_bytes import BASE64_PATTERNS
from pallas_gateway.calls.parameters import params_schema
from pallas_gateway.telemetry.metrics import STATES
from pallas_gateway.web.threads.requests import (
    CURSOR,
    DEFAULT_LIMIT,
    LAST_TURN,
    LONGEST_TITLE,
    MOST,
    MOST_ANSWERS,
    THREAD_ID,
)
from pallas_gateway.web.threads.schema_parts import event, list_of, object_of, one_of, or_null, ref

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.agents.hosted_agent import HostedAgent

type Json = dict[str, Any]

_STRING: Json = {"type": "string"}
_MAYBE_STRING: Json = {"type": ["string", "null"]}
_TEXT: Json = {"type": "string", "pattern": r"^[^\u0000]*$"}
_TIME: Json = {"type": "string", "format": "date-time"}
_NULL: Json = {"type": "null"}


def document(agents: Sequence[HostedAgent]) -> Json:
    """The document for a caller who may view `agents`; they decide the types of images and the `params`."""
    schemas = {**_SCHEMAS, "SentImage": _sent_image(agents), "Params": _params(agents)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pallas Gateway: threads", "version": __version__},
        "paths": _PATHS,
        "components": {"schemas": schemas, "securitySchemes": _SECURITY},
        "security": [{}, {"bearer": []}],
    }


def _sent_image(agents: Sequence[HostedAgent]) -> Json:
    """An image of a type that the model of any running agent accepts."""
    types = sorted({kind for agent in agents if agent.model is not None for kind in agent.model.image_types})
    if not types:
        return _image({"type": "string", "pattern": _IMAGE_TYPE})
    return {"anyOf": [_image({"const": kind}, BASE64_PATTERNS.get(kind, _BASE64)) for kind in types]}


def _params(agents: Sequence[HostedAgent]) -> Json:
    """The parameters of all agents; `GET /api/v1/agents/{name}` has those of one agent."""
    schemas = [schema for agent in agents if (schema := params_schema(agent.settings)) is not None]
    properties = {name: schema for one in schemas for name, schema in one["properties"].items()}
    return {
        "type": ["object", "null"],
        "description": "Parameters of this one call. Which of them an agent takes, its own `params` says.",
        "properties": properties,
        "additionalProperties": False,
    }


_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$"


def _image(mime_type: Json, pattern: str = _BASE64) -> Json:
    data = {"type": "string", "description": "Base64.", "minLength": 4, "pattern": pattern}
    return object_of({"data": data, "mime_type": mime_type})


_IMAGE_TYPE = r"^image/[a-z0-9.+-]{1,60}$"
_PLACE: Json = {"threadId": ref("ThreadId"), "turnIndex": ref("TurnIndex")}
_ANSWER: Json = {
    **_PLACE,
    "content": {"type": "string", "description": "The text of the answer."},
    "images": list_of(ref("Image")),
    "stopReason": _STRING,
    "usage": ref("Usage"),
    "callId": {"type": "string", "description": "The call in the gateway's log."},
    "params": {"type": "object", "description": "Parameters that were `ignored`, or `changed` and to what."},
    "turnsLeftOut": {"type": "integer", "minimum": 1, "description": "Oldest turns that the model was not sent."},
    "questions": {
        **list_of(ref("Question")),
        "description": "With the stopReason `input_needed`: what the agent asks.",
    },
}
_NOT_ALWAYS = ("params", "turnsLeftOut", "questions")
_QUESTION: Json = {
    "id": {"type": "string", "description": "Names the question in an answer."},
    "agent": {"type": "string", "description": "The agent in whose work the question arose."},
    "callPath": {
        **list_of(_STRING),
        "description": "Ids of the tool calls that lead to that agent, the innermost first; empty for the called one.",
    },
    "kind": one_of("form", "url", "approval", "human_input"),
    "mode": one_of("form", "url"),
    "message": {"type": "string", "description": "Begins with the name of the server or agent that asks."},
    "schema": {"type": "object", "description": "JSON Schema of the form to fill in; only with mode `form`."},
    "url": {"type": "string", "description": "The page to open; only with mode `url`."},
}
_EITHER = ("schema", "url")
_SCHEMAS: Json = {
    "ThreadId": {"type": "string", "pattern": f"^{THREAD_ID.pattern}$"},
    "TurnIndex": {"type": "integer", "minimum": 1, "description": "Counts the turns of a thread, without gaps."},
    "Image": _image({"type": "string", "pattern": _IMAGE_TYPE}),
    "Usage": {"type": "object", "additionalProperties": {"type": "integer"}, "description": "Tokens by kind."},
    "Agent": object_of({"name": _STRING, "title": _STRING, "description": _STRING, "state": one_of(*STATES)}),
    "WholeAgent": {
        "allOf": [
            ref("Agent"),
            object_of({"params": {"type": ["object", "null"], "description": "JSON Schema of a chat's `params`."}}),
        ]
    },
    "Agents": object_of({"agents": list_of(ref("Agent"))}),
    "NewThread": object_of(
        {"title": {"anyOf": [{**_TEXT, "maxLength": LONGEST_TITLE}, _NULL]}}, optional=("title",), closed=True
    ),
    "Thread": object_of(
        {
            "id": ref("ThreadId"),
            "agent": _STRING,
            "title": _MAYBE_STRING,
            "createdAt": _TIME,
            "updatedAt": _TIME,
            "turns": {"type": "integer", "minimum": 0, "description": "The number of its latest turn."},
        }
    ),
    "Threads": object_of({"threads": list_of(ref("Thread")), "nextCursor": _MAYBE_STRING}),
    "Message": object_of(
        {
            "turnIndex": ref("TurnIndex"),
            "role": one_of("user", "assistant"),
            "status": one_of("pending", "asking", "complete", "error"),
            "createdAt": or_null(_TIME),
            "content": {"type": ["string", "null"], "description": "null of an answer that is not there (yet)."},
            "images": list_of(ref("Image")),
            "callId": _STRING,
            "stopReason": _MAYBE_STRING,
            "usage": or_null(ref("Usage")),
            "error": or_null(object_of({"reason": _STRING, "message": _MAYBE_STRING})),
            "questions": {**list_of(ref("Question")), "description": "The open ones of a turn that is `asking`."},
        },
        optional=("callId", "stopReason", "usage", "error", "questions"),
    ),
    "Messages": object_of({"messages": list_of(ref("Message")), "nextAfter": {"type": ["integer", "null"]}}),
    "ChatRequest": object_of(
        {
            "message": {**_TEXT, "description": "The new user turn."},
            "threadId": {"anyOf": [ref("ThreadId"), _NULL], "description": "Without one, a new thread begins."},
            "images": {
                "anyOf": [list_of(ref("SentImage")), _NULL],
                "description": "For agents whose model takes them.",
            },
            "params": ref("Params"),
        },
        optional=("threadId", "images", "params"),
        closed=True,
    ),
    "Answer": object_of(_ANSWER, optional=_NOT_ALWAYS),
    "Question": object_of(_QUESTION, optional=_EITHER),
    "GivenAnswers": object_of(
        {
            "answers": {
                "type": "object",
                "maxProperties": MOST_ANSWERS,
                "description": "Answers by the ids of their questions; none to go on with the turn.",
                "propertyNames": _TEXT,
                "additionalProperties": object_of(
                    {
                        "action": one_of("accept", "decline", "cancel"),
                        "content": {"type": ["object", "null"], "description": "The form, if it is accepted."},
                    },
                    optional=("content",),
                    closed=True,
                ),
            }
        },
        closed=True,
    ),
    "Event": {
        "description": "The data of one server-sent event; after the last one comes `[DONE]`. A client that reads "
        "slowly may miss `text`, `tool_call` and `tool_result`; `final` has the whole answer.",
        "oneOf": [
            event("thread", _PLACE),
            event("text", {"delta": _STRING}),
            event("tool_call", {"id": _STRING, "toolName": _STRING, "args": {"type": "object"}}),
            event("tool_result", {"id": _STRING, "toolName": _STRING, "ok": {"type": "boolean"}}),
            event("question", _QUESTION, optional=_EITHER),
            event("answer", {"id": _STRING, "action": one_of("accept", "decline", "cancel")}),
            event("final", _ANSWER, optional=_NOT_ALWAYS),
            event("error", {"message": _STRING, "reason": _STRING, **_PLACE}, optional=tuple(_PLACE)),
        ],
    },
    "Error": object_of(
        {
            "error": {"type": "string", "description": "One word that says why."},
            "error_description": {"type": "string", "description": "A sentence for people."},
            **_PLACE,
        },
        optional=tuple(_PLACE),
    ),
}
_SECURITY: Json = {"bearer": {"type": "http", "scheme": "bearer", "description": "Where `gateway.auth` asks for one."}}
_WHY: dict[str, str] = {
    "400": "The request is malformed; says how.",
    "401": "A bearer token is needed, or this one is not accepted.",
    "403": "The token does not allow this, or the Origin is not one that may call.",
    "404": "There is no such thing for this caller.",
    "405": "Another method is wanted.",
    "406": "Nothing that is accepted can be answered.",
    "409": "Another message of the thread is being answered, or has taken it over; try again.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "421": "The Host is not one that this gateway answers to.",
    "422": "The agent's model cannot take this, or an answer does not fit its question.",
    "502": "The agent could not answer.",
    "503": "Busy, stopping, or the agent or the database cannot be used now; try again.",
    "504": "The model did not answer in time.",
}
_ALWAYS = ("400", "401", "403", "404", "405", "421", "503")


def _operation(name: str, summary: str, status: str, what: str, content: Json, *more: str, **others: Any) -> Json:
    """An operation whose errors are those of `_ALWAYS` and `more`."""
    shown = _json("Error")
    failures = {code: {"description": _WHY[code], "content": shown} for code in sorted({*_ALWAYS, *more})}
    responses = {status: {"description": what, "content": content}, **failures}
    return {"operationId": name, "summary": summary, **others, "responses": responses}


def _json(name: str) -> Json:
    return {"application/json": {"schema": ref(name)}}


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


_NAME: Json = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_ID: Json = {"name": "id", "in": "path", "required": True, "schema": ref("ThreadId")}
_LIMIT = _query(
    "limit", {"type": "integer", "minimum": 1, "maximum": MOST, "default": DEFAULT_LIMIT}, "Entries of one page."
)
_CURSOR = _query("cursor", {"type": "string", "pattern": f"^{CURSOR.pattern}$"}, "`nextCursor` of the page before.")
_AFTER = _query(
    "after", {"type": "integer", "minimum": 0, "maximum": LAST_TURN, "default": 0}, "`nextAfter` of the page before."
)
_PATHS: Json = {
    "/api/v1/agents": {
        "get": _operation("listAgents", "The agents that the caller may see.", "200", "All of them.", _json("Agents"))
    },
    "/api/v1/agents/{name}": {
        "parameters": [_NAME],
        "get": _operation(
            "getAgent",
            "One agent, with the schema of the parameters that its callers may set.",
            *("200", "The agent.", _json("WholeAgent")),
        ),
    },
    "/api/v1/agents/{name}/threads": {
        "parameters": [_NAME],
        "get": _operation(
            "listThreads",
            "The caller's threads with an agent, the one last changed first.",
            *("200", "One page.", _json("Threads")),
            parameters=[_LIMIT, _CURSOR],
        ),
        "post": _operation(
            *("createThread", "A new thread.", "201", "The thread.", _json("Thread"), "413", "415"),
            requestBody={"required": False, "content": _json("NewThread")},
        ),
    },
    "/api/v1/agents/{name}/chat": {
        "parameters": [_NAME],
        "post": _operation(
            "chat",
            "Say something to an agent, in a thread or in a new one.",
            "200",
            "The answer, as JSON or as events, whichever is preferred by Accept.",
            {**_json("Answer"), "text/event-stream": {"schema": _STRING}},
            *("406", "409", "413", "415", "422", "502", "504"),
            requestBody={"required": True, "content": _json("ChatRequest")},
        ),
    },
    "/api/v1/threads/{id}/answers": {
        "parameters": [_ID],
        "post": _operation(
            "giveAnswers",
            "Answer questions of the thread's latest turn, and go on with it.",
            "200",
            "The answer of the agent or its next questions, as JSON or as events, whichever is preferred by Accept.",
            {**_json("Answer"), "text/event-stream": {"schema": _STRING}},
            *("406", "409", "413", "415", "422", "502", "504"),
            requestBody={"required": True, "content": _json("GivenAnswers")},
        ),
    },
    "/api/v1/threads/{id}/messages": {
        "parameters": [_ID],
        "get": _operation(
            "listMessages",
            "What was said in a thread, of each turn the question and its answer, the oldest first.",
            *("200", "One page.", _json("Messages")),
            parameters=[{**_LIMIT, "description": "Turns of one page, which has fewer if they are large."}, _AFTER],
        ),
    },
}
