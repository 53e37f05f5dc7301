"""The tasks of MCP clients: `tasks/get`, `tasks/update`, `tasks/cancel`, and tasks of ended processes.

The extension `io.modelcontextprotocol/tasks` of 2026-07-28. Every request declares it, and so does one whose answer may
be a task.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

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

from pallas_gateway.audit.trail import facts_of
from pallas_gateway.calls.questions import ORIGINS_META_KEY
from pallas_gateway.config.model.deployment import TasksSettings
from pallas_gateway.database.errors import DatabaseUnavailableError
from pallas_gateway.database.tables import tasks
from pallas_gateway.errors import GatewayError
from pallas_gateway.hosting.call_request import requested
from pallas_gateway.identity.decision import Action, Decision, decide
from pallas_gateway.long_calls import rows
from pallas_gateway.long_calls.recorder import TRY_AGAIN_SECONDS, TaskRecorder
from pallas_gateway.long_calls.records import LONGEST_REQUEST, NewTask
from pallas_gateway.mcp_server.envelope import caller_of, headers_of
from pallas_gateway.mcp_server.rounds import TASKS, answer_of, declares_tasks
from pallas_gateway.mcp_server.stream_asking import elicitation
from pallas_gateway.mcp_server.task_calls import NOT_NOW, TaskCall
from pallas_gateway.mcp_server.tool_requests import parsed
from pallas_gateway.mcp_server.tools import call_result
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping

    from mcp.server.lowlevel import Server
    from pydantic import BaseModel
    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.questions import Answer, Mode, Question
    from pallas_gateway.database.tables import AnyRow
    from pallas_gateway.hosting.call_request import CallRequest
    from pallas_gateway.hosting.gateway import Gateway
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.hosting.stored_services import StoredServices
    from pallas_gateway.long_calls.records import ClaimedTask, Held, TaskStatus
    from pallas_gateway.mcp_server.envelope import Context
    from pallas_gateway.mcp_server.tool_requests import ToolRequest

AGAIN_SECONDS = 5.0
"""Pause before a task that was not admitted is claimed again."""
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


class McpTasks:
    """The tasks of MCP clients of one gateway with a database.

    Args:
        gateway: hosts the agents.
        stored: its database.

    Attributes:
        long_calls: the tasks of this process.
    """

    def __init__(self, gateway: Gateway, stored: StoredServices) -> None:
        self._gateway = gateway
        self._database = stored.threads.database
        self.long_calls = stored.threads.long_calls

    @property
    def settings(self) -> TasksSettings | None:
        """The present settings; None if calls become no tasks."""
        return self._gateway.configuration.deployment.gateway.tasks

    @property
    def limits(self) -> TasksSettings:
        """The present settings, also for tasks that run on after these were switched off."""
        return self.settings or TasksSettings()

    def begin(self) -> None:
        """Go on with tasks of ended processes from now on."""
        self.long_calls.look_for_tasks("mcp", self._claim, self._go_on, self._give_up)

    # Calls that may become tasks

    def accepts(self, agent: HostedAgent, request: ToolRequest) -> bool:
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

    def new_task(self, running: TaskCall) -> NewTask:
        """Return the task of a running call."""
        call, caller = running.call, running.call.caller
        request = cleaned_data({"arguments": running.arguments, "modes": [*running.modes]})
        is_short = len(json.dumps(request)) <= LONGEST_REQUEST
        by_owner = caller.bearer is not None  # a token that no other process has
        return NewTask(
            owner=caller.owner or "",
            account=caller.account,
            principal=caller.principal,
            agent=running.agent.name,
            agent_id=running.agent.id,
            api="mcp",
            call_id=call.call_id,
            request=request if is_short else None,
            by_owner=by_owner,
            seconds=self.limits.ttl_seconds,
            conversation_id=call.conversation_id,
            most=self.limits.most_per_caller,
            can_move=running.journal is not None and is_short and not by_owner,
        )

    def recorder(self, held: Held, claimed: ClaimedTask | None = None) -> TaskRecorder:
        """Return the recorder of a task."""
        return TaskRecorder(self._database, held, self.limits.ask_seconds, claimed)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something of a task that no request waits for."""
        self._gateway.turns_and_nested.spawn(work, name="task of a client", report=True)

    def note_created(self, call: Call) -> None:
        """Note a new task in the audit log."""
        self._gateway.trail.record("task_created", "ok", facts_of(call))

    def forget(self, held: Held) -> None:
        """End a task that its client does not know."""
        self.spawn(self._end(held, "cancelled"))

    # The end of a run

    async def end(self, running: TaskCall, held: Held, request: CallRequest) -> None:
        """Store the end of a run: the result of its call, or that another process goes on."""
        outcome = request.outcome
        reason = outcome.reason if isinstance(outcome, GatewayError) else ""
        if running.goes_on_after(reason):
            pause = AGAIN_SECONDS if reason in NOT_NOW else 0
            await self._write(partial(rows.hand_over, held=held, wait_seconds=pause))
        elif running.ended_by is not None or reason == "cancelled":
            await self._end(held, "cancelled")
        elif reason == "stopped":
            await self._end(held, "failed", error=_error(_ENDED, "process_ended"))
        else:
            result = call_result(request, running.agent.trace_url(running.call))
            await self._end(held, "completed", result=cleaned_data(_wire(result)))

    async def _end(self, held: Held, status: TaskStatus, **outcome: Any) -> None:
        mine = and_(tasks.c.id == held.task_id, tasks.c.holder == held.holder)
        await self._write(lambda sql: rows.end(sql, mine, status, **outcome))

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[object]]) -> None:
        """Write the end of a run, also if the database is away for now."""
        while True:
            try:
                await self._database.write(work, share="services")
            except DatabaseUnavailableError:
                await asyncio.sleep(TRY_AGAIN_SECONDS)
            else:
                return

    # Tasks of ended processes

    async def _claim(self) -> ClaimedTask | None:
        gateway = self._gateway
        if self.settings is None or gateway.calls.draining or gateway.lacks_stored_agents:
            return None

        async def claimed(sql: AsyncConnection) -> ClaimedTask | None:
            await self.long_calls.keep_alive(sql)
            which = and_(tasks.c.api == "mcp", tasks.c.agent.not_in(gateway.not_ready))
            return await rows.claim(sql, self.long_calls.process, which)

        return await self._database.write(claimed, share="services")

    async def _go_on(self, claimed: ClaimedTask) -> None:
        self.spawn(self._continue(claimed))  # so that the end of its run is stored when this process stops

    async def _continue(self, claimed: ClaimedTask) -> None:
        """Run a task to its end, or until this process ends."""
        held, about = claimed.held, {"agent": claimed.agent, "call_id": claimed.call_id}
        # The process that ran a task has ended, or has left it. This one goes on from the last stored step.
        _log.info("task continued", extra={**about, "run": claimed.runs, "steps": len(claimed.rows)})
        caller, agent = (
            self._gateway.caller_named(claimed.principal, claimed.account),
            self._gateway.agents.get(claimed.agent),
        )
        if agent is None or agent.id != claimed.agent_id:
            why = _error(f"There is no agent '{claimed.agent}' any more.", "agent_gone")
            await self._end(held, "failed", error=why)
        elif caller is None:  # its key has been removed
            await self._end(held, "cancelled")
        else:
            with requested(agent, caller, {}, call_id=claimed.call_id, mcp_method="tools/call") as request:
                await self._run_again(claimed, agent, request)

    async def _run_again(self, claimed: ClaimedTask, agent: HostedAgent, request: CallRequest) -> None:
        arguments, modes = claimed.request["arguments"], claimed.request["modes"]
        with request.answering():
            await request.decoded(lambda asked: parsed(asked, arguments, agent))
        if request.has_outcome:  # a right that is gone cancels
            reason = request.outcome.reason if isinstance(request.outcome, GatewayError) else ""
            is_gone = reason == "insufficient_scope"
            error = None if is_gone else _error(str(request.outcome), reason)
            await self._end(claimed.held, "cancelled" if is_gone else "failed", error=error)
            return
        recorder = self.recorder(claimed.held, claimed)
        call = replace(request.call, recorder=recorder, given=claimed.answers)
        running = TaskCall(agent, call, modes, self, arguments)
        running.can_move, running.timeout_seconds = True, self.limits.timeout_seconds
        running.continue_with(recorder)
        running.leave()
        await running.finish(running.begin(), request)

    async def _give_up(self, sql: AsyncConnection, task: AnyRow) -> None:
        await rows.end(sql, tasks.c.id == task.id, "failed", error=_error(_ENDED, "process_ended"))

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
            row = await rows.find(sql, its)
            asks = row is not None and row.status == "input_required"
            return row, await rows.open_questions(sql, params.task_id) if asks else {}

        async def read_ended(sql: AsyncConnection) -> AnyRow | None:
            await rows.end(sql, and_(its, ~rows.goes_on()), "failed", error=_error(_ENDED, "process_ended"))
            return await rows.find(sql, its)

        with _answering():
            row, questions = await self._database.read(read)
            if row is not None and row.ended_at is None and not row.goes_on:
                row = await self._database.write(read_ended)
        if row is None:
            raise MCPError(INVALID_PARAMS, _NOT_FOUND)
        return {**self._document(row), **_questions(questions), **_outcome(row)}

    async def _update(self, agent: str | None, context: Context, params: _UpdateParams) -> dict[str, Any]:
        its, caller = self._wanted(agent, context, params), caller_of(context)

        async def give(sql: AsyncConnection) -> Mapping[str, Answer]:
            await sql.execute(select(tasks.c.id).where(its).with_for_update())  # two requests answer one by one
            if (row := await rows.find(sql, its)) is None:
                raise MCPError(INVALID_PARAMS, _NOT_FOUND)
            # The agent may have been taken from the caller since the call.
            if decide(caller, row.agent, Action.RUN, exists=True) is not Decision.ALLOWED:
                raise MCPError(INVALID_PARAMS, _NOT_FOUND)
            asked = await rows.open_questions(sql, params.task_id)
            answers = {id_: _answer(one, params.input_responses) for id_, one in asked.items()}
            given = {id_: answer for id_, answer in answers.items() if answer is not None}
            await rows.give(sql, its, given)
            return given

        with _answering():
            self.long_calls.deliver(await self._database.write(give))
        return {}

    async def _cancel(self, agent: str | None, context: Context, params: _TaskParams) -> dict[str, Any]:
        its = self._wanted(agent, context, params)

        async def cancel(sql: AsyncConnection) -> AnyRow | None:
            if await rows.find(sql, its) is None:
                raise MCPError(INVALID_PARAMS, _NOT_FOUND)
            return await rows.end(sql, its, "cancelled")

        with _answering():
            ended = await self._database.write(cancel)
        if ended is not None:
            caller = caller_of(context)
            facts = {"caller": caller.principal, "address": caller.address, "agent": ended.agent, "api": "mcp"}
            self._gateway.trail.record("task_cancelled", "ok", {**facts, "call_id": ended.call_id})
            self.long_calls.cancel(ended.id)
        return {}

    def _wanted(self, agent: str | None, context: Context, params: _TaskParams) -> ColumnElement[bool]:
        """Return the condition of the task that a request names.

        Raises:
            MCPError: the header `Mcp-Name` names another one, or the request does not declare the extension.
        """
        header = headers_of(context).get(MCP_NAME_HEADER)  # FastMCP's client sends none
        if header is not None and decode_header_value(header) != params.task_id:
            raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match params.taskId")
        if not declares_tasks((context.meta or {}).get(CLIENT_CAPABILITIES_META_KEY)):
            raise _undeclared("The request does not declare that its client uses tasks.")
        if "\0" in params.task_id:  # which PostgreSQL refuses
            raise MCPError(INVALID_PARAMS, _NOT_FOUND)
        its = and_(
            tasks.c.id == params.task_id, tasks.c.api == "mcp", tasks.c.owner == (caller_of(context).owner or "")
        )
        return its if agent is None else and_(its, tasks.c.agent == agent)

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
