"""`call` and `chat` answer what the agent asks: by their options, or at the client's own terminal."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams, InputRequiredResult, ListRootsRequest

from pallas_gateway.client.agent_client import AgentClient, CallResult
from pallas_gateway.client.arguments import CommandError, UsageError
from pallas_gateway.client.gateway_client import GatewayRefusedError
from pallas_gateway.client.question_prompts import Person, Read, person_for
from tests.support import asking
from tests.support.asking import FORM, URL, URL_MESSAGE, asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told, gateway_of
from tests.support.finished import finished
from tests.support.gateway import Agent, until_idle
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say
from tests.support.terminal import CTRL_C, CTRL_D, at_terminal
from tests.support.waiting import Gate

APPROVAL = "May the tool asking/wipe run with these arguments?"


def typing(*lines: str) -> Read:
    """Type these lines, then end the input."""
    waiting, shown = list(lines), []

    async def read(prompt: str, hidden: bool) -> str:
        shown.append((prompt, hidden))
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    return read


def form(properties: Mapping[str, Any], *required: str, message: str = "notes: Who?") -> ElicitRequestFormParams:
    schema = {"type": "object", "properties": dict(properties), "required": list(required)}
    return ElicitRequestFormParams(message=message, requested_schema=schema)


async def answered(params: Any, *lines: str, **answers: str) -> tuple[str, Any]:
    result = await Person(answers, (), typing(*lines)).answer(params)
    return result.action, result.content


KINDS = {
    "name": {"type": "string", "maxLength": 5},
    "age": {"type": "integer"},
    "ok": {"type": "boolean"},
    "size": {"type": "string", "enum": ["s", "m"]},
    "colour": {"type": "string", "oneOf": [{"const": "r", "title": "red"}]},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    "weight": {"type": "number", "default": 1.5},
    "more": {"type": "string"},
}


async def test_a_form_is_filled_in_field_by_field_and_a_wrong_value_asked_for_again() -> None:
    lines = ("Adaline", "Ada", "many", "36", "y", "2", "1", "a, b", "", "")
    content = {"name": "Ada", "age": 36, "ok": True, "size": "m", "colour": "r", "tags": ["a", "b"], "weight": 1.5}
    assert await answered(form(KINDS, "name", "age"), *lines) == ("accept", content)


async def test_answers_given_beforehand_are_not_asked_for() -> None:
    assert await answered(form({"name": {"type": "string"}}, "name"), name="Ada") == ("accept", {"name": "Ada"})
    bad = form({"age": {"type": "integer"}}, "age")
    assert await answered(bad, "7", age="old") == ("accept", {"age": 7})


async def test_the_end_of_the_input_cancels_the_question() -> None:
    assert await answered(form({"name": {"type": "string"}}, "name")) == ("cancel", None)
    assert await answered(form({})) == ("cancel", None)


async def test_questions_that_come_at_once_are_asked_one_after_the_other() -> None:
    gate, prompts = Gate(), []

    async def read(prompt: str, hidden: bool) -> str:
        prompts.append(prompt)
        await gate.enter()
        return "Ada"

    person = Person({}, (), read)
    both = [asyncio.create_task(person.answer(form({name: {"type": "string"}}, name))) for name in ("one", "two")]
    await gate.wait_for_entered()
    assert prompts == ["one: "]
    gate.open()
    assert [(await one).content for one in both] == [{"one": "Ada"}, {"two": "Ada"}]


ROOM = {
    "name": {"type": "string"},
    "room": {"type": "string", "title": "Room", "enum": ["garden", "library"], "default": "garden"},
    "people": {"type": "integer", "title": "People", "maximum": 8, "default": 2},
}


async def test_without_a_terminal_a_value_that_does_not_fit_declines_the_question(
    capsys: pytest.CaptureFixture[str],
) -> None:
    person = Person({"name": "Ada", "room": "libary", "people": "99"}, (), None)
    assert (await person.answer(form(ROOM, "name"))).action == "decline"
    why = "--answer room: Room must be one of: garden, library; --answer people: People must be at most 8"
    assert capsys.readouterr().err.endswith(f"(declined: {why})\n")
    with pytest.raises(CommandError, match=r"A question was declined: --answer room: Room must be"):
        person.finish()


async def test_at_a_terminal_a_field_whose_given_value_does_not_fit_is_asked_for_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    person = Person({"name": "Ada", "room": "libary"}, (), typing("2", ""))
    content = {"name": "Ada", "room": "library", "people": 2}
    assert (await person.answer(form(ROOM, "name"))).content == content
    assert "(--answer room: Room must be one of: garden, library)\n" in capsys.readouterr().err
    person.finish()


@pytest.mark.parametrize(
    ("given", "content"),
    [
        ({"Room": "library"}, {"room": "library", "people": 2}),
        ({"Room": "2", "People": "3"}, {"room": "library", "people": 3}),
        ({"Room": "garden", "room": "library"}, {"room": "library", "people": 2}),  # the key goes first
    ],
)
async def test_a_field_is_named_by_its_key_or_its_title(given: dict[str, str], content: dict[str, Any]) -> None:
    assert (await Person(given, (), None).answer(form(ROOM))).content == content


async def test_names_that_no_question_had_are_shown_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    person = Person({"name": "Ada", "nam": "Ada"}, (), None)
    await person.answer(form(ROOM))
    assert "nam:" not in capsys.readouterr().err
    person.finish()
    assert capsys.readouterr().err == "--answer nam: no question had this field (asked: name, room, people)\n"
    Person({"name": "Ada"}, (), None).finish()
    assert capsys.readouterr().err == "--answer name: no question had this field (no form was asked)\n"


async def test_answers_for_forms_approve_no_tool(capsys: pytest.CaptureFixture[str]) -> None:
    origin = {"kind": "approval", "agent": "user", "tool": "files/delete_all"}
    asked = form(DECISION, "decision")
    assert (await Person({"decision": "once"}, (), None).answer(asked, origin)).action == "decline"
    assert "(declined: --approve files/delete_all approves this tool)" in capsys.readouterr().err
    assert (await Person({"decision": "once"}, (), typing("deny")).answer(asked, origin)).content == {
        "decision": "deny"
    }


@pytest.mark.parametrize(
    ("typed", "decision"),
    [("y", "once"), ("YES", "once"), ("n", "deny"), ("no", "deny"), ("o", "once"), ("C", "call"), ("de", "deny")],
)
async def test_an_approval_is_answered_by_y_or_n_or_the_beginning_of_a_decision(typed: str, decision: str) -> None:
    origin = {"kind": "approval", "agent": "user", "tool": "files/delete_all"}
    person = Person({}, (), typing("", "x", typed))
    assert (await person.answer(form(DECISION, "decision"), origin)).content == {"decision": decision}


async def test_the_prompt_of_an_approval_names_the_words_for_its_decisions() -> None:
    prompts = []

    async def read(prompt: str, hidden: bool) -> str:
        prompts.append(prompt.splitlines()[-1])
        return "deny"

    asked, origin = form(DECISION, "decision"), {"kind": "approval", "agent": "user", "tool": "files/delete_all"}
    await Person({}, (), read).answer(asked, origin)
    await Person({}, (), read).answer(asked)  # a form of a server has the same fields, and no such words
    assert prompts[0] == "decision (1-3, y: once, n: deny): "
    assert prompts[1] == "decision (1-3): "


COLOURS = {"colour": {"type": "string", "oneOf": [{"const": one, "title": f"Dark {one}"} for one in ("red", "rose")]}}


async def test_the_beginning_of_a_choice_stands_for_it_if_it_is_of_no_other() -> None:
    assert await answered(form(COLOURS, "colour"), "r", "dark", "y", "Dark RO") == ("accept", {"colour": "rose"})
    unfit = Person({"colour": "ro"}, (), None)  # not in the values of options, which programs give
    assert (await unfit.answer(form(COLOURS, "colour"))).action == "decline"


SIZE = {"size": {"type": "string", "default": "m"}}


async def test_without_a_terminal_a_form_needs_an_answer_of_the_options_and_takes_defaults_for_the_rest() -> None:
    person = Person({"name": "Ada"}, ["files/*"], None)
    both = await person.answer(form({"name": {"type": "string"}, **SIZE}, "name", "size"))
    assert both.content == {"name": "Ada", "size": "m"}
    for unanswered in (form({}), form(SIZE, "size"), form({"more": {"type": "string"}})):
        assert (await person.answer(unanswered)).action == "decline"
    assert (await person.answer(form({"name": {}, "age": {"type": "integer"}}, "age"))).action == "decline"


@pytest.mark.parametrize(("typed", "action"), [("y", "accept"), ("", "decline"), ("yes?", "decline")])
async def test_a_form_without_fields_is_accepted_by_a_person_only(typed: str, action: str) -> None:
    assert (await answered(form({}, message="notes: Delete 40 files?"), typed))[0] == action
    hostile = ElicitRequestFormParams(message="?", requested_schema={"properties": ["a"], "required": 5})
    assert (await answered(hostile, typed))[0] == action


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "javascript:alert(1)",
        "-x",
        "https://evil.example\\@bank.example/",
        "http://[",
        "https://a b",
        "https://b\u0430nk.example/",  # a Cyrillic letter
        "https://bank%2eexample/",
        "https:///path",
    ],
)
async def test_a_page_is_not_opened_by_an_address_that_is_no_web_page_or_ambiguous(url: str) -> None:
    pages: list[str] = []
    person = Person({}, (), typing("y"))
    person.open_page = pages.append
    assert (await person.answer(ElicitRequestURLParams(message="shop: Pay", url=url))).action == "decline"
    assert pages == []


@pytest.mark.parametrize(("typed", "opened"), [("y", [URL]), ("", [])])
async def test_a_page_is_shown_with_its_host_and_opened_on_request_only(
    typed: str, opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pages: list[str] = []
    person = Person({}, (), typing(typed))
    person.open_page = pages.append
    result = await person.answer(ElicitRequestURLParams(message="shop: Pay", url=URL))
    assert (pages, result.action) == (opened, "accept" if opened else "decline")
    assert "shop: Pay" in capsys.readouterr().err


DECISION = {"decision": {"type": "string", "enum": ["once", "call", "deny"]}}


@pytest.mark.parametrize(
    ("origin", "approved"),
    [
        ({"kind": "approval", "agent": "user", "tool": "files/delete_all"}, True),
        ({"kind": "approval", "agent": "user", "tool": "shell/run"}, False),
        ({"kind": "approval", "agent": "user"}, False),
        ({"kind": "form", "agent": "user", "server": "user", "tool": "files/delete_all"}, False),
        ("approval", False),
        (None, False),  # a server that words its form like an approval, and is named like an agent
    ],
)
async def test_tools_are_approved_beforehand_by_the_word_of_the_gateway_alone(origin: object, approved: bool) -> None:
    asked = form(DECISION, "decision", message="user: May the tool files/delete_all run with these arguments?\n{}")
    result = await Person({}, ["files/*"], None).answer(asked, origin)
    assert (result.action == "accept") == approved
    other = form({"password": {"type": "string"}, **DECISION}, "decision", "password")
    assert (await Person({}, ["files/*"], None).answer(other, origin)).action == "decline"


async def test_a_default_that_does_not_fit_is_not_sent() -> None:
    wrong = form({"age": {"type": "integer", "default": "many"}}, "age")
    assert await answered(wrong, "", "7") == ("accept", {"age": 7})
    assert (await Person({"other": "x"}, (), None).answer(wrong)).action == "decline"


def test_a_client_without_terminal_and_options_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert person_for((), (), asks=True) is None
    assert person_for((), (), asks=False) is None
    assert person_for(("a=b",), (), asks=True) is not None


@pytest.mark.parametrize(
    ("answers", "approve", "asks", "why"),
    [
        (("a",), (), True, "--answer a: write FIELD=VALUE."),
        ((), ("cancel",), True, "--approve cancel: write SERVER/TOOL, such as '*/cancel'"),
        (("a=b",), (), False, "--no-ask declines every question: give it without --answer and --approve."),
        ((), ("a/b",), False, "--no-ask declines every question"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    answers: Sequence[str], approve: Sequence[str], asks: bool, why: str
) -> None:
    with pytest.raises(UsageError) as refused:
        person_for(answers, approve, asks=asks)
    assert str(refused.value).startswith(why)


async def test_call_asks_at_its_terminal(tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"]})
    async with (
        asking_downstream("modern") as downstream,
        gateway_of(tmp_path, {"url": downstream.url}, agent) as served,
    ):
        arguments = ["call", "user", "name wipe", "--url", served.base_url, "--approve", "asking/*"]
        async with at_terminal(arguments, tmp_path) as terminal:
            await terminal.shows(f"asking: {FORM}")
            await terminal.shows("name (at most 20 characters):")
            await terminal.enter("Ada")
            await terminal.shows("age [7]:")
            await terminal.enter("")
            await terminal.shows("wiped /")
            assert await terminal.ends() == 0
        assert downstream.answers == [{"action": "accept", "content": {"name": "Ada", "age": 7}}]

        async with at_terminal(["call", "user", "name", "--url", served.base_url], tmp_path) as terminal:
            await terminal.shows(FORM)
            await terminal.shows("name (at most 20 characters):")
            await terminal.press(CTRL_D)
            assert await terminal.ends() == 0
        assert downstream.answers[-1]["action"] == "cancel"


async def test_a_call_that_is_killed_while_it_asks_waits_no_longer_than_ask_seconds(tmp_path: Path) -> None:
    async with (
        asking_downstream("modern") as downstream,
        gateway_of(tmp_path, {"url": downstream.url}, gateway={"ask_seconds": 1}) as served,
    ):
        async with at_terminal(["call", "user", "name", "--url", served.base_url], tmp_path) as terminal:
            await terminal.shows("name (at most 20 characters):")
            terminal.kill()
        await until_idle(served)
        assert served.metric("pallas_questions_open", agent="user") == 0
        assert len(served.gateway.sessions.waiting_calls) == 0


async def test_chat_asks_at_its_terminal(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if request.last_user_text == "name name" and request.tool_results:
            return hang(gate)
        return calls_the_tool_it_is_told(request)

    agent = Agent(["asking"], settings={"approve": ["asking/wipe"]})
    async with (
        asking_downstream("modern") as downstream,
        gateway_of(tmp_path, {"url": downstream.url}, agent, script=script) as served,
    ):
        arguments = ["chat", "user", "--url", served.base_url, "--db", ":memory:"]
        async with at_terminal(arguments, tmp_path) as terminal:
            await terminal.shows("user>")
            await terminal.enter("name wipe pay")
            for _ in range(3):  # in the order in which they arrive
                match await terminal.shows_one_of(FORM, APPROVAL, URL_MESSAGE):
                    case asking.FORM:
                        await terminal.shows("name (at most 20 characters):")
                        await terminal.enter("Ada")
                        await terminal.shows("age [7]:")
                        await terminal.enter("")
                    case asking.URL_MESSAGE:
                        await terminal.shows("Open pay.example in the browser? [y/N]")
                        await terminal.enter("n")
                    case _:
                        await terminal.shows("Decision (1-3, y: once, n: deny):")
                        await terminal.enter("2")
            await terminal.shows("wiped /")
            await terminal.shows("user>")
            assert [one for one in downstream.answers if one["content"]] == [
                {"action": "accept", "content": {"name": "Ada", "age": 7}}
            ]
            assert {"action": "decline", "content": None} in downstream.answers

            await terminal.enter("name name")
            for key in (CTRL_C, CTRL_D):
                await terminal.shows(FORM)
                await terminal.shows("name (at most 20 characters):")
                await terminal.press(key)
                await terminal.shows("(cancelled)")
            await gate.wait_for_entered()
            assert [one["action"] for one in downstream.answers[2:]] == ["cancel", "cancel"]
            await terminal.press(CTRL_C)  # cancels the call, as before the questions
            await terminal.shows("cancelled")
            await terminal.shows("user>")
            await terminal.press(CTRL_D)
            assert await terminal.ends() == 0


@pytest.mark.parametrize(
    ("command", "declining"),
    [(["call", "user", "name"], ["--no-ask"]), (["chat", "user", "--db", ":memory:", "-m", "name"], [])],
)
async def test_a_command_without_a_terminal_answers_by_its_options_or_cannot_be_asked(
    command: Sequence[str], declining: Sequence[str], tmp_path: Path
) -> None:
    async with asking_downstream("modern") as downstream, gateway_of(tmp_path, {"url": downstream.url}) as served:
        for options, shown in (["--answer", "name=Ada"], '"Ada"'), (declining, "cannot be asked"):
            ran = await finished(*command, "--url", served.base_url, *options, folder=tmp_path)
            assert shown in ran.out


@pytest.mark.parametrize("rounds", [12])
async def test_a_call_may_ask_more_often_than_the_sdks_own_limit(rounds: int, tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        made = len(request.tool_results)
        return call_tools([("asking__wipe", {"path": f"/{made}"})]) if made < rounds else say("done")

    agent = Agent(["asking"], settings={"approve": ["asking/wipe"], "max_iterations": 2 * rounds})
    async with (
        asking_downstream("modern") as downstream,
        gateway_of(tmp_path, {"url": downstream.url}, agent, script=script) as served,
        AgentClient(served.base_url, "user", person=Person({}, ["asking/*"], None)).open() as connection,
    ):
        result = await connection.call({"message": "go"}, live=False)
    assert CallResult.of(result).text == "done"
    assert len(downstream.recorder.calls("wipe")) == rounds


async def test_a_server_cannot_make_a_client_answer_what_it_does_not_offer() -> None:
    root = InputRequiredResult(input_requests={"r": ListRootsRequest()}, request_state="s")
    for asked in (root, InputRequiredResult(request_state="s")):
        with pytest.raises(GatewayRefusedError, match="does not offer"):
            await Person({}, (), None).answers_to(asked)


@pytest.mark.parametrize("command", [["call", "user", "name"], ["chat", "user", "--db", ":memory:", "-m", "name"]])
async def test_a_command_fails_if_a_given_value_does_not_fit(command: Sequence[str], tmp_path: Path) -> None:
    async with asking_downstream("modern") as downstream, gateway_of(tmp_path, {"url": downstream.url}) as served:
        options = ["--url", served.base_url, "--answer", "name=Ada", "--answer", "age=old", "--answer", "nam=A"]
        ran = await finished(*command, *options, folder=tmp_path)
    assert ran.code == 1
    assert ran.err.splitlines()[-2:] == [
        "--answer nam: no question had this field (asked: name, age)",
        "A question was declined: --answer age: age must be a whole number.",
    ]
    assert [one["action"] for one in downstream.answers] == ["decline"]
