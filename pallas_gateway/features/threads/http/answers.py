"""Response bodies as JSON: threads, messages, and the events of a running call. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.assistant_stream import ANSWER, QUESTION, payload_of
from pallas_gateway.calls.events.events import QuestionAsked, QuestionClosed, TextDelta, ToolsEnded, TurnEnded
from pallas_gateway.doors.api.models import written
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.calls.call import Message, Step
    from pallas_gateway.calls.events.events import Event
    from pallas_gateway.calls.questions import Question
    from pallas_gateway.features.threads.records import ExchangePage, ExchangeRecord, Feedback, ThreadPage, ThreadRecord

type Json = dict[str, Any]


def thread(one: ThreadRecord) -> Json:
    """One thread; `turns` is the number of its latest turn."""
    return {
        "id": one.id,
        "agent": one.agent,
        **({"agentId": one.agent_id} if one.agent_id else {}),
        "title": one.title,
        "createdAt": written(one.created_at),
        "updatedAt": written(one.updated_at),
        "turns": one.turns,
    }


def thread_page(page: ThreadPage) -> Json:
    """One page of threads."""
    behind = ".".join(map(str, page.behind)) if page.behind is not None else None
    return {"threads": [thread(one) for one in page.threads], "nextCursor": behind}


def message_page(page: ExchangePage) -> Json:
    """One page of turns, each as the question and its answer, with the steps between them."""
    messages = [message for turn in page.turns for message in _messages(turn)]
    return {"messages": messages, "nextAfter": page.turns[-1].number if page.has_more else None}


def documents_of(event: Event, *, as_assistant: bool = False) -> list[Json]:  # noqa: PLR0911  a table
    """An event of a running call as events of its stream; none for the reply, which is a response of its own.

    With `as_assistant`, payloads of the assistant stream take the place of the agent's own texts and tools.
    """
    match event:
        case QuestionAsked(asked):
            return [{"type": "question", **question(asked)}]
        case QuestionClosed(id_, action):
            return [{"type": "answer", "id": id_, "action": action}]
        case _ if as_assistant:
            payload = payload_of(event)
            if payload is None or payload.get("kind") in (QUESTION, ANSWER):  # of a peer; the events above have them
                return []
            return [{"type": "assistant", "data": cleaned_data(payload)}]
        case TextDelta():
            return [{"type": "text", "delta": event.text}]
        case TurnEnded():
            return [
                {"type": "tool_call", "toolName": one.shown, "args": cleaned_data(dict(one.arguments)), "id": one.id}
                for one in event.tool_calls
            ]
        case ToolsEnded():
            return [
                {"type": "tool_result", "toolName": one.call.shown, "ok": not one.is_error, "id": one.call.id}
                for one in event.results
            ]
    return []


def feedback(one: Feedback) -> Json:
    """What the owner of a thread thinks of an answer."""
    shared = {"forOwner": True} if one.for_owner else {}
    return {"rating": one.rating, "note": one.note, "ratedAt": written(one.rated_at), **shared}


def question(one: Question) -> Json:
    """A question to the caller; with `schema` it is a form, with `url` a page to open."""
    form = {"schema": dict(one.schema or {"type": "object", "properties": {}})}
    return {
        "id": one.id,
        "agent": one.agent,
        "callPath": list(one.call_path),
        "kind": one.kind,
        "mode": one.mode,
        "message": one.message,
        **{name: value for name, value in (("server", one.server), ("tool", one.tool)) if value is not None},
        **({"url": one.url} if one.url is not None else form),
    }


def content_of(message: Message) -> Json:
    """The text, and the images and PDFs of a message."""
    return {"content": message.text, "images": [image.as_json() for image in message.images]}


def line(value: Json) -> str:
    """JSON on one line, in ASCII, because a model may write half a surrogate pair."""
    return json.dumps(value, separators=(",", ":"))


def _messages(turn: ExchangeRecord) -> list[Json]:
    said = {
        "turnIndex": turn.number,
        "role": "user",
        "status": "complete",
        "createdAt": written(turn.created_at),
        **content_of(turn.question),
        **({"params": dict(turn.outcome.params)} if turn.outcome.params else {}),
        **({"replaces": turn.replaces} if turn.replaces is not None else {}),
    }
    outcome = turn.outcome
    failed = outcome.error_reason is not None
    answer = {
        "turnIndex": turn.number,
        "role": "assistant",
        "status": "asking" if turn.asks else turn.status,
        "createdAt": written(turn.ended_at) if turn.ended_at else None,
        **(content_of(outcome.answer) if outcome.answer else {"content": None, "images": []}),
        "callId": turn.call_id,
        "stopReason": outcome.stop_reason,
        "usage": dict(outcome.usage) or None,
        **({"model": outcome.model} if outcome.model else {}),
        "error": {"reason": outcome.error_reason, "message": outcome.error} if failed else None,
        **({"questions": [*map(question, turn.asks)]} if turn.asks else {}),
        **({"feedback": feedback(turn.feedback)} if turn.feedback else {}),
    }
    return [said, *(shown for step in turn.steps for shown in _shown(turn.number, step)), answer]


def _shown(number: int, step: Step) -> list[Json]:
    """A stored step: what the model asked for, and the result of each tool."""
    stored = json.loads(step.data)
    calls, results = stored["assistant"]["tool_calls"], stored["results"]["tool_results"]
    asked = [
        {"id": id_, "toolName": stored["tools"][id_], "args": call["params"]["arguments"]}
        for id_, call in calls.items()
    ]
    message = {"turnIndex": number, "status": "complete", "createdAt": None}
    answered = [
        {
            **message,
            "role": "tool",
            **_content_of(results[id_]["content"]),
            "toolCallId": id_,
            "toolName": stored["tools"][id_],
            "ok": not results[id_].get("isError", False),
        }
        for id_ in calls
    ]
    return [
        {**message, "role": "assistant", **_content_of(stored["assistant"].get("content", ())), "toolCalls": asked},
        *answered,
    ]


def _content_of(blocks: Sequence[Json]) -> Json:
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    images = [{"data": one["data"], "mime_type": one["mimeType"]} for one in blocks if one["type"] == "image"]
    return {"content": "\n".join(texts), "images": images}
