"""What `health` and `health --watch` show of agents, their downstreams and their model's provider."""

import io
import json
import signal
import time
from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, override

import pytest
from rich.console import Console

from pallas_gateway.client import health as command
from pallas_gateway.client.gateway_client import GatewayRefusedError, UnavailableError, UnreachableError
from pallas_gateway.client.health import (
    Asking,
    HealthAnswer,
    HealthAnswers,
    HealthRow,
    NoAgentsError,
    ask_for_ever,
    print_answers,
    rows_of,
    with_last_errors,
)
from pallas_gateway.client.output import redrawn, table_lines
from pallas_gateway.identity.static_keys import hash_of
from tests.support.commands import Command, Program, started
from tests.support.gateway import Agent, write_project
from tests.support.odd_server import odd_server, registry_of

WELL: dict[str, Any] = {"status": "ok", "agent": {"state": "ready", "since": "2026-11-03T11:58:40.123456Z"}}
TOOLS = {
    "name": "tools",
    "status": "ok",
    "seconds": 0.01234,
    "since": "2026-11-03T11:58:41Z",
    "protocol": "initialize",
}
GRAPH = {
    "name": "graph",
    "status": "unreachable",
    "seconds": 3.0,
    "error": "no answer within 3 s",
    "since": "2026-11-03T11:59:41Z",
}
LLM = {"provider": "openai", "model": "gpt-x", "status": "failed", "error": "model 'gpt-x' not found"}
SICK = {**WELL, "status": "degraded", "message": "Unreachable: graph", "downstream": [TOOLS, GRAPH], "llm": LLM}
FAILED = {"status": "error", "message": "no key"}
NOW = "12:00:05"


@pytest.fixture(autouse=True)
def in_india(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Local time is 5:30 h ahead of UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "IST-5:30")
        time.tzset()
        yield
    time.tzset()


def answers(**documents: Mapping[str, Any]) -> HealthAnswers:
    return {name: HealthAnswer(document, 0.25) for name, document in documents.items()}


def test_each_downstream_is_told_below_the_agents(capsys: pytest.CaptureFixture[str]) -> None:
    print_answers(answers(research=SICK, echo=WELL))
    assert capsys.readouterr().out.splitlines() == [
        "AGENT      STATUS     MESSAGE",
        "research   degraded   Unreachable: graph",
        "echo       ok",
        "",
        "AGENT      SERVER             STATUS        LATENCY   SINCE                 ERROR",
        "research   tools              ok            0.012 s   2026-11-03 17:28:41",
        "research   graph              unreachable   3.000 s   2026-11-03 17:29:41   no answer within 3 s",
        "research   LLM openai gpt-x   failed                                        model 'gpt-x' not found",
    ]


def test_agents_without_downstreams_are_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_answers(answers(echo=WELL, broken=FAILED))
    assert capsys.readouterr().out.splitlines() == [
        "AGENT    STATUS   MESSAGE",
        "echo     ok",
        "broken   error    no key",
    ]


def test_a_row_for_each_agent_and_each_it_depends_on() -> None:
    rows = rows_of(answers(research=SICK, broken=FAILED))
    assert [(row.agent, row.server, row.state, row.status, row.latency) for row in rows] == [
        ("research", "", "ready", "degraded", "0.250 s"),
        ("research", "tools", "", "ok", "0.012 s"),
        ("research", "graph", "", "unreachable", "3.000 s"),
        ("research", "LLM openai gpt-x", "", "failed", ""),
        ("broken", "", "", "error", "0.250 s"),
    ]


@pytest.mark.parametrize(
    "odd",
    [{}, {"agent": "ready", "downstream": {"a": 1}, "llm": []}, {"downstream": ["tools", None, {}]}, {"status": None}],
)
def test_an_answer_of_another_form_is_shown_as_far_as_it_goes(odd: Mapping[str, Any]) -> None:
    assert rows_of(answers(odd=odd))[0].agent == "odd"


@pytest.mark.parametrize(
    ("since", "shown"),
    [
        ("2026-11-03T11:58:40.123456Z", "2026-11-03 17:28:40"),
        ("2026-11-03T20:00:00Z", "2026-11-04 01:30:00"),
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
        ("some day", "some day"),
        (None, ""),
        (12, "12"),
    ],
)
def test_since_when_is_told_in_local_time(since: object, shown: str) -> None:
    (row,) = rows_of(answers(echo={"status": "ok", "agent": {"state": "ready", "since": since}}))
    assert row.since == shown


def test_open_questions_are_shown_with_the_state() -> None:
    agent = {"state": "ready", "since": None}
    shown = [
        rows_of(answers(desk={"status": "ok", "agent": {**agent, "open_questions": count}}))[0].state
        for count in (1, 2, "many")
    ]
    assert shown == ["ready, 1 question open", "ready, 2 questions open", "ready"]


def test_the_last_error_stays_with_its_time_until_there_is_another() -> None:
    errors: dict[tuple[str, str], str] = {}
    well, sick = rows_of(answers(echo=WELL)), rows_of(answers(echo=FAILED))
    rounds = enumerate([well, sick, well, well])
    shown = [with_last_errors(rows, errors, f"12:00:0{second}")[0].error for second, rows in rounds]
    assert shown == ["", "no key", "no key (last at 12:00:01)", "no key (last at 12:00:01)"]


def test_on_a_terminal_a_table_is_drawn_in_place_with_the_errors_beyond_its_edge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = io.StringIO()
    monkeypatch.setattr("rich.console.Console", partial(Console, file=output, force_terminal=True, width=40))
    rows = rows_of(answers(research={**SICK, "message": "[red]no[/red]\x1b[2J"}))
    with redrawn() as draw:
        assert draw is not None
        for _ in range(2):
            draw("\n".join(table_lines(*HealthRow._fields, rows=rows)))
    text = output.getvalue()
    assert "\x1b[1A" in text  # the cursor went up again
    assert min(text.count("[red]no[/red]"), text.count("no answer within 3 s")) >= 2
    assert "\x1b[2J" not in text


class Rounds(Asking):
    """Answers as the test says, one round after the other; ends like Ctrl-C after the last."""

    def __init__(self, *rounds: HealthAnswers | Exception) -> None:
        super().__init__(None, "http://gateway.example")
        self.rounds = list(rounds)

    @override
    async def ask(self) -> HealthAnswers:
        if not self.rounds:
            raise KeyboardInterrupt
        following = self.rounds.pop(0)
        if isinstance(following, Exception):
            raise following
        self.latest = following
        return following


GONE = UnreachableError("No gateway answers.")
DRAINING = UnavailableError("It refused: HTTP 503.")
REFUSED = GatewayRefusedError("It refused: a token is required (HTTP 401).")


@pytest.mark.parametrize("gone", [GONE, DRAINING, NoAgentsError("It lists no agents.")])
async def test_a_gateway_that_goes_away_is_waited_for(gone: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = Rounds(answers(echo=WELL), gone, answers(echo=FAILED))
    with pytest.raises(KeyboardInterrupt):
        await ask_for_ever(rounds, 0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in lines if line.startswith("http")] == [
        "",
        f"{gone} Shown is what was.",
        "",
    ]
    assert [line.split()[1:3] for line in lines if line.startswith("echo")][:2] == [["ready", "ok"]] * 2
    assert not rounds.is_well


async def test_a_gateway_that_is_gone_in_the_end_is_not_well() -> None:
    rounds = Rounds(answers(echo=WELL), GONE)
    with pytest.raises(KeyboardInterrupt):
        await ask_for_ever(rounds, 0)
    assert not rounds.is_well


async def test_a_token_that_is_refused_meanwhile_is_not_waited_for() -> None:
    with pytest.raises(GatewayRefusedError, match="a token is required"):
        await ask_for_ever(Rounds(answers(echo=WELL), REFUSED), 0)


@pytest.mark.parametrize("gone", [GONE, DRAINING])
async def test_the_first_round_has_to_find_a_gateway(gone: Exception) -> None:
    with pytest.raises(type(gone)):
        await ask_for_ever(Rounds(gone), 0)


@pytest.mark.parametrize(("document", "code"), [(WELL, 0), (FAILED, 1)])
def test_ctrl_c_ends_watching_with_what_was_last_seen(
    document: Mapping[str, Any], code: int, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "Asking", lambda *_: Rounds(answers(echo=document)))
    ran = run("health", "--watch", "--interval", "0.1")
    assert (ran.code, ran.err) == (code, "")
    assert ran.out.startswith("http://gateway.example at ")


def test_watching_a_gateway_from_a_script_ends_cleanly_on_ctrl_c(gateway: Program, tmp_path: Path) -> None:
    with started(["health", "echo", "--watch", "--interval", "0.1", "--url", gateway.url], tmp_path) as watching_it:
        watching_it.wait_for("echo")
        watching_it.signal(signal.SIGINT)
        ran = watching_it.end()
    assert (ran.code, ran.err) == (0, "")
    assert "ready" in ran.out


def test_a_table_that_lives_is_no_json(asking: Command) -> None:
    ran = asking("health", "--watch", "--json")
    assert (ran.code, ran.out, ran.err) == (2, "", "--watch draws a table; use --json without it.\n")


def test_health_as_json_is_the_documents_themselves(asking: Command) -> None:
    document = json.loads(asking("health", "echo", "--json").out)["echo"]
    assert (document["status"], document["agent"]["state"]) == ("ok", "ready")


KEYS = [
    {"name": "narrow", "sha256": hash_of("narrow"), "grants": ["view:agents:echo"]},
    {"name": "idle", "sha256": hash_of("idle"), "grants": ["view:metrics"]},
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    """A gateway whose open registry lists agents to callers that may not view them all."""
    folder = tmp_path_factory.mktemp("guarded") / "project"
    agents = {"echo": Agent(), "other": Agent()}
    write_project(folder, agents, gateway={"auth": {"tokens": KEYS}})
    with started(["serve"], folder) as program:
        program.wait_for("Try:")
        yield program


def test_agents_that_the_caller_may_not_see_are_no_access_and_do_not_fail(run: Command, guarded: Program) -> None:
    ran = run("health", "--url", guarded.url, "--bearer", "narrow", "--json")
    assert {name: answer["status"] for name, answer in ran.json.items()} == {"echo": "ok", "other": "no access"}
    assert "the token has no grant for it" in ran.json["other"]["message"]
    assert ran.code == 0
    ran = run("health", "--url", guarded.url, "--bearer", "narrow")
    assert [line[:17].split(maxsplit=1) for line in ran.out.splitlines()[1:]] == [
        ["echo", "ok"],
        ["other", "no access"],
    ]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["other", "--bearer", "narrow"], "no access"),
        (["--bearer", "idle"], "no access"),
        ([], "no access"),
    ],
)
def test_where_no_agent_may_be_seen_health_fails(
    arguments: list[str], status: str, run: Command, guarded: Program
) -> None:
    ran = run("health", *arguments, "--url", guarded.url, "--json")
    assert {answer["status"] for answer in ran.json.values()} == {status}
    assert ran.code == 1


def test_an_endpoint_that_is_not_there_is_an_error_and_not_a_matter_of_access(run: Command) -> None:
    """As behind an ingress that passes on the registry alone."""
    with odd_server({"GET": (200, registry_of("echo")), "POST": (404, {"error": "no such page"})}) as server:
        ran = run("health", "--url", server.url, "--bearer", "any", "--json")
    assert {answer["status"] for answer in ran.json.values()} == {"error"}
    assert ran.code == 1
