"""Downstreams that are down at the start of their agent, found without a request."""

from pathlib import Path

import pytest

from pallas_gateway.runtime.downstreams import downstream_log
from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog, Outages
from pallas_gateway.runtime.protocols import Downstream, StdioProgram
from tests.support.listener import black_hole, reserved_port

PROXIES = ("http_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def found(downstream: Downstream, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The errors that are logged about it, looked for twice."""
    log = DownstreamLog("lead")
    for _ in range(2):
        await log.look_for([downstream])
    assert {record.getMessage() for record in caplog.records} <= {"downstream unreachable"}
    return [vars(record)["error"] for record in caplog.records]


async def test_a_port_that_takes_connections_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    with black_hole() as url:
        assert await found(Downstream("tools", url), caplog) == []


async def test_a_port_that_refuses_connections_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with reserved_port() as port:
        (error,) = await found(Downstream("tools", f"http://127.0.0.1:{port}/mcp"), caplog)
    assert "refused" in error or "Connect call failed" in error


async def test_a_proxy_of_the_environment_may_know_a_host_that_is_unknown_here(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reserved_port() as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        assert await found(Downstream("tools", f"http://127.0.0.1:{port}/mcp"), caplog) == []
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert len(await found(Downstream("tools", f"http://127.0.0.1:{port}/mcp"), caplog)) == 1


async def test_a_connection_that_is_never_made_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def given_up(_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(downstream_log, "_connect", given_up)
    assert await found(Downstream("tools", "http://127.0.0.1:1/mcp"), caplog) == ["no connection within 5 s"]


@pytest.mark.parametrize("command", ["no-such-program", "./no-such-program"])
async def test_a_program_that_is_not_installed_is_logged(
    command: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = StdioProgram(command, environ={"PATH": str(tmp_path)}, directory=str(tmp_path))
    assert await found(Downstream("tools", None, program=program), caplog) == [f"command '{command}' not found"]
    (tmp_path / "no-such-program").touch(mode=0o755)
    caplog.clear()
    assert await found(Downstream("tools", None, program=program), caplog) == []


def test_tools_that_are_left_out_are_logged_once_and_no_longer_when_there_were_too_many(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downstream_log, "_MOST_SAID", 2)
    log = DownstreamLog("lead")
    for faults in (["a"], ["a", "b"], ["c"], ["c"]):
        log.on_listed("tools", [], faults)
    assert [vars(record)["problems"] for record in caplog.records] == [["a"], ["b"]]


def test_going_down_and_coming_back_are_said_once_each() -> None:
    outages = Outages()
    assert not outages.up("tools")
    assert [outages.down("tools", second) for second in (0.0, 1.0, 100.0)] == [0, None, None]
    assert [outages.up("tools") for _ in range(2)] == [True, False]


def test_a_server_that_flaps_is_one_pair_a_minute_with_the_changes_left_out() -> None:
    outages = Outages()
    said = [(outages.down("tools", float(second)), outages.up("tools")) for second in range(130)]
    pairs = {second: pair for second, pair in enumerate(said) if pair != (None, False)}
    assert pairs == {0: (0, True), 60: (118, True), 120: (118, True)}


def test_a_server_that_stays_down_after_flapping_is_said_when_the_minute_is_over() -> None:
    outages = Outages()
    outages.down("tools", 0.0)
    outages.up("tools")
    assert [outages.down("tools", second) for second in (30.0, 59.0, 60.0, 120.0)] == [None, None, 0, None]
    assert outages.up("tools")


def test_a_server_that_is_back_before_its_going_down_was_said_is_not_said_to_be_back() -> None:
    outages = Outages()
    outages.down("tools", 0.0)
    outages.up("tools")
    outages.down("tools", 1.0)
    assert not outages.up("tools")


def test_servers_do_not_quieten_each_other() -> None:
    outages = Outages()
    assert (outages.down("tools", 0.0), outages.down("graph", 1.0)) == (0, 0)
