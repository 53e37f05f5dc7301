"""A scripted LLM that speaks OpenAI's chat completions: `python -m benchmarks.fakes.llm`.

The base URL says what it does: `/answer/0/v1` answers at once, `/answer/5/v1` streams its answer over five seconds,
`/answer/5x200/v1` does so in 200 pieces; `/tool/0/v1` asks once for the tool `lookup_fact` and answers when it sees a
tool's result.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from benchmarks.fakes.downstream import TOOL
from benchmarks.fakes.http import STREAM_END, STREAM_HEAD, Request, as_json, chunk, main

ANSWER = "The scripted answer: everything is as it should be."
PIECES = 8
"""Of an answer that comes at once; a slow one has four a second, if its address says no other number."""
_MORE = " more"
"""What pieces say that the answer is too short for."""
SECONDS_BETWEEN_PIECES = 0.25
_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
_TOOL_NAME = re.compile(rb'"name":\s*"([\w.-]*' + TOOL.encode() + rb')"')
_STREAMED = re.compile(rb'"stream":\s*true')
_TOOL_RESULT = re.compile(rb'"role":\s*"tool"')


def answer(request: Request, transport: asyncio.Transport) -> None:
    """Answer one request; see the module."""
    if request.method == "GET":
        transport.write(as_json({"object": "list", "data": [{"id": "scripted", "object": "model"}]}))
        return
    _, kind, seconds, *_ = request.path.split("/")
    wanted = _TOOL_NAME.search(request.body)
    asks = kind == "tool" and wanted is not None and not _TOOL_RESULT.search(request.body)
    tool = wanted[1].decode() if asks and wanted else None
    if not _STREAMED.search(request.body):
        transport.write(_completion(tool))
    elif seconds == "0":
        transport.write(STREAM_HEAD + b"".join(_events(tool, PIECES)) + STREAM_END)
    else:
        duration, _, pieces = seconds.partition("x")
        _stream_slowly(transport, tool, float(duration), int(pieces or float(duration) / SECONDS_BETWEEN_PIECES))


def _stream_slowly(transport: asyncio.Transport, tool: str | None, seconds: float, pieces: int) -> None:
    events = _events(tool, max(1, pieces))
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


def _completion(tool: str | None) -> bytes:
    """The whole answer as one JSON document."""
    message: dict[str, Any] = {"role": "assistant", "content": None if tool else ANSWER}
    if tool:
        message["tool_calls"] = [_tool_call(tool)]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if tool else "stop"}
    return as_json({**_envelope("chat.completion"), "choices": [choice], "usage": _USAGE})


_events_made: dict[tuple[str | None, int], list[bytes]] = {}


def _events(tool: str | None, pieces: int) -> list[bytes]:
    """The chunks of a streamed answer, made once."""
    if (made := _events_made.get((tool, pieces))) is None:
        made = _events_made[tool, pieces] = _make_events(tool, pieces)
    return made


def _make_events(tool: str | None, pieces: int) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if tool:
        deltas += [{"content": "."} for _ in range(pieces - 2)]  # the model thinks aloud, so that slow is slow
        deltas.append({"tool_calls": [{"index": 0, **_tool_call(tool)}]})
    else:
        answer = _cut(ANSWER, min(pieces, PIECES))
        deltas += [{"content": piece} for piece in (*answer, *[_MORE] * (pieces - len(answer)))]
    events = [_event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas]
    events.append(_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if tool else "stop"}]}))
    events.append(_event({"choices": [], "usage": _USAGE}) + chunk(b"data: [DONE]\n\n"))
    return events


def _event(fields: dict[str, Any]) -> bytes:
    return chunk(f"data: {json.dumps({**_envelope('chat.completion.chunk'), **fields})}\n\n".encode())


def _envelope(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "scripted"}


def _tool_call(tool: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": '{"topic": "bees"}'}}


def _cut(text: str, pieces: int) -> list[str]:
    """`text` in at most `pieces` pieces of about one length."""
    size = max(1, -(-len(text) // pieces))
    return [text[begin : begin + size] for begin in range(0, len(text), size)]


if __name__ == "__main__":
    main(answer)
