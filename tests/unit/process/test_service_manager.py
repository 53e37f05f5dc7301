"""What systemd hears: real datagrams on a real socket, by path and by abstract name."""

import asyncio
import logging
import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns

import pytest

from pallas_gateway.process.service_manager import ServiceManager
from tests.support.calling import ask
from tests.support.gateway import Agent, gateway_and_model
from tests.support.scripted_llm import hang
from tests.support.waiting import Gate

ABSTRACT = f"@pallas-test-{os.getpid()}"


@dataclass(frozen=True)
class Systemd:
    """The receiving end of `NOTIFY_SOCKET`."""

    environ: Mapping[str, str]
    _socket: socket.socket

    def waiting(self) -> list[str]:
        """What has come and was not looked at yet, one entry for each datagram."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    async def hears(self) -> str:
        async with asyncio.timeout(20):
            return (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode()

    async def hears_of(self, text: str) -> None:
        """Return once a datagram with this text has come."""
        while text not in await self.hears():
            pass


@contextmanager
def systemd(name: str, **more: str) -> Generator[Systemd]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.setblocking(False)
        receiver.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        yield Systemd({"NOTIFY_SOCKET": name, **more}, receiver)


@pytest.mark.parametrize("is_abstract", [False, True])
async def test_readiness_and_the_stop_are_told_with_the_status(is_abstract: bool, tmp_path: Path) -> None:
    status = "2 of 2 agents ready"
    with systemd(ABSTRACT if is_abstract else str(tmp_path / "notify")) as manager:
        async with ServiceManager(manager.environ, lambda: status) as service:
            assert manager.waiting() == []
            service.ready()
            assert manager.waiting() == ["READY=1\nSTATUS=2 of 2 agents ready"]
            status = "stopping"
            service.stopping()
            assert manager.waiting() == ["STOPPING=1\nSTATUS=stopping"]


async def test_the_watchdog_is_fed_with_the_present_status(tmp_path: Path) -> None:
    status = "starting"
    with systemd(str(tmp_path / "notify"), WATCHDOG_USEC="20000", WATCHDOG_PID=str(os.getpid())) as manager:
        async with ServiceManager(manager.environ, lambda: status):
            assert await manager.hears() == "WATCHDOG=1\nSTATUS=starting"
            status = "ready"
            assert "WATCHDOG=1\nSTATUS=ready" in [await manager.hears() for _ in range(2)]
        manager.waiting()
        assert manager.waiting() == []


@pytest.mark.parametrize("watchdog", [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}])
async def test_without_a_watchdog_of_its_own_only_the_status_is_told(watchdog: dict[str, str], tmp_path: Path) -> None:
    status = "starting"
    with systemd(str(tmp_path / "notify"), **watchdog) as manager:
        async with ServiceManager(manager.environ, lambda: status, status_seconds=0.01):
            assert await manager.hears() == "STATUS=starting"
            status = "ready"
            assert "STATUS=ready" in [await manager.hears() for _ in range(2)]


async def test_a_reload_is_told_with_its_time(tmp_path: Path) -> None:
    with systemd(str(tmp_path / "notify")) as manager:
        async with ServiceManager(manager.environ, lambda: "ready") as service:
            before = monotonic_ns() // 1000
            service.reloading()
            reloading, microseconds = (await manager.hears()).splitlines()
            service.ready()
            assert (await manager.hears()).splitlines()[0] == "READY=1"
    assert reloading == "RELOADING=1"
    assert before <= int(microseconds.removeprefix("MONOTONIC_USEC=")) <= monotonic_ns() // 1000


@pytest.mark.parametrize("name", ["", "vsock:2:1234"])
async def test_nobody_is_told_without_a_socket(name: str, caplog: pytest.LogCaptureFixture) -> None:
    before = len(asyncio.all_tasks())
    async with ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000"}, lambda: "ready") as service:
        service.ready()
        service.stopping()
        assert len(asyncio.all_tasks()) == before
    assert caplog.records == []


async def test_a_socket_that_is_gone_is_told_of_once_and_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = tmp_path / "notify"
    async with ServiceManager({"NOTIFY_SOCKET": str(address)}, lambda: "ready") as service:
        service.ready()
        service.ready()
        assert [(one.levelno, one.message) for one in caplog.records] == [
            (logging.WARNING, "service manager notification failed")
        ]
        with systemd(str(address)) as manager:
            service.stopping()
            assert manager.waiting() == ["STOPPING=1\nSTATUS=ready"]


async def test_a_gateway_tells_when_its_agents_were_tried_and_when_it_stops_and_turns_while_it_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    agents = {"solo": Agent(), "broken": Agent(source="raise ValueError('no key')")}
    with systemd(str(tmp_path / "notify"), WATCHDOG_USEC="100000") as manager:
        for name, value in manager.environ.items():
            monkeypatch.setenv(name, value)
        ready = asyncio.create_task(manager.hears_of("READY=1"))  # only ten messages wait
        async with gateway_and_model(tmp_path / "project", agents, lambda _: hang(gate)) as (served, _):
            await ready
            stopping = asyncio.create_task(manager.hears_of("STOPPING=1"))
            assert served.gateway.summary == "1 of 2 agents ready, not up: broken"
            call = asyncio.create_task(ask(served.url("solo")))
            await gate.wait_for_entered()
            served.stop.set()
            await stopping
            await manager.hears_of("WATCHDOG=1\nSTATUS=stopping, calls still running: 1")
            gate.open()
            await call
        manager.waiting()
        assert manager.waiting() == []
