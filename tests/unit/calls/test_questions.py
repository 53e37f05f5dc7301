"""Questions of one call: who is asked, what waits meanwhile, and which answers fit a form."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, call

import pytest

from pallas_gateway.calls.asking.approvals import LONGEST_ARGUMENTS, approval_question
from pallas_gateway.calls.asking.asking import AskRules, Questions
from pallas_gateway.calls.asking.client_answers import ClientAnswers, process_of
from pallas_gateway.calls.asking.pauses import PausableDeadline
from pallas_gateway.calls.cancellation import RequestKey
from pallas_gateway.calls.forms import misfit
from pallas_gateway.calls.questions import Answer, Question
from pallas_gateway.config.loading.tool_policies import may_name_tools_of
from pallas_gateway.doors.mcp.stream_asking import modes_in, modes_of_session, new_session_id
from pallas_gateway.limits import QuestionLimits
from tests.support.waiting import cancelled, eventually

if TYPE_CHECKING:
    from collections.abc import Collection

    from pallas_gateway.calls.asking.client_answers import KeyOf
    from pallas_gateway.calls.questions import Mode


class Held:
    """An asker whose answers come when the test says so."""

    client_may_leave = False

    def __init__(self) -> None:
        self.modes: Collection[Mode] = ["form"]
        self.asked: list[Question] = []
        self.answer = Answer("accepted", {"name": "Ada"})
        self.go = asyncio.Event()

    async def put(self, question: Question) -> Answer:
        self.asked.append(question)
        await self.go.wait()
        return self.answer


def a_question(server: str | None = "notes") -> Question:
    return Question("form", "Who?", server, schema={})


async def test_a_nested_question_goes_up_the_path_with_the_name_of_the_agent_that_asks() -> None:
    top = Held()
    top.go.set()
    research = Questions("research", Questions("boss", top))
    assert (await research.ask(a_question())).action == "accept"
    await research.ask(a_question(server=None))
    assert [one.message for one in top.asked] == ["notes, for research: Who?", "research: Who?"]
    await Questions("boss", top).ask(a_question())
    assert top.asked[-1].message == "notes: Who?"


async def test_pauses_are_entered_once_for_questions_that_are_open_together() -> None:
    asker, slots, late = Held(), Mock(), Mock()
    questions = Questions("user", asker)
    with questions.pauses.including(slots):
        asking = [asyncio.create_task(questions.ask(a_question())) for _ in range(2)]
        await eventually(lambda: len(asker.asked) == 2)
        with questions.pauses.including(late):  # begins while a question is open, and ends before it
            assert slots.mock_calls == late.mock_calls == [call.pause()]
        asker.go.set()
        assert {one.outcome for one in await asyncio.gather(*asking)} == {"accepted"}
    assert (slots.mock_calls, late.mock_calls) == ([call.pause(), call.resume()], [call.pause()])


FIELD: dict[str, Any] = {"type": "string"}


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ({"type": "string", "maxLength": 2}, "abc", "must have at most 2 characters"),
        ({"type": "string", "minLength": 4}, "abc", "must have at least 4 characters"),
        ({"type": "string", "pattern": "(a+)+$", "format": "email"}, "a" * 10_000, None),
        ({"type": "string", "enum": ["a", "b"]}, "c", "is not one of the choices"),
        ({"type": "string", "oneOf": [{"const": "a", "title": "A"}]}, "b", "is not one of the choices"),
        ({"type": "string", "oneOf": [{"const": "a", "title": "A"}]}, "a", None),
        ({"type": "integer"}, 1.5, "must be of type integer"),
        ({"type": "integer"}, True, "must be of type integer"),
        ({"type": "number", "minimum": 1}, 0, "must be at least 1"),
        ({"type": "number", "maximum": 1}, 2, "must be at most 1"),
        ({"type": "number"}, 2, None),
        ({"type": "boolean"}, "true", "must be of type boolean"),
        ({"type": "boolean"}, False, None),
        ({"type": "array", "items": {"enum": ["a"]}}, ["a", "b"], "is not one of the choices"),
        (
            {"type": "array", "items": {"anyOf": [{"const": "a"}]}, "maxItems": 1},
            ["a", "a"],
            "must have at most 1 choices",
        ),
        ({"type": ["string"], "enum": 7, "minLength": "x"}, "a", None),
        ("hostile", "a", None),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, 1, None),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, 0, "must be at least 1"),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, None, None),
        ({"type": ["string", "null"]}, 5, "must be of type string"),
        ({"type": "string"}, None, "must be of type string"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "a", None),
    ],
)
def test_an_answer_fits_its_field_or_not(field: Any, value: object, why: str | None) -> None:
    found = misfit({"properties": {"it": field}}, {"it": value})
    assert found == (f"'it' {why}" if why else None)


def test_an_answer_has_the_required_fields_and_no_others() -> None:
    schema = {"properties": {"name": FIELD}, "required": ["name", 7]}
    assert misfit(schema, None) == "'name' is missing"
    assert misfit(schema, {"name": "a", "more": 1}) == "'more' is not asked for"
    assert misfit({"properties": []}, {}) is None


@pytest.mark.parametrize(
    ("elicitation", "modes"),
    [
        ({}, ["form"]),
        ({"form": {}}, ["form"]),
        ({"url": {}}, ["url"]),
        ({"url": {}, "form": {}}, ["form", "url"]),
        (7, []),
    ],
)
def test_a_clients_capability_survives_in_its_session_id(elicitation: object, modes: list[str]) -> None:
    declared = modes_in({"elicitation": elicitation})
    assert declared == modes
    assert modes_of_session(new_session_id(declared), "2025-11-25") == modes
    assert modes_of_session(new_session_id(declared), "2025-06-18") == [mode for mode in modes if mode == "form"]
    assert modes_of_session(new_session_id(declared), "2025-03-26") == []


@pytest.mark.parametrize("session", [None, "", "made-up", "made.x"])
def test_an_id_of_another_form_declares_nothing(session: str | None) -> None:
    assert modes_of_session(session, "2025-11-25") == []
    assert modes_in(None) == modes_in({}) == []


def keys_of(session: str = "one") -> KeyOf:
    return partial(RequestKey.of, "user", session, None)


async def test_an_answer_is_taken_from_the_client_that_was_asked_alone() -> None:
    answers = ClientAnswers()
    with answers.expecting(keys_of()) as (id_, answer):
        assert not answers.take(keys_of("other"), id_, {"result": 0})
        for another in (f"{id_}x", id_[:-1], "7", "\ud800.é"):
            assert not answers.take(keys_of(), another, {"result": 0})
        assert answers.take(keys_of(), id_, {"result": 1})
        assert answers.take(keys_of(), id_, {"result": 2})
        assert await answer == {"result": 1}
    assert len(answers) == 0


async def test_the_id_of_a_question_names_its_process_which_alone_takes_the_answer() -> None:
    here, there = ClientAnswers(b"secret", "here"), ClientAnswers(b"secret", "there")
    with here.expecting(keys_of()) as (id_, answer):
        assert process_of(id_) == "here"
        for another in (there, ClientAnswers(b"another", "here")):
            assert not another.take(keys_of(), id_, {"result": 1})
        assert not there.take(keys_of(), id_.replace("here", "there"), {"result": 1})  # the seal covers the name
        assert here.take(keys_of(), id_, {"result": 1})
        assert await answer == {"result": 1}
    assert here.take(keys_of(), id_, {"result": 1})  # late: no call waits for it any more


@pytest.mark.parametrize("id_", ["7", "question-", "question-7", "here.7"])
def test_the_id_of_a_clients_own_names_no_process(id_: str) -> None:
    assert process_of(id_) is None


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("docs/search", True),
        ("docs/*", True),
        ("*/deploy", True),
        ("d?cs/search", True),
        ("do*ch", True),
        ("[abcd]ocs/search", True),
        ("destructive", True),
        ("files/*", False),
        ("doc/*", False),
        ("docs2/*", False),
        ("local/*", False),
    ],
)
def test_an_entry_of_a_policy_may_name_tools_of_a_server(pattern: str, names: bool) -> None:
    assert may_name_tools_of("docs", pattern) == names


def test_arguments_of_a_tool_are_shown_whole_or_it_is_said_that_they_are_cut() -> None:
    assert approval_question("files/write", {"text": "ä" * 10_000}).message.endswith('ä"\n}')
    for letter in ("a", "\u200b"):
        cut = approval_question("files/write", {"text": letter * 20_000}).message
        assert "(cut: " in cut
        assert "of 20016 are not shown)" in cut
        assert len(cut) < LONGEST_ARGUMENTS + 200


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("safe\u202etxt.exe", r"safe\u202etxt.exe"),  # Cf: what follows is shown from right to left
        ("a\u200bb\u00ad\ufeff", r"a\u200bb\u00ad\ufeff"),
        ("\x7f\x85", r"\u007f\u0085"),  # Cc, which JSON does not escape
        ("\ue000\U000f0000", r"\ue000\udb80\udc00"),  # Co
        ("\u0378\uffff", r"\u0378\uffff"),  # Cn
        ("\u2028\u2029", r"\u2028\u2029"),  # Zl, Zp
        ("\U000e0041\U000e0001", r"\udb40\udc41\udb40\udc01"),  # tags
        ("v\ufe0f\U000e0100\u180b", r"v\ufe0f\udb40\udd00\u180b"),  # variation selectors
        ("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0", r"\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"),
        ("one\ntwo\t\\u200b", r"one\ntwo\t\\u200b"),
        ("Äß 漢字 שלום नमस्ते 😀 e\u0301 a\u00a0b", "Äß 漢字 שלום नमस्ते 😀 e\u0301 a\u00a0b"),
    ],
)
def test_invisible_characters_in_the_arguments_of_an_approval_are_shown_as_escapes(text: str, shown: str) -> None:
    message = approval_question("files/write", {"path": text}).message
    assert message.splitlines()[1:] == ["{", f'  "path": "{shown}"', "}"]
    assert f'"{shown}": 1' in approval_question("files/write", {text: 1}).message
    assert json.loads(message.partition("\n")[2]) == {"path": text}


def test_a_tool_with_an_invisible_character_in_its_name_does_not_look_like_another_one() -> None:
    question = approval_question("files/read\u200b\n", {})
    assert question.message.startswith(r"May the tool files/read\u200b\u000a run")
    assert question.tool == "files/read\u200b\n"


def test_a_hostile_schema_is_read_harmlessly_and_choices_in_linear_time() -> None:
    assert misfit({"required": 5, "properties": ["a"]}, {}) is None
    assert misfit({"properties": {"a": {"enum": [[], {}, None]}}}, {"a": "x"}) == "'a' is not one of the choices"
    many = [str(number) for number in range(100_000)]
    assert (
        misfit({"properties": {"a": {"type": "array", "items": {"enum": many}}}}, {"a": [many[-1]] * 100_000}) is None
    )
    assert "cannot be asked" in Question("form", "Who?", schema={"properties": [1]}).not_asked()
    assert "cannot be asked" in Question("url", "Pay", url="http://[").not_asked()


async def test_a_call_has_a_limit_of_questions_that_are_open_at_once() -> None:
    asker = Held()
    questions = Questions("boss", asker, AskRules(limits=QuestionLimits(at_once=1)))
    asking = asyncio.create_task(questions.ask(a_question()))
    await eventually(lambda: asker.asked)
    assert await questions.ask(a_question()) == Answer("declined", why="too many questions of this call are open")
    asker.go.set()
    assert (await asking).outcome == "accepted"


NESTED: dict[str, Any] = {}
for _ in range(100_000):
    NESTED = {"properties": NESTED}


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (Question("form", "x" * 11, schema={}), "its message has more than 10 characters"),
        (Question("url", "Pay", url="https://" + "x" * 20), "its address has more than 20 characters"),
        (Question("form", "Who?", schema={"properties": "x" * 30}), "its form has more than 30 characters"),
        (Question("form", "Who?", schema=NESTED), "its form has more than 30 characters"),
    ],
    ids=["message", "address", "form", "nesting"],
)
async def test_a_question_that_is_too_large_is_declined_unseen_and_the_model_reads_why(
    question: Question, why: str
) -> None:
    asker, watch = Held(), Mock()
    asker.modes = ["form", "url"]
    limits = QuestionLimits(message_characters=10, url_characters=20, schema_characters=30)
    refused = await Questions("user", asker, AskRules(limits=limits), watch).ask(question)
    assert refused == Answer("declined", why=why)
    assert (asker.asked, [one[0] for one in watch.mock_calls]) == ([], ["answered"])
    assert f"The caller was not asked, because {why}, so the question was declined." in question.not_asked(why)


@pytest.mark.parametrize(
    ("question", "answer", "content"),
    [
        (Question("form", "Who?", schema={}), Answer("accepted", None), {}),
        (Question("form", "Who?", schema={}), Answer("declined", {"name": "Ada"}), None),
        (Question("form", "Who?", schema={}), Answer("cancelled", {"name": "Ada"}), None),
        (Question("url", "Pay", url="https://a.example"), Answer("accepted", {"name": "Ada"}), None),
    ],
)
async def test_only_the_accepted_answer_of_a_form_has_content(
    question: Question, answer: Answer, content: dict[str, Any] | None
) -> None:
    asker = Held()
    asker.modes, asker.answer = ["form", "url"], answer
    asker.go.set()
    assert await Questions("user", asker).ask(question) == Answer(answer.outcome, content)


async def test_halves_of_surrogate_pairs_are_shown_as_their_escapes() -> None:
    asker = Held()
    asker.go.set()
    schema = {"properties": {"n\ud800": {"enum": ["\udfff", 7]}}}
    await Questions("user", asker).ask(Question("form", "a\ud800b", schema=schema))
    await Questions("user", asker).ask(approval_question("files/\ud800", {"\ud83d": "\ud83d\ude00 \ud83d"}))
    form, approval = asker.asked
    assert form.message == "user: a\\ud800b"
    assert form.schema == {"properties": {"n\\ud800": {"enum": ["\\udfff", 7]}}}
    approval.message.encode()
    assert approval.origin["tool"] == "files/\\ud800"
    assert '"\\ud83d": "\\ud83d\\ude00 \\ud83d"' in approval.message
    Question("form", "\ud800", schema=schema).not_asked().encode()
    assert misfit({"properties": {"a": FIELD}}, {"a": "\ud800"}) == "'a' is not Unicode text"


async def test_a_question_whose_call_ends_meanwhile_counts_as_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    asker, watch = Held(), Mock()
    asking = asyncio.create_task(Questions("user", asker, watch=watch).ask(a_question()))
    await eventually(lambda: asker.asked)
    await cancelled(asking)
    assert [one.args[1].outcome for one in watch.answered.mock_calls] == ["cancelled"]
    assert not caplog.records


async def test_a_deadline_that_has_passed_stays_passed() -> None:
    async def too_late() -> None:
        async with asyncio.timeout(0) as deadline:
            passed = PausableDeadline(deadline)
            try:
                await asyncio.Event().wait()
            finally:
                passed.pause()
                passed.resume()

    with pytest.raises(TimeoutError):
        await too_late()
