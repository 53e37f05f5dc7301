"""Two replicas behind nginx or Caddy, restarted in turn under load: every call is answered, and none runs twice."""

import asyncio
import signal
import ssl
from collections import Counter
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.ingress import Ingress, caddy, nginx, place
from tests.support.calling import Answer, answer_of
from tests.support.clients import MODERN_VERSION, RawClient, RawReply, raw_client, tool_params
from tests.support.commands import READY_SECONDS, Program, started
from tests.support.gateway import Agent, Project, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import hang, say, scripted_llm
from tests.support.waiting import Gate, eventually

REPLICAS = 2
PATIENCE_SECONDS = 120  # of clients, on a machine that is busy with replicas
CALLS_A_SECOND = 15  # what this leaves of two cores is for the replicas that start


class Load:
    """Clients that call one after the other until told to stop; each message is said once.

    A call that was refused with 503, which Caddy passes on, is sent again, as `Retry-After` asks clients to.
    """

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        self._url = url
        self._tls = tls
        self._stopping = asyncio.Event()
        self.sent = 0
        self.refused = 0
        self.answers: dict[str, Answer] = {}

    async def client(self) -> None:
        async with raw_client(self._url, protocol_version=MODERN_VERSION, tls=self._tls) as client:
            client.http.timeout = PATIENCE_SECONDS
            while not self._stopping.is_set():
                self.sent += 1
                message = f"call-{self.sent}"
                params = tool_params("send_message", {"message": message})
                while (reply := await self._replied(client, params)).status == HTTPStatus.SERVICE_UNAVAILABLE:
                    self.refused += 1
                self.answers[message] = answer_of(reply)

    async def _replied(self, client: RawClient, params: dict[str, Any]) -> RawReply:
        async with client.in_flight("tools/call", params) as call:
            return await call.reply(timeout_seconds=PATIENCE_SECONDS)

    def stop(self) -> None:
        """Let each client end with the call it is at."""
        self._stopping.set()


@pytest.mark.whole
@pytest.mark.crowd
@pytest.mark.parametrize("clients", [20, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
@pytest.mark.parametrize(
    "ingress",
    [pytest.param(partial(nginx, longest_silence="1h"), marks=pytest.mark.needs("nginx")), caddy],
    ids=["nginx", "caddy"],
)
async def test_no_call_fails_and_none_runs_twice_while_each_replica_is_restarted(
    clients: int, ingress: Ingress, tmp_path: Path
) -> None:
    gate = Gate()
    async with AsyncExitStack() as stack:
        at = stack.enter_context(place(tmp_path / "ingress"))
        llm = await stack.enter_async_context(scripted_llm(lambda request: hang(gate, say(request.last_user_text))))
        gateway = {"public_url": at.url, "queue_seconds": 60}  # a busy machine takes its time to start an agent
        project = write_project(tmp_path / "project", {"solo": Agent()}, llm_url=llm.base_url, gateway=gateway)
        ports = [stack.enter_context(reserved_port()) for _ in range(REPLICAS)]
        replicas = [stack.enter_context(serving(project, port)) for port in ports]
        for replica in replicas:
            await asyncio.to_thread(replica.wait_for, "Try:")
        await stack.enter_async_context(ingress(at, ports))
        load = Load(f"{at.url}/agents/solo/mcp", at.tls)
        async with asyncio.TaskGroup() as group:
            pulse = group.create_task(answer_in_waves(gate, seconds=clients / CALLS_A_SECOND))
            callers = [group.create_task(load.client()) for _ in range(clients)]
            for port, replica in zip(ports, replicas, strict=True):
                await until_all_are_running(gate, clients)
                replica.signal(signal.SIGTERM)
                ended = await asyncio.to_thread(replica.end, READY_SECONDS)
                assert ended.code == 0, ended.err
                new = stack.enter_context(serving(project, port))
                await asyncio.to_thread(new.wait_for, "Try:")
            await until_all_are_running(gate, clients)
            load.stop()
            await asyncio.wait(callers)
            pulse.cancel()

    assert load.refused == 0 or ingress is caddy  # nginx gives what one has refused to the other
    runs = Counter(request.last_user_text for request in llm.requests)
    assert {text: (answer.text, answer.is_error) for text, answer in load.answers.items()} == {
        f"call-{number}": (f"call-{number}", False) for number in range(1, load.sent + 1)
    }
    assert runs == Counter(load.answers.keys())


def serving(project: Project, port: int) -> AbstractContextManager[Program]:
    return started(["serve", "--port", str(port)], project.path)


async def answer_in_waves(gate: Gate, *, seconds: float) -> None:
    """Every so many seconds the model answers all that wait for it, so that many calls run at any time."""
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), seconds)
        gate.let_through(gate.waiting)


async def until_all_are_running(gate: Gate, clients: int) -> None:
    """Return when each client has a call that waits for the model."""
    await eventually(lambda: gate.waiting >= clients, timeout_seconds=60, what=f"{clients} calls at once")
