"""The questions of calls for any course that calls, clients, time and the gateway's stop take."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar, override

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from pallas_gateway.calls.questions import Answer, Question
from pallas_gateway.identity.static_keys import hash_of
from pallas_gateway.limits import QuestionLimits
from tests.support.protocol_clients import Era, McpClient, McpExchange, McpOptions
from tests.support.scripted_calls import AGENT, SERVER, ScriptedCall, Worlds, run_courses

PEER = "peer"
ASK_SECONDS, CALL_SECONDS = 60.0, 100.0
MOST_IN_FLIGHT, MOST_WAITING, MOST_CALLS = 3, 3, 8
LIMITS = QuestionLimits(at_once=3, of_one_call=4)
ATTEMPTS = 3
INVALID_PARAMS = -32602
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
RESULTS: dict[str, Any] = {
    "accepted": {"action": "accept", "content": {"name": "Ada"}},
    "declined": {"action": "decline"},
    "cancelled": {"action": "cancel"},
    "misfit": {"action": "accept", "content": {"name": 7}},
}


@dataclass(eq=False)
class Level:
    """A call, or one that is nested in it. `seconds` is the time that it has run without an open question."""

    script: ScriptedCall
    agent: str
    seconds: float = 0.0
    is_over: bool = False


@dataclass(eq=False)
class Asked:
    """A question; `outcome` is None while it is open."""

    id: str
    mode: str
    level: Level
    task: asyncio.Task[Answer]
    since: float
    outcome: str | None = None
    misfits: int = 0

    @property
    def text(self) -> str:
        return f"{self.id}?"


@dataclass(eq=False)
class OneCall:
    """A call with its client. `state` is that of a call of 2026-07-28 whose client has no request."""

    client: McpClient
    caller: str
    exchange: McpExchange
    outer: Level
    nested: Level | None = None
    asked: list[Asked] = field(default_factory=list)
    put: int = 0
    state: str | None = None
    detached: float = 0.0
    used: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """What the call has told that its client has not read."""
    has_client: bool = True
    has_left_for_good: bool = False

    @property
    def era(self) -> Era:
        return self.client.options.era

    @property
    def open(self) -> list[Asked]:
        return [one for one in self.asked if one.outcome is None]

    def levels(self) -> list[Level]:
        return [one for one in (self.outer, self.nested) if one is not None and not one.is_over]

    def waits(self, level: Level) -> bool:
        """Return whether a question of a call, or of one nested in it, is open."""
        return any(one.level in (level, self.nested if level is self.outer else level) for one in self.open)


ERAS, CALLERS = ("initialize", "modern"), ("ann", "ann", "bob", "eve")
MODES = (("form", "url"), ("form", "url"), ("form", "url"), ("form",), ())
RESULT = ["accepted", "accepted", "declined", "cancelled", "misfit"]
HAPPENINGS: dict[str, tuple[float, Any]] = {
    "a_call_begins": (3, lambda by: (by.choice(ERAS), by.choice(MODES), by.choice(CALLERS))),
    "a_question_arises": (9, lambda by: (by.randrange(8), by.choice(["form", "form", "url"]), by.random() < 0.3)),
    "a_client_answers": (6, lambda by: (by.randrange(8), by.randrange(3), by.choice(RESULT), by.choices(RESULT, k=2))),
    "time_passes": (2, lambda by: (by.choice([1.0, 20.0, 40.0, 60.0, 90.0]),)),
    "a_nested_call_begins": (1, lambda by: (by.randrange(8),)),
    "a_call_ends": (1, lambda by: (by.randrange(8), by.random() < 0.5)),
    "a_call_tells": (1, lambda by: (by.randrange(8), by.randint(1, 16))),
    "a_client_answers_again": (2, lambda by: (by.randrange(8), by.choice(RESULT))),
    "a_stranger_answers": (1, lambda by: (by.randrange(8),)),
    "a_client_leaves": (1, lambda by: (by.randrange(8), by.random() < 0.5)),
    "a_client_ends_a_waiting_call": (1, lambda by: (by.randrange(8),)),
    "the_gateway_stops": (0.5, lambda _: ()),
    "a_call_goes_on_in_another_process": (3, lambda by: (by.randrange(8), by.choice(["accepted", "declined"]))),
}
"""How often each thing happens, and what its arguments are. They are drawn evenly: hypothesis itself prefers few."""

AT_STOP = {
    "a_question_arises",
    "a_client_answers",
    "time_passes",
    "a_call_ends",
    "a_call_tells",
    "a_client_leaves",
    "a_call_goes_on_in_another_process",
}
"""The things that happen also while the gateway is stopping."""


class QuestionsCourse(RuleBasedStateMachine):
    """Calls ask; clients answer, leave and come back; time passes; the gateway stops."""

    worlds: ClassVar[Worlds]
    has_auth: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.world, self.other = self.worlds.take()
        self.calls: list[OneCall] = []
        self.number = self.steps = 0
        self.drained = False
        self.before = {agent: self.world.asked(agent)[1] for agent in (AGENT, PEER)}

    @property
    def now(self) -> float:
        return self.world.loop.time()

    @initialize(can_be_resumed=st.booleans(), eras=st.lists(st.sampled_from(ERAS), min_size=3, max_size=3))
    def begin(self, can_be_resumed: bool, eras: list[Era]) -> None:
        self.can_be_resumed = can_be_resumed
        for era in eras:
            self.a_call_begins(era, ("form", "url"), "ann")
        for world in (self.world, self.other):
            for agent in world.agents.values():
                agent.can_be_resumed = can_be_resumed

    @rule(seed=st.integers(0, 2**32))
    def something_happens(self, seed: int) -> None:
        self.steps += 1
        by = Random(f"{seed}/{self.steps}")  # noqa: S311  equal seeds, which are frequent, make other steps
        names = AT_STOP if self.drained else HAPPENINGS.keys() - {"a_call_goes_on_in_another_process"}
        possible = sorted(names)
        (name,) = by.choices(possible, [HAPPENINGS[one][0] for one in possible])
        arguments = HAPPENINGS[name][1](by)
        note(f"# {name}{arguments}")
        getattr(self, name)(*arguments)

    # calls

    def a_call_begins(self, era: Era, modes: tuple[str, ...], caller: str) -> None:
        if len(self.calls) == MOST_CALLS:
            return
        client = McpClient(self.world, McpOptions(era, modes=modes), AGENT, caller)
        exchange = client.call()
        holders = sum(not one.waits(one.outer) for one in self.calls if not one.outer.is_over)
        if holders >= MOST_IN_FLIGHT:
            assert exchange.result["result"]["isError"], "a call without a slot"
            return
        assert not exchange.has_ended, "a call that waits for an answer holds a slot"
        self.calls.append(OneCall(client, caller, exchange, Level(self.world.latest(), AGENT)))

    def a_nested_call_begins(self, which: int) -> None:
        call = self._running(which)
        if call is not None and (call.nested is None or call.nested.is_over) and not self.drained:
            call.nested = Level(call.outer.script.call_peer(self.world, PEER), PEER)

    def a_question_arises(self, which: int, mode: str, nested: bool) -> None:
        call = self._running(which)
        if call is None:
            return
        level = call.nested if nested and call.nested is not None and not call.nested.is_over else call.outer
        self.number += 1
        expected = self._refusal(call, mode)
        task = self.world.do(level.script.ask, self._question(f"q{self.number}", mode))
        asked = Asked(f"q{self.number}", mode, level, task, self.now, expected)
        call.asked.append(asked)
        if expected is None:
            call.put += 1
            self._is_put(call, asked)

    @staticmethod
    def _question(id_: str, mode: str = "form") -> Question:
        if mode == "url":
            return Question("url", f"{id_}?", SERVER, url="https://a.example/", id=id_)
        return Question("form", f"{id_}?", SERVER, schema=SCHEMA, id=id_)

    def _refusal(self, call: OneCall, mode: str) -> str | None:
        """Return the outcome of a question that the caller is not asked."""
        if mode not in call.client.options.modes:
            return "unaskable"
        waiting = [one for one in self.calls if one.open]
        of_caller = [one for one in waiting if one.caller == call.caller]
        has_no_place = len(waiting) >= MOST_WAITING or (self.has_auth and len(of_caller) >= (MOST_WAITING + 1) // 2)
        is_beyond = len(call.open) >= LIMITS.at_once or call.put >= LIMITS.of_one_call
        return "declined" if is_beyond or (not call.open and has_no_place) else None

    def _is_put(self, call: OneCall, asked: Asked) -> None:
        """The client reads the question in the form of its era; or the call ends because the gateway is stopping."""
        if call.era == "initialize":
            if self.drained:
                self._over(call)
            else:
                assert self._wire_ids(call, asked)
        elif call.has_client:
            self._request_ends(call)
            if self.drained:
                self._over(call)

    def _wire_ids(self, call: OneCall, asked: Asked) -> list[Any]:
        return [one["id"] for one in call.exchange.questions if f" {asked.text}" in one["params"]["message"]]

    def _request_ends(self, call: OneCall) -> None:
        """The request of 2026-07-28 ends with all open questions."""
        result = call.exchange.result["result"]
        if self.drained and not self.can_be_resumed:
            assert result["isError"]
            return
        assert result["resultType"] == "input_required"
        assert set(result["inputRequests"]) == {one.id for one in call.open}
        call.state, call.detached, call.has_client = result["requestState"], self.now, False

    def a_call_ends(self, which: int, nested: bool) -> None:
        call = self._running(which)
        if call is None:
            return
        if nested and call.nested is not None and not call.nested.is_over:
            self.world.do(call.nested.script.end, "helped")
            self._level_over(call, call.nested)
            return
        self.world.do(call.outer.script.end, "done")
        self._over(call)
        assert not call.has_client or call.exchange.result["result"]["content"][0]["text"] == "done"

    def a_call_tells(self, which: int, count: int) -> None:
        """Tell the client at once, or in its next request."""
        call = self._running(which)
        if call is None:
            return
        for _ in range(count):
            self.number += 1
            call.told.append(f"t{self.number}")
            payload = {"kind": "assistant_chunk", "schema_version": 3, "agent": "peer", "text": call.told[-1]}
            self.world.do(call.outer.script.relayed, payload)
        if call.has_client:
            assert self._read(call)[-count:] == call.told
            call.told.clear()

    @staticmethod
    def _read(call: OneCall) -> list[str]:
        payloads = [one.data for one in call.exchange.payloads]
        return [one["text"] for one in payloads if one["kind"] == "assistant_chunk"]

    def _reads_what_was_kept(self, call: OneCall) -> None:
        """A client that returns reads what was told meanwhile in order."""
        assert self._read(call) == call.told
        call.told.clear()

    # answers

    def a_client_answers(self, which: int, index: int, result: str, more: list[str]) -> None:
        call = self._waiting(which)
        if call is None:
            return
        if call.era == "initialize":
            if call.open and call.has_client:
                self._answer_on_stream(call, call.open[index % len(call.open)], result)
        elif call.state is not None:
            given = dict(zip([one.id for one in call.open], [result, *more][: index + 1], strict=False))
            self._answer_by_repeating(call, given)

    def _answer_on_stream(self, call: OneCall, asked: Asked, result: str) -> None:
        (*_, id_) = before = self._wire_ids(call, asked)
        assert call.client.answer(id_, RESULTS[result]).status == 202
        if result != "misfit" or asked.mode == "url":
            asked.outcome = "accepted" if result == "misfit" else result
            return
        asked.misfits += 1
        if asked.misfits == ATTEMPTS:
            asked.outcome = "cancelled"
        else:
            assert len(self._wire_ids(call, asked)) == len(before) + 1, "a form that does not fit is not sent again"

    def _answer_by_repeating(self, call: OneCall, given: dict[str, str]) -> None:
        state, call.exchange = call.state or "", self._repeated(call.client, call.state or "", given)
        of_forms = [given[one.id] for one in call.open if one.id in given and one.mode == "form"]
        if self.drained or "misfit" in of_forms:
            assert self._is_refused(call.exchange)
            return
        call.used.append(state)
        call.state, call.has_client = None, True
        self._reads_what_was_kept(call)
        for asked in call.open:
            if self.now - asked.since > ASK_SECONDS:
                asked.outcome = "expired"
            elif asked.id in given:
                asked.outcome = "accepted" if given[asked.id] == "misfit" else given[asked.id]
        if call.outer.is_over:
            assert "isError" in call.exchange.result["result"]
        elif call.open:
            self._request_ends(call)
        else:
            assert not call.exchange.has_ended

    def _is_refused(self, exchange: McpExchange) -> bool:
        """Return whether a request was refused: by the protocol's error, or because the gateway is stopping."""
        return exchange.status == 503 if self.drained else exchange.result["error"]["code"] == INVALID_PARAMS

    @staticmethod
    def _repeated(client: McpClient, state: str, given: dict[str, str]) -> McpExchange:
        return client.call(state=state, answers={id_: RESULTS[result] for id_, result in given.items()})

    def a_client_answers_again(self, which: int, result: str) -> None:
        """An answer to a closed question changes nothing; a state that was used is refused."""
        if not self.calls:
            return
        call = self.calls[which % len(self.calls)]
        closed = [one for one in call.asked if one.outcome is not None]
        if call.era == "initialize":
            for asked in closed:
                for id_ in self._wire_ids(call, asked)[-1:]:
                    assert call.client.answer(id_, RESULTS[result]).status == 202
        else:
            for state in call.used:
                given = {one.id: result for one in call.asked}
                assert self._is_refused(self._repeated(call.client, state, given))

    def a_stranger_answers(self, which: int) -> None:
        call = self._waiting(which)
        if call is None:
            return
        stranger = McpClient(self.world, call.client.options, AGENT, "bob" if call.caller == "ann" else "ann")
        if call.era == "initialize":
            for asked in call.open:
                assert stranger.answer(self._wire_ids(call, asked)[-1], RESULTS["accepted"]).status == 400
            assert call.client.answer("question-unknown", RESULTS["accepted"]).status == 400
        elif call.state is not None:
            given = {one.id: "accepted" for one in call.open}
            altered = call.state[:-4] + ("AAAA" if call.state[-4:] != "AAAA" else "BBBB")
            for client, state in ((stranger, call.state), (call.client, altered)):
                assert self._is_refused(self._repeated(client, state, given))

    # clients that leave or end their calls

    def a_client_leaves(self, which: int, cancels: bool) -> None:
        call = self._running(which)
        if call is None or not call.has_client:
            return
        if cancels and call.era == "initialize":
            call.client.cancel()
        else:
            call.exchange.leave()
        call.has_client = False
        self._over(call)

    def a_client_ends_a_waiting_call(self, which: int) -> None:
        call = self._waiting(which)
        if call is not None and call.state is not None:
            exchange = call.client.call(state=call.state, ends=True)
            assert "result" in exchange.result
            call.used.append(call.state)
            call.state = None
            self._over(call)

    # time

    def time_passes(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := min(self._due(), default=until)) < until or due == until in self._due():
            self._advance(due - self.now)
            self._happen()
        self._advance(until - self.now)
        self._happen()

    def _advance(self, seconds: float) -> None:
        for call in self.calls:
            for level in call.levels():
                level.seconds += 0 if call.waits(level) else seconds
        self.world.advance(seconds)

    def _due(self) -> list[float]:
        """Return when something happens because time passes."""
        due = []
        for call in self.calls:
            due += [self.now + CALL_SECONDS - one.seconds for one in call.levels() if not call.waits(one)]
            if call.era == "initialize":
                due += [one.since + ASK_SECONDS for one in call.open]
            elif call.state is not None and not self.drained:
                due.append(call.detached + ASK_SECONDS)
        return due

    def _happen(self) -> None:
        for call in self.calls:
            for level in call.levels():
                if level.seconds >= CALL_SECONDS:
                    self._level_over(call, level)
            for asked in call.open:
                if call.era == "initialize" and asked.since + ASK_SECONDS <= self.now:
                    asked.outcome = "expired"
            if call.state is not None and call.detached + ASK_SECONDS <= self.now:
                call.used.append(call.state)
                call.state = None
                self._over(call)

    # the gateway stops

    def the_gateway_stops(self) -> None:
        if not any(one.open for one in self.calls):
            return
        self.drained = True
        self.world.drain()
        for call in self.calls:
            if call.state is not None or (call.era == "initialize" and call.open):
                self._over(call)

    def a_call_goes_on_in_another_process(self, which: int, result: str) -> None:
        """The state of a call that has ended with its process is accepted once by another one."""
        left = [one for one in self.calls if one.state is not None and not one.has_left_for_good]
        if not left:
            return
        call = left[which % len(left)]
        asked = [one.id for one in call.asked if one.outcome in {"cancelled", "expired"}]
        if call.state is None or not asked or call.detached + ASK_SECONDS <= self.now or call.has_left_for_good:
            return
        client = McpClient(self.other, call.client.options, AGENT, call.caller)
        given = dict.fromkeys(asked, result)
        exchange = self._repeated(client, call.state, given)
        if not self.can_be_resumed:
            assert exchange.result["result"]["isError"]
            return
        call.has_left_for_good = True
        script = self.other.latest()
        assert set(script.open_elsewhere) <= set(asked)
        outcomes = [self.other.do(script.ask, self._question(id_)) for id_ in script.open_elsewhere]
        assert {task.result().outcome for task in outcomes} <= {result}
        again = self._repeated(client, call.state, given)
        assert again.result["error"]["code"] == INVALID_PARAMS
        self.other.do(script.end, "done elsewhere")
        assert exchange.result["result"]["content"][0]["text"] == "done elsewhere"

    # the model

    def _running(self, which: int) -> OneCall | None:
        running = [one for one in self.calls if not one.outer.is_over]
        return running[which % len(running)] if running else None

    def _waiting(self, which: int) -> OneCall | None:
        waiting = [one for one in self.calls if one.state is not None or (one.open and one.has_client)]
        return waiting[which % len(waiting)] if waiting else None

    def _over(self, call: OneCall) -> None:
        for level in call.levels():
            self._level_over(call, level)

    def _level_over(self, call: OneCall, level: Level) -> None:
        """A call has ended, with all that is nested in it; its open questions are withdrawn."""
        level.is_over = True
        if level is call.outer and call.nested is not None:
            call.nested.is_over = True
        for asked in call.open:
            if asked.level.is_over:
                asked.outcome = "expired" if self.now - asked.since >= ASK_SECONDS else "cancelled"

    @invariant()
    def all_holds(self) -> None:
        self.each_question_has_one_outcome()
        self.calls_end_when_they_must()
        self.calls_wait_while_they_have_an_open_question()

    def each_question_has_one_outcome(self) -> None:
        for call in self.calls:
            for asked in call.asked:
                outcome = asked.task.result().outcome if asked.task.done() and not asked.task.cancelled() else None
                assert asked.task.done() == (asked.outcome is not None), asked
                assert outcome in (None, asked.outcome), asked
        for agent in (AGENT, PEER):
            of_agent = [one for call in self.calls for one in call.asked if one.level.agent == agent]
            still_open, counted = self.world.asked(agent)
            assert counted - self.before[agent] == Counter(one.outcome for one in of_agent if one.outcome is not None)
            assert still_open == sum(one.outcome is None for one in of_agent)

    def calls_end_when_they_must(self) -> None:
        for call in self.calls:
            assert call.outer.script.has_ended == call.outer.is_over
            assert call.nested is None or call.nested.script.has_ended == call.nested.is_over

    def calls_wait_while_they_have_an_open_question(self) -> None:
        waiting = [one for one in self.calls if one.open]
        assert self.world.waiting_calls == len(waiting) <= MOST_WAITING
        assert all(len(one.open) <= LIMITS.at_once and one.put <= LIMITS.of_one_call for one in waiting)
        of_caller = Counter(one.caller for one in waiting)
        assert not self.has_auth or all(count <= (MOST_WAITING + 1) // 2 for count in of_caller.values())

    @override
    def teardown(self) -> None:
        for call in self.calls:
            if not call.outer.is_over:
                self.world.do(call.outer.script.end, "done")
                self._over(call)
        self.each_question_has_one_outcome()
        self.world.advance(2 * ASK_SECONDS)  # no state is valid any more
        self.world.assert_nothing_is_left()
        self.other.assert_nothing_is_left()


@pytest.mark.parametrize("has_auth", [True, False], ids=["known callers", "anonymous callers"])
def test_each_question_has_one_outcome_and_nothing_is_left_of_any_call(tmp_path: Path, *, has_auth: bool) -> None:
    keys = [{"name": one, "sha256": hash_of(one), "grants": ["run:agents"]} for one in ("ann", "bob", "eve")]

    class Course(QuestionsCourse):
        worlds = Worlds(
            tmp_path,
            {
                AGENT: {"max_in_flight": MOST_IN_FLIGHT, "call_timeout_seconds": CALL_SECONDS},
                PEER: {"call_timeout_seconds": CALL_SECONDS},
            },
            processes=2,
            limits=LIMITS,
            ask_seconds=ASK_SECONDS,
            max_open_questions=MOST_WAITING,
            queue_seconds=0,
            state_keys=["k" * 32],
            **({"auth": {"tokens": keys}} if has_auth else {}),
        )

    Course.has_auth = has_auth
    with Course.worlds:
        run_courses(Course, number=40, steps=50)
