"""Downstreams that are down at the start of their agent, found without a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pallas_gateway.runtime.downstreams import downstream_log
from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog
from pallas_gateway.runtime.protocols import Downstream, StdioProgram
from tests.support.listener import black_hole, reserved_port

if TYPE_CHECKING:
    from pathlib import Path

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
