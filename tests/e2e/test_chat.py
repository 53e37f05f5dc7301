"""`pallas-gateway chat` as one uses it: at a terminal, against a running gateway."""

from __future__ import annotations

import base64
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tests.support.asking import FORM
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Project, Running, gateway_and_model, running, until_idle, write_project
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, echo, hang, scripted_llm, stream
from tests.support.terminal import ALT_ENTER, CTRL_C, ENTER, TAB, Terminal, at_terminal
from tests.support.threads_api import ACCEPT, http_of, serving
from tests.support.waiting import Gate

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


def project_of(folder: Path, llm: ScriptedLlm, **gateway: str) -> Project:
    seeing = Agent(settings={"model_capabilities": {"vision": True}})
    return write_project(folder / "project", {"solo": seeing}, llm_url=llm.base_url, gateway=gateway)


def chat(served: Running, folder: Path, *arguments: str, agent: str = "solo") -> AbstractAsyncContextManager[Terminal]:
    environ = {"PALLAS_GATEWAY_URL": served.base_url, "XDG_STATE_HOME": str(folder / "state")}
    return at_terminal(["chat", agent, *arguments], folder, environ)


def images_in(request: LlmRequest) -> list[str]:
    parts: list[Any] = [part for message in request.messages for part in message["content"] or [] if part != ""]
    urls = [part["image_url"]["url"] for part in parts if isinstance(part, dict) and part.get("type") == "image_url"]
    return [url.rpartition(",")[2] for url in urls]


# --- With `--keep-on-gateway`: the conversation is in threads of the gateway

DATABASE = {"database": "sqlite:///threads.db"}


def chat_kept(served: Running, folder: Path, *more: str, agent: str = "solo") -> AbstractAsyncContextManager[Terminal]:
    return chat(served, folder, "--keep-on-gateway", *more, agent=agent)


async def test_a_conversation_is_kept_by_the_gateway_and_goes_on_elsewhere(tmp_path: Path) -> None:
    named = "solo [greetings]>"
    async with scripted_llm(echo) as llm, running(project_of(tmp_path, llm, **DATABASE)) as served:
        async with chat_kept(served, tmp_path) as terminal:
            await terminal.talk(
                "solo>",
                ("hello", "heard: hello"),
                ("/set maxTokens 77", "max_tokens = 77"),
                ("again", "heard: hello | again"),
                ("/save greetings", "This thread is 'greetings'"),
            )
            await terminal.talk(named, ("/clear", "The one before is kept: /resume greetings"))
            await terminal.talk(
                "solo>", ("other", "heard: other"), ("/save greetings", "There is a thread 'greetings' already")
            )
            await terminal.leave("solo>")
        assert llm.requests[1].body["max_tokens"] == 77
        threads = await threads_of(served)
        assert [(one["title"], one["turns"]) for one in threads] == [(None, 1), ("greetings", 2)]

        async with chat_kept(served, tmp_path, "--resume", threads[1]["id"]) as terminal:
            await terminal.shows("Thread greetings, 2 turns.")
            await terminal.shows("you> again")
            await terminal.talk(
                named,
                ("/threads", threads[0]["id"], "greetings"),
                ("third", "heard: hello | again | third"),
                ("/export", "## 3. You", "third"),
                ("/quit",),
            )
            assert await terminal.ends() == 0
        assert not (tmp_path / "state").exists()


async def test_one_message_in_a_named_thread(tmp_path: Path) -> None:
    async with scripted_llm(echo) as llm, running(project_of(tmp_path, llm, **DATABASE)) as served:
        for said in ("one", "two"):
            async with chat_kept(served, tmp_path, "-m", said, "--thread", "numbers") as terminal:
                await terminal.shows(f"{said}\r\n")
                assert await terminal.ends() == 0
        [thread] = await threads_of(served)
        assert (thread["title"], thread["turns"]) == ("numbers", 2)
        assert llm.requests[-1].user_texts == ["one", "two"]


async def test_ctrl_c_ends_the_call_at_the_gateway(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        text = request.last_user_text
        return hang(gate) if text == "wait" else stream(["Once ", "upon"], gate) if text == "tell" else echo(request)

    async with scripted_llm(script) as llm, running(project_of(tmp_path, llm, **DATABASE)) as served:
        async with chat_kept(served, tmp_path) as terminal:
            await terminal.talk("solo>", ("tell", "Once "))
            await terminal.press(CTRL_C)
            await terminal.shows("cancelled")
            await llm.wait_for_aborted()
            await until_idle(served)
            await terminal.talk("solo>", ("hello", "heard: hello"))
            await terminal.leave("solo>")
        [thread] = await threads_of(served)
        turns = await messages_of(served, thread["id"])
        assert [one["status"] for one in turns if one["role"] == "assistant"] == ["error", "complete"]


async def test_questions_are_answered_at_the_terminal(tmp_path: Path) -> None:
    approving = Agent(["asking"], settings={"approve": ["asking/wipe"]})
    async with serving(tmp_path / "project", approving) as api:
        async with chat_kept(api.served, tmp_path, agent="user") as terminal:
            await terminal.talk("user>", ("name", FORM))
            await terminal.talk("name", ("Ada", "age"))
            await terminal.enter("36")
            await terminal.shows('"accept"')
            # In the same thread the model would read the first result again.
            await terminal.talk("user>", ("/export", "*Used asking/name*"), ("/clear",), ("wipe", "asking/wipe"))
            await terminal.talk("[", ("y", "wiped"))
            await terminal.leave("user>")
        assert api.downstream.answers == [{"action": "accept", "content": {"name": "Ada", "age": 36}}]


async def test_a_question_whose_client_was_killed_is_asked_again_when_the_thread_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path / "project") as api:
        async with chat_kept(api.served, tmp_path, agent="user") as terminal:
            await terminal.talk("user>", ("name", FORM))
            terminal.kill()
        async with chat_kept(api.served, tmp_path, "--resume", agent="user") as terminal:
            await terminal.shows("Turn 1 still waits for its answer")
            await terminal.shows(FORM)
            await terminal.talk("name", ("Ada", "age"))
            await terminal.enter("36")
            await terminal.shows('"accept"')
            await terminal.leave("user>")
        assert api.downstream.answers == [{"action": "accept", "content": {"name": "Ada", "age": 36}}]


async def test_a_question_that_is_answered_elsewhere_is_no_longer_asked(tmp_path: Path) -> None:
    async with serving(tmp_path / "project") as api, chat_kept(api.served, tmp_path, agent="user") as terminal:
        await terminal.talk("user>", ("name", FORM))
        [thread] = (await api.http.get("/agents/user/threads")).json()["threads"]
        [question] = (await api.last(thread["id"]))["questions"]
        await api.answer(thread["id"], {question["id"]: ACCEPT})
        await terminal.shows("Ada")
        await terminal.leave("user>")
    assert [one["action"] for one in api.downstream.answers] == ["accept"]


async def test_who_cannot_be_asked_declines(tmp_path: Path) -> None:
    async with serving(tmp_path / "project") as api:
        async with chat_kept(api.served, tmp_path, "-m", "name", "--no-ask", agent="user") as terminal:
            await terminal.shows("which was declined")
            await terminal.shows('"decline"')
            assert await terminal.ends() == 0
        assert api.downstream.answers == [{"action": "decline", "content": None}]


async def test_a_gateway_without_a_database_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    async with scripted_llm(echo) as llm, running(project_of(tmp_path, llm)) as served:
        async with chat_kept(served, tmp_path, "-m", "hi") as terminal:
            await terminal.shows("`gateway.database` in agents.yaml")
            assert await terminal.ends() == 1
        assert llm.requests == []


async def threads_of(served: Running) -> list[dict[str, Any]]:
    async with http_of(served) as http:
        return list((await http.get("/agents/solo/threads")).raise_for_status().json()["threads"])


async def messages_of(served: Running, thread_id: str) -> list[dict[str, Any]]:
    async with http_of(served) as http:
        return list((await http.get(f"/threads/{thread_id}/messages")).raise_for_status().json()["messages"])
