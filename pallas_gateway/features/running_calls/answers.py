"""Calls as JSON. Pure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pallas_gateway.doors.api.models import written

if TYPE_CHECKING:
    from pallas_gateway.core.running_call import ListedCall, ToolTime
    from pallas_gateway.shared.database.tables import AnyRow

type Json = dict[str, Any]


def call(one: ListedCall, worker: int) -> Json:
    """A call of this process in a list; an ended one with its outcome and tools."""
    document = {
        "id": one.id,
        "parent": one.parent,
        "agent": one.agent,
        "caller": one.caller,
        "api": one.api,
        "startedAt": _time(one.began_at),
        "step": one.step,
        "seconds": round(one.seconds, 3),
        "tokens": one.tokens,
        **({"estimated": True} if one.is_estimated else {}),
        "waiting": one.waiting,
        "worker": worker,
    }
    if (end := one.end) is None:
        return document
    return {
        **document,
        "endedAt": _time(one.began_at + one.seconds),
        "outcome": end.outcome,
        "stopReason": end.reason,
        "tools": [*map(_tool, end.tools)],
        "toolsLeftOut": end.tools_left_out,
    }


def task(one: AnyRow) -> Json:
    """A long call of the database in a list; of its last step no text that a server has written."""
    return {
        "id": one.call_id,
        "parent": None,
        "agent": one.agent,
        "caller": one.principal,
        "api": one.api,
        "startedAt": _time(one.created_at / 1000),
        "step": one.step,
        "seconds": one.age_ms / 1000,
        "tokens": one.tokens,
        "waiting": one.status == "input_required",
        "worker": None,
        "status": one.status,
        "statusMessage": one.status_message.partition(": ")[0],
        "runs": one.claims + 1,
        "atRest": not one.is_run,
    }


def response(document: Json) -> Response:
    """Return JSON in ASCII: names of tools come from models, which may write half a surrogate pair."""
    return Response(json.dumps(document), media_type="application/json")


def _tool(one: ToolTime) -> Json:
    return {"name": one.name, "start": round(one.start, 3), "seconds": round(one.seconds, 3), "ok": one.ok}


def _time(seconds: float) -> str:
    return written(datetime.fromtimestamp(seconds, UTC))
