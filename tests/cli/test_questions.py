"""`call` and `chat` answer what the agent asks: by their options, or at the client's own terminal."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest
from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams

from pallas_gateway.cli.questions import LONGEST_TEXT, Person, harmless, person_for, prompt_of
from pallas_gateway.cli.usage import UsageError
from tests.e2e.test_questions import calls_the_tool_it_is_told, gateway_of
from tests.support import asking
from tests.support.asking import FORM, URL, URL_MESSAGE, asking_downstream
from tests.support.gateway import Agent
from tests.support.scripted_llm import hang
from tests.support.terminal import CTRL_C, CTRL_D, at_terminal
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pallas_gateway.cli.questions import Read
    from tests.support.scripted_llm import LlmRequest, Turn


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
    result = await Person(answers, (), (), typing(*lines))(None, params)
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

    person = Person({}, (), (), read)
    both = [asyncio.create_task(person(None, form({name: {"type": "string"}}, name))) for name in ("one", "two")]
    await gate.wait_for_entered()
    assert prompts == ["one: "]
    gate.open()
    assert [(await one).content for one in both] == [{"one": "Ada"}, {"two": "Ada"}]


SIZE = {"size": {"type": "string", "default": "m"}}


async def test_without_a_terminal_a_form_needs_an_answer_of_the_options_and_takes_defaults_for_the_rest() -> None:
    person = Person({"name": "Ada"}, ["files/*"], (), None)
    both = await person(None, form({"name": {"type": "string"}, **SIZE}, "name", "size"))
    assert both.content == {"name": "Ada", "size": "m"}
    for unanswered in (form({}), form(SIZE, "size"), form({"more": {"type": "string"}})):
        assert (await person(None, unanswered)).action == "decline"
    assert (await person(None, form({"name": {}, "age": {"type": "integer"}}, "age"))).action == "decline"


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
    ],
)
async def test_a_page_is_not_opened_by_an_address_that_is_no_web_page_or_ambiguous(url: str) -> None:
    pages: list[str] = []
    person = Person({}, (), (), typing("y"))
    person.open_page = pages.append
    assert (await person(None, ElicitRequestURLParams(message="shop: Pay", url=url))).action == "decline"
    assert pages == []


@pytest.mark.parametrize(("typed", "opened"), [("y", [URL]), ("", [])])
async def test_a_page_is_shown_with_its_host_and_opened_on_request_only(
    typed: str, opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pages: list[str] = []
    person = Person({}, (), (), typing(typed))
    person.open_page = pages.append
    result = await person(None, ElicitRequestURLParams(message="shop: Pay", url=URL))
    assert (pages, result.action) == (opened, "accept" if opened else "decline")
    assert "shop: Pay" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "approved"),
    [
        ("user: May the tool files/delete_all run with these arguments?\n{}", True),
        ("user: May the tool shell/run run with these arguments?\n{}", False),
        ("notes: May the tool files/delete_all run with these arguments?\n{}", False),  # a server, not an agent
        ("notes: user: May the tool files/delete_all run with these arguments?\n{}", False),
    ],
)
async def test_tools_are_approved_beforehand_by_name_and_only_where_an_agent_asks(message: str, approved: bool) -> None:
    result = await Person({}, ["files/*"], ["user"], None)(None, form({"decision": {}}, "decision", message=message))
    assert (result.action == "accept") == approved


def test_what_servers_write_is_shown_without_control_characters_and_in_limited_length() -> None:
    assert harmless("a\x1b[31m\u202eb\nc\u200d") == "a\ufffd[31m\ufffdb\nc\ufffd"
    assert len(harmless("x" * 10_000_000)) == LONGEST_TEXT + 1
    shown = prompt_of("it", {"title": "<b>\x07", "enum": [str(one) for one in range(100_000)]}, is_required=True)
    assert shown.startswith("<b>\ufffd\n  1. 0\n")
    assert "… and 99950 more" in shown


def test_a_client_without_terminal_and_options_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert person_for((), (), (), asks=True) is None
    assert person_for(("a=b",), (), (), asks=False) is None
    assert person_for(("a=b",), (), (), asks=True) is not None
    with pytest.raises(UsageError, match="FIELD=VALUE"):
        person_for(("a",), (), (), asks=True)


async def test_call_asks_at_its_terminal(tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"]})
    async with (
        asking_downstream("modern") as downstream,
        gateway_of(tmp_path, {"url": downstream.url}, agent) as served,
    ):
        arguments = ["call", "user", "name wipe", "--url", served.base_url, "--approve", "asking/*"]
        async with at_terminal(arguments, tmp_path) as terminal:
            await terminal.shows(f"asking: {FORM}")
            await terminal.shows("name:")
            await terminal.enter("Ada")
            await terminal.shows("age [7]:")
            await terminal.enter("")
            await terminal.shows("wiped /")
            assert await terminal.ends() == 0
        assert downstream.answers == [{"action": "accept", "content": {"name": "Ada", "age": 7}}]

        async with at_terminal(["call", "user", "name", "--url", served.base_url], tmp_path) as terminal:
            await terminal.shows(FORM)
            await terminal.shows("name:")
            await terminal.press(CTRL_D)
            assert await terminal.ends() == 0
        assert downstream.answers[-1]["action"] == "cancel"


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
                        await terminal.shows("name:")
                        await terminal.enter("Ada")
                        await terminal.shows("age [7]:")
                        await terminal.enter("")
                    case asking.URL_MESSAGE:
                        await terminal.shows("Open pay.example in the browser? [y/N]")
                        await terminal.enter("n")
                    case _:
                        await terminal.shows("3. deny:")
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
                await terminal.shows("name:")
                await terminal.press(key)
                await terminal.shows("(cancelled)")
            await gate.wait_for_entered()
            assert [one["action"] for one in downstream.answers[2:]] == ["cancel", "cancel"]
            await terminal.press(CTRL_C)  # cancels the call, as before the questions
            await terminal.shows("cancelled")
            await terminal.shows("user>")
            await terminal.press(CTRL_D)
            assert await terminal.ends() == 0


async def test_chat_without_a_terminal_answers_by_its_options_or_cannot_be_asked(tmp_path: Path) -> None:
    async with asking_downstream("modern") as downstream, gateway_of(tmp_path, {"url": downstream.url}) as served:
        for options, shown in (["--answer", "name=Ada"], '"Ada"'), ([], "cannot be asked"):
            arguments = ["chat", "user", "-m", "name", "--url", served.base_url, "--db", ":memory:", *options]
            assert shown in await output_of(arguments)


async def test_call_in_a_script_answers_by_its_options(tmp_path: Path) -> None:
    async with asking_downstream("modern") as downstream, gateway_of(tmp_path, {"url": downstream.url}) as served:
        for options, shown in (["--answer", "name=Ada"], '"Ada"'), (["--no-ask"], "cannot be asked"):
            assert shown in await output_of(["call", "user", "name", "--url", served.base_url, *options])


async def output_of(arguments: Sequence[str]) -> str:
    """The standard output of a command that has no terminal."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pallas_gateway", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    return out.decode()
