"""`chat`: one turn of it as a command, and its commands, against a running gateway and against what is none."""

import io
import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.calls.assistant_stream import LOGGER
from pallas_gateway.client.chat.chat_files import ChatFiles
from pallas_gateway.client.chat.chat_turns import place_of
from pallas_gateway.client.chat.command import ChatOptions
from pallas_gateway.client.chat.conversation import Conversation
from pallas_gateway.client.chat.repl import answer, start_conversation
from tests.support.commands import Command
from tests.support.odd_server import ANSWER, Answers, modern_agent, notice, odd_server, registry_of

WRITTEN = (Path(__file__).parents[1] / "unit/client/chat/chat_of_0.1.0.sql").read_text()
PNG = bytes.fromhex("89504e470d0a1a0a")
PARAMETERS = {
    "temperature": {
        "anyOf": [{"type": "number", "minimum": 0, "maximum": 2}, {"type": "null"}],
        "description": "Heat.",
    },
    "stop": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    "tools_allowlist": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    "system_append": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}
SEND_MESSAGE = {
    "name": "send_message",
    "description": "Ask\n\x07it.",
    "inputSchema": {
        "type": "object",
        "properties": {"message": {"type": "string"}, "params": {"type": ["object", "null"], "properties": PARAMETERS}},
    },
}
LISTED = {"result": {"resultType": "complete", "tools": [SEND_MESSAGE], "ttlMs": 0, "cacheScope": "public"}}


@pytest.fixture(autouse=True)
def data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where threads are kept."""
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.delenv("PALLAS_CHAT_DB", raising=False)
    return folder / "state" / "pallas-gateway" / "chats"


# One turn.


def test_only_the_answer_is_on_stdout(asking: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    for message, answered in (("hello there", "hello there\n"), ("-", "two\nlines\n")):
        ran = asking("chat", "echo", "-m", message)
        assert (ran.code, ran.out, ran.err) == (0, answered, "")


def test_threads_of_0_1_0_go_on_and_another_file_is_named(run: Command, data: Path) -> None:
    with closing(sqlite3.connect("old.sqlite3")) as older, odd_server(agent()) as server:
        older.executescript(WRITTEN.replace("http://localhost:24200", place_of(server.url, "echo")[0]))
        ran = run("chat", "echo", "-m", "more", "--resume", "cats", "--db", "old.sqlite3", "--url", server.url)
        foreign = run("chat", "echo", "-m", "hi", "--db", __file__, "--url", server.url)
    assert ran.err.splitlines()[0] == "Thread cats, 2 turns."
    sent = calls(server)[0]["arguments"]
    assert sent["conversation_id"] == "chat-50d50d13-0fbf-43a5-b25d-4da8aaf176d7"
    assert [(row["content"], len(row.get("images", []))) for row in sent["history"]] == [
        ("it's a cät?\nlook", 2),
        ("done — yes", 0),
    ]
    assert (foreign.code, foreign.out) == (0, "done\n")
    assert foreign.err == f"The threads of `chat` of 0.1.0 cannot be read from {__file__}: file is not a database.\n"
    assert len(list(data.glob("*.json"))) == 4


def test_a_database_that_does_not_exist_is_named_and_not_made(
    asking: Command, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"mine.sqlite3 does not exist; threads are kept in {data}.\n"
    assert asking("chat", "echo", "-m", "hi", "--db", "mine.sqlite3").err == said
    monkeypatch.setenv("PALLAS_CHAT_DB", "mine.sqlite3")
    assert asking("chat", "echo", "-m", "hi").err == said
    assert len(list(data.glob("*.json"))) == 2
    assert not Path("mine.sqlite3").exists()


def test_a_folder_that_cannot_be_made_is_an_error(asking: Command, data: Path) -> None:
    data.parent.parent.write_text("a file")
    ran = asking("chat", "echo", "-m", "hi")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"Threads cannot be kept in {data}: Not a directory. `--db :memory:` keeps none.\n"


def test_in_memory_nothing_is_kept(asking: Command, data: Path) -> None:
    assert asking("chat", "echo", "-m", "hello", "--db", ":memory:").out == "hello\n"
    assert not data.exists()


def test_a_resumed_thread_is_replayed_as_history(run: Command) -> None:
    Path("a.png").write_bytes(PNG)
    with odd_server(agent()) as server:
        run("chat", "echo", "-m", "first", "--image", "a.png", "--thread", "cats", "--url", server.url)
        run("chat", "echo", "-m", "other", "--url", server.url)
        ran = run("chat", "echo", "-m", "second", "--resume", "cats", "--url", server.url)
        run("chat", "echo", "-m", "third", "--resume", "--url", server.url)
    assert (ran.code, ran.out) == (0, "done\n")
    assert ran.err.splitlines() == ["Thread cats, 1 turn.", "you> first", "echo: done"]
    first, other, second, third = [call["arguments"] for call in calls(server)]
    images = [{"data": "iVBORw0KGgo=", "mime_type": "image/png"}]
    assert first.pop("conversation_id") == second.pop("conversation_id") == third.pop("conversation_id")
    assert first == {"message": "first", "images": images}
    assert other == {"message": "other", "conversation_id": other["conversation_id"]}
    earlier = [{"role": "user", "content": "first", "images": images}, {"role": "assistant", "content": "done"}]
    assert second == {"message": "second", "history": earlier}
    later = [{"role": "user", "content": "second"}, {"role": "assistant", "content": "done"}]
    assert third == {"message": "third", "history": [*earlier, *later]}


def test_threads_of_another_gateways_agent_of_that_name_are_not_sent(run: Command) -> None:
    with odd_server(agent()) as one, odd_server(agent()) as other:
        run("chat", "echo", "-m", "secret", "--url", one.url)
        ran = run("chat", "echo", "-m", "hi", "--resume", "--url", other.url)
    assert (ran.code, ran.err) == (2, "There is no thread with echo to resume.\n")


def test_parameters_go_along_when_they_are_set_and_stay_with_the_thread(run: Command) -> None:
    with odd_server(agent()) as server:
        run("chat", "echo", "-m", "hi", "--set", "temperature=0.5", "--set", "stop=END", "--url", server.url)
        resumed = run("chat", "echo", "-m", "hi", "--resume", "--set", "temperature=null", "--url", server.url)
    assert 'Its parameters: temperature = 0.5, stop = "END"' in resumed.err.splitlines()
    first, second = [call["arguments"]["params"] for call in calls(server)]
    assert first == {"temperature": 0.5, "stop": "END"}
    assert second == {"temperature": None, "stop": "END"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nobody", "-m", "hi"], "No agent 'nobody'. There are: echo, tech_research, broken."),
        (["echo", "hi"], "To say one thing: -m 'hi'. To go on with the thread of that name: --resume hi."),
        (["echo", "a b"], "To say one thing: -m 'a b'. To go on with the thread of that name: --resume 'a b'."),
        (["echo"], "A chat needs a terminal. To say one thing: -m TEXT, or -m - to read standard input."),
        (
            ["echo", "-m", "hi", "--resume", "--thread", "a"],
            "--resume and --thread both name a thread; give one of them.",
        ),
        (["echo", "-m", "hi", "--resume"], "There is no thread with echo to resume."),
        (["echo", "-m", "hi", "--resume", "cats"], "No thread 'cats' with echo. There are: none."),
        (
            ["echo", "-m", "hi", "--thread", "#1"],
            "A thread's name is 1 to 80 characters on one line, and begins with no #.",
        ),
        (["echo", "-m", "hi", "--image", "no.png"], "no.png: No such file or directory"),
        (["echo", "-m", "hi", "--set", "topK=0"], "top_k takes a whole number from 1 to 9223372036854775807, not 0."),
        (
            ["echo", "-m", "hi", "--set", "topK=1", "--set", "top_k=2"],
            "--set topK and --set top_k are one parameter; give one of them.",
        ),
        (
            ["echo", "-m", "hi", "--set", "tool_choice=some"],
            "tool_choice takes one of auto, none, required or a JSON object, not some.",
        ),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(asking: Command, arguments: list[str], says: str) -> None:
    ran = asking("chat", *arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", f"{says}\n")


@pytest.mark.parametrize("command", [["chat", "echo", "-m"], ["call", "echo"]], ids=["chat", "call"])
def test_an_empty_message_is_not_sent(asking: Command, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    for message in ("", "-"):
        ran = asking(*command, message)
        assert (ran.code, ran.out, ran.err) == (1, "", "The message is empty, nothing was sent.\n")


# What goes wrong at the gateway.


def failed(text: str) -> dict[str, Any]:
    return {"result": {"resultType": "complete", "isError": True, "content": [{"type": "text", "text": text}]}}


def cut_off(_: dict[str, Any]) -> list[object]:
    return [delta("The answer is")]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ((200, failed("No\u001b.")), "No."),
        ((401, {}), "refused at {}: a token is required (HTTP 401). Give one with --bearer or PALLAS_BEARER."),
        ((403, {}), "refused at {}: a token is required (HTTP 403). Give one with --bearer or PALLAS_BEARER."),
        ((413, {}), "refused at {}: the request, with its history and images, is larger than it takes (HTTP 413)"),
        ((503, {}), "refused at {}: HTTP 503"),
        ((200, cut_off), "at {}: the gateway, or the connection to it, went away before the answer was whole."),
    ],
)
def test_a_turn_without_an_answer_is_told_and_kept_and_not_replayed(
    run: Command, data: Path, call: tuple[int, object], says: str
) -> None:
    with odd_server({**agent(), "tools/call": call}) as server:
        ran = run("chat", "echo", "-m", "hi", "--url", server.url)
        states = turns_in(data)
        server.documents = agent()
        again = run("chat", "echo", "-m", "again", "--resume", "--url", server.url)
    place = f"{server.url}/agents/echo/mcp"
    sentence = f"Agent 'echo' {says.format(place)}" if "{}" in says else says
    assert (ran.code, ran.out, ran.err.strip()) == (1, "", sentence)
    assert states == [("error", sentence)]
    assert (again.code, again.out) == (0, "done\n")
    assert f"✗ turn 1 has no answer and is not sent again: {sentence}" in again.err.splitlines()
    assert "history" not in calls(server)[-1]["arguments"]


def test_what_is_no_text_and_an_answer_that_is_cut_short_are_told(run: Command) -> None:
    blocks = [{"type": "text", "text": "So far."}, {"type": "image", "data": "eA==", "mimeType": "image/png"}]
    meta = {"pallas/call": {"stop_reason": "maxIterations"}}
    with odd_server(agent({"result": {"resultType": "complete", "content": blocks, "_meta": meta}})) as server:
        ran = run("chat", "echo", "-m", "hi", "--url", server.url)
    assert (ran.code, ran.out) == (0, "So far.\n")
    assert ran.err.splitlines() == [
        "(not shown: image/png; `pallas-gateway call --json` has it)",
        "(stopped: maxIterations)",
    ]


def test_an_interrupted_turn_is_cancelled_and_kept_so(run: Command, data: Path) -> None:
    def interrupt(rpc: dict[str, Any]) -> list[object]:
        os.kill(os.getpid(), signal.SIGINT)
        hung_up.wait(10)
        return []

    hung_up = threading.Event()
    with odd_server(agent(call=interrupt)) as server:
        ran = run("chat", "echo", "-m", "hi", "--url", server.url)
        hung_up.set()
    assert (ran.code, ran.out, ran.err) == (1, "", "cancelled\n")
    assert turns_in(data) == [("error", "cancelled")]


# Commands.


class Said:
    """What a line brings to the screen."""

    def __init__(self, talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
        self.talk = talk
        self._capsys = capsys

    async def __call__(self, line: str) -> str:
        self._capsys.readouterr()
        await answer(self.talk, line)
        printed = self._capsys.readouterr()
        return (printed.out + printed.err).strip()


@asynccontextmanager
async def chatting(
    capsys: pytest.CaptureFixture[str], documents: Mapping[str, Any] | None = None
) -> AsyncGenerator[tuple[Said, Answers]]:
    """A conversation with the agent `echo`, and the server that answers for it."""
    with odd_server({**(documents or agent())}) as server:
        yield Said(await start_conversation(ChatOptions("echo", server.url), ChatFiles(None)), capsys), server


async def test_parameters_are_set_shown_and_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    async with chatting(capsys) as (says, server):
        assert await says("/set temperature 0.2") == "temperature = 0.2"
        assert await says("/set stop END, or so") == 'stop = "END, or so"'
        assert await says("/set tools_allowlist a, b") == 'tools_allowlist = ["a", "b"]'
        assert await says("/set toolsAllowlist a, b") == 'tools_allowlist = ["a", "b"]'
        assert await says("/set systemAppend x") == 'system_append = "x"'
        assert (await says("/unset systemAppend")).endswith('tools_allowlist = ["a", "b"]')
        assert await says("/set temperature") == "temperature = 0.2. It takes a number from 0 to 2. Heat."
        assert await says("/set system_append") == "system_append is not set. It takes a text."
        assert (await says("/set")).splitlines() == [
            "PARAMETER         VALUE          TAKES",
            "temperature       0.2            a number from 0 to 2",
            'stop              "END, or so"   a text or a list',
            'tools_allowlist   ["a", "b"]     a list',
            "system_append                    a text",
        ]
        assert await says("/set temprature 1") == (
            "This agent takes no parameter 'temprature' (did you mean 'temperature'?). "
            "There are: temperature, stop, tools_allowlist, system_append."
        )
        for value in ("hot", "9", "-0.1", "NaN"):
            assert await says(f"/set temperature {value}") == f"temperature takes a number from 0 to 2, not {value}."
        assert await says("/unset top_p") == "'top_p' is not set. Set are: temperature, stop, tools_allowlist."
        assert await says("/unset stop") == 'Set now: temperature = 0.2, tools_allowlist = ["a", "b"]'
        await says("hi")
        assert await says("/unset") == "Set now: nothing"
        await says("hi")
    first, second = [call["arguments"] for call in calls(server)]
    assert first["params"] == {"temperature": 0.2, "tools_allowlist": ["a", "b"]}
    assert "params" not in second


async def test_parameters_that_have_no_effect_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    notes = {"ignored": ["seed", "top_k"], "changed": {"max_tokens": 16384}}
    content = [{"type": "text", "text": "done"}]
    async with chatting(capsys) as (says, server):
        noted = {"resultType": "complete", "content": content, "_meta": {"pallas/params": notes}}
        server.documents = agent({"result": noted})
        told = "(no effect with this model: seed, top_k; max_tokens was sent as 16384)"
        assert [await says("hi"), await says("hi")] == [f"done\n{told}", "done"]


async def test_the_instruction_is_changed_as_far_as_callers_may(capsys: pytest.CaptureFixture[str]) -> None:
    async with chatting(capsys, modern_agent(["send_message"], ANSWER)) as (says, _):
        assert await says("/set") == "This agent takes no parameters from its callers."
        assert await says("/set temperature 1") == "This agent takes no parameters from its callers."
    async with chatting(capsys) as (says, _):
        assert await says("/system") == "The agent's own instruction, as it is."
        assert await says("/system Be brief.") == 'system_append = "Be brief."'
        assert await says("/system append Be kind.") == 'system_append = "Be kind."'
        assert await says("/system override Be rude.") == (
            "This agent's callers may not change its instruction (system_override is not offered)."
        )
        assert await says("/system off") == "The agent's own instruction, as it is."
    assert says.talk.parameters == {}


async def test_threads_are_named_listed_left_and_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    async with chatting(capsys) as (says, server):
        assert await says("/threads") == "No threads with echo yet."
        assert await says("/export") == "Nothing has been said yet."
        assert await says("/resume") == "There is no thread with echo to resume."
        named = "This thread is 'my cats'; `--resume 'my cats'` goes on with it."
        assert await says("/save my cats") == named
        assert await says("/save cats") == "This thread is 'cats'; `--resume cats` goes on with it."
        assert await says("about cats") == "done"
        kept = "A new thread begins with your next message. The one before is kept: /resume cats"
        assert await says("/clear") == kept
        taken = "There is a thread 'cats' already; /resume cats continues it."
        assert await says("/save cats") == taken
        assert await says("about dogs") == "done"
        dogs = says.talk.thread.id if says.talk.thread else ""
        assert await says("/save cats") == taken
        assert [line.split()[:3] for line in (await says("/threads")).splitlines()] == [
            ["THREAD", "TURNS", "LAST"],
            ["*", dogs, "1"],
            ["cats", "1", (await says.talk.turns())[0].began_at[:10]],
        ]
        assert await says("/resume mice") == f"No thread 'mice' with echo. There are: {dogs}, cats."
        assert await says("/resume") == "Thread cats, 1 turn.\nyou> about cats\necho: done"
        assert (await says(f"/resume {dogs}")).splitlines()[0] == f"Thread {dogs}, 1 turn."
        assert await says("/save") == "A thread's name is 1 to 80 characters on one line, and begins with no #."
    assert ["history" in call["arguments"] for call in calls(server)] == [False, False]


async def test_images_go_with_their_text_or_with_the_next_message(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a b.png", "c.png"):
        Path(name).write_bytes(PNG + name.encode())
    async with chatting(capsys) as (says, server):
        assert await says("/image 'a b.png'") == "1 image will go with your next message."
        assert await says("/image c.png") == "2 images will go with your next message."
        assert await says("look") == "done"
        assert await says("/image c.png and here?") == "done"
        assert await says("/image") == "Which file? /image PATH [TEXT]|off"
        assert await says("/image 'c.png") == "'c.png: a quote is left open."
        assert await says("/image no.png") == "no.png: No such file or directory"
    sent = [call["arguments"] for call in calls(server)]
    assert [(one["message"], len(one["images"])) for one in sent] == [("look", 2), ("and here?", 1)]


async def test_images_of_a_message_that_was_refused_go_with_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.png").write_bytes(PNG)
    async with chatting(capsys, agent(call=failed("No, because. " * 40))) as (says, server):
        kept = "(1 image will go with your next message; /image off takes that back)"
        for line, is_told in (("/image a.png look", True), ("/image a.png look", True), ("/sat", False)):
            assert ((await says(line)).splitlines()[-1] == kept) == is_told
        reasons = [line for line in (await says("/export")).splitlines() if line.startswith("*No answer: ")]
        server.documents = agent()
        assert [await says("now?"), await says("and?")] == ["done", "done"]
        await says("/image a.png")
        assert await says("/image off") == "No image will go with your next message."
        assert await says("bye") == "done"
    assert [len(one["arguments"].get("images", [])) for one in calls(server)] == [1, 1, 1, 0, 0]
    assert [len(line) < 220 and line.endswith("…*") for line in reasons] == [True, True]


async def test_a_thread_is_exported_and_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    async with chatting(capsys) as (says, _):
        await says("/set temperature 0.2")
        await says("hello")
        assert await says("/export a.md") == "Written to a.md."
        assert await says("/export a.json") == "Written to a.json."
        assert await says("/export a.md") == "a.md is there already, nothing was written."
        assert await says("/export no/a.md") == "no/a.md: No such file or directory"
        shown = await says("/export")
        began = (await says.talk.turns())[0].began_at
        (gateway, _), thread = says.talk.place, says.talk.thread
    assert thread is not None
    when = began[:16].replace("T", " ")
    assert shown == Path("a.md").read_text().strip()
    assert shown.splitlines() == [
        *(f"# Thread {thread.id}", "", f"With echo at {gateway}.", "", f"## 1. You, {when} UTC", "", "hello", ""),
        *('*With {"temperature": 0.2}*', "", "### echo", "", "done"),
    ]
    document = json.loads(Path("a.json").read_text())
    [turn] = document.pop("turns")
    assert (document["agent"], document["thread"], document["name"]) == ("echo", thread.id, None)
    assert (turn["state"], turn["message"], turn["answer"]) == ("complete", "hello", "done")


async def test_tools_shows_the_tools_how_the_agent_is_and_what_it_used(capsys: pytest.CaptureFixture[str]) -> None:
    health = {
        "status": "degraded",
        "message": "Unreachable: db",
        "downstream": [{"name": "db", "status": "unreachable"}],
    }

    def call(rpc: dict[str, Any]) -> list[object]:
        if rpc["params"]["name"] == "get_health":
            return [{"result": {"resultType": "complete", "content": [{"type": "text", "text": json.dumps(health)}]}}]
        used = {"id": "1", "server": "db", "name": "query", "arguments": {"q": 1}}
        chunk = {"kind": "assistant_chunk", "agent": "echo", "iteration": 1, "text": "I look.", "tool_calls": [used]}
        return [notice("notifications/message", level="info", logger=LOGGER, data=chunk), ANSWER]

    async with chatting(capsys, agent(call=call)) as (says, _):
        assert (await says("hi")).splitlines() == ["done", "echo: I look.", 'echo → db/query {"q": 1}']
        shown = (await says("/tools")).splitlines()
    assert shown[0] == "AGENT   STATUS     MESSAGE"
    assert shown[1].split(maxsplit=2) == ["echo", "degraded", "Unreachable: db"]
    assert shown[4].split()[:3] == ["echo", "db", "unreachable"]
    assert "The gateway lists the tools of servers where its console is on." in shown
    assert ["db/query", "1"] in [line.split() for line in shown]


async def test_turns_that_do_not_fit_the_window_stay_in_the_thread(capsys: pytest.CaptureFixture[str]) -> None:
    registry = registry_of("echo")
    registry["servers"][0]["server"]["capabilities"] = {"context_window": 1000, "max_output_tokens": 100}
    async with chatting(capsys, {**agent(), "GET": (200, registry)}) as (says, server):
        for line in ("x" * 2000, *["y" * 1000] * 4, "/save long", "/clear"):
            await says(line)
        shown = (await says("/resume long")).splitlines()
        asked = await says("z" * 1000)
        assert await says("/clear") != await says("short") == "done"
    left_out = "of this thread no longer go along: the model's context window has no room for more)"
    assert shown[:2] == ["Thread long, 5 turns.", "(2 earlier turns not shown; /export shows all)"]
    assert shown[-1] == f"(the oldest 2 turns {left_out}"
    assert asked.splitlines()[-1] == f"(the oldest 3 turns {left_out}"
    assert [row["content"] for row in calls(server)[-2]["arguments"]["history"]] == ["y" * 1000, "done"] * 2


async def test_help_and_unknown_commands_say_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    async with chatting(capsys) as (says, server):
        shown = await says("/help")
        unknown, strange = await says("/threds"), await says("/foo")
        assert await says("//etc/hosts") == "done"
        with pytest.raises(EOFError):
            await answer(says.talk, "/exit")
    names = [line.split()[0] for line in shown.splitlines() if line.startswith("/")][:13]
    assert unknown == (
        f"No command '/threds' (did you mean '/threads'?). There are: {', '.join(names)}. "
        "A message that begins with / begins with //."
    )
    assert strange.startswith("No command '/foo'. There are: ")
    assert calls(server)[0]["arguments"]["message"] == "/etc/hosts"


async def test_after_a_turn_that_failed_the_chat_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    async with chatting(capsys) as (says, server):
        server.documents = {"GET": (200, registry_of("other"))}
        assert await says("hi") == "No agent 'echo'. There are: other."
        server.documents = {"GET": (503, {})}
        assert (await says("hi")).endswith("refused: HTTP 503")
        server.documents = agent()
        assert await says("hi") == "done"
        assert [turn.state for turn in await says.talk.turns()] == ["error", "error", "complete"]


async def test_two_chats_share_a_thread_and_wait_for_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with odd_server(agent()) as server:
        options, files = ChatOptions("echo", server.url, thread="both"), [ChatFiles(Path("chats")) for _ in range(2)]
        here, there = [Said(await start_conversation(options, one), capsys) for one in files]
        assert [await here("from here"), await there("from there"), await here("again")] == ["done"] * 3
        thread = here.talk.thread
        assert thread is not None
        assert there.talk.is_present(thread)
        with files[1].locked(thread.id):
            busy = (
                "Not done: another chat waits for an answer in this thread. Wait for it, or begin another thread with"
            )
            assert await here("hi") == f"{busy} /clear."
            assert await here("/save other") == f"{busy} /clear."
    assert [row["content"] for row in calls(server)[-1]["arguments"]["history"]] == [
        *("from here", "done", "from there", "done"),
    ]


def agent(call: object = ANSWER) -> dict[str, tuple[int, object]]:
    return {**modern_agent(["send_message"], call), "tools/list": (200, LISTED)}


def calls(server: Answers) -> list[dict[str, Any]]:
    """Parameters of each call of the message tool."""
    asked = [rpc["params"] for _, _, rpc in server.seen if rpc.get("method") == "tools/call"]
    return [one for one in asked if one["name"] != "get_health"]


def delta(text: str) -> object:
    data = {"kind": "assistant_delta", "agent": "echo", "iteration": 1, "text": text}
    return notice("notifications/message", level="info", logger=LOGGER, data=data)


def turns_in(folder: Path) -> list[tuple[str, str | None]]:
    """States and errors in the only conversation."""
    [path] = folder.glob("*.json")
    return [(turn["state"], turn["error"]) for turn in json.loads(path.read_text())["turns"]]
