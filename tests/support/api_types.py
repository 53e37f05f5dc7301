"""Answers of `/v1` against the types of OpenAI's own package, strictly.

All answers of the gateways that are served in this process pass `checked_openai`. A test in which one does not fit
fails, as by `protocol_messages`. Members that the package does not name are allowed: clients skip them.
"""

import json
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tests.support.asgi import Message, Receive, Scope, Send
from tests.support.protocol_messages import MISFITS

type App = Callable[[Any, Scope, Receive, Send], Awaitable[None]]


_adapter = cache(TypeAdapter)  # 50 ms for the union of all events, of which a stream has many


def _misfits(type_: Any, value: Any) -> list[str]:
    try:
        _adapter(type_).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        return [f"{getattr(type_, '__name__', type_)}: {error!s:.500}"]
    return []


def misfits_of_answer(path: str, document: dict[str, Any]) -> list[str]:
    """Return what of a body or an event of `/v1` does not fit OpenAI's types."""
    from openai.types import ErrorObject, Model  # noqa: PLC0415
    from openai.types.chat import ChatCompletion, ChatCompletionChunk  # noqa: PLC0415
    from openai.types.responses import Response, ResponseStreamEvent  # noqa: PLC0415

    if document.get("error") and "object" not in document:
        return _misfits(ErrorObject, document["error"])
    if path.endswith("/chat/completions"):
        is_chunk = document.get("object") == "chat.completion.chunk"
        return _misfits(ChatCompletionChunk if is_chunk else ChatCompletion, document)
    if path.endswith("/responses"):
        return _misfits(Response if "object" in document else ResponseStreamEvent, document)
    return _misfits(list[Model], document["data"]) if "data" in document else _misfits(Model, document)


def checked_openai(app: App) -> App:
    """Return the ASGI app of `/v1`, whose answers are checked when they have been sent."""

    async def checked(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        sent = bytearray()

        async def listen(message: Message) -> None:
            sent.extend(message.get("body", b""))
            await send(message)

        try:
            await app(self, scope, receive, listen)
        finally:
            for text in _bodies(sent.decode(errors="replace")):
                MISFITS.note(f"answer of {scope['path']}", misfits_of_answer(scope["path"], text))

    return checked


def _bodies(sent: str) -> list[dict[str, Any]]:
    texts = [sent] if sent.startswith("{") else [line[5:] for line in sent.splitlines() if line.startswith("data: {")]
    found = []
    for text in texts:
        try:
            found.append(json.loads(text))
        except ValueError:
            continue  # cut off: the client has left
    return found
