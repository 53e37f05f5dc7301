"""The course of a call, from which another process can go on with it.

Only a single loop has one: the served agent is the only agent of its instance. The journal holds the model's turns, the
results of tools, and the tools whose questions can be put again. A resumed call runs the same loop: recorded turns and
results take the place of the model and the tools, until the loop is where it was. Nothing runs twice: the result of a
tool that had begun, and whose question cannot be put again, is an error.

A call that waits for answers of its caller gives its whole course to its client, as a checkpoint. A long call stores
each step with its `Recorder`; a tool does not begin before that is stored.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fast_agent.constants import should_parallelize_tool_calls
from fast_agent.types import LlmStopReason, PromptMessageExtended
from mcp_types import CallToolResult, InputRequiredResult, TextContent
from pydantic import ValidationError

from pallas_gateway.calls.questions import Answer
from pallas_gateway.calls.recording import Row
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.runtime.scope import OF_SERVER, ToolRun, current_scope, entered
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set

    from pallas_gateway.calls.asking.asking import Questions
    from pallas_gateway.calls.questions import Question
    from pallas_gateway.calls.recording import Recorder, RowKind
    from pallas_gateway.calls.spending import Spending

    type Step = Callable[..., Awaitable[PromptMessageExtended]]

LONGEST_CHECKPOINT = 47_000
"""Characters; the sealed state is a third longer, and below 64 KB."""
_PACKED_AT_ONCE = 16 * 1024
_VERSION = 2
_LOST = (
    "The gateway was restarted while this tool ran, so its result is not known: it may or may not have done its work. "
    "It was not run again."
)
_LOST_QUESTION = (
    "The gateway was restarted while this tool waited for an answer of the caller, so its question could not be "
    "completed. It may have done a part of its work. It was not run again."
)


async def ask_in_tool(about: str, question: Question) -> Answer:
    """Put a question to the caller that can be put again if the call is resumed: `about` is unique in its tool call."""
    scope = current_scope.get()
    run, questions = scope.tool_run, scope.questions
    return await (run.ask(about, question, questions) if run is not None else questions.ask(question))


def is_required(key: object) -> bool:
    """Return whether the server requires the answer to the question `key` for the current tool call (2026-07-28)."""
    run = current_scope.get().tool_run
    return run is not None and run.input_required is not None and key in (run.input_required.input_requests or {})


async def ask_for_server(key: object, tool_calls: Callable[[], Collection[str]], question: Question) -> Answer:
    """Put a server's question to the caller.

    Args:
        key: of the question in an `InputRequiredResult`; the id of a request in the initialize era.
        tool_calls: returns the ids of the tool calls in which the server asks.
        question: to put.
    """
    scope = current_scope.get()
    run = scope.tool_run
    if run is not None and is_required(key):
        return await run.ask(f"{OF_SERVER}{key}", question, scope.questions)
    if (journal := _journal()) is not None:
        journal.note_unrepeatable(question.id, tool_calls())
    return await scope.questions.ask(question)


class CallJournal:
    """The journal of the loop of `agent`.

    With a `checkpoint`, or with the rows of a `recorder`, the course in another process is played first.

    Raises:
        CallRefusedError: `call_again`, because that cannot be read.
    """

    def __init__(
        self,
        agent: Any,
        questions: Questions,
        spending: Spending,
        checkpoint: str | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.agent = agent
        self._questions = questions
        self._spending = spending
        self._turns: list[PromptMessageExtended] = []
        self._runs: dict[tuple[int, str], ToolRun] = {}
        self._unrepeatable: dict[str, Collection[str]] = {}
        self._recorded: list[PromptMessageExtended] = []
        self._recorder = recorder
        if checkpoint is not None or (recorder is not None and recorder.rows):
            try:
                if checkpoint is not None:
                    self._load(json.loads(zlib.decompress(base64.b64decode(checkpoint))))
                elif recorder is not None:
                    self._load(_document_of_rows(recorder.rows, recorder.tokens, recorder.cost))
            except (ValueError, KeyError, TypeError, zlib.error, ValidationError) as error:
                message = "The call cannot be resumed by this version of the gateway. Call the tool again."
                raise CallRefusedError(message, reason="call_again") from error

    @property
    def plays(self) -> bool:
        """True if the next turn of the model is a recorded one."""
        return bool(self._recorded)

    async def turn(self, messages: list[PromptMessageExtended], step: Step, *more: Any, **options: Any) -> Any:
        """Return the next turn of the model, a recorded one at first."""
        if not self._recorded:
            if self._recorder is not None:
                await self._recorder.before_turn()
            turn = await step(self.agent, messages, *more, **options)
        else:
            turn, agent = self._recorded.pop(0), self.agent
            if agent.llm.get_request_params(options.get("request_params")).use_history:  # as after a model's turn
                agent.load_message_history([*agent.message_history, *messages, turn])
            self._turns.append(turn)
            return turn
        self._turns.append(turn)
        # fast-agent ends a turn that is cancelled, as the process stops, with this reason: it is asked for again.
        if self._recorder is not None and turn.stop_reason is not LlmStopReason.CANCELLED:
            self._recorder.note(self._row_of_turn(len(self._turns)), *self._spent)
        return turn

    async def run(
        self, tool_call_id: str, call: Callable[[], Awaitable[CallToolResult]], count: Callable[[], object]
    ) -> CallToolResult:
        """Return the result of a tool call, which runs unless its result was recorded; a recorded run is counted."""
        number = len(self._turns)
        run = self._runs.setdefault((number, tool_call_id), ToolRun())
        for text in run.texts:
            self._questions.tell_model(tool_call_id, text)
        run.texts = ()
        if run.result is None:
            with entered(replace(current_scope.get(), tool_run=run)):
                run.result = await call()
            if self._recorder is not None:
                self._recorder.note(self._row(number, tool_call_id, run), *self._spent)
        elif not run.is_refused:
            count()
        return run.result

    async def begin(self, run: ToolRun) -> None:
        """Note that a tool begins; if the call is recorded, store it first."""
        if run.has_begun:
            return
        run.has_begun = True
        if self._recorder is None:
            return
        number, id_ = next(key for key, one in self._runs.items() if one is run)
        await self._recorder.store(self._row(number, id_, run), *self._spent)

    def record_by(self, recorder: Recorder) -> Sequence[Row]:
        """Store each step from now on; return those so far."""
        self._recorder = recorder
        runs = [(key, run) for key, run in self._runs.items() if run.result or run.can_be_repeated or run.has_begun]
        turns = [self._row_of_turn(number) for number in range(1, len(self._turns) + 1)]
        return [*turns, *(self._row(*key, run) for key, run in runs)]

    def waiting(self, question: Question) -> Sequence[Row]:
        """Return the tool calls that wait for the answer to a question, as rows."""
        # The question of a nested call, or of a server of the initialize era, cannot be put again.
        lost = self._unrepeatable.get(question.id, question.call_path[-1:])
        rows = []
        for key, run in self._runs.items():
            if run.result is None and question.id in run.questions.values():
                rows.append(self._row(*key, run))
            elif key[0] == len(self._turns) and key[1] in lost:
                rows.append(Row("began", *key, {"asks": True}))
        return rows

    @property
    def _spent(self) -> tuple[int, float]:
        return self._spending.tokens, self._spending.cost

    def _row_of_turn(self, number: int) -> Row:
        return Row("turn", number, "", cleaned_data(_wire(self._turns[number - 1])))

    def _row(self, turn: int, tool_call: str, run: ToolRun) -> Row:
        texts = {"texts": [*self._questions.unread_texts(tool_call)]}
        kind: RowKind
        if run.result is not None:
            kind, data = "result", {**_document_of_ended(run), **texts}
        elif run.can_be_repeated:
            kind, data = "waits", {**_document(run, waits=False), **texts}
        else:
            approvals = self._questions.approvals
            kind, data = "began", {"approved": approvals.allowed if approvals is not None else ()}
        return Row(kind, turn, tool_call, cleaned_data(data))

    def note_unrepeatable(self, question_id: str, tool_calls: Collection[str]) -> None:
        """Note a question that a server asks while these tools run: it cannot be put again."""
        if all((len(self._turns), id_) in self._runs for id_ in tool_calls):  # else one of an agent inside a tool
            self._unrepeatable[question_id] = tool_calls

    def checkpoint(self, open_questions: Set[str]) -> str | None:
        """Return the course of the call while these questions are open; None if it cannot be resumed from there."""
        runs = {id_: run for (turn, id_), run in self._runs.items() if turn == len(self._turns)}
        repeatable = {id_ for run in runs.values() for id_ in run.questions.values()}
        if not self._turns or not open_questions <= repeatable | self._unrepeatable.keys():
            return None  # a question of a nested call
        called = list(self._turns[-1].tool_calls or {})
        if should_parallelize_tool_calls(len(called)):  # all have begun, or are about to
            runs = {**{id_: ToolRun() for id_ in called}, **runs}
        waiting = {id_ for question in open_questions for id_ in self._unrepeatable.get(question, ())}
        ended = [[*key, _document_of_ended(run)] for key, run in self._runs.items() if key[0] < len(self._turns)]
        texts = self._questions.unread_texts  # of a round that has ended, results have them
        present = [
            [len(self._turns), id_, {**_document(run, waits=id_ in waiting), "texts": texts(id_)}]
            for id_, run in runs.items()
        ]
        approvals = self._questions.approvals
        document = {
            "version": _VERSION,
            "turns": [_wire(turn) for turn in self._turns],
            "runs": [*ended, *present],
            "approved": approvals.allowed if approvals is not None else (),
            "spent": [self._spending.tokens, self._spending.cost],
        }
        packed = packed_within(LONGEST_CHECKPOINT // 4 * 3, json.dumps(document).encode())
        return base64.b64encode(packed).decode() if packed is not None else None

    def _load(self, document: Mapping[str, Any]) -> None:
        if document["version"] != _VERSION:
            raise ValueError("another version")
        self._recorded = [PromptMessageExtended.model_validate(turn) for turn in document["turns"]]
        self._runs = {(turn, id_): _run_of(recorded) for turn, id_, recorded in document["runs"]}
        if (approvals := self._questions.approvals) is not None:
            approvals.allowed = tuple(document["approved"])
        tokens, cost = document.get("spent", (0, 0.0))
        self._spending.resume(int(tokens), float(cost))


def _document_of_rows(rows: Sequence[Row], tokens: int, cost: float) -> Mapping[str, Any]:
    """Return the document of a checkpoint; a tool call of an earlier run that has begun and has no result is lost."""
    turns, runs, approved = {}, {}, ()
    for kind, turn, tool_call, data in rows:
        if kind == "turn":
            turns[turn] = data
        elif kind == "began":
            approved = data.get("approved", approved)
            runs[turn, tool_call] = _document_of_ended(ToolRun(), _LOST_QUESTION if data.get("asks") else _LOST)
        else:
            runs[turn, tool_call] = data
    return {
        "version": _VERSION,
        "turns": [turns[number] for number in sorted(turns)],
        "runs": [[*key, run] for key, run in runs.items()],
        "approved": approved,
        "spent": [tokens, cost],
    }


def packed_within(most: int, data: bytes) -> bytes | None:
    """Return `data` compressed; None as soon as that is longer than `most` bytes, so that long data costs little."""
    packing, packed = zlib.compressobj(), b""
    for begin in range(0, len(data), _PACKED_AT_ONCE):
        packed += packing.compress(data[begin : begin + _PACKED_AT_ONCE])
        if len(packed) > most:
            return None
    packed += packing.flush()
    return packed if len(packed) <= most else None


async def run_in_journal(
    agent: object,
    tool_call_id: str | None,
    run: Callable[[], Awaitable[CallToolResult]],
    count: Callable[[], object],
) -> CallToolResult:
    """Return the result of a tool call by `run`, or the recorded one, after `count`, if the agent has a journal."""
    journal = journal_of(agent)
    if journal is not None and tool_call_id is not None:
        return await journal.run(tool_call_id, run, count)
    with entered(replace(current_scope.get(), tool_run=None)):  # an agent inside a tool asks for itself
        return await run()


def journal_of(agent: object) -> CallJournal | None:
    """The journal of the call, if this agent is the one whose course it records."""
    journal = _journal()
    return journal if journal is not None and journal.agent is agent else None


async def tool_begins() -> None:
    """Store that the tool of the present scope begins, before it is asked for its work."""
    run = current_scope.get().tool_run
    if run is not None and (journal := _journal()) is not None:
        await journal.begin(run)


def _journal() -> CallJournal | None:
    turns = current_scope.get().turns
    return turns.journal if turns is not None and isinstance(turns.journal, CallJournal) else None


def _document(run: ToolRun, *, waits: bool) -> Mapping[str, Any]:
    """Return what another process needs of a tool call; one that runs, or `waits` for its server, is lost."""
    if run.result is not None or not run.can_be_repeated:
        return _document_of_ended(run, _LOST_QUESTION if waits else _LOST)
    answers = {about: [answer.outcome, answer.content, answer.why] for about, answer in run.answers.items()}
    required = _wire(run.input_required) if run.input_required is not None else None
    return {
        "questions": run.questions,
        "answers": answers,
        "input_required": required,
        "asked_under": run.asked_under,
    }


def _document_of_ended(run: ToolRun, lost: str = _LOST) -> Mapping[str, Any]:
    lost_result = CallToolResult(content=[TextContent(type="text", text=lost)], is_error=True)
    refused = {"refused": True} if run.is_refused else {}
    return {"result": _wire(lost_result if run.result is None else run.result), **refused}


def _run_of(recorded: Mapping[str, Any]) -> ToolRun:
    if (result := recorded.get("result")) is not None:
        is_refused = bool(recorded.get("refused"))
        return ToolRun(CallToolResult.model_validate(result), texts=recorded.get("texts", ()), is_refused=is_refused)
    required = recorded["input_required"]
    return ToolRun(
        input_required=InputRequiredResult.model_validate(required) if required is not None else None,
        repeats=required is not None,
        questions=recorded["questions"],
        answers={about: Answer(*answer) for about, answer in recorded["answers"].items()},
        asked_under=recorded["asked_under"],
        texts=recorded["texts"],
    )


def _wire(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)
