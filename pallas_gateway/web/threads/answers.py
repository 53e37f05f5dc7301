"""What is answered, as JSON: agents, threads, messages, and the events of a running call. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.events import Event, TextDelta, ToolCalled, ToolResulted
from pallas_gateway.calls.parameters import params_schema

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.calls.call import Message
    from pallas_gateway.threads.records import Thread, Turn, TurnPage

type Json = dict[str, Any]


def agent(hosted: HostedAgent) -> Json:
    """One agent, as a list has it."""
    title = hosted.settings.shown_title(hosted.name)
    return {
        "name": hosted.name,
        "title": title,
        "description": hosted.settings.description or title,
        "state": hosted.status.state.value,
    }


def whole_agent(hosted: HostedAgent) -> Json:
    """One agent with what its callers may set: the JSON Schema of `params`, null if that is nothing."""
    return {**agent(hosted), "params": params_schema(hosted.settings)}


def thread(one: Thread) -> Json:
    """One thread; `turns` is the number of its latest turn."""
    return {
        "id": one.id,
        "agent": one.agent,
        "title": one.title,
        "createdAt": _time(one.created_at),
        "updatedAt": _time(one.updated_at),
        "turns": one.turns,
    }


def thread_page(threads: Sequence[Thread], limit: int) -> Json:
    """One page; `threads` may hold one more than `limit`, which tells that there is another page."""
    shown = threads[:limit]
    more = f"{shown[-1].changed}.{shown[-1].id}" if len(threads) > limit else None
    return {"threads": [thread(one) for one in shown], "nextCursor": more}


def message_page(page: TurnPage) -> Json:
    """One page: of each turn the question and what became of it."""
    messages = [message for turn in page.turns for message in _messages(turn)]
    return {"messages": messages, "nextAfter": page.turns[-1].number if page.has_more else None}


def event(told: Event) -> Json | None:
    """One event of a running call; the last one, its reply, is told otherwise."""
    match told:
        case TextDelta(text):
            return {"type": "text", "delta": text}
        case ToolCalled():
            return {"type": "tool_call", "toolName": _tool(told), "args": dict(told.arguments), "id": told.id}
        case ToolResulted():
            return {"type": "tool_result", "toolName": _tool(told), "ok": told.ok, "id": told.id}
    return None


def said(message: Message) -> Json:
    """The words and the images of a message."""
    images = [{"data": image.data, "mime_type": image.mime_type} for image in message.images]
    return {"content": message.text, "images": images}


def line(value: Json) -> str:
    """JSON on one line, in ASCII: models may say what is no text."""
    return json.dumps(value, separators=(",", ":"))


def _tool(told: ToolCalled | ToolResulted) -> str:
    return f"{told.server}/{told.name}" if told.server else told.name


def _messages(turn: Turn) -> tuple[Json, Json]:
    question = {
        "turnIndex": turn.number,
        "role": "user",
        "status": "complete",
        "createdAt": _time(turn.created_at),
        **said(turn.question),
    }
    outcome = turn.outcome
    failed = outcome.error_reason is not None
    answer = {
        "turnIndex": turn.number,
        "role": "assistant",
        "status": turn.status,
        "createdAt": _time(turn.ended_at) if turn.ended_at else None,
        **(said(outcome.answer) if outcome.answer else {"content": None, "images": []}),
        "callId": turn.call_id,
        "stopReason": outcome.stop_reason,
        "usage": dict(outcome.usage) or None,
        "error": {"reason": outcome.error_reason, "message": outcome.error} if failed else None,
    }
    return question, answer


def _time(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
