"""The tasks of MCP clients: `tasks/get`, `tasks/update`, `tasks/cancel`, and tasks of ended processes.

The extension `io.modelcontextprotocol/tasks` of 2026-07-28. Every request declares it, and so does one whose answer may
be a task.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, override

from mcp import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ElicitResult,
    InputRequiredResult,
    RequestParams,
)
from mcp_types.methods import serialize_server_result
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import Field, ValidationError
from sqlalchemy import and_, select

from pallas_gateway.calls.questions import ORIGINS_META_KEY
from pallas_gateway.calls.trail import facts_of
from pallas_gateway.config.model.deployment import TasksSettings
from pallas_gateway.core.call_books import note_cancelled_task, note_end_of_task
from pallas_gateway.core.long_calls import rows
from pallas_gateway.core.long_calls.continued_tasks import ContinuedTasks
from pallas_gateway.core.long_calls.recorder import TRY_AGAIN_SECONDS
from pallas_gateway.doors.mcp.envelope import caller_of, headers_of
from pallas_gateway.doors.mcp.rounds import TASKS, answer_of, declares_tasks
from pallas_gateway.doors.mcp.stream_asking import elicitation
from pallas_gateway.doors.mcp.task_calls import TaskCall
from pallas_gateway.doors.mcp.tool_requests import parsed
from pallas_gateway.doors.mcp.tools import call_result
from pallas_gateway.errors import GatewayError
from pallas_gateway.identity.decision import Action, Decision, decide
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from pallas_gateway.shared.database.tables import tasks
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping

    from mcp.server.lowlevel import Server
    from pydantic import BaseModel
    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.questions import Answer, Mode, Question
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.long_calls.records import Cancelled, ClaimedTask, Held, TaskStatus
    from pallas_gateway.doors.mcp.envelope import Context
    from pallas_gateway.doors.mcp.tool_requests import McpToolRequest
    from pallas_gateway.shared.database.tables import AnyRow

_REQUIRED: Mapping[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
_NOT_FOUND = "There is no such task: its id is unknown, or it has expired."
_ENDED = "The process that ran this call has ended, and no other one can go on with it. Call the tool again."
_log = logging.getLogger("pallas.tasks_of_clients")


class _TaskParams(RequestParams):
    """Of `tasks/get` and `tasks/cancel`."""

    task_id: str


class _UpdateParams(_TaskParams):
    """Of `tasks/update`; responses to questions that are not open are not read."""

    input_responses: dict[str, Any] = Field(default_factory=dict, repr=False)


class McpTasks(ContinuedTasks):
    """The tasks of MCP clients of one gateway with a database."""

    api = "mcp"

    @property
    def settings(self) -> TasksSettings | None:
        """The present settings; None if calls become no tasks."""
        return self._gateway.configuration.deployment.gateway.tasks

    @property
    def limits(self) -> TasksSettings:
        """The present settings, also for tasks that run on after these were switched off."""
        return self.settings or TasksSettings()

    # Calls that may become tasks

    def accepts(self, agent: HostedAgent, request: McpToolRequest) -> bool:
        """Return whether a call of an agent may become a task.

        Its client must be known again when it asks for the task, by its token; without `auth` the id is the secret.

        Raises:
            MCPError: the agent requires that, and the client does not declare that it accepts tasks.
        """
        if self.settings is None or agent.settings.tasks == "never" or request.parent is not None:
            return False
        if agent.settings.tasks == "required" and not request.round.declares_tasks:
            raise _undeclared(f"Agent '{agent.name}' answers with tasks only.")
        caller = request.caller
        is_known = self._gateway.authenticator is None or (caller.authenticated and caller.owner is not None)
        return request.round.declares_tasks and is_known

    def call(self, agent: HostedAgent, call: Call, modes: Collection[Mode], arguments: Mapping[str, Any]) -> TaskCall:
        """Return a call that may become a task."""
        return TaskCall(agent, call, modes, self, arguments)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something of a task that no request waits for."""
        self._gateway.turns_and_nested.spawn(work, name="task of a client", report=True)

    def note_created(self, call: Call) -> None:
        """Note a new task in the audit log."""
        self._gateway.trail.record("task_created", "ok", facts_of(call))

    # The end of a run

    async def ended(self, running: TaskCall, held: Held, request: CallRequest) -> None:
        """Store the end of a run: the result of its call, or that another process goes on."""
        outcome = request.outcome
        reason = outcome.reason if isinstance(outcome, GatewayError) else ""
        if running.goes_on_after(reason):
            await self._write(partial(rows.hand_over, held=held, wait_seconds=running.pause_after(reason)))
        elif running.ended_by is not None or reason == "cancelled":
            await self._end(held, "cancelled")
        elif reason == "stopped":
            await self._end(held, "failed", error=_error(_ENDED, "process_ended"))
        else:
            result = call_result(request, running.agent.trace_url(running.call))
            await self._end(held, "completed", result=cleaned_data(_wire(result)))

    async def _end(self, held: Held, status: TaskStatus, **outcome: Any) -> None:
        await self._write(lambda sql: rows.end(sql, rows.is_held(held), status, **outcome))

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[object]]) -> None:
        """Write the end of a run, also if the database is away for now."""
        while True:
            try:
                await self.long_calls.database.write(work, share="services")
            except DatabaseUnavailableError:
                await asyncio.sleep(TRY_AGAIN_SECONDS)
            else:
                return

    # Tasks of ended processes

    @override
    async def claim(self) -> ClaimedTask | None:
        return await super().claim() if self.settings is not None else None

    @override
    async def decode(self, task: ClaimedTask, agent: HostedAgent, asked: Call) -> Call:
        return await parsed(asked, task.request["arguments"], agent)

    @override
    async def run(self, task: ClaimedTask, agent: HostedAgent, request: CallRequest) -> None:
        about = {"agent": task.agent, "call_id": task.call_id, "why": task.why}
        # From the last stored step of a process that has ended or left it.
        _log.info("task continued", extra={**about, "run": task.runs, "steps": len(task.rows)})
        asked = task.request
        running = TaskCall(agent, request.call, asked["modes"], self, asked["arguments"], claimed=task)
        running.timeout_seconds = self.limits.timeout_seconds
        running.record(task.held)
        running.leave()
        await running.finish(running.begin(), request)

    @override
    async def end(self, task: ClaimedTask, reason: str, why: str) -> None:
        is_gone = reason in ("key_removed", "insufficient_scope")  # a right that is gone cancels
        error = None if is_gone else _error(why, reason)
        await self._end(task.held, "cancelled" if is_gone else "failed", error=error)

    @override
    async def give_up(self, sql: AsyncConnection, task: AnyRow) -> bool:
        return await self._end_lost(sql, tasks.c.id == task.id)

    async def _end_lost(self, sql: AsyncConnection, which: ColumnElement[bool]) -> bool:
        """End a task with which no process can go on; False if it has ended, or goes on."""
        ended = await rows.end(sql, and_(which, ~rows.is_run()), "failed", error=_error(_ENDED, "process_ended"))
        if ended is not None:
            note_end_of_task(self._gateway.trail, ended, "process_ended")
        return ended is not None

    # Requests of clients

    def serve_at(self, server: Server[Any], agent: str | None = None) -> None:
        """Announce the extension, and answer its requests: about tasks of an agent, or of all."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", _TaskParams, partial(self._get, agent))
        server.add_request_handler("tasks/update", _UpdateParams, partial(self._update, agent))
        server.add_request_handler("tasks/cancel", _TaskParams, partial(self._cancel, agent))

    async def _get(self, agent: str | None, context: Context, params: _TaskParams) -> dict[str, Any]:
        its = self._wanted(agent, context, params)

        async def read(sql: AsyncConnection) -> tuple[AnyRow | None, Mapping[str, Question]]:
            row = await rows.find(sql, **its)
            asks = row is not None and row.status == "input_required"
            return row, await rows.open_questions(sql, params.task_id) if asks else {}

        async def read_ended(sql: AsyncConnection) -> AnyRow | None:
            await self._end_lost(sql, and_(rows.has(**its), ~rows.goes_on()))
            return await rows.find(sql, **its)

        with _answering():
            row, questions = await self.long_calls.database.read(read)
            if row is not None and row.ended_at is None and not row.goes_on:
                row = await self.long_calls.database.write(read_ended)
        if row is None:
            raise MCPError(INVALID_PARAMS, _NOT_FOUND)
        return {**self._document(row), **_questions(questions), **_outcome(row)}

    async def _update(self, agent: str | None, context: Context, params: _UpdateParams) -> dict[str, Any]:
        its, caller = self._wanted(agent, context, params), caller_of(context)

        async def give(sql: AsyncConnection) -> Mapping[str, Answer]:
            await sql.execute(
                select(tasks.c.id).where(rows.has(**its)).with_for_update()
            )  # two requests answer one by one
            if (row := await rows.find(sql, **its)) is None:
                raise MCPError(INVALID_PARAMS, _NOT_FOUND)
            # The agent may have been taken from the caller since the call.
            if decide(caller, row.agent, Action.RUN, exists=True) is not Decision.ALLOWED:
                raise MCPError(INVALID_PARAMS, _NOT_FOUND)
            asked = await rows.open_questions(sql, params.task_id)
            answers = {id_: _answer(one, params.input_responses) for id_, one in asked.items()}
            given = {id_: answer for id_, answer in answers.items() if answer is not None}
            await rows.give(sql, rows.has(**its), given)
            return given

        with _answering():
            self.long_calls.deliver(await self.long_calls.database.write(give))
        return {}

    async def _cancel(self, agent: str | None, context: Context, params: _TaskParams) -> dict[str, Any]:
        its = self._wanted(agent, context, params)

        async def cancel(sql: AsyncConnection) -> Cancelled | None:
            if await rows.find(sql, **its) is None:
                raise MCPError(INVALID_PARAMS, _NOT_FOUND)
            return await rows.cancel(sql, rows.has(**its))

        with _answering():
            ended = await self.long_calls.database.write(cancel)
        if ended is not None:
            note_cancelled_task(self._gateway.trail, ended, caller_of(context))
            self.long_calls.cancel(ended.task.id)
        return {}

    def _wanted(self, agent: str | None, context: Context, params: _TaskParams) -> Mapping[str, str]:
        """Return values of the task that a request names.

        Raises:
            MCPError: the header `Mcp-Name` names another one, or the request does not declare the extension.
        """
        header = headers_of(context).get(MCP_NAME_HEADER)  # FastMCP's client sends none
        if header is not None and decode_header_value(header) != params.task_id:
            raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match params.taskId")
        if not declares_tasks((context.meta or {}).get(CLIENT_CAPABILITIES_META_KEY)):
            raise _undeclared("The request does not declare that its client uses tasks.")
        if "\0" in params.task_id or not params.task_id.isascii():  # which databases refuse
            raise MCPError(INVALID_PARAMS, _NOT_FOUND)
        its = {"id": params.task_id, "api": "mcp", "owner": caller_of(context).owner or ""}
        return its if agent is None else {**its, "agent": agent}

    # Documents

    def created(self, row: AnyRow) -> dict[str, Any]:
        """Return the `CreateTaskResult` of a task that was stored just now."""
        return {"resultType": "task", **self._document(row)}

    def _document(self, row: AnyRow) -> dict[str, Any]:
        return {
            "taskId": row.id,
            "status": row.status,
            **({"statusMessage": row.status_message} if row.status_message else {}),
            "createdAt": _written(row.created_at),
            "lastUpdatedAt": _written(row.updated_at),
            "ttlMs": row.expires_at - row.created_at,
            "pollIntervalMs": max(int(self.limits.poll_seconds * 1000), 1),
        }


def _outcome(row: AnyRow) -> dict[str, Any]:
    outcome = {"result": row.result, "error": row.error}
    return {name: value for name, value in outcome.items() if value is not None}


def _questions(asked: Mapping[str, Question]) -> dict[str, Any]:
    if not asked:
        return {}
    requests = InputRequiredResult(input_requests={id_: elicitation(one) for id_, one in asked.items()})
    document = serialize_server_result("tools/call", LATEST_MODERN_VERSION, _wire(requests))
    origins = {id_: question.origin for id_, question in asked.items()}
    return {"inputRequests": document["inputRequests"], "_meta": {ORIGINS_META_KEY: origins}}


def _answer(question: Question, responses: Mapping[str, Any]) -> Answer | None:
    """Return the answer to a question among the responses; None if there is none.

    Raises:
        MCPError: it is none, or does not fit the question; the question stays open.
    """
    if (response := responses.get(question.id)) is None:
        return None
    with suppress(ValidationError):
        response = ElicitResult.model_validate(response, by_name=False)
    answer = answer_of(question.id, response)
    if (why := question.misfit(answer)) is not None:
        raise MCPError(INVALID_PARAMS, f"inputResponses: in '{question.id}', {why}. Send another answer.")
    return answer


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except DatabaseUnavailableError as error:
        message = "The gateway's database cannot be used now. Try again in a moment."
        raise MCPError(INTERNAL_ERROR, message, {"reason": error.reason}) from error


def _undeclared(why: str) -> MCPError:
    return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"{why} Declare the extension '{TASKS}'.", _REQUIRED)


def _error(message: str, reason: str) -> dict[str, Any]:
    return {"code": INTERNAL_ERROR, "message": message, "data": {"reason": reason}}


def _wire(result: BaseModel) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def _written(milliseconds: int) -> str:
    time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
