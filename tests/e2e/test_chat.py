"""`pallas-gateway chat` as one uses it: at a terminal, against a running gateway."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, gateway_and_model, running, until_idle, write_project
from tests.support.scripted_llm import echo, hang, scripted_llm, stream
from tests.support.terminal import ALT_ENTER, CTRL_C, ENTER, TAB, at_terminal
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.support.gateway import Project, Running
    from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn
    from tests.support.terminal import Terminal

PNG = bytes.fromhex("89504e470d0a1a0a")


async def test_talking_at_a_terminal(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate) if request.last_user_text == "wait" else echo(request)

    async with scripted_llm(script) as llm:
        async with running(project_of(tmp_path, llm)) as served, chat(served, tmp_path) as terminal:
            await terminal.talk("solo>", ("hello", "heard: hello"))
            await terminal.shows("solo>")
            await terminal.press("two \\", ENTER, "or three", ALT_ENTER, "lines", ENTER)
            await terminal.shows("heard: hello | two \r\nor three\r\nlines")
            await terminal.shows("solo>")

            await terminal.press("/set temp", TAB, " 0.25", ENTER)
            await terminal.shows("temperature = 0.25")
            (tmp_path / "a cat.png").write_bytes(PNG)
            await terminal.talk(
                "solo>", ("/system Be brief.", 'system_append = "Be brief."'), ("/image 'a cat.png' look", "| look")
            )
            await terminal.shows("solo>")
            assert images_in(llm.requests[-1]) == [base64.b64encode(PNG).decode()]
            assert llm.requests[-1].body["temperature"] == 0.25
            assert llm.requests[-1].messages[0]["content"].endswith("Be brief.")

            await terminal.enter("wait")
            await gate.wait_for_entered()
            await terminal.press(CTRL_C)
            await terminal.shows("cancelled")
            await llm.wait_for_aborted()
            await until_idle(served)
            await terminal.shows("solo>")

            await terminal.press("given up", CTRL_C)
            await terminal.shows("solo>")
            await terminal.press("/sa", TAB, "cats", ENTER)
            await terminal.shows("This thread is 'cats'")
            await terminal.talk(
                "solo [cats]>",
                ("still there?", "heard: hello | two \r\nor three\r\nlines | look | still there?"),
                ("/export", "*No answer: cancelled*"),
            )
            await terminal.leave("solo [cats]>")
        assert images_in(llm.requests[-1]) == [base64.b64encode(PNG).decode()]


async def test_a_chat_killed_in_the_middle_of_an_answer_leaves_a_trail_and_goes_on(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return stream(["Once ", "upon"], gate) if request.last_user_text == "a story" else echo(request)

    async with scripted_llm(script) as llm, running(project_of(tmp_path, llm)) as served:
        async with chat(served, tmp_path, "--thread", "tales") as terminal:
            await terminal.talk("solo [tales]>", ("hello", "heard: hello"), ("a story", "Once "))
            terminal.kill()
            await llm.wait_for_aborted()
        async with chat(served, tmp_path, "--resume") as terminal:
            await terminal.shows("Thread tales, 2 turns.")
            await terminal.shows("✗ turn 2 has no answer and is not sent again: the chat ended before the answer came")
            await terminal.talk("solo [tales]>", ("and now?", "heard: hello | and now?"), ("/quit",))
            assert await terminal.ends() == 0
        assert llm.requests[-1].user_texts == ["hello", "and now?"]


async def test_tools_lists_the_tools_of_each_server(tmp_path: Path) -> None:
    agents, listed = {"solo": Agent(["tools"])}, ("SERVER   TOOL", "tools    add", "AGENT   STATUS")
    async with (
        stateless_downstream() as tools,
        gateway_and_model(tmp_path / "project", agents, servers={"tools": {"url": tools.url}}) as (served, _),
        chat(served, tmp_path) as terminal,
    ):
        await terminal.talk("solo>", ("hello", "heard: hello"), ("/tools", *listed))
        await terminal.leave("solo>")


def project_of(folder: Path, llm: ScriptedLlm) -> Project:
    seeing = Agent(settings={"model_capabilities": {"vision": True}})
    return write_project(folder / "project", {"solo": seeing}, llm_url=llm.base_url)


def chat(served: Running, folder: Path, *arguments: str) -> AbstractAsyncContextManager[Terminal]:
    environ = {"PALLAS_GATEWAY_URL": served.base_url, "XDG_STATE_HOME": str(folder / "state")}
    return at_terminal(["chat", "solo", *arguments], folder, environ)


def images_in(request: LlmRequest) -> list[str]:
    """The base64 of every image of a request."""
    parts: list[Any] = [part for message in request.messages for part in message["content"] or [] if part != ""]
    urls = [part["image_url"]["url"] for part in parts if isinstance(part, dict) and part.get("type") == "image_url"]
    return [url.rpartition(",")[2] for url in urls]
