"""What `calls` shows of running and recent calls, and how it ends one."""

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.client.calls import CallList, RemoteCall, changes, recent_lines, running_lines, tree, watch_calls
from pallas_gateway.client.gateway_client import GatewayRefusedError
from pallas_gateway.client.output import shown
from tests.support.commands import Command, started
from tests.support.finished import finished
from tests.support.odd_server import odd_server
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang
from tests.support.terminal import CTRL_C, at_terminal
from tests.support.waiting import Gate, eventually
from tests.support.watching import calling, stage

HOSTILE = "key:\x1b[31mci\u202e\nroot  key:ops" + "x" * 1_000_000


def a_call(id_: str, parent: str | None = None, **changed: Any) -> RemoteCall:
    document = {
        "id": id_, "parent": parent, "agent": f"agent-{id_}", "caller": "key:ci", "api": "mcp",
        "startedAt": "2026-11-24T12:00:00.000Z", "step": 2, "seconds": 1.25, "tokens": 30, "waiting": False,
        "worker": 1,
    }  # fmt: skip
    return RemoteCall.model_validate({**document, **changed})


def test_nested_calls_stand_below_the_call_that_has_made_them() -> None:
    calls = [a_call("b"), a_call("c", "a"), a_call("a"), a_call("d", "c"), a_call("e", "gone")]
    assert [(depth, one.id) for depth, one in tree(calls)] == [(0, "b"), (0, "a"), (1, "c"), (2, "d"), (0, "e")]
    assert [line[:2] for line in running_lines(calls)][1:4] == [
        ("a", "agent-a"),
        ("c", "  agent-c"),
        ("d", "    agent-d"),
    ]


def test_calls_that_name_each_other_as_parents_do_not_hang_the_view() -> None:
    assert [one.id for _, one in tree([a_call("a", "b"), a_call("b", "a"), a_call("c")])] == ["c"]


def test_an_ended_call_is_shown_with_its_tools_and_its_end() -> None:
    tools = [
        {"name": "tools/search", "start": 0.5, "seconds": 1.0, "ok": True},
        {"name": "tools/slow", "start": 1.5, "seconds": 9.0, "ok": None},
    ]
    ended = a_call("a", outcome="error", stopReason="cancelled", tools=tools, toolsLeftOut=3)
    lines = recent_lines([ended])
    assert [line[1] for line in lines] == ["agent-a", "  - tools/search", "  - tools/slow", "  - and 3 more"]
    assert [line[-1] for line in lines] == ["error (cancelled)", "ok", "not ended", ""]


def test_hostile_names_stay_on_their_line_and_are_cut() -> None:
    [line] = running_lines([a_call("a", agent=HOSTILE, caller=HOSTILE)])
    text = " ".join(line)
    assert text.isprintable()
    assert len(text) < 300
    assert shown("\u202e\u2066\x9b") == "���"


def test_a_long_call_that_no_worker_runs_has_its_state_its_last_step_and_its_run() -> None:
    of_task: dict[str, Any] = {"worker": None, "statusMessage": "solo step 2 (llm)", "runs": 2, "status": "working"}
    calls = [
        a_call("a", **of_task, atRest=True),
        a_call("b", **of_task, atRest=False),
        a_call("c", **{**of_task, "runs": 1, "statusMessage": ""}, atRest=True, waiting=True),
    ]
    assert [line[-2:] for line in running_lines(calls)] == [
        ("at rest, solo step 2 (llm), run 2", ""),
        ("runs at another replica, solo step 2 (llm), run 2", ""),
        ("waits for its caller", ""),
    ]


def test_changes_tell_what_began_waits_and_ended() -> None:
    before = [a_call("a"), a_call("b"), a_call("c", waiting=True)]
    now = [a_call("b", waiting=True), a_call("c"), a_call("d", "b")]
    ended = [a_call("a", outcome="ok", stopReason="endTurn", seconds=3.0)]
    assert [*changes(before, now, ended)] == [
        "waits    b  agent-b",
        "goes on  c  agent-c",
        "began    d  agent-d  key:ci  mcp, called by b",
        "ended    a  agent-a  ok (endTurn)  3.0 s  2 turns  30 tokens",
    ]


def test_an_idle_gateway_has_no_calls_and_an_unknown_one_is_not_ended(asking: Command) -> None:
    shown_calls = asking("calls")
    assert (shown_calls.code, shown_calls.out, shown_calls.err) == (0, "", "No call is running.\n")
    assert asking("calls", "--json").json == {"calls": []}
    ended = asking("calls", "end", "0123456789abcdef")
    assert (ended.code, ended.out) == (1, "")
    assert "no call '0123456789abcdef' (HTTP 404)" in ended.err


@pytest.mark.parametrize("arguments", [["--watch", "--json"], ["--watch", "--recent"], ["--last", "0"], ["end"]])
def test_options_that_do_not_fit_are_bad_usage(arguments: list[str], asking: Command) -> None:
    assert asking("calls", *arguments).code == 2


def test_answers_that_are_no_lists_of_calls_are_named(run: Command) -> None:
    endless = '{"calls": [], "missing": [Infinity]}'
    for body in ("no JSON", '{"calls": [{"id": 1}]}', '{"calls": 5}', "[]", endless, "[" * 100_000):
        with odd_server({"GET": (200, body)}) as server:
            ran = run("calls", "--url", server.url)
        assert (ran.code, ran.out) == (1, "")
        assert "What answers at" in ran.err
    with odd_server({}) as server:
        assert "it may be an older gateway" in run("calls", "--url", server.url).err


async def test_a_watched_gateway_that_goes_away_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    told = ""

    def printed(text: str) -> bool:
        nonlocal told
        told += capsys.readouterr().out
        return text in told

    call = {
        "id": "a1", "parent": None, "agent": "echo", "caller": "key:ci", "api": "mcp", "step": 1, "seconds": 1.0,
        "startedAt": "2026-11-24T12:00:00.000Z", "tokens": 3, "waiting": False, "worker": 1,
    }  # fmt: skip
    with odd_server({"GET": (200, {"calls": [call]})}) as server:
        watching = asyncio.create_task(watch_calls(CallList(server.url), 0.05))
        try:
            for answer, text in (
                ((200, {"calls": [call]}), "began    a1"),
                ((503, {"error": "draining"}), "refused: HTTP 503"),
                ((200, {"calls": [call]}), "All workers answer again."),
                ((200, {"calls": [call], "missing": [2]}), "No answer from worker 2"),
                ((200, {"calls": []}), "ended    a1"),
            ):
                server.documents = {"GET": answer}
                await eventually(partial(printed, text), what=text)
            server.documents = {"GET": (401, {"error": "unauthorized"})}
            with pytest.raises(GatewayRefusedError):
                await watching
        finally:
            watching.cancel()
    assert told.count("refused: HTTP 503") == told.count("No answer from worker 2") == 1


def test_workers_that_do_not_answer_are_named(run: Command) -> None:
    with odd_server({"GET": (200, {"calls": [], "missing": [2, 3], "tasksMissing": True})}) as server:
        told = run("calls", "--url", server.url).err
    assert "No answer from workers 2, 3" in told
    assert "long calls that no worker runs are not shown" in told


async def test_a_call_is_watched_ended_and_shown_afterwards(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate) if request.tool_results else call_tools([("tools__echo", {"text": "hi"})])

    async with stage(tmp_path / "project", script) as staged:
        at_gateway = {"PALLAS_GATEWAY_URL": staged.served.base_url, "COLUMNS": "200"}
        watch = ["calls", "--watch", "--interval", "0.1"]
        run = partial(finished, folder=tmp_path, environ=at_gateway)
        with started(watch, tmp_path, environ=at_gateway) as piped:
            async with (
                at_terminal(watch, tmp_path, at_gateway) as watching,
                calling(staged.url("solo"), "go") as (_, call),
            ):
                await gate.wait_for_entered(1)
                await watching.shows(": 1 call.")
                await watching.shows("runs")
                await asyncio.to_thread(piped.wait_for, " began ")
                began = piped.out
                call_id = began.split()[2]
                ended = await run("calls", "end", call_id, "0" * 16)
                result = (await call.reply()).result
                await watching.shows(": 0 calls.")
                await watching.press(CTRL_C)
                assert await watching.ends() == 0
                await asyncio.to_thread(piped.wait_for, " ended ")
                piped.signal(signal.SIGINT)
                assert (await asyncio.to_thread(piped.end)).code == 0
                told = piped.out.removeprefix(began)
        recent = await run("calls", "--recent", "--last", "1")
        running = await run("calls")

    assert began.split()[1:] == ["began", call_id, "solo", "anonymous", "mcp"]
    assert (ended.code, ended.out) == (1, f"ended {call_id}\n")
    assert "no call '0000000000000000'" in ended.err
    assert result["content"][0]["text"] == "The call was ended by anonymous."
    assert told.split()[1:6] == ["ended", call_id, "solo", "error", "(cancelled)"]
    assert [line.split()[0] for line in recent.out.splitlines()] == ["CALL", call_id, "-"]
    assert "- tools/echo" in recent.out
    assert (running.code, running.err) == (0, "No call is running.\n")
