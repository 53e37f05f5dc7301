"""`POST /v1/responses`: its request as the parts of a call, and the response with its events. Pure.

Stateless: nothing is stored, and fields that refer to something stored are refused. Format: OpenAI's API reference and
the Open Responses specification, which requires every field of the response.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from pallas_gateway.config.model.parameters import Integer
from pallas_gateway.doors.openai.answers import finish_reason, notes, usage
from pallas_gateway.doors.openai.errors import BadRequestError
from pallas_gateway.doors.openai.requests import (
    OWN_TOOLS,
    REFUSED,
    SAME_NAMES,
    AgentRequest,
    Refused,
    conversation,
    parameters_of,
    refuse,
    refuse_incomplete,
    text_at,
    value_in,
)
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from pallas_gateway.calls.call import Reply
    from pallas_gateway.config.model.agents import AgentSettings
    from pallas_gateway.doors.openai.errors import OpenAiError
    from pallas_gateway.tasks import Parts

type Json = dict[str, Any]
type _Name = Annotated[str, Field(max_length=512)]

_STATELESS = "the gateway keeps no responses; send the whole conversation as 'input'"
_MOVED = {
    "messages": "input", "response_format": "text.format",
    "max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens",
}  # fmt: skip
"""Fields of chat completions with their names in this API."""
_REFUSED: Refused = {
    **REFUSED,
    **{name: (lambda value: value is not None, f"in this API it is '{here}'") for name, here in _MOVED.items()},
    "previous_response_id": (lambda value: value is not None, _STATELESS),
    "conversation": (lambda value: value is not None, _STATELESS),
    "prompt": (lambda value: value is not None, "the gateway keeps no prompts; send 'instructions' and 'input'"),
    "background": (bool, "a response is answered at once; use 'stream' for long calls"),
    "tool_choice": (lambda value: value not in (None, "auto", "none"), OWN_TOOLS),
}
_UNUSED = ("tools", "functions", "max_tool_calls", "reasoning_effort")
_OTHER_NAMES = {"max_tokens": "max_output_tokens", "response_format": "text.format", "system_append": "instructions"}
_NAMES = {**SAME_NAMES, **_OTHER_NAMES}
_LEFT_OUT = re.compile(r"reasoning|mcp_.*|.*_call|.*_output")
"""Types of items that tell of tools and thoughts of earlier turns."""


class _Repeated(BaseModel, strict=True, allow_inf_nan=False):
    """Fields of the request that the response repeats, with OpenAI's defaults and limits."""

    instructions: str | None = None
    max_output_tokens: Integer | None = None
    max_tool_calls: Integer | None = None
    metadata: Annotated[dict[Annotated[str, Field(max_length=64)], _Name], Field(max_length=16)] = {}
    parallel_tool_calls: bool = True
    prompt_cache_key: _Name | None = None
    safety_identifier: _Name | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    tool_choice: str = "auto"
    user: _Name | None = None


_CONSTANT: Json = {
    "background": False,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": False,
    "tools": [],
    "top_logprobs": 0,
    "truncation": "disabled",
}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response_request(document: Json, settings: AgentSettings, *, max_entries: int) -> Parts[AgentRequest]:
    """Parse a request to an agent with these settings; its input may have `max_entries` parts.

    Raises:
        BadRequestError: `bad_input`, `bad_image` or `bad_params`.
    """
    refuse(document, _REFUSED)
    instructions = text_at(value_in(document, "instructions", str) or "", "instructions")
    turns, system = yield from conversation(_rows(document.get("input")), "input", max_entries)
    format_ = (value_in(document, "text", dict) or {}).get("format")
    given = {
        **{name: document.get(name) for name in (*SAME_NAMES, "tool_choice")},
        "max_tokens": document.get("max_output_tokens"),
        "response_format": _response_format(format_),
    }
    asked = parameters_of(given, {"instructions": instructions, **system}, settings, _NAMES)
    unused = {name: document.get(name) for name in _UNUSED}
    unused["reasoning.effort"] = (value_in(document, "reasoning", dict) or {}).get("effort")
    ignored = tuple(name for name, value in unused.items() if value)
    echo = {**_CONSTANT, **_echo(document), "text": {"format": format_ or {"type": "text"}}}
    return AgentRequest(turns[-1], tuple(turns[:-1]), asked, ignored, _NAMES, echo=echo)


def _echo(document: Json) -> Json:
    given = {name: value for name in _Repeated.model_fields if (value := document.get(name)) is not None}
    try:
        return _Repeated.model_validate(given).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(one) for one in first["loc"] if one != "[key]")
        raise BadRequestError(f"{quoted(where)} is not valid: {first['msg']}.", param=str(first["loc"][0])) from None


def _rows(given: object) -> object:
    """Return the input as messages. Calls of tools and their results stand there as a tool's, which is left out."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [_row(item, index) for index, item in enumerate(given)] if isinstance(given, list) else given


def _row(item: object, index: int) -> object:
    if not isinstance(item, dict) or (kind := item.get("type")) in (None, "message"):
        return item
    if isinstance(kind, str) and _LEFT_OUT.fullmatch(kind):
        return {"role": "tool"}
    why = f"is of type {quoted(kind)}; this takes messages"
    if kind == "item_reference":
        why = f"refers to a stored item, but {_STATELESS}, as clients do with store: false"
    raise BadRequestError(f"input[{index}] {why}.", param=f"input[{index}]")


def _response_format(asked: object) -> object:
    """Return a format as chat completions have it, with the schema in an object of its own."""
    if not isinstance(asked, dict) or asked.get("type") != "json_schema":
        return asked
    refuse_incomplete(asked, "text.format")
    return {"type": "json_schema", "json_schema": {name: value for name, value in asked.items() if name != "type"}}


@dataclass(slots=True)
class ResponseAnswers:
    """The bodies of one response: a single message with a single text; `created` is in seconds of the epoch."""

    call_id: str
    model: str
    created: int
    request: AgentRequest
    _texts: list[str] = field(default_factory=list)
    _sent: int = 0

    def whole(self, text: str, reply: Reply) -> Json:
        cut = _INCOMPLETE.get(finish_reason(reply))
        status = "incomplete" if cut else "completed"
        return {
            **self._response(status),
            "completed_at": None if cut else int(time()),
            "incomplete_details": {"reason": cut} if cut else None,
            "output": [self._message(status, [_part(text)])],
            "usage": usage(reply.usage, "input", "output"),
            **notes(reply, self.request),
        }

    def first(self) -> list[Json]:
        """Return the events before the first text."""
        added = self._message("in_progress", [])
        return [
            *self._begun(),
            self._event("output_item.added", output_index=0, item=added),
            self._of_text("content_part.added", part=_part("")),
        ]

    def more(self, text: str) -> Json:
        self._texts.append(text)
        return self._of_text("output_text.delta", delta=text, logprobs=[])

    def last(self, reply: Reply) -> list[Json]:
        """Return the events after the last text."""
        whole = self.whole("".join(self._texts), reply)
        message = whole["output"][0]
        part = message["content"][0]
        return [
            self._of_text("output_text.done", text=part["text"], logprobs=[]),
            self._of_text("content_part.done", part=part),
            self._event("output_item.done", output_index=0, item=message),
            self._event(whole["status"], response=whole),
        ]

    def failed(self, error: OpenAiError) -> list[Json]:
        """Return `response.failed`, after the first events; the text before it is no answer."""
        why = {"error": {"code": "server_error", "message": error.message}, "pallas": {"reason": error.code}}
        begun = [] if self._sent else self._begun()
        return [*begun, self._event("failed", response={**self._response("failed"), **why})]

    def _begun(self) -> list[Json]:
        return [self._event(kind, response=self._response("in_progress")) for kind in ("created", "in_progress")]

    def _of_text(self, kind: str, **fields: Any) -> Json:
        return self._event(kind, item_id=f"msg_{self.call_id}", output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Json:
        self._sent += 1
        return {"type": f"response.{kind}", "sequence_number": self._sent - 1, **fields}

    def _response(self, status: str) -> Json:
        return {
            "id": f"resp_{self.call_id}",
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": [],
            "usage": None,
            **self.request.echo,
        }

    def _message(self, status: str, content: list[Json]) -> Json:
        about = {"id": f"msg_{self.call_id}", "type": "message", "role": "assistant"}
        return {**about, "status": status, "content": content}


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
