"""Outputs of the audit log that are no files: stdout and syslog."""

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from threading import enumerate as threads
from typing import Any

import pytest

from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.features.audit import sinks
from pallas_gateway.features.audit.audit_log import AuditLog
from pallas_gateway.features.audit.chain import link_of
from pallas_gateway.features.audit.sinks import SyslogSink, sink_for

TIME = "2026-11-24T05:00:00.000Z"
RFC_5424 = re.compile(rb"<110>1 (\S+) (\S+) pallas-gateway (\d+) audit - (\{.*\})")


def test_stdout_gets_whole_lines_and_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    sink = sink_for("-", Path(), writer, print)
    line = b"x" * 4000
    sink.write(line, TIME)

    with pytest.raises(BlockingIOError, match="stdout is not read"):
        sink.write(line, TIME)

    assert os.read(reader, 10_000) == line + b"\n"
    sink.write(b"next", TIME)
    assert os.read(reader, 10_000) == b"next\n"
    sink.close()
    os.write(writer, b"open")
    os.close(writer)
    os.close(reader)


def test_syslog_by_a_unix_socket_gets_rfc_5424_and_a_restart_of_the_server_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    settings = GatewaySettings(audit_log=f"syslog:{path}", audit_sync="never")
    with _server_at(path) as server:
        log = AuditLog.open(settings, tmp_path)
        assert _sequence(server.recv(65_536)) == 1
    with _server_at(path) as server:
        log.record({"action": "call", "caller": "two\nlines"})
        assert _sequence(server.recv(65_536)) == 2
    assert not log.record({"action": "call"})
    with _server_at(path) as server:
        log.close()
        assert _sequence(server.recv(65_536)) == 3


@contextmanager
def _server_at(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.settimeout(10)
        server.bind(str(path))
        yield server
    path.unlink()


def _sequence(message: bytes) -> int:
    match = RFC_5424.fullmatch(message)
    assert match is not None
    assert int(match[3]) == os.getpid()
    link = link_of(match[4])
    assert link is not None
    return link.sequence


def test_a_syslog_server_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "log"))
        sink = SyslogSink(str(tmp_path / "log"))
        with pytest.raises(BlockingIOError):
            _write_often(sink)
        sink.close()


def _write_often(sink: SyslogSink) -> None:
    for _ in range(100_000):
        sink.write(b"{}", TIME)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_syslog_by_udp_gets_rfc_5424_and_goes_on_without_a_server(host: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        sink = sink_for(f"syslog:{host}:{server.getsockname()[1]}", Path(), 1, print)
        sink.write(b"{}", TIME)
        assert RFC_5424.fullmatch(server.recv(65_536)) is not None
    for _ in range(3):
        sink.write(b"{}", TIME)
    sink.close()


def test_lines_do_not_wait_for_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = Event(), Event()
    look_up = socket.getaddrinfo

    def getaddrinfo(*question: Any, **more: Any) -> Any:
        asked.set()
        assert answered.wait(30)
        return look_up(*question, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(sinks, "FIRST_LOOKUP_SECONDS", 0.0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        sink = sink_for(f"syslog:localhost:{server.getsockname()[1]}", Path(), 1, print)
        for _ in range(3):
            with pytest.raises(BlockingIOError, match="being looked up"):
                sink.write(b"{}", TIME)
        assert asked.wait(10)
        answered.set()
        _wait_for_lookup()
        sink.write(b"{}", TIME)
        assert RFC_5424.fullmatch(server.recv(65_536)) is not None
    sink.close()


def test_a_name_that_is_not_known_is_looked_up_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def getaddrinfo(*question: Any, **_: Any) -> Any:
        asked.append(question)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    sink = sink_for("syslog:log.example.test:514", Path(), 1, print)
    for _ in range(3):
        with pytest.raises(socket.gaierror, match="not known"):
            sink.write(b"{}", TIME)
    assert len(asked) == 1
    monkeypatch.setattr(sinks, "monotonic", lambda: float("inf"))
    with pytest.raises(socket.gaierror):
        sink.write(b"{}", TIME)
    _wait_for_lookup()
    assert len(asked) == 2


def _wait_for_lookup() -> None:
    for thread in threads():
        if thread.name == "audit syslog name":
            thread.join(10)


def test_syslog_has_the_usual_socket_without_an_address() -> None:
    assert sink_for("syslog:", Path(), 1, print).name == "syslog:/dev/log"
