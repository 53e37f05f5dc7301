"""`GET /api/v1/calls` and `DELETE /api/v1/calls/{id}`, over all workers.

Callers see and end their own calls: those whose outermost caller they are, also of agents that they may not view. The
grants `view:calls` and `cancel:calls` are for all calls. The worker of a request asks the others, which decide again.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from http import HTTPStatus
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pallas_gateway.calls.asking.elsewhere import FOR_ONE_KEY
from pallas_gateway.calls.asking.used_states import StatesUnavailableError
from pallas_gateway.core.call_books import note_cancelled_task
from pallas_gateway.doors.api.base import Api, operation
from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.doors.api.models import written
from pallas_gateway.doors.http import access, refusals
from pallas_gateway.errors import GatewayError
from pallas_gateway.features.running_calls import models
from pallas_gateway.identity.grants import CANCEL_CALLS, VIEW_CALLS
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from starlette.requests import Request

    from pallas_gateway.core.long_calls.service import LongCalls
    from pallas_gateway.core.running_call import ListedCall, RunningCall, ToolTime
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.shared.database.tables import AnyRow
    from pallas_gateway.telemetry.rate_limit import Reason

type Json = dict[str, Any]

PATH = "/api/v1/calls"
_CALL_ID = re.compile(r"[0-9a-f]{16}")
_LONGEST_NAME = 100
_MAY_BE_RESUMED = (
    "The call has ended here. The database cannot be used now, so another replica may resume the call when its client "
    "answers."
)


class CallsApi(Api):
    """The routes of calls."""

    @operation(
        "GET", PATH, "listCalls",
        "The running calls that the caller may see, or with `recent` those that ended last.",
        requires="own calls; for others' `view:calls`", query=models.Recent, answer=models.Calls,
        says="The calls of all workers, and the long calls that none of them runs.",
    )  # fmt: skip
    async def _list(self, request: Request, asked: models.Recent) -> Response:
        most = asked.recent
        caller = await access.caller_of(self._gateway, request.scope)
        sees_all = caller.grants.has(VIEW_CALLS)
        if not sees_all and not caller.authenticated:
            return refusals.without_token(self._gateway, request.scope)
        here, worker = self._gateway.calls, self._gateway.elsewhere.worker
        listed = here.running() if most is None else here.recent()
        shown = [one for one in listed if sees_all or _owns(caller, one.owner)][:most]
        calls = [listed_call(one, worker) for one in shown]
        if FOR_ONE_KEY in request.scope:
            return ascii_response({"worker": worker, "calls": calls})
        document = await self._with_others(request, calls, most)
        if most is None and self._gateway.stored is not None:
            await self._add_tasks(self._gateway.stored.long_calls, document, caller)
        return ascii_response(document)

    async def _add_tasks(self, long_calls: LongCalls, document: Json, caller: Caller) -> None:
        """Add the open tasks that the caller may see, and that none of the listed calls runs."""
        if not caller.grants.has(VIEW_CALLS) and caller.owner is None:
            return
        owner = None if caller.grants.has(VIEW_CALLS) else caller.owner
        try:
            tasks = await long_calls.open_tasks(owner=owner)
        except GatewayError:  # the database cannot be used now
            document["tasksMissing"] = True
            return
        known = {one["id"] for one in document["calls"]}
        others = (one for one in tasks if one.call_id not in known and not long_calls.runs(one.id))
        document["calls"] += map(listed_task, others)
        document["calls"].sort(key=itemgetter("startedAt", "id"))

    async def _with_others(self, request: Request, calls: list[Any], most: int | None) -> Json:
        """Add the calls of the other workers, and the numbers of those that do not answer."""
        elsewhere = self._gateway.elsewhere
        missing = {*range(1, elsewhere.workers + 1)} - {elsewhere.worker}
        for answer in await elsewhere.ask_all(request):
            if answer.status == HTTPStatus.OK:
                other = json.loads(answer.body)
                missing.discard(other["worker"])
                calls += other["calls"]
        ended = most is not None
        calls.sort(key=itemgetter("endedAt" if ended else "startedAt", "id"), reverse=ended)
        return {"calls": calls[:most], **({"missing": sorted(missing)} if missing else {})}

    @operation(
        "DELETE", f"{PATH}/{{call:path}}", "endCall", "End a running call, or a long call.",
        requires="own calls; for others' `cancel:calls`", status=HTTPStatus.NO_CONTENT, says="It ends.",
    )  # fmt: skip
    async def _end(self, request: Request, call_id: str) -> Response:
        caller = await access.caller_of(self._gateway, request.scope)
        ends_all = caller.grants.has(CANCEL_CALLS)
        if not ends_all and not caller.authenticated:
            return refusals.without_token(self._gateway, request.scope)
        call = self._gateway.calls.find(call_id)
        if call is None:
            return await self._ended_elsewhere(request, call_id)
        is_own = _owns(caller, call.listed().owner)
        if not (ends_all or is_own):
            return self._refused(request, caller, call.call.agent, call_id)
        if call.is_task and (stored := self._gateway.stored) is not None:
            await stored.long_calls.end_task_of(call_id)  # first, or another process would go on with it
        await self._cancel(call, caller, _deciding(caller, is_own=is_own))
        return Response(status_code=204)

    async def _end_task(self, request: Request, call_id: str) -> Response | None:
        """End an open task that no call of the workers runs; None if there is none."""
        if (stored := self._gateway.stored) is None:
            return None
        long_calls = stored.long_calls
        if not (found := await long_calls.open_tasks(call_id=call_id)):
            return None
        caller, task = await access.caller_of(self._gateway, request.scope), found[0]
        is_own = _owns(caller, task.owner)
        if not (caller.grants.has(CANCEL_CALLS) or is_own):
            return self._refused(request, caller, task.agent, call_id)
        if (ended := await long_calls.cancel_task(task)) is None:  # it has ended meanwhile
            return None
        long_calls.cancel(task.id)
        note_cancelled_task(self._gateway.trail, ended, caller, _deciding(caller, is_own=is_own))
        return Response(status_code=204)

    def _refused(self, request: Request, caller: Caller, agent: str, call_id: str) -> Response:
        is_shown = caller.grants.has(VIEW_CALLS)
        facts = {"agent": agent, "call_id": call_id, "grant": CANCEL_CALLS}
        reason: Reason = "insufficient_scope" if is_shown else "no_grant"
        why = f"the token has no grant {CANCEL_CALLS}"
        refusals.record(self._gateway, request.scope, reason, why, caller, **facts)
        if not is_shown:
            raise _no_call(call_id)
        return refusals.insufficient(self._gateway, CANCEL_CALLS, None)

    async def _cancel(self, call: RunningCall, caller: Caller, grant: str | None) -> None:
        name = "".join(one if one.isprintable() else "�" for one in caller.principal[:_LONGEST_NAME])
        call.cancel(name)
        facts = {"caller": caller.principal, "address": caller.address, "agent": call.call.agent}
        self._gateway.trail.record("end_call", "accepted", {**facts, "call_id": call.call.call_id, "grant": grant})
        try:
            await self._gateway.sessions.waiting_calls.spend_state(call.call.call_id)
        except StatesUnavailableError as error:
            raise ApiError(_MAY_BE_RESUMED, reason="threads_unavailable") from error

    async def _ended_elsewhere(self, request: Request, call_id: str) -> Response:
        """Have the other workers end a call, or end a task that none of them runs."""
        if FOR_ONE_KEY in request.scope or _CALL_ID.fullmatch(call_id) is None:
            raise _no_call(call_id)
        elsewhere = self._gateway.elsewhere
        given = await elsewhere.ask_all(request)
        missing = elsewhere.workers - 1 - len(given)
        for answer in given:
            if answer.status != HTTPStatus.NOT_FOUND:
                headers = {name.decode(): value.decode() for name, value in answer.headers}
                return Response(answer.body, answer.status, headers)
        if (response := await self._end_task(request, call_id)) is not None:
            return response
        if missing:
            why = (
                f"No call {quoted(call_id)} at the workers that answer, and not all answer now. Try again in a moment."
            )
            raise ApiError(why, reason="busy")
        raise _no_call(call_id)


def _deciding(caller: Caller, *, is_own: bool) -> str | None:
    return None if is_own or caller.grants.everything else CANCEL_CALLS


def _owns(caller: Caller, owner: str | None) -> bool:
    return caller.authenticated and owner is not None and caller.owner == owner


def _no_call(call_id: str) -> ApiError:
    return ApiError(f"no call {quoted(call_id)}", reason="not_found")


def listed_call(one: ListedCall, worker: int) -> Json:
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


def listed_task(one: AnyRow) -> Json:
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


def ascii_response(document: Json) -> Response:
    """Return JSON in ASCII: names of tools come from models, which may write half a surrogate pair."""
    return Response(json.dumps(document), media_type="application/json")


def _tool(one: ToolTime) -> Json:
    return {"name": one.name, "start": round(one.start, 3), "seconds": round(one.seconds, 3), "ok": one.ok}


def _time(seconds: float) -> str:
    return written(datetime.fromtimestamp(seconds, UTC))
