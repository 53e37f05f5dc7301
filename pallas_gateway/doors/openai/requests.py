"""The body of a request as the parts of a call: of chat completions, and what responses share. Strict. Pure.

Fields are used, refused (if the answer would lack their effect) or, like `user` and `store`, ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls import parameters
from pallas_gateway.calls.call import Message
from pallas_gateway.calls.conversation import (
    MalformedError,
    checked_images,
    conversation_id_of,
    is_text,
    refuse_more_than,
)
from pallas_gateway.doors.openai.errors import BadRequestError
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.calls.call import Image
    from pallas_gateway.calls.parameters import Parameters
    from pallas_gateway.config.model.agents import AgentSettings
    from pallas_gateway.tasks import Parts

type Json = dict[str, Any]

OWN_TOOLS = "an agent has tools of its own and calls them itself"
_ONE_TEXT = "an agent gives one answer, as text"
type Refused = Mapping[str, tuple[Callable[[Any], bool], str]]
"""Fields that are refused if the test of their value is true, with the reason."""
REFUSED: Refused = {
    "function_call": (lambda value: value not in (None, "auto", "none"), OWN_TOOLS),
    "web_search_options": (lambda value: value is not None, OWN_TOOLS),
    "n": (lambda value: value not in (None, 1), _ONE_TEXT),
    "audio": (lambda value: value is not None, _ONE_TEXT),
    "modalities": (lambda value: value not in (None, [], ["text"]), _ONE_TEXT),
    "logprobs": (bool, _ONE_TEXT),
    "top_logprobs": (bool, _ONE_TEXT),
    "logit_bias": (bool, "an agent does not show its model's tokens"),
}
_CLIENTS_TOOLS = ("tools", "functions")
"""Tools of the client, which are ignored, because chat UIs send them with every message and do not need their calls."""
_SAME = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed", "stop")
SAME_NAMES = {name: name for name in _SAME}
"""Parameters that both APIs call as the gateway does."""
_KINDS = {bool: "true or false", dict: "an object", str: "a text"}
_SAYS_NOTHING: Mapping[str, object] = {"tool_choice": "auto", "response_format": {"type": "text"}, "stop": []}
"""Values that equal the behaviour without the field; some clients always send them."""
_TEXTS = ("text", "input_text", "output_text", "refusal")
_ATTACHED = ("image_url", "input_image", "file", "input_file")


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A parsed request.

    `ignored` are fields without effect. `names` are the API's names of parameters. `echo` are fields that the answer
    repeats.
    """

    message: Message
    history: tuple[Message, ...]
    parameters: Parameters
    ignored: tuple[str, ...]
    names: Mapping[str, str]
    include_usage: bool = False
    echo: Json = field(default_factory=dict)


def document_of(body: bytes) -> tuple[Json, str]:
    """Return the body as JSON, and its model.

    Raises:
        BadRequestError: it is not a JSON object, or has no model.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequestError("The body is not valid JSON.") from None
    if not isinstance(document, dict):
        raise BadRequestError("The body must be a JSON object.")
    name = document.get("model")
    if not isinstance(name, str) or not is_text(name):
        raise BadRequestError("'model' is required: the name of an agent, as GET /v1/models lists them.", param="model")
    return document, name


def conversation_of(document: Json) -> str | None:
    """Return `metadata.conversation_id`, which names the conversation in the log; None if missing or invalid."""
    metadata = document.get("metadata")
    return conversation_id_of(metadata) if isinstance(metadata, dict) else None


def chat_request(document: Json, settings: AgentSettings, *, max_entries: int) -> Parts[AgentRequest]:
    """Parse a chat completion of an agent with these settings; its messages may have `max_entries` parts.

    Raises:
        BadRequestError: `bad_input`, `bad_image` or `bad_params`.
    """
    refuse(document, REFUSED)
    ignored = tuple(name for name in _CLIENTS_TOOLS if document.get(name))
    if ignored and document.get("tool_choice") not in (None, "auto", "none"):
        why = f"'tool_choice' cannot require one of '{ignored[0]}'"
        raise BadRequestError(f"{why}: {OWN_TOOLS}. Leave out '{ignored[0]}'.", param=ignored[0])
    turns, system = yield from conversation(document.get("messages"), "messages", max_entries)
    match document.get("response_format"):
        case {"type": "json_schema", "json_schema": dict(schema)}:
            refuse_incomplete(schema, "response_format.json_schema")
    is_older = document.get("max_completion_tokens") is None and document.get("max_tokens") is not None
    limit = "max_tokens" if is_older else "max_completion_tokens"
    names = {**SAME_NAMES, "response_format": "response_format", "tool_choice": "tool_choice", "max_tokens": limit}
    given = {name: document.get(field) for name, field in names.items()}
    asked = parameters_of(given, system, settings, names)
    include_usage = value_in(value_in(document, "stream_options", dict) or {}, "include_usage", bool)
    return AgentRequest(turns[-1], tuple(turns[:-1]), asked, ignored, names, include_usage=bool(include_usage))


def refuse(document: Json, fields: Refused) -> None:
    """Raise the `BadRequestError` of the first field with a value that cannot be served."""
    for name, (asks, why) in fields.items():
        if asks(document.get(name)):
            raise BadRequestError(f"'{name}' is not supported: {why}.", param=name)


def wants_json(asked: Parameters, settings: AgentSettings) -> bool:
    """Return true if the answer has another format than text: a program reads it, so it is the final text only."""
    wanted = parameters.resolved(asked, settings.default_params).response_format
    return wanted is not None and wanted["type"] != "text"


def refuse_incomplete(schema: Json, place: str) -> None:
    """Raise the `BadRequestError` of a format by schema that lacks its name or the schema; OpenAI requires the name."""
    for key, kind in (("name", str), ("schema", dict)):
        if not isinstance(schema.get(key), kind):
            why = f"'{place}.{key}' is required: {_KINDS[kind]}."
            raise BadRequestError(why, param=f"{place}.{key}", reason="bad_params")


def conversation(messages: object, name: str, max_entries: int) -> Parts[tuple[list[Message], dict[str, str]]]:
    """Return the turns, of which the last is the user's new one, and the system texts by their places.

    Tool calls and results of earlier turns are left out: they belong to tools of the client or of another model.
    """
    if not isinstance(messages, list) or not messages:
        raise BadRequestError(f"'{name}' is required: at least one message.", param=name)
    _refuse_too_many(messages, name, max_entries)
    turns: list[Message] = []
    system: dict[str, str] = {}
    last = ""
    for index, row in enumerate(messages):
        where = f"{name}[{index}]"
        role = _role(row, where)
        if role in ("system", "developer"):
            system[f"{where}.content"] = text_at(row.get("content"), f"{where}.content")
            continue
        last = role
        yield
        if role == "user":
            turns.append((yield from _user_turn(row, where)))
        elif role == "assistant" and (text := _assistant_text(row, where)):
            turns.append(Message("assistant", text))
    if last != "user":
        raise BadRequestError("The last message must be the user's: it is what the agent answers.", param=name)
    return turns, system


def _refuse_too_many(messages: Sequence[object], name: str, most: int) -> None:
    parts = (row.get("content") if isinstance(row, dict) else None for row in messages)
    entries = sum(max(1, len(part)) if isinstance(part, list) else 1 for part in parts)
    try:
        refuse_more_than(most, entries, "messages and parts of them")
    except CallRefusedError as refusal:
        raise BadRequestError(str(refusal), param=name) from refusal


def _role(row: object, where: str) -> str:
    role = row.get("role") if isinstance(row, dict) else None
    if role not in ("system", "developer", "user", "assistant", "tool", "function"):
        why = f"{where} must be an object whose role is system, developer, user or assistant."
        raise BadRequestError(why, param=f"{where}.role")
    return str(role)


def _user_turn(row: Json, where: str) -> Parts[Message]:
    content, where = row.get("content"), f"{where}.content"
    if not isinstance(content, list):
        return Message("user", text_at(content, where))
    text = text_at([part for part in content if not _is_attached(part)], where)
    return Message("user", text, (yield from _images([part for part in content if _is_attached(part)], where)))


def _assistant_text(row: Json, where: str) -> str:
    content = row.get("content")
    return "" if content is None else text_at(content, f"{where}.content")


def text_at(content: object, where: str) -> str:
    """Return the text of a content: a string, or a list of parts."""
    if isinstance(content, list):
        return "\n".join(_text_of_part(part, where) for part in content)
    if not isinstance(content, str):
        raise BadRequestError(f"{where} must be a string or a list of parts.", param=where)
    if not is_text(content):
        raise BadRequestError(f"{where} holds half a surrogate pair; send whole text.", param=where)
    return content


def _text_of_part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in _TEXTS:
        taken = "messages consist of texts, those of the user also of images and files"
        raise BadRequestError(f"{where} holds a part of type {quoted(kind)}; {taken}.", param=where)
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise BadRequestError(f"{where} holds a part without its text.", param=where)
    return text_at(text, where)


def _is_attached(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in _ATTACHED


def _images(parts: Sequence[Json], where: str) -> Parts[tuple[Image, ...]]:
    try:
        return (yield from checked_images([_attached(part, where) for part in parts]))
    except MalformedError as error:
        raise BadRequestError(f"{where}: {error}.", param=where, reason="bad_image") from error


def _attached(part: Json, where: str) -> Json:
    """Return an image or a PDF in the form of `send_message`."""
    if part["type"] in ("image_url", "input_image"):
        image = part.get("image_url")
        what = "an image must be a data URI, data:image/png;base64,…; the gateway fetches no images from elsewhere"
        return _data_uri(image.get("url") if isinstance(image, dict) else image, what, where)
    file = part.get("file") if part["type"] == "file" else part
    file = file if isinstance(file, dict) else {}
    what = "a file must be a PDF in its file_data, data:application/pdf;base64,…; the gateway stores no files"
    name = file.get("filename")
    return {**_data_uri(file.get("file_data"), what, where), "name": "" if name is None else name}


def _data_uri(url: object, what: str, where: str) -> Json:
    """Return the data and the type of a URI. URLs are refused: callers must not reach hosts by the gateway."""
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    mime_type, _, encoding = head.removeprefix("data:").partition(";")
    if not comma or not head.startswith("data:") or not encoding.endswith("base64"):
        raise BadRequestError(f"{where}: {what}.", param=where, reason="bad_image")
    return {"data": data, "mime_type": mime_type}


def parameters_of(given: Json, system: Json, settings: AgentSettings, names: Mapping[str, str]) -> Parameters:
    """Return the parameters of a call; `names` are the fields of parameters, `system` texts by their places.

    Raises:
        BadRequestError: `bad_params`.
    """
    asked = {name: value for name, value in given.items() if value is not None and value != _SAYS_NOTHING.get(name)}
    if texts := {place: text for place, text in system.items() if text}:
        if "system_append" not in settings.caller_params.allowed:
            why = "This agent takes no instructions, system or developer messages: its operator instructs it."
            raise BadRequestError(f"{why} Leave them out.", param=next(iter(texts)), reason="bad_params")
        asked["system_append"] = "\n\n".join(texts.values())
    try:
        return parameters.parse(asked, settings)
    except parameters.BadParametersError as refusal:
        param = names.get(refusal.parameter or "", refusal.parameter)
        raise BadRequestError(refusal.renamed(names), param=param, reason=refusal.reason) from refusal


def value_in(document: Json, name: str, kind: type) -> Any:
    """Return a field that is null or of a kind of `_KINDS`."""
    value = document.get(name)
    if not isinstance(value, kind | None):
        raise BadRequestError(f"'{name}' must be {_KINDS[kind]}.", param=name)
    return value
