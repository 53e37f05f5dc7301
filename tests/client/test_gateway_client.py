"""`agents`, `health` and `call` against a running gateway, and against what is none."""

import asyncio
import base64
import io
import json
import os
import re
import signal
import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, override

import jsonschema
import pytest
import yaml

from pallas_gateway.calls.assistant_stream import LOGGER
from pallas_gateway.client.gateway_client import (
    NOTHING_SHOWN,
    PUBLISHER,
    GatewayRefusedError,
    UnavailableError,
    UnreachableError,
    fetch_agents,
)
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.commands import Command, Program, Ran
from tests.support.listener import reserved_port
from tests.support.odd_server import ANSWER, modern_agent, notice, odd_server, registry_of

PNG = bytes.fromhex("89504e470d0a1a0a")
HELP = "Is it running? `pallas-gateway serve` starts it; --url or PALLAS_GATEWAY_URL names another."


# agents


def test_agents_lists_what_a_gateway_serves(asking: Command, gateway: Program) -> None:
    ran = asking("agents")
    assert (ran.code, ran.err) == (0, "")
    *lines, nothing, reason = ran.out.splitlines()
    rows = [re.split(r" {3,}", line) for line in lines]
    assert rows == [
        ["AGENT", "STATE", "TITLE", "MODEL", "URL", "DESCRIPTION"],
        ["echo", "ready", "Echo", "passthrough", f"{gateway.url}/agents/echo/mcp", "Repeats what it is told."],
        ["tech_research", "ready", "Tech Research", "passthrough", f"{gateway.url}/agents/tech_research/mcp"],
        ["broken", "failed", "Broken", "passthrough", f"{gateway.url}/agents/broken/mcp"],
    ]
    assert len({line.index("passthrough") for line in lines[1:]}) == 1
    assert nothing == ""
    assert reason.startswith("broken: module 'test_project_")


def test_agents_as_json_is_the_registrys_own_entries(asking: Command) -> None:
    ran = asking("agents", "--json")
    assert (ran.code, ran.err) == (0, "")
    names = [entry["name"] for entry in ran.json]
    assert names == [f"com.example.test/{name}" for name in ("echo", "tech-research", "broken")]
    assert [entry["state"] for entry in ran.json] == ["ready", "ready", "failed"]


def test_the_gateways_address_may_be_an_option_and_end_in_a_slash(run: Command, gateway: Program) -> None:
    assert run("agents", "--url", f"{gateway.url}/").out.startswith("AGENT")


# health


def test_health_of_all_is_as_bad_as_the_worst(asking: Command) -> None:
    ran = asking("health")
    assert ran.code == 1
    header, echo, research, broken = ran.out.splitlines()
    assert header == "AGENT           STATUS   MESSAGE"
    assert (echo, research) == ("echo            ok", "tech_research   ok")
    assert broken.startswith("broken          error    module 'test_project_")


@pytest.mark.parametrize(("agent", "status", "code"), [("echo", "ok", 0), ("broken", "error", 1)])
def test_health_of_one_agent_decides_alone(asking: Command, agent: str, status: str, code: int) -> None:
    ran = asking("health", agent)
    assert ran.code == code
    assert [line.split()[:2] for line in ran.out.splitlines()[1:]] == [[agent, status]]


def test_health_as_json_is_each_agents_answer(asking: Command) -> None:
    ran = asking("health", "--json")
    assert ran.code == 1
    assert {name: answer["status"] for name, answer in ran.json.items()} == {
        "echo": "ok",
        "tech_research": "ok",
        "broken": "error",
    }


# call


def test_call_prints_the_answer_on_stdout_and_progress_on_stderr(asking: Command) -> None:
    ran = asking("call", "echo", "hello there")
    assert (ran.code, ran.out, ran.err) == (0, "hello there\n", "echo step 1 (llm)\n")


def test_an_agent_may_be_called_by_its_registry_name(asking: Command) -> None:
    assert asking("call", "tech-research", "hi").out == "hi\n"


def test_a_failed_call_is_a_sentence_on_stderr_and_exit_1(asking: Command) -> None:
    ran = asking("call", "broken", "hello")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("Agent 'broken' cannot take calls: module 'test_project_")
    assert len(ran.err.splitlines()) == 1


def events(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.out.splitlines()]


def test_call_as_json_is_an_event_a_line_and_the_whole_result_last(asking: Command) -> None:
    ran = asking("call", "echo", "hello", "--conversation-id", "c-1", "--json")
    assert (ran.code, ran.err) == (0, "")
    progress, assistant, result = events(ran)
    assert progress == {"type": "progress", "progress": 1, "total": None, "message": "echo step 1 (llm)"}
    assert (assistant["type"], assistant["kind"], assistant["text"]) == ("assistant", "assistant_chunk", "hello")
    assert (assistant["agent"], assistant["conversation_id"]) == ("echo", "c-1")
    assert result["type"] == "result"
    assert result["content"] == [{"type": "text", "text": "hello"}]
    assert result["isError"] is False
    meta = result["_meta"]["pallas/call"]
    assert (meta["agent"], meta["conversation_id"], meta["stop_reason"]) == ("echo", "c-1", "endTurn")


def test_a_failed_call_as_json_is_whole_too_and_still_exit_1(asking: Command) -> None:
    ran = asking("call", "broken", "hello", "--json")
    [result] = events(ran)
    assert (ran.code, ran.err, result["type"], result["isError"]) == (1, "", "result", True)
    assert result["content"][0]["text"].startswith("Agent 'broken' cannot take calls: module 'test_project_")


def test_verbose_shows_what_agents_do_and_leaves_the_answer_alone(asking: Command) -> None:
    ran = asking("call", "echo", "hello", "--verbose")
    assert (ran.code, ran.out) == (0, "hello\n")
    assert ran.err.splitlines() == ["echo step 1 (llm)", "echo: hello"]


def test_a_message_may_come_from_standard_input(asking: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    assert asking("call", "echo", "-").out == "two\nlines\n"


def test_entries_of_history_that_are_skipped_are_counted(asking: Command) -> None:
    fine = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    Path("history.json").write_text(json.dumps([*fine, {"role": "system", "content": "x"}, "no"]))
    ran = asking("call", "echo", "and now?", "--history", "history.json")
    assert (ran.code, ran.out) == (0, "and now?\n")
    said = "(malformed entries of the history that were skipped: 2)"
    assert ran.err.splitlines() == ["echo step 1 (llm)", said]


def test_images_are_sent_along(asking: Command) -> None:
    for name in ("a.png", "b.jpg"):
        Path(name).write_bytes(PNG)
    ran = asking("call", "echo", "look", "--image", "a.png", "--image", "b.jpg")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "Agent 'echo' uses the model 'passthrough', which does not take image 1 (image/png). "
        "It takes no images; send text only.\n"
    )


def test_a_file_that_is_no_image_is_refused_whatever_its_name_says(asking: Command) -> None:
    Path("a.png").write_bytes(b"PK a zip")
    for command in (("call", "echo", "look"), ("chat", "echo", "-m", "look")):
        ran = asking(*command, "--image", "a.png")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == "a.png: the file is no image/png file, by its first bytes.\n"


def test_parameters_are_of_the_kind_the_agents_schema_wants(run: Command) -> None:
    asked: list[dict[str, Any]] = []

    def noting(rpc: dict[str, Any]) -> list[object]:
        asked.append(rpc["params"]["arguments"])
        return [ANSWER]

    params = {"properties": {"temperature": {"type": "number"}, "stop": {"anyOf": [{"type": "string"}]}}}
    documents = modern_agent(["send_message"], noting)
    documents["tools/list"][1]["result"]["tools"][0]["inputSchema"]["properties"] = {"params": params}  # type: ignore[index]
    with odd_server(documents) as server:
        run("call", "echo", "hi", "--set", "temperature=0.5", "--set", "stop=a=b", "--url", server.url)
        run("call", "echo", "hi", "--url", server.url)
    assert asked == [{"message": "hi", "params": {"temperature": 0.5, "stop": "a=b"}}, {"message": "hi"}]


def test_parameters_reach_the_agent_and_what_had_no_effect_is_told(asking: Command) -> None:
    ran = asking("call", "echo", "hello", "--set", "seed=7")
    assert (ran.code, ran.out) == (0, "hello\n")
    assert ran.err.splitlines() == ["echo step 1 (llm)", "(no effect with this model: seed)"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["call", "ecoh", "hi"], "No agent 'ecoh' (did you mean 'echo'?). There are: echo, tech_research, broken."),
        (["health", "nobody"], "No agent 'nobody'. There are: echo, tech_research, broken."),
        (["call", "echo", "hi", "--image", "no.png"], "no.png: No such file or directory"),
        (
            ["call", "echo", "hi", "--image", "a.txt"],
            "a.txt: not a known image type; send a PNG, JPEG, WebP or GIF file, or a PDF.",
        ),
        (["call", "echo", "hi", "--history", "no.json"], "no.json: No such file or directory"),
        (
            ["call", "echo", "hi", "--history", "a.txt"],
            "a.txt: not JSON: Expecting value: line 1 column 1 (char 0)",
        ),
        (["call", "echo", "hi", "--history", "b.json"], "b.json: must be a list of {role, content} objects."),
        (["call", "echo", "hi", "--set", "temperature"], "--set temperature: write NAME=VALUE."),
        (["call", "echo", "hi", "--set", "temperature=9"], "temperature takes a number from 0 to 2, not 9."),
        (["agents", "--url", "localhost:1"], "--url must begin with http:// or https://, got 'localhost:1'."),
    ],
)
def test_an_argument_that_cannot_be_used_is_one_line_and_exit_2(
    asking: Command, arguments: list[str], says: str
) -> None:
    Path("a.txt").write_text("text")
    Path("b.json").write_text("{}")
    ran = asking(*arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", f"{says}\n")


@pytest.mark.parametrize("arguments", [["call", "echo"], ["call", "echo", "hi", "--immage", "a.png"], ["nonsense"]])
def test_bad_usage_is_exit_2(run: Command, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage:" in ran.err


@pytest.mark.parametrize(
    "arguments", [["agents"], ["health"], ["health", "echo"], ["call", "echo", "hi"], ["chat", "echo", "-m", "hi"]]
)
def test_without_a_gateway_a_command_says_how_to_get_one(run: Command, arguments: list[str]) -> None:
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        ran = run(*arguments, "--url", url)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"No gateway answers at {url} (All connection attempts failed). {HELP}\n"


async def test_a_certificate_that_is_not_trusted_is_named_as_the_cause(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / TLS_FILES["certfile"], tmp_path / TLS_FILES["keyfile"])
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(UnreachableError) as caught:
            await fetch_agents(url)
    first, _, last = str(caught.value).partition(" (")
    assert first == f"The certificate of {url} is not accepted"
    assert last.endswith("). The variable SSL_CERT_FILE names a file of certificates to trust.")


# What answers need not be a gateway.


@pytest.mark.parametrize(
    ("registry", "says"),
    [
        ((404, {}), "{url} has no registry (HTTP 404). --url is the"),
        ((500, {}), "{url} has no registry (HTTP 500). --url is the"),
        ((200, "It works!"), "What answers at {url}/.well-known/mcp/server.json is not a registry."),
        ((200, {"agents": []}), "What answers at {url}/.well-known/mcp/server.json is not a registry."),
        ((200, {"servers": [{"server": {"name": "x"}}]}), "What answers at {url}/.well-known/mcp/server.json is"),
        (
            (200, {"servers": [{"server": {"name": "x", "remotes": []}}]}),
            "What answers at {url}/.well-known/mcp/server.json is not a registry.",
        ),
    ],
)
def test_a_server_that_is_no_gateway_is_told(run: Command, registry: tuple[int, object], says: str) -> None:
    with odd_server({"GET": registry}) as server:
        ran = run("agents", "--url", server.url)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(says.format(url=server.url))
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((503, {}), "HTTP 503"),
        ((404, {}), "HTTP 404"),
        ((200, {"error": {"code": -32000, "message": "go away"}}), "go away"),
    ],
)
def test_an_agent_that_refuses_is_told(run: Command, answer: tuple[int, object], says: str) -> None:
    with odd_server({"GET": (200, registry_of("echo")), "POST": answer}) as server:
        called = run("call", "echo", "hi", "--url", server.url)
        health = run("health", "--url", server.url)
    assert (called.code, called.out) == (1, "")
    sentence = f"Agent 'echo' refused at {server.url}/agents/echo/mcp: {says}"
    assert called.err == f"{sentence}\n"
    assert health.code == 1
    assert health.out.splitlines()[1] == f"echo    error    {sentence}"


def test_an_agent_that_offers_no_tools_is_told(run: Command) -> None:
    with odd_server(modern_agent([], ANSWER)) as server:
        ran = run("call", "echo", "Hello", "--url", server.url)

    assert (ran.code, ran.out, ran.err) == (1, "", "Agent 'echo' offers no tools.\n")


def test_an_agent_on_a_port_of_its_own_that_is_gone_is_told(run: Command) -> None:
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}/mcp"
        entry = {"name": "n/tech-research", "remotes": [{"type": "streamable-http", "url": url}]}
        with odd_server({"GET": (200, {"servers": [{"server": entry}]})}) as server:
            called = run("call", "tech_research", "hi", "--url", server.url)
            health = run("health", "--url", server.url)
    sentence = f"Agent 'tech-research' does not answer at {url} (All connection attempts failed)."
    assert (called.code, called.out, called.err) == (1, "", f"{sentence}\n")
    assert (health.code, health.out.splitlines()[1]) == (1, f"tech-research   error    {sentence}")


def test_an_agent_that_is_gone_from_another_host_is_told_with_the_origin_of_its_address(run: Command) -> None:
    with reserved_port() as port:
        url = f"https://127.0.0.2:{port}/mcp"
        entry = {"name": "n/echo", "remotes": [{"type": "streamable-http", "url": url}]}
        with odd_server({"GET": (200, {"servers": [{"server": entry}]})}) as server:
            called = run("call", "echo", "hi", "--url", server.url)
    assert (called.code, called.err) == (
        1,
        f"Agent 'echo' does not answer at {url} (All connection attempts failed). "
        "The registry gives this address, made from `host` in its agents.yaml; it must be reachable from here.\n",
    )


def test_call_sends_what_it_was_given_and_takes_the_message_tool_by_its_place(run: Command) -> None:
    Path("a.png").write_bytes(PNG)
    Path("b.pdf").write_bytes(b"%PDF-1.7")
    Path("history.json").write_text('[{"role": "user", "content": "earlier"}]')
    with odd_server(modern_agent(["ask", "echo", "get_health"], ANSWER)) as server:
        ran = run(
            *("call", "echo", "hi", "--url", server.url, "--image", "a.png", "--file", "b.pdf"),
            *("--history", "history.json"),
            *("--conversation-id", "c-1", "--bearer", "anns-token"),
        )
    assert (ran.code, ran.out) == (0, "done\n")
    (_, headers, rpc), *_ = [request for request in server.seen if request[2].get("method") == "tools/call"]
    assert headers["authorization"] == "Bearer anns-token"
    assert rpc["params"]["name"] == "ask"
    assert rpc["params"]["arguments"] == {
        "message": "hi",
        "images": [
            {"data": base64.b64encode(PNG).decode(), "mime_type": "image/png"},
            {"data": base64.b64encode(b"%PDF-1.7").decode(), "mime_type": "application/pdf", "name": "b.pdf"},
        ],
        "history": [{"role": "user", "content": "earlier"}],
        "conversation_id": "c-1",
    }


def test_the_bearer_may_come_from_the_environment_and_is_for_the_registry_too(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALLAS_BEARER", "anns-token")
    with odd_server(modern_agent(["send_message"], ANSWER)) as server:
        assert run("call", "echo", "hi", "--url", server.url).out == "done\n"
    bearers = {(method, headers.get("authorization")) for method, headers, _ in server.seen}
    assert bearers == {("GET", "Bearer anns-token"), ("POST", "Bearer anns-token")}


@pytest.mark.parametrize("address", ["http://192.0.2.7:24201/team/mcp", "https://127.0.0.1:24201/mcp"])
def test_a_token_stays_here_when_the_registry_names_another_place(run: Command, address: str) -> None:
    entry = {"name": "n/echo", "remotes": [{"type": "streamable-http", "url": address}]}
    with odd_server({"GET": (200, {"servers": [{"server": entry}]})}) as server:
        ran = run("call", "echo", "hi", "--url", server.url, "--bearer", "anns-token")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"Agent 'echo' is at {address}: the registry names an address on another host, or without TLS; the token was "
        "not sent. Give its gateway's own --url.\n"
    )


def test_a_token_goes_to_other_ports_of_the_same_host_under_any_name_of_this_machine(run: Command) -> None:
    with odd_server(modern_agent(["send_message"], ANSWER)) as agent:
        address = f"{agent.url.replace('127.0.0.1', 'localhost')}/mcp"
        entry = {"name": "n/echo", "remotes": [{"type": "streamable-http", "url": address}]}
        with odd_server({"GET": (200, {"servers": [{"server": entry}]})}) as registry:
            assert run("call", "echo", "hi", "--url", registry.url, "--bearer", "anns-token").out == "done\n"
    assert {headers.get("authorization") for _, headers, _ in agent.seen} == {"Bearer anns-token"}


def test_an_agents_port_is_asked_on_this_machine_if_the_registry_is_there(run: Command) -> None:
    with odd_server(modern_agent(["send_message"], ANSWER)) as agent:
        address = f"{agent.url.replace('127.0.0.1', 'pallas.invalid')}/mcp"
        published = {PUBLISHER: {"agent": "tech_research"}}
        entry = {
            "name": "n/tech-research",
            "remotes": [{"type": "streamable-http", "url": address}],
            "_meta": published,
        }
        with odd_server({"GET": (200, {"servers": [{"server": entry}]})}) as registry:
            called = run("call", "tech-research", "hi", "--url", registry.url)
            listed = run("agents", "--url", registry.url)
    assert (called.code, called.out, called.err) == (0, "done\n", "")
    assert listed.out.splitlines()[1].startswith("tech_research ")


@pytest.mark.parametrize("bearer", [[], ["--bearer", "anns-token"]])
def test_an_address_that_is_no_url_is_told(run: Command, bearer: list[str]) -> None:
    entry = {"name": "n/echo", "remotes": [{"type": "streamable-http", "url": "http://127.0.0.1:12x/mcp"}]}
    with odd_server({"GET": (200, {"servers": [{"server": entry}]})}) as server:
        ran = run("call", "echo", "hi", "--url", server.url, *bearer)
    says = f"What answers at {server.url}/.well-known/mcp/server.json is not a registry.\n"
    assert (ran.code, ran.out, ran.err) == (1, "", says)


def test_health_shows_its_bearer_to_the_registry_too(run: Command) -> None:
    with odd_server(modern_agent(["send_message", "get_health"], ANSWER)) as server:
        run("health", "--url", server.url, "--bearer", "anns-token")
    bearers = {(method, headers.get("authorization")) for method, headers, _ in server.seen}
    assert bearers == {("GET", "Bearer anns-token"), ("POST", "Bearer anns-token")}


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--watch"], ["--bearer", "anns-token"]])
def test_a_gateway_that_shows_no_agents_is_not_well(run: Command, arguments: list[str]) -> None:
    with odd_server({"GET": (200, {"servers": []})}) as server:
        ran = run("health", *arguments, "--url", server.url)
    assert (ran.code, ran.out, ran.err) == (1, "", f"No agent to ask: {NOTHING_SHOWN}\n")


@pytest.mark.parametrize(("status", "is_waited_for"), [(401, False), (403, False), (503, True)])
async def test_whether_a_registry_that_refuses_is_worth_waiting_for(status: int, *, is_waited_for: bool) -> None:
    with odd_server({"GET": (status, {})}) as server:
        with pytest.raises(GatewayRefusedError, match=f"HTTP {status}") as refused:
            await fetch_agents(server.url)
        assert isinstance(refused.value, UnavailableError) is is_waited_for


def test_a_health_tool_that_says_something_else_is_an_error(run: Command) -> None:
    with odd_server(modern_agent(["send_message", "get_health"], ANSWER)) as server:
        ran = run("health", "--url", server.url)
    assert (ran.code, ran.out.splitlines()[1:]) == (1, ["echo    error    done"])


def test_an_interrupted_call_is_cancelled_without_a_traceback(run: Command) -> None:
    def interrupt(rpc: dict[str, Any]) -> list[object]:
        os.kill(os.getpid(), signal.SIGINT)
        hung_up.wait(10)
        return []

    hung_up = threading.Event()
    # A shell ignores the signal for programs in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with odd_server(modern_agent(["send_message"], interrupt)) as server:
            ran = run("call", "echo", "hi", "--url", server.url)
            hung_up.set()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (ran.code, ran.out, ran.err) == (1, "", "cancelled\n")


PROGRESS = ["echo step 1 (llm)", "tools/add: started", "[bold]not markup"]


def with_progress(rpc: dict[str, Any]) -> list[object]:
    token = rpc["params"]["_meta"]["progressToken"]
    notices = [
        notice("notifications/progress", progressToken=token, progress=number, message=message)
        for number, message in enumerate(PROGRESS)
    ]
    return [*notices, ANSWER]


def test_progress_is_on_stderr_line_by_line_where_that_is_no_terminal(run: Command) -> None:
    with odd_server(modern_agent(["send_message"], with_progress)) as server:
        ran = run("call", "echo", "hi", "--url", server.url)
    assert (ran.code, ran.out) == (0, "done\n")
    assert ran.err.splitlines() == PROGRESS


class Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line_that_is_gone_in_the_end(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with odd_server(modern_agent(["send_message"], with_progress)) as server:
        ran = run("call", "echo", "hi", "--url", server.url)
    assert (ran.code, ran.out) == (0, "done\n")
    assert terminal.getvalue().endswith("\r\x1b[1A\x1b[2K")
    assert terminal.getvalue().count("\n") == 1


TITLE, CLEAR, CLIPBOARD = "\x1b]0;root@bank\x07", "\x1b[2J\x9b2J", "\x1b]52;c;cm0gLXJm\x1b\\"
HOSTILE = f"a{TITLE}b{CLEAR}c{CLIPBOARD}d\r\n\te"
HARMLESS = "a]0;root@bankb[2J2Jc]52;c;cm0gLXJm\\d"


def hostile(*, is_error: bool = False) -> Callable[[dict[str, Any]], list[object]]:
    """Answer with control sequences in the progress, the live text, the results of tools and the answer."""

    def answer(rpc: dict[str, Any]) -> list[object]:
        token = rpc["params"]["_meta"]["progressToken"]
        result = {"name": "search", "text": HOSTILE, "duration_seconds": 0.1}
        payloads = [
            {"kind": "assistant_delta", "text": HOSTILE},
            {"kind": "assistant_chunk_results", "agent": HOSTILE, "results": [result]},
        ]
        return [
            notice("notifications/progress", progressToken=token, progress=1, message=HOSTILE),
            *(notice("notifications/message", level="info", logger=LOGGER, data=data) for data in payloads),
            {"result": {"resultType": "complete", "content": [{"type": "text", "text": HOSTILE}], "isError": is_error}},
        ]

    return answer


@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize("options", [[], ["--stream", "--verbose"]])
def test_a_terminal_gets_no_control_sequences_of_models_and_tools(
    run: Command, monkeypatch: pytest.MonkeyPatch, options: list[str], is_error: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    monkeypatch.setattr(sys, "stderr", err := Terminal())
    with odd_server(modern_agent(["send_message"], hostile(is_error=is_error))) as server:
        run("call", "echo", "hi", "--url", server.url, *options)
    shown = out.getvalue() + err.getvalue()
    assert HARMLESS in shown
    assert [one for one in ("\x07", "\x9b", "\x1b]", "\x1b[2J", "\x1b\\") if one in shown] == []


def test_a_pipe_gets_an_answer_unchanged(run: Command) -> None:
    with odd_server(modern_agent(["send_message"], hostile())) as server:
        ran = run("call", "echo", "hi", "--url", server.url)
    assert ran.out == f"{HOSTILE}\n"


def test_an_agent_that_asks_a_client_without_a_terminal_is_an_error(run: Command) -> None:
    form = {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
    request = {"method": "elicitation/create", "params": form}
    asks = {"result": {"resultType": "input_required", "inputRequests": {"q": request}, "requestState": "s"}}
    with odd_server(modern_agent(["send_message"], asks)) as server:
        ran = run("call", "echo", "hi", "--url", server.url)
    says = "The agent asks a question, although this client declared that it cannot be asked.\n"
    assert (ran.code, ran.out, ran.err) == (1, "", says)


def test_the_live_text_is_asked_for_only_with_stream(run: Command) -> None:
    asked: list[dict[str, Any]] = []

    def with_live_text(rpc: dict[str, Any]) -> list[object]:
        asked.append(rpc["params"]["_meta"])
        deltas = [{"kind": "assistant_delta", "text": text} for text in ("do", "ne")]
        return [*(notice("notifications/message", level="info", logger=LOGGER, data=data) for data in deltas), ANSWER]

    with odd_server(modern_agent(["send_message"], with_live_text)) as server:
        plain = run("call", "echo", "hi", "--url", server.url)
        live = run("call", "echo", "hi", "--url", server.url, "--stream")
    assert (plain.code, plain.out, plain.err) == (0, "done\n", "")
    assert (live.code, live.out, live.err) == (0, "done\n", "done\n")
    assert [meta.get("pallas/stream") for meta in asked] == [None, "delta"]
    assert {meta["io.modelcontextprotocol/logLevel"] for meta in asked} == {"info"}


def test_other_messages_are_no_part_of_the_stream(run: Command) -> None:
    def talkative(_: dict[str, Any]) -> list[object]:
        return [notice("notifications/message", level="info", logger="other", data={"kind": "x"}), ANSWER]

    with odd_server(modern_agent(["send_message"], talkative)) as server:
        ran = run("call", "echo", "hi", "--url", server.url, "--json")
    assert [event["type"] for event in events(ran)] == ["result"]


# schema


def test_schema_prints_a_valid_json_schema_that_takes_the_example(run: Command) -> None:
    ran = run("schema")
    assert (ran.code, ran.err) == (0, "")
    jsonschema.Draft202012Validator.check_schema(ran.json)
    validator = jsonschema.Draft202012Validator(ran.json)
    example = Path(__file__).parents[2] / "agents.example.yaml"
    validator.validate(yaml.safe_load(example.read_text()))
    assert [error.message for error in validator.iter_errors({"name": "x", "agents": {"a": {"modul": "b"}}})]
