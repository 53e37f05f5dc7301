"""A scripted LLM: `python -m benchmarks.fakes.llm`.

The base URL says what it does: `/answer/0/v1` answers at once, `/answer/5/v1` streams its answer over five seconds,
`/answer/5x200/v1` does so in 200 pieces, `/again/5x200/v1` in 200 that are equal; `/tool/0/v1` asks once for the tool
`lookup_fact`, or for another agent, and answers when it sees a tool's result; `/tool9/0/v1` asks nine times, for the
tools in turn if there are several; `/tools/0/v1` asks for all of them at once. `/clock/0/v1` answers with the time at
which it sends its first text, and waits before it sends the rest. The rest of the path decides the wire format:
OpenAI's chat completions, or one of `formats`, which do not ask for tools. `GET /connections` returns how many
connections have carried a request for an answer so far.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache
from itertools import cycle, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.fakes import formats
from benchmarks.fakes.downstream import TOOL
from benchmarks.fakes.http import STREAM_END, STREAM_HEAD, Request, as_json, chunk, main

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER = "The scripted answer: everything is as it should be."
PIECES = 8
"""Of an answer that comes at once; a slow one has four a second, if its address says no other number."""
_AGAIN = " more"
_MORE = (_AGAIN, " words", " that", " people", " use,", " in", " no", " order")
"""What pieces say that the answer is too short for."""
SECONDS_BETWEEN_PIECES = 0.25
_MODELS = {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
_FORM = "__human_input"
"""fast-agent's own tool of agents with `human_input`."""
_TOOL_NAME = re.compile(
    rb'"name":\s*"([\w.-]*(?:' + TOOL.encode() + rb"|send_message)|agent__\w+|" + _FORM.encode() + rb')"'
)
"""Of a downstream, of an agent of the gateway or agno, or of an agent inside fast-agent's; or the form."""
_STREAMED = re.compile(rb'"stream":\s*true')
_TOOL_RESULT = re.compile(rb'"role":\s*"tool"')

_asked_on: set[int] = set()


def answer(request: Request, transport: asyncio.Transport) -> None:
    """Answer one request; see the module."""
    if request.method == "GET":
        transport.write(as_json({"connections": len(_asked_on)} if request.path == "/connections" else _MODELS))
        return
    _asked_on.add(request.connection)
    _, kind, how, *_ = request.path.split("/")
    format_name = formats.of(request.path)
    tools = _tools_asked_for(request, kind.removeprefix("tool")) if kind.startswith("tool") else ()
    texts = texts_of(request.path)
    if format_name == formats.CHAT and not _STREAMED.search(request.body):
        transport.write(_completion(tools, "".join(texts)))
    elif kind == "clock":
        _send_the_time(transport)
    elif how == "0":
        transport.write(STREAM_HEAD + b"".join(_events(format_name, tools, texts)) + STREAM_END)
    else:
        _stream_slowly(transport, _events(format_name, tools, texts), float(how.partition("x")[0]))


@cache
def texts_of(path: str) -> tuple[str, ...]:
    """The pieces of the answer at a path, which begin with `ANSWER`, but for those that are equal."""
    _, kind, how, *_ = path.split("/")
    duration, _, given = how.partition("x")
    pieces = PIECES if how == "0" else max(1, int(given or float(duration) / SECONDS_BETWEEN_PIECES))
    if kind == "again":
        return (_AGAIN,) * pieces
    answer = _cut(ANSWER, min(pieces, PIECES))
    return (*answer, *islice(cycle(_MORE), pieces - len(answer)))


def _tools_asked_for(request: Request, times: str) -> tuple[str, ...]:
    """Return the tools to ask for: one, until the request has the results of `times` calls, or for "s" all at once."""
    tools = tuple(dict.fromkeys(name.decode() for name in _TOOL_NAME.findall(request.body)))
    called = len(_TOOL_RESULT.findall(request.body))
    if times == "s":
        return () if called else tools
    return (tools[called % len(tools)],) if tools and called < int(times or 1) else ()


def _stream_slowly(transport: asyncio.Transport, events: Sequence[bytes], seconds: float) -> None:
    interval = seconds / len(events)
    loop = asyncio.get_running_loop()
    transport.write(STREAM_HEAD)

    def send(index: int) -> None:
        if transport.is_closing():
            return
        last = index + 1 == len(events)
        transport.write(events[index] + (STREAM_END if last else b""))
        if not last:
            loop.call_later(interval, send, index + 1)

    loop.call_later(interval, send, 0)


def _send_the_time(transport: asyncio.Transport) -> None:
    opening, *_, finish, end = _chat_events((), (ANSWER,))
    time = f"sent at {perf_counter():.6f}; "
    transport.write(STREAM_HEAD + opening + _event({"choices": [{"index": 0, "delta": {"content": time}}]}))
    asyncio.get_running_loop().call_later(SECONDS_BETWEEN_PIECES, transport.write, finish + end + STREAM_END)


def _completion(tools: tuple[str, ...], text: str) -> bytes:
    """The whole answer as one JSON document."""
    message: dict[str, Any] = {"role": "assistant", "content": None if tools else text}
    if tools:
        message["tool_calls"] = _tool_calls(tools)
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if tools else "stop"}
    return as_json({**_envelope("chat.completion"), "choices": [choice], "usage": _USAGE})


@cache
def _events(format_name: str, tools: tuple[str, ...], texts: tuple[str, ...]) -> Sequence[bytes]:
    """The chunks of a streamed answer, made once."""
    return _chat_events(tools, texts) if format_name == formats.CHAT else formats.events(format_name, texts)


def _chat_events(tools: tuple[str, ...], texts: tuple[str, ...]) -> Sequence[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if tools:
        deltas += [{"content": "."} for _ in texts[2:]]  # the model thinks aloud, so that slow is slow
        deltas.append({"tool_calls": [{"index": index, **call} for index, call in enumerate(_tool_calls(tools))]})
    else:
        deltas += [{"content": text} for text in texts]
    events = [_event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas]
    events.append(_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if tools else "stop"}]}))
    events.append(_event({"choices": [], "usage": _USAGE}) + chunk(b"data: [DONE]\n\n"))
    return events


def _event(fields: dict[str, Any]) -> bytes:
    return chunk(f"data: {json.dumps({**_envelope('chat.completion.chunk'), **fields})}\n\n".encode())


def _envelope(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "scripted"}


def _tool_calls(tools: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": _arguments(tool)}}
        for number, tool in enumerate(tools, 1)
    ]


def _arguments(tool: str) -> str:
    if tool == _FORM:
        return json.dumps({"message": "Which fact?", "fields": [{"name": "topic", "type": "text"}]})
    return json.dumps({"topic" if tool.endswith(TOOL) else "message": "bees"})


def _cut(text: str, pieces: int) -> list[str]:
    """`text` in at most `pieces` pieces of about one length."""
    size = max(1, -(-len(text) // pieces))
    return [text[begin : begin + size] for begin in range(0, len(text), size)]


if __name__ == "__main__":
    main(answer)
