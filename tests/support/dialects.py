"""A model that speaks three protocols: chat completions, OpenAI's responses and Anthropic's messages, all streamed.

It says what its script tells it to, the same in each, and keeps what it was asked.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.support.asgi import (
    Receive,
    Scope,
    Send,
    end_body,
    headers_of,
    http_only,
    read_body,
    respond_json,
    send_part,
    start_response,
)
from tests.support.listener import serve_app
from tests.support.provider_requests import to_provider
from tests.support.providers.anthropic import Anthropic
from tests.support.providers.chat import Chat
from tests.support.providers.provider import Dialect
from tests.support.providers.responses import Responses
from tests.support.scripted_llm import Json, Say

ANSWER = "heard"


@dataclass(frozen=True)
class Asked:
    """One request: the protocol's last part of the path (`completions`, `responses`, `messages`), and its body."""

    protocol: str
    path: str
    body: Json

    @property
    def instruction(self) -> str:
        """The system prompt, wherever the protocol has it."""
        said = self.body.get("system") or self.body.get("instructions") or self.body.get("messages", [{}])[0]
        return json.dumps(said)


type Script = Callable[[Asked], str]


def _always_the_same(_: Asked) -> str:
    return ANSWER


class PolyglotLlm:
    """The model, an ASGI app that answers below any path; `base_url` is without a path."""

    def __init__(self, script: Script = _always_the_same) -> None:
        self.base_url = ""
        self.script = script
        self.asked: list[Asked] = []

    def at(self, place: str) -> list[Asked]:
        return [one for one in self.asked if one.path.startswith(f"/{place}/")]

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":  # lists of models, and pages that clients look at first
            await respond_json(send, 200, {"object": "list", "data": []})
        else:
            protocol = scope["path"].rsplit("/", 1)[-1]
            body = json.loads(await read_body(receive))
            self.asked.append(asked := Asked(protocol, scope["path"], body))
            to_provider(scope["path"], body)
            dialect, turn = _DIALECTS[protocol], Say((self.script(asked),))
            request = dialect.request_class(len(self.asked), body, headers_of(scope), scope["path"])
            await start_response(send, 200, content_type=dialect.content_type)
            await send_part(send, dialect.opening(turn, request) + dialect.piece(turn.pieces[0]))
            await send_part(send, dialect.ending(turn, request))
            await end_body(send)


@asynccontextmanager
async def polyglot_llm(script: Script = _always_the_same) -> AsyncGenerator[PolyglotLlm]:
    llm = PolyglotLlm(script)
    async with serve_app(llm) as listener:
        llm.base_url = listener.base_url
        yield llm


_DIALECTS: dict[str, Dialect] = {"completions": Chat(), "messages": Anthropic(), "responses": Responses()}
