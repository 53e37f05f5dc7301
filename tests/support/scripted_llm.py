"""An OpenAI-compatible chat-completions model that says what the test told it to.

Streamed and not, tool calls, usage, failures of every kind; it records what it was asked and who hung up on it.
It is no model of a model: it never looks at the tools or at the history unless the script does.
The package `providers` plays the same scripts in the wire formats of other providers.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from .asgi import (
    ClientGoneError,
    Receive,
    Scope,
    Send,
    end_body,
    headers_of,
    http_only,
    read_body,
    respond,
    respond_json,
    send_part,
    start_response,
    until_disconnect,
)
from .listener import serve_app
from .provider_requests import to_provider
from .waiting import WAIT_SECONDS, Changes, Gate

MODEL = "test-model"
CREATED = 1_700_000_000  # every answer is made at the same second, so equal scripts give equal bytes
PING_SECONDS = 0.05  # between two pings of a server that sends nothing else
Json = dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """What a turn claims to have cost. `prompt` includes `cached` and `written`, `completion` includes `reasoning`."""

    prompt: int = 10
    completion: int = 5
    cached: int | None = None
    reasoning: int | None = None
    written: int | None = None  # into the cache

    def as_json(self) -> Json:
        wire: Json = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }
        prompt = {"cached_tokens": self.cached, "cache_write_tokens": self.written}
        if details := {name: tokens for name, tokens in prompt.items() if tokens is not None}:
            wire["prompt_tokens_details"] = details
        if self.reasoning is not None:
            wire["completion_tokens_details"] = {"reasoning_tokens": self.reasoning}
        return wire


DEFAULT_USAGE = Usage()


@dataclass(frozen=True)
class LlmRequest:
    """One chat-completions request as it arrived. `number` counts from 1."""

    number: int
    body: Json
    headers: dict[str, str] = field(repr=False)
    path: str = ""

    @property
    def model(self) -> str:
        """The model name on the wire, without fast-agent's provider prefix."""
        return str(self.body.get("model"))

    @property
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def messages(self) -> list[Json]:
        """The conversation, system prompt included."""
        return list(self.body.get("messages") or [])

    @property
    def tools(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.body.get("tools") or []]

    @property
    def user_texts(self) -> list[str]:
        """Text of every user message, oldest first."""
        return [text_of(message) for message in self.messages if message["role"] == "user"]

    @property
    def last_user_text(self) -> str:
        """Text of the newest user message, or the empty string."""
        return self.user_texts[-1] if self.user_texts else ""

    @property
    def tool_results(self) -> dict[str, str]:
        return {m["tool_call_id"]: text_of(m) for m in self.messages if m["role"] == "tool"}

    @property
    def called(self) -> list[str]:
        """Names of the tools that the conversation has calls of, oldest first."""
        calls = (call for message in self.messages for call in message.get("tool_calls") or [])
        return [call["function"]["name"] for call in calls]

    @property
    def images(self) -> list[tuple[str, str]]:
        """MIME type and base64 of every image in the conversation, oldest first."""
        contents = (message["content"] for message in self.messages if isinstance(message.get("content"), list))
        parts = (part for content in contents for part in content if part["type"] == "image_url")
        return [image_of(part["image_url"]["url"]) for part in parts]

    @property
    def documents(self) -> list[tuple[str | None, str]]:
        """Name and base64 of every PDF in the conversation, oldest first; None for an API without names."""
        contents = (message["content"] for message in self.messages if isinstance(message.get("content"), list))
        files = (part["file"] for content in contents for part in content if part["type"] == "file")
        return [(one["filename"], base64_of_pdf(one["file_data"])) for one in files]

    @property
    def bearer(self) -> str | None:
        """The key or token the request was authorised with."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token if scheme.lower() == "bearer" else None


@dataclass(frozen=True)
class Say:
    """A finished answer; `pieces` are its streamed chunks, `gate` is entered before every piece but the first."""

    pieces: tuple[str, ...]
    finish_reason: str = "stop"
    usage: Usage | None = DEFAULT_USAGE
    gate: Gate | None = None


@dataclass(frozen=True)
class CallTools:
    """An answer that asks for tools; arguments are JSON text, which may be broken on purpose.

    `thinking` comes before, signed or encrypted where the provider's API does that; then there is no `text`.
    """

    calls: tuple[tuple[str, str], ...]
    text: str = ""
    usage: Usage | None = DEFAULT_USAGE
    thinking: str = ""


@dataclass(frozen=True)
class Reply:
    """Any HTTP response at all: failures and garbage. `pings` are sent after the body, again and again."""

    status: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    pings: bytes = b""


@dataclass(frozen=True)
class Cut:
    """The beginning of a streamed answer, then a closed connection."""

    pieces: tuple[str, ...]


@dataclass(frozen=True)
class EndEarly:
    """The beginning of a streamed answer and a properly ended body: what a proxy makes of a server that died."""

    pieces: tuple[str, ...]


@dataclass(frozen=True)
class ErrorEvent:
    """The beginning of a streamed answer, then the provider's own report of an error inside the stream."""

    pieces: tuple[str, ...]
    message: str


type Played = Say | CallTools | Reply | Cut | EndEarly | ErrorEvent


@dataclass(frozen=True)
class Hang:
    """Nothing until the gate lets it through, then `then`."""

    gate: Gate
    then: Played


type Turn = Played | Hang
Script = Callable[[LlmRequest], Turn]


def say(text: str, *, finish_reason: str = "stop", usage: Usage | None = DEFAULT_USAGE) -> Say:
    return Say((text,), finish_reason, usage)


def stream(pieces: Sequence[str], gate: Gate | None = None, *, usage: Usage | None = DEFAULT_USAGE) -> Say:
    """Answer piece by piece; with a `gate`, each piece but the first waits there (label `piece 2` and so on)."""
    return Say(tuple(pieces), usage=usage, gate=gate)


def call_tools(
    calls: Sequence[tuple[str, Mapping[str, Any] | str]],
    *,
    text: str = "",
    usage: Usage | None = DEFAULT_USAGE,
    thinking: str = "",
) -> CallTools:
    """Ask for tools, all at once; ids are `call_<request number>_<n>`. Arguments as a string go out as they are."""
    if text and thinking:
        raise ValueError("a turn has either a text or thinking")
    asked = tuple((name, args if isinstance(args, str) else json.dumps(args)) for name, args in calls)
    return CallTools(asked, text, usage, thinking)


def fail(status: int, body: object = None, *, headers: Mapping[str, str] | None = None) -> Reply:
    """Answer with an HTTP error; the body is OpenAI's error object unless given (a string goes out as it is)."""
    if body is None:
        body = {"error": {"message": f"scripted failure {status}", "type": "scripted", "code": status}}
    content = body if isinstance(body, str) else json.dumps(body)
    # The OpenAI client would otherwise retry 408, 409, 429 and 5xx after a pause.
    return Reply(status, content.encode(), "application/json", {"x-should-retry": "false", **(headers or {})})


def garbage() -> Reply:
    """200 with a page of HTML instead of an answer."""
    return Reply(200, b"<html><body>Please log in</body></html>", "text/html")


def broken_stream() -> Reply:
    """200 with server-sent events that hold no JSON."""
    return Reply(200, b"data: {not json\n\ndata: [DONE]\n\n", "text/event-stream")


def cut(pieces: Sequence[str] = ("once upon",)) -> Cut:
    return Cut(tuple(pieces))


def end_early(pieces: Sequence[str] = ("once upon",)) -> EndEarly:
    return EndEarly(tuple(pieces))


def error_event(message: str, pieces: Sequence[str] = ("once upon",)) -> ErrorEvent:
    return ErrorEvent(tuple(pieces), message)


def hang(gate: Gate, then: Played | None = None) -> Hang:
    """Say nothing until `gate` opens (label: the last user text), then `then` (default: `say("released")`)."""
    return Hang(gate, then if then is not None else say("released"))


def echo(request: LlmRequest) -> Turn:
    """The default script: every user text of the conversation, so anything foreign in it would show."""
    return say("heard: " + " | ".join(request.user_texts))


def in_order(turns: Sequence[Turn]) -> Script:
    """Play `turns` one per request; one request too many is an `AssertionError` (see `ScriptedLlm.surprises`)."""
    remaining = list(turns)

    def next_turn(request: LlmRequest) -> Turn:
        if not remaining:
            raise AssertionError(f"request {request.number} is one more than the {len(turns)} scripted")
        return remaining.pop(0)

    return next_turn


class ScriptedLlm:
    """The model, an ASGI app. Assign `script` at any time."""

    checks_requests = True  # against the types of the provider's package

    def __init__(self, script: Script | Sequence[Turn] = echo, *, models: Sequence[str] = (MODEL,)) -> None:
        """Play `script`; offer `models` at `GET /v1/models`."""
        self.base_url = ""  # with the /v1; set by `scripted_llm`
        self.script: Script = script if callable(script) else in_order(script)
        self.models = list(models)
        self.requests: list[LlmRequest] = []
        self.model_list_headers: list[dict[str, str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.aborted: list[LlmRequest] = []  # requests whose client hung up before the answer was whole
        self.surprises: list[str] = []  # what no script foresaw; `scripted_llm` fails the test for them
        self._changes = Changes()

    def restart(self, script: Script | Sequence[Turn]) -> None:
        self.script = script if callable(script) else in_order(script)
        self.requests, self.aborted, self.surprises = [], [], []

    async def wait_for_requests(self, count: int, timeout_seconds: float = WAIT_SECONDS) -> list[LlmRequest]:
        await self._until(lambda: len(self.requests) >= count, timeout_seconds, f"{count} LLM requests")
        return self.requests[:count]

    async def wait_for_aborted(self, count: int = 1, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Return once `count` clients have hung up mid-answer."""
        await self._until(lambda: len(self.aborted) >= count, timeout_seconds, f"{count} aborted LLM requests")

    async def wait_until_idle(self, timeout_seconds: float = WAIT_SECONDS) -> None:
        await self._until(lambda: self.in_flight == 0, timeout_seconds, "an idle LLM")

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_turn(scope):
            await self._chat(scope, receive, send)
        elif scope["method"] == "GET" and scope["path"].startswith("/v1/models"):
            self.model_list_headers.append(headers_of(scope))
            await self._models(scope["path"].removeprefix("/v1/models").strip("/"), send)
        else:
            self.surprises.append(f"{scope['method']} {scope['path']}")
            await respond_json(send, 404, {"error": {"message": f"no such path: {scope['path']}"}})

    def _is_turn(self, scope: Scope) -> bool:
        return (scope["method"], scope["path"]) == ("POST", "/v1/chat/completions")

    def _request_of(self, number: int, body: Json, scope: Scope) -> LlmRequest:
        return LlmRequest(number, body, headers_of(scope), scope["path"])

    async def _play(self, turn: Played, request: LlmRequest, send: Send) -> None:
        await _play(turn, request, send)

    async def _models(self, name: str, send: Send) -> None:
        entries = [{"id": m, "object": "model", "created": CREATED, "owned_by": "tests"} for m in self.models]
        if not name:
            await respond_json(send, 200, {"object": "list", "data": entries})
        elif name in self.models:
            await respond_json(send, 200, entries[self.models.index(name)])
        else:
            error = {"message": f"The model '{name}' does not exist", "code": "model_not_found"}
            await respond_json(send, 404, {"error": error})

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = json.loads(await read_body(receive))
        except ClientGoneError:
            return
        await self._serve(body, scope, receive, send)

    async def _serve(self, body: Json, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._request_of(len(self.requests) + 1, body, scope)
        self.requests.append(request)
        if self.checks_requests:
            to_provider(request.path, body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self._changes.announce()
        try:
            if not await _unless_gone(self._answer(request, send), receive):
                self.aborted.append(request)
        finally:
            self.in_flight -= 1
            self._changes.announce()

    async def _answer(self, request: LlmRequest, send: Send) -> None:
        try:
            turn = self.script(request)
        except Exception as error:  # noqa: BLE001  (a broken script is the test's mistake: told at the end, and now)
            self.surprises.append(f"{type(error).__name__}: {error}")
            turn = fail(500, {"error": {"message": f"the script failed: {error}"}})
        if isinstance(turn, Hang):
            await turn.gate.enter(request.last_user_text)
            turn = turn.then
        await self._play(turn, request, send)

    async def _until(self, predicate: Callable[[], object], timeout_seconds: float, what: str) -> None:
        await self._changes.until(predicate, timeout_seconds, what=f"{what} ({len(self.requests)} asked so far)")


@asynccontextmanager
async def scripted_llm(
    script: Script | Sequence[Turn] = echo, *, models: Sequence[str] = (MODEL,), port: int = 0
) -> AsyncGenerator[ScriptedLlm]:
    """Serve a `ScriptedLlm` at `llm.base_url`; afterwards fail if something was asked that no script foresaw."""
    llm = ScriptedLlm(script, models=models)
    async with serve_app(llm, port=port) as listener:
        llm.base_url = f"{listener.base_url}/v1"
        yield llm
    if llm.surprises:
        raise AssertionError("the scripted LLM was surprised: " + "; ".join(llm.surprises))


def text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if part.get("type") == "text")


def image_of(url: str) -> tuple[str, str]:
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return kind, data


def base64_of_pdf(url: str) -> str:
    kind, data = image_of(url)
    assert kind == "application/pdf"
    return data


async def _unless_gone(answer: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Run `answer`, stop it when the client leaves; whether it was finished."""
    answering = asyncio.create_task(answer)
    leaving = asyncio.create_task(until_disconnect(receive))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finished = answering.done()
    finally:
        answering.cancel()
        leaving.cancel()
        await asyncio.wait({answering, leaving})
    if finished:
        answering.result()
    return finished


async def _play(turn: Played, request: LlmRequest, send: Send) -> None:
    if isinstance(turn, Reply) and turn.pings:
        await start_response(send, turn.status, content_type=turn.content_type, headers=turn.headers)
        await send_part(send, turn.body)
        while True:  # until the client leaves
            await send_part(send, turn.pings)
            await asyncio.sleep(PING_SECONDS)
    elif isinstance(turn, Reply):
        await respond(send, turn.status, turn.body, content_type=turn.content_type, headers=turn.headers)
    elif request.is_streamed or isinstance(turn, (Cut, EndEarly, ErrorEvent)):
        await _play_stream(turn, request, send)
    else:
        await hold_at_gate(turn)
        await respond_json(send, 200, completion_of(turn, request))


async def hold_at_gate(turn: Say | CallTools) -> None:
    """Wait as long as the streamed pieces of `turn` would."""
    if isinstance(turn, Say) and turn.gate is not None:
        for number in range(2, len(turn.pieces) + 1):
            await turn.gate.enter(f"piece {number}")


async def _play_stream(turn: Say | CallTools | Cut | EndEarly | ErrorEvent, request: LlmRequest, send: Send) -> None:
    await start_response(send, 200, content_type="text/event-stream")
    for number, delta in enumerate(_deltas(turn, request), start=1):
        if isinstance(turn, Say) and turn.gate is not None and number > 1:
            await turn.gate.enter(f"piece {number}")
        await send_part(send, _event(_chunk(request, delta)))
    if isinstance(turn, Cut):
        return  # ending without the last body part makes Hypercorn drop the connection
    if isinstance(turn, EndEarly):
        await end_body(send)
        return
    if isinstance(turn, ErrorEvent):
        await send_part(send, _event({"error": {"message": turn.message, "type": "server_error", "code": None}}))
        await end_body(send)
        return
    await send_part(send, _event(_chunk(request, {}, finish_reason=_finish_reason(turn))))
    if turn.usage is not None and (request.body.get("stream_options") or {}).get("include_usage"):
        await send_part(send, _event({**_envelope(request, "chunk"), "choices": [], "usage": turn.usage.as_json()}))
    await send_part(send, "data: [DONE]\n\n")
    await end_body(send)


def _deltas(turn: Say | CallTools | Cut | EndEarly | ErrorEvent, request: LlmRequest) -> list[Json]:
    if isinstance(turn, CallTools):
        deltas: list[Json] = [{"content": turn.text}] if turn.text else []
        deltas += [{"reasoning_content": turn.thinking}] if turn.thinking else []
        deltas += _tool_call_deltas(turn, request)
    else:
        deltas = [{"content": piece} for piece in turn.pieces]
    if deltas:
        deltas[0] = {"role": "assistant", **deltas[0]}
    return deltas


def _tool_call_deltas(turn: CallTools, request: LlmRequest) -> list[Json]:
    """As OpenAI streams them: first the name, then the arguments in pieces, one call after the other."""
    deltas: list[Json] = []
    for index, (name, arguments) in enumerate(turn.calls):
        head: Json = {"id": call_id(request, index), "type": "function", "function": {"name": name, "arguments": ""}}
        half = len(arguments) // 2
        rest: list[Json] = [{"function": {"arguments": part}} for part in (arguments[:half], arguments[half:]) if part]
        deltas.extend({"tool_calls": [{"index": index, **part}]} for part in [head, *rest])
    return deltas


def completion_of(turn: Say | CallTools, request: LlmRequest) -> Json:
    message: Json = {"role": "assistant", "content": "".join(turn.pieces) if isinstance(turn, Say) else turn.text}
    if isinstance(turn, CallTools):
        message["content"] = turn.text or None
        if turn.thinking:
            message["reasoning_content"] = turn.thinking
        message["tool_calls"] = [
            {"id": call_id(request, index), "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(turn.calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(turn), "logprobs": None}
    whole: Json = {**_envelope(request, ""), "choices": [choice]}
    return whole if turn.usage is None else {**whole, "usage": turn.usage.as_json()}


def _chunk(request: LlmRequest, delta: Json, *, finish_reason: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
    return {**_envelope(request, "chunk"), "choices": [choice]}


def _envelope(request: LlmRequest, suffix: str) -> Json:
    kind = f"chat.completion.{suffix}" if suffix else "chat.completion"
    return {"id": f"chatcmpl-{request.number}", "object": kind, "created": CREATED, "model": request.model}


def _finish_reason(turn: Say | CallTools) -> str:
    return "tool_calls" if isinstance(turn, CallTools) else turn.finish_reason


def call_id(request: LlmRequest, index: int) -> str:
    """The id of the tool call number `index` (from 0) that answers `request`."""
    return f"call_{request.number}_{index + 1}"


def _event(value: Json) -> str:
    return f"data: {json.dumps(value)}\n\n"
