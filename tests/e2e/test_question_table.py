"""One question through every API, gateway, kind and end: a table with what becomes of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.e2e.question_places import Place, Replicas, ReplicaToKill, TwoWorkers, world
from tests.support.asking import FORM, URL_MESSAGE
from tests.support.question_callers import CALLERS, Answer
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("patience"),
    pytest.mark.timeout(300),  # the first test of two workers starts them, and each process loads all agents
]


LEASES = {"threads_lease_seconds": 6, "queue_seconds": 60}
"""Threads of a killed process are soon free; those of others stay locked while a busy machine stands still."""


class Kind(NamedTuple):
    """What asks, how the question begins, and answers to it."""

    message: str
    shown: str
    accepted: Answer
    declined: Answer


ADA: Answer = {"action": "accept", "content": {"name": "Ada"}}
DECLINE: Answer = {"action": "decline"}
MAY_RUN = "user: May the tool asking/wipe run"
KINDS = {
    "form": Kind("asking/name", f"asking: {FORM}", ADA, DECLINE),
    "older form": Kind("older/name", f"older: {FORM}", ADA, DECLINE),  # of a downstream of the initialize era
    "page": Kind("asking/pay", f"asking: {URL_MESSAGE}", {"action": "accept"}, DECLINE),
    "older page": Kind("older/pay", f"older: {URL_MESSAGE}", {"action": "accept"}, DECLINE),
    "approval": Kind(
        "asking/wipe",
        MAY_RUN,
        {"action": "accept", "content": {"decision": "once"}},
        {"action": "accept", "content": {"decision": "deny"}},
    ),
    "human input": Kind("human", f"user: {FORM}", ADA, DECLINE),
    "nested form": Kind("user: asking/name", f"asking, for user: {FORM}", ADA, DECLINE),
    "nested page": Kind("user: asking/pay", f"asking, for user: {URL_MESSAGE}", {"action": "accept"}, DECLINE),
    "nested human": Kind("user: human", f"user: {FORM}", ADA, DECLINE),
}
METRIC_KINDS = {"page": "url", "approval": "approval", "human input": "human_input", "nested human": "human_input"}
METRIC_KINDS |= {"older page": "url", "nested page": "url"}  # else form


class Row(NamedTuple):
    """One question, and what becomes of it: the last four are expected.

    `says` is in the text that the caller reads at the end, which repeats what the model has read; `outcome` counts in
    `pallas_questions_total`; `runs` are calls of the tool at its downstream, `turns` requests to the model.
    """

    api: str
    place: str
    end: str
    kind: str
    says: str
    outcome: str | None
    runs: int
    turns: int


SAYS_ADA = '"name": "Ada"'
ACCEPTED, DECLINED, CANCELLED = '"action": "accept"', '"action": "decline"', '"action": "cancel"'
WIPED, NOT_WIPED = "wiped /", "the caller did not give it"
NOT_ANSWERED, NOT_GIVEN = "The caller did not answer.", "The caller declined to answer."
UNASKED = "This caller cannot be asked, so the question was declined."
UNAPPROVED = "was not run: it requires approval, and this caller cannot be asked for it"
STOPS = "The gateway is stopping and could not wait for this call any longer."
LOST = "SSE stream ended without a response"
AGAIN = "Call the tool again"
UNKNOWN = "its question could not be completed"
INITIALIZE, MODERN, EVENTS, JSON, OPENAI = CALLERS
# fmt: off
TABLE = [Row(*one) for one in (
    # who calls  at            the end       the kind       what it says   the outcome runs turns
    # --- one process
    (INITIALIZE, "one",        "answered",   "form",        SAYS_ADA,      "accepted",  2, 2),
    (MODERN,     "one",        "answered",   "older page",  ACCEPTED,      "accepted",  1, 2),
    (EVENTS,     "one",        "answered",   "human input", SAYS_ADA,      "accepted",  0, 2),
    (JSON,       "one",        "answered",   "approval",    WIPED,         "accepted",  1, 2),
    (INITIALIZE, "one",        "declined",   "older form",  DECLINED,      "declined",  1, 2),
    (MODERN,     "one",        "declined",   "approval",    NOT_WIPED,     "declined",  0, 2),
    (EVENTS,     "one",        "declined",   "page",        DECLINED,      "declined",  2, 2),
    (JSON,       "one",        "declined",   "human input", NOT_GIVEN,     "declined",  0, 2),
    (OPENAI,     "one",        "declined",   "form",        UNASKED,       "unaskable", 2, 2),
    (OPENAI,     "one",        "declined",   "page",        UNASKED,       "unaskable", 2, 2),
    (OPENAI,     "one",        "declined",   "approval",    UNAPPROVED,    "unaskable", 0, 2),
    (OPENAI,     "one",        "declined",   "human input", UNASKED,       "unaskable", 0, 2),
    (INITIALIZE, "one",        "expired",    "human input", NOT_ANSWERED,  "expired",   0, 2),
    (MODERN,     "one",        "expired",    "form",        "-32602",      "expired",   1, 1),
    (EVENTS,     "one",        "expired",    "approval",    NOT_WIPED,     "expired",   0, 2),
    (JSON,       "one",        "expired",    "page",        CANCELLED,     "expired",   2, 2),
    (INITIALIZE, "one",        "gone",       "approval",    "",            "cancelled", 0, 1),
    (EVENTS,     "one",        "gone",       "form",        SAYS_ADA,      "accepted",  2, 2),
    (MODERN,     "one",        "gone later", "page",        "",            "accepted",  2, 2),
    (JSON,       "one",        "gone later", "form",        "cancelled",   "accepted",  2, 2),
    (INITIALIZE, "one",        "reload",     "page",        ACCEPTED,      "accepted",  2, 2),
    (MODERN,     "one",        "reload",     "form",        SAYS_ADA,      "accepted",  2, 2),
    (EVENTS,     "one",        "reload",     "nested form", SAYS_ADA,      "accepted",  2, 4),
    (JSON,       "one",        "reload",     "older form",  SAYS_ADA,      "accepted",  1, 2),
    (INITIALIZE, "one",        "drain",      "form",        STOPS,         None,        1, 1),
    (MODERN,     "one",        "drain",      "human input", SAYS_ADA,      "accepted",  0, 2),
    (MODERN,     "one",        "drain",      "nested form", AGAIN,         None,        1, 2),
    (EVENTS,     "one",        "drain",      "form",        SAYS_ADA,      "accepted",  2, 2),
    (JSON,       "one",        "drain",      "nested form", UNKNOWN,       None,        1, 3),
    # --- the call at one worker, the answer at the other
    (INITIALIZE, "workers",    "answered",   "human input", SAYS_ADA,      "accepted",  0, 2),
    (INITIALIZE, "workers",    "answered",   "nested human", SAYS_ADA,     "accepted",  0, 4),
    (MODERN,     "workers",    "answered",   "form",        SAYS_ADA,      "accepted",  2, 2),
    (MODERN,     "workers",    "answered",   "nested page", ACCEPTED,      "accepted",  2, 4),
    (EVENTS,     "workers",    "answered",   "approval",    WIPED,         "accepted",  1, 2),
    (JSON,       "workers",    "answered",   "older page",  ACCEPTED,      "accepted",  1, 2),
    (INITIALIZE, "workers",    "declined",   "approval",    NOT_WIPED,     "declined",  0, 2),
    (MODERN,     "workers",    "declined",   "human input", NOT_GIVEN,     "declined",  0, 2),
    (EVENTS,     "workers",    "declined",   "older form",  DECLINED,      "declined",  1, 2),
    (MODERN,     "workers",    "expired",    "page",        "-32602",      "expired",   1, 1),
    (JSON,       "workers",    "expired",    "form",        CANCELLED,     "expired",   2, 2),
    (INITIALIZE, "workers",    "gone",       "older form",  "",            "cancelled", 1, 1),
    (JSON,       "workers",    "gone",       "human input", SAYS_ADA,      "accepted",  0, 2),
    (INITIALIZE, "workers",    "gone later", "page",        "",            "accepted",  2, 2),
    (MODERN,     "workers",    "gone later", "approval",    "",            "accepted",  1, 2),
    (EVENTS,     "workers",    "gone later", "human input", "cancelled",   "accepted",  0, 2),
    (INITIALIZE, "workers",    "reload",     "form",        SAYS_ADA,      "accepted",  2, 2),
    (MODERN,     "workers",    "reload",     "approval",    WIPED,         "accepted",  1, 2),
    (EVENTS,     "workers",    "reload",     "page",        ACCEPTED,      "accepted",  2, 2),
    (INITIALIZE, "workers",    "killed",     "form",        LOST,          None,        1, 1),
    (MODERN,     "workers",    "killed",     "page",        ACCEPTED,      "accepted",  2, 2),
    (MODERN,     "workers",    "killed",     "approval",    WIPED,         "accepted",  1, 2),
    (MODERN,     "workers",    "killed",     "nested form", AGAIN,         None,        1, 2),
    (EVENTS,     "workers",    "killed",     "form",        SAYS_ADA,      "accepted",  2, 2),
    (JSON,       "workers",    "killed",     "approval",    WIPED,         "accepted",  1, 2),
    (MODERN,     "workers",    "killed later", "human input", AGAIN,     "accepted",  0, 2),
    (INITIALIZE, "workers",    "drain",      "human input", STOPS,         None,        0, 1),
    # --- the call at one replica, the answer at the other
    (EVENTS,     "replicas",   "answered",   "page",        ACCEPTED,      "accepted",  2, 2),
    (JSON,       "replicas",   "answered",   "older form",  SAYS_ADA,      "accepted",  1, 2),
    (JSON,       "replicas",   "declined",   "form",        DECLINED,      "declined",  2, 2),
    (MODERN,     "replicas",   "drain",      "form",        SAYS_ADA,      "accepted",  2, 2),
    (EVENTS,     "replicas",   "drain",      "human input", SAYS_ADA,      "accepted",  0, 2),
    (JSON,       "replicas",   "drain",      "approval",    WIPED,         "accepted",  1, 2),
    (MODERN,     "replicas",   "killed",     "human input", SAYS_ADA,      "accepted",  0, 2),
    (EVENTS,     "replicas",   "killed",     "approval",    WIPED,         "accepted",  1, 2),
    (JSON,       "replicas",   "killed",     "page",        ACCEPTED,      "accepted",  2, 2),
    (EVENTS,     "replicas",   "killed",     "nested form", UNKNOWN,       None,        1, 3),
)]
# fmt: on


def change(end: str, document: dict[str, Any]) -> None:
    """Change agents.yaml, for the questions of an end."""
    if end == "expired":
        document["gateway"]["ask_seconds"] = 1
    else:
        document["agents"]["user"]["ask_caller"] = False  # holds for later calls


class Question:
    def __init__(self, row: Row) -> None:
        self.row, self.kind, self.caller = row, KINDS[row.kind], CALLERS[row.api]()
        self.tag = f"#{TABLE.index(row)}"

    async def ask(self, place: Place) -> None:
        agent = "boss" if ": " in self.kind.message else "user"
        held = " held" if self.row.end.endswith("later") else ""
        shown = await self.caller.ask(place.calls_at, agent, f"{self.kind.message}{held} {self.tag}")
        assert shown.startswith(self.kind.shown) or self.row.outcome == "unaskable"

    async def answer(self) -> str:
        return await self.caller.answer(self.kind.declined if self.row.outcome == "declined" else self.kind.accepted)

    @property
    def counted(self) -> tuple[str, str | None]:
        return METRIC_KINDS.get(self.row.kind, "form"), self.row.outcome

    @property
    def tool(self) -> str:
        return self.kind.message.rpartition(": ")[2]


async def play(place: Place, name: str, end: str) -> None:
    """Ask the questions of all rows with that gateway and that end at once, and compare what becomes of them."""
    questions = [Question(row) for row in TABLE if (row.place, row.end) == (name, end)]
    await place.start()
    original, ran = place.world.project.document, place.world.ran
    async with AsyncExitStack() as clients:
        if end in {"expired", "reload"}:
            clients.push_async_callback(place.reload, lambda document: document.update(original))
        for one in questions:
            clients.push_async_callback(one.caller.leave)
        counted = partial(is_counted, place, await outcomes_at(place), questions)
        if end == "expired":
            await place.reload(partial(change, end))
        with place.calls():
            await asyncio.gather(*(one.ask(place) for one in questions))
        await brought_about(end, place, questions, counted)
        texts = await answered(place, questions, end)
        said = {one.row: text for one, text in zip(questions, texts, strict=True)}
        assert [(row, text) for row, text in said.items() if row.says not in text or bool(row.says) != bool(text)] == []
        if end != "gone later":
            taken = [one for one in questions if one.row.outcome in {"accepted", "declined"}]
            await asyncio.gather(*(one.caller.again() for one in taken))
    await eventually(partial(nothing_is_left, place), 60, what="the end of all calls")
    await eventually(counted, 60, what="the outcomes in pallas_questions_total")
    assert place.world.ran - ran == Counter(one.tool for one in questions for _ in range(one.row.runs))
    assert {one.row: place.world.turns(one.tag) for one in questions} == {one.row: one.row.turns for one in questions}


async def brought_about(
    end: str, place: Place, questions: list[Question], counted: Callable[[], Awaitable[bool]]
) -> None:
    if end == "expired":
        await eventually(counted, 60, what="the end of the time for answers")
    elif end == "gone":
        await asyncio.gather(*(one.caller.leave() for one in questions))
    elif end == "reload":
        await place.reload(partial(change, end))
    elif end == "killed":
        await place.kill()
    elif end == "drain":
        await place.drain()


async def answered(place: Place, questions: list[Question], end: str) -> list[str]:
    await connected(place, questions)
    entered = len(place.world.gate.entered)
    answering = [asyncio.create_task(one.answer()) for one in questions]
    if end.endswith("later"):
        await place.world.gate.wait_for_entered(entered + len(questions))
    if end == "killed later":
        await place.kill()
    if end == "gone later":
        await asyncio.gather(*(one.caller.leave() for one in questions))
        await asyncio.wait(answering)
        await connected(place, questions)
        return await asyncio.gather(*(one.caller.text() for one in questions))
    return await asyncio.gather(*answering)


async def connected(place: Place, questions: list[Question]) -> None:
    if place.answers_at:
        with place.answers():
            await asyncio.gather(*(one.caller.connect(place.answers_at) for one in questions))


async def outcomes_at(place: Place) -> Counter[tuple[str, str | None]]:
    """How many questions of each kind have come to each outcome."""
    counted: Counter[tuple[str, str | None]] = Counter()
    for exposition in await place.metrics():
        for (name, labels), value in exposition.series.items():
            if name == "pallas_questions_total" and value:
                counted[dict(labels)["kind"], dict(labels)["outcome"]] += int(value)
    return counted


async def is_counted(place: Place, before: Counter[tuple[str, str | None]], questions: list[Question]) -> bool:
    expected = Counter(one.counted for one in questions if one.row.outcome is not None)
    return await outcomes_at(place) - before == expected


async def nothing_is_left(place: Place) -> bool:
    gauges = ("pallas_questions_open", "pallas_instances_live", "pallas_calls_in_flight")
    return not any(
        value
        for exposition in await place.metrics()
        for (name, _), value in exposition.series.items()
        if name in gauges
    )


@pytest.mark.parametrize("end", ["answered", "declined", "expired", "gone", "gone later", "reload", "drain"])
async def test_a_question_at_one_process(end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with world(tmp_path) as made, AsyncExitStack() as stack:
        await play(Place(made, stack), "one", end)
    assert not [one for one in caplog.records if one.getMessage() == "drain time exceeded"]


@pytest.mark.parametrize("end", ["answered", "declined", "drain", "killed"])
async def test_a_question_whose_answer_comes_to_another_replica(end: str, tmp_path: Path) -> None:
    async with world(tmp_path, **LEASES) as made, AsyncExitStack() as stack:
        await play((ReplicaToKill if end == "killed" else Replicas)(made, stack), "replicas", end)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[TwoWorkers]:
    async with world(tmp_path_factory.mktemp("workers"), **LEASES) as made, AsyncExitStack() as stack:
        yield TwoWorkers(made, stack)


@pytest.mark.parametrize(
    "end", ["answered", "declined", "expired", "gone", "gone later", "reload", "killed", "killed later", "drain"]
)
async def test_a_question_whose_answer_comes_to_another_worker(end: str, workers: TwoWorkers) -> None:
    await play(workers, "workers", end)
