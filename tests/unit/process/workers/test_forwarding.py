"""Requests between two workers, over their sockets, with a test in place of the parent and of the clients."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import uvloop
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pallas_gateway.calls.asking.elsewhere import (
    FOR_ONE_KEY,
    NOT_THERE_KEY,
    TAKE_KEY,
    Elsewhere,
    NotThere,
    ProcessAnswer,
)
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.process.workers import forwarding
from pallas_gateway.process.workers.forwarding import WorkerForwarding, socket_of
from tests.support.waiting import cancelled, eventually, tick

HERE, THERE = "0" * 8, "1" * 8
SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "2",
    "method": "POST",
    "scheme": "https",
    "path": "/agents/\udce9/mcp",
    "raw_path": b"/agents/%E9/mcp",
    "query_string": b"a=\xe9",
    "root_path": "",
    "headers": [(b"host", b"one"), (b"authorization", b"Bearer \xe9"), (b"accept", b"a"), (b"accept", b"b")],
    "client": ("203.0.113.7", 0),
    "server": ("::1", 24201),
}
START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Pair:
    """Two workers: one forwards requests to the other, whose `app` answers them."""

    def __init__(self, folder: Path) -> None:
        self.drains = False
        self.folder = folder
        self.here = WorkerForwarding(folder, HERE, lambda: False)
        self.there = WorkerForwarding(folder, THERE, lambda: self.drains)
        self.scope: dict[str, Any] = {**SCOPE, "state": object()}
        self.leaves = asyncio.Event()
        self.received: list[Message] = []
        self.turns_per_message = 0

    async def ask(self, app: ASGIApp | None, process: str = THERE, body: bytes = b"{}") -> bool:
        """Send a request for a call of `process`."""
        self.there.app = app
        request = Request(self.scope, self._receive)
        return await self.here.answered_by(process, request, body, self._send, if_cut=lambda: b"cut")

    async def ask_all(self) -> Sequence[ProcessAnswer]:
        """Send a request to all other processes."""
        return await self.here.ask_all(Request(self.scope))

    async def _receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        for _ in range(self.turns_per_message):
            await asyncio.sleep(0)
        self.received.append(message)

    @property
    def missing(self) -> NotThere | None:
        """The result for a call that was not found."""
        missing: NotThere | None = self.scope.get(NOT_THERE_KEY)
        return missing


@asynccontextmanager
async def pair() -> AsyncGenerator[Pair]:
    async with AsyncExitStack() as stack:
        both = Pair(Path(stack.enter_context(TemporaryDirectory())))
        await stack.enter_async_context(both.here)
        await stack.enter_async_context(both.there)
        yield both


async def body_of(receive: Receive) -> bytes:
    message = await receive()
    assert not message["more_body"]
    return bytes(message["body"])


async def test_a_request_arrives_as_its_client_sent_it_and_the_response_comes_back_as_it_is_made() -> None:
    seen: list[Scope] = []
    goes_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await send(START)
        await send(part(await body_of(receive)))
        await goes_on.wait()
        await send(part(b"last", more=False))

    async with pair() as both:
        asking = asyncio.create_task(both.ask(app, body=b"\x00body"))
        await eventually(lambda: len(both.received) == 2, what="the first part")
        goes_on.set()
        assert await asking
    assert seen[0].items() >= SCOPE.items()
    assert "state" not in seen[0]
    assert both.received == [START, part(b"\x00body"), part(b"last", more=False)]


async def test_a_forwarded_request_is_never_forwarded_again() -> None:
    async with pair() as both:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            assert not await both.there.answered_by(HERE, Request(scope, receive), b"", send, if_cut=bytes)
            await send({**START, "status": HTTPStatus.NOT_FOUND})
            await send(part(b"", more=False))

        assert await both.ask(app)
        assert both.received[0]["status"] == 404


@pytest.mark.parametrize("name", ["", "../../etc/x", "x" * 8, "1" * 9, "1" * 7 + "\n"])
async def test_a_name_that_no_process_has_reaches_no_file(name: str) -> None:
    async with pair() as both:
        assert not await both.ask(None, name)
        assert both.missing == NotThere(name)
        assert not both.received


async def test_a_process_that_is_alone_and_a_process_that_has_the_call_answer_by_themselves() -> None:
    async with pair() as both:
        assert not await both.ask(None, HERE)
        assert both.missing is None
        alone = Elsewhere()
        assert not await alone.answered_by(THERE, Request(both.scope), b"", both._send, if_cut=bytes)
        assert both.missing == NotThere(THERE)


@pytest.mark.parametrize("leaves_its_socket", [False, True])
async def test_a_worker_that_has_ended_has_no_call(leaves_its_socket: bool) -> None:
    async with pair() as both:
        path = socket_of(both.there._folder, THERE)
        await both.there.__aexit__()
        if leaves_its_socket:
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(path))
        assert not await both.ask(None)
        assert (both.missing, path.exists()) == (NotThere(THERE), leaves_its_socket)


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer nothing."""


async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
    await send({**START, "status": 503})


@pytest.mark.parametrize("app", [None, nothing, refusing])
async def test_a_worker_that_drains_leaves_the_call_to_others(app: ASGIApp | None) -> None:
    async with pair() as both:
        both.drains = True
        assert not await both.ask(app)
        assert both.missing == NotThere(THERE)
        assert not both.received


async def test_a_call_that_was_taken_is_lost_with_its_worker_and_a_stream_that_has_begun_gets_a_last_event() -> None:
    async with pair() as both:
        begun = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await both.there.answered_by(None, Request(scope), b"", send, if_cut=bytes)
            begun.set()
            await asyncio.Event().wait()

        async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            await send(part(b"first"))
            await asyncio.Event().wait()

        taken = asyncio.create_task(both.ask(app))
        await begun.wait()
        await both.there.__aexit__()
        assert not await taken
        assert both.missing == NotThere(THERE, is_lost=True)

        async with both.there:
            cut = asyncio.create_task(both.ask(streaming))
            await eventually(lambda: len(both.received) == 2, what="the first part")
        assert await cut
        assert both.received == [START, part(b"first"), part(b"cut", more=False)]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_client_that_leaves_is_disconnected_from_the_other_worker(is_cancelled: bool) -> None:
    async with pair() as both:
        left = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            assert await body_of(receive) == b"{}"
            await send(START)
            assert (await receive())["type"] == (await receive())["type"] == "http.disconnect"
            left.set()

        asking = asyncio.create_task(both.ask(app))
        await eventually(lambda: both.received, what="the beginning of the response")
        if is_cancelled:
            await cancelled(asking)
        else:
            both.leaves.set()
            assert await asking
        await asyncio.wait_for(left.wait(), 20)
        assert both.received == [START]


async def test_a_client_that_reads_slowly_slows_the_response_of_the_other_worker_down() -> None:
    pieces, ahead = 200, list[int]()

    async with pair() as both:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            for sent in range(pieces):
                await send(part(b"x" * 64 * 1024))
                ahead.append(sent - len(both.received))
            await send(part(b"", more=False))

        both.turns_per_message = 10
        assert await both.ask(app)
    assert len(both.received) == pieces + 2
    assert max(ahead) < 30  # what sockets and streams buffer


async def test_bodies_of_32_mb_travel_in_both_directions() -> None:
    body = bytes(range(256)) * (32 * 4096)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(part(await body_of(receive), more=False))

    async with pair() as both:
        assert await both.ask(app, body=body)
    assert both.received[1]["body"] == body


async def test_an_app_that_fails_before_it_has_taken_the_request_leaves_it_to_the_first_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("by a test")

    async with pair() as both:
        assert not await both.ask(app)
        assert both.missing == NotThere(THERE)
    assert caplog.messages == ["background task failed"]


async def test_a_connection_without_a_request_harms_none() -> None:
    async with pair() as both:
        for data in (b"", b"\x00" * 7, b"\x00" * 7 + b"\x09cut"):
            with socket.socket(socket.AF_UNIX) as broken:
                broken.connect(str(socket_of(both.there._folder, THERE)))
                broken.sendall(data)
        await eventually(lambda: not len(both.there._tasks), what="the end of the connections")


async def test_the_socket_is_removed_with_its_worker() -> None:
    async with pair() as both:
        path = socket_of(both.there._folder, THERE)
        assert path.is_socket()
        await both.there.__aexit__()
        assert not path.exists()


async def test_a_worker_that_takes_no_request_in_time_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)  # until the end of the connection
        writer.close()
        ended.release()

    ended = asyncio.Semaphore(0)
    monkeypatch.setattr(forwarding, "TAKEN_SECONDS", 0.05)
    monkeypatch.setattr(forwarding, "MOST_UNTAKEN", 1)
    async with pair() as both:
        both.there._server.close()
        path = socket_of(both.here._folder, THERE)
        path.unlink(missing_ok=True)
        async with await asyncio.start_unix_server(hangs, str(path)):
            asking = [asyncio.create_task(both.ask(None)) for _ in range(2)]  # one of them is never sent
            refused = await asyncio.gather(*asking, return_exceptions=True)
            await asyncio.wait_for(ended.acquire(), 20)
        assert [getattr(one, "reason", one) for one in refused] == ["busy"] * 2
        assert (both.missing, both.received, ended.locked()) == (None, [], True)


async def test_a_worker_whose_socket_cannot_be_connected_for_another_reason_than_its_end_is_busy() -> None:
    async with pair() as both:
        await both.there.__aexit__()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as another_kind:
            another_kind.bind(str(socket_of(both.folder, THERE)))
            with pytest.raises(CallRefusedError, match="Send the same request again"):
                await both.ask(None)


class Held:
    """An app that answers no request before `goes_on`."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await self.goes_on.wait()
        await send(START)
        await send(part(b"", more=False))


async def test_requests_beyond_those_that_a_worker_is_sent_at_once_wait_for_their_turn() -> None:
    app, most = Held(), forwarding.MOST_UNTAKEN
    async with pair() as both:
        asking = [asyncio.create_task(both.ask(app)) for _ in range(3 * most)]
        await eventually(lambda: app.asked == most, what="as many requests as are sent at once")
        await tick()
        assert app.asked == most
        app.goes_on.set()
        assert await asyncio.gather(*asking) == [True] * len(asking)
        assert both.missing is None


@pytest.mark.parametrize("limits", [{"MOST_WAITING": 1}, {"MOST_WAITING_BYTES": 3}])
async def test_a_request_for_which_there_is_no_room_is_refused_as_busy(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(forwarding, name, limit)
    app = Held()
    async with pair() as both:
        first = asyncio.create_task(both.ask(app, body=b"long"))  # alone, it may be longer
        await eventually(lambda: app.asked, what="the first request")
        with pytest.raises(CallRefusedError) as refused:
            await both.ask(app)
        assert (refused.value.reason, both.missing) == ("busy", None)
        app.goes_on.set()
        assert await first
        assert await both.ask(app)


async def test_a_request_whose_sender_has_given_up_is_not_taken() -> None:
    reached, goes_on, used, done = asyncio.Event(), asyncio.Event(), list[str](), asyncio.Event()
    async with pair() as both:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            reached.set()
            await goes_on.wait()
            try:
                await both.there.answered_by(None, Request(scope), b"", send, if_cut=bytes)
                used.append("state")
            finally:
                done.set()

        asking = asyncio.create_task(both.ask(app))
        await reached.wait()
        asking.cancel()
        asking.add_done_callback(lambda _: goes_on.set())  # at once, before the end of the connection is noticed
        await asyncio.wait_for(done.wait(), 20)
        assert used == []


async def test_a_connection_that_has_ended_here_has_hung_up() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        _, writer = await asyncio.open_connection(sock=ours)
        assert not forwarding._has_hung_up(writer)
        writer.close()
        await writer.wait_closed()
        assert forwarding._has_hung_up(writer)


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_sender_that_gives_up_makes_no_error_while_its_response_is_written(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    async def give_up() -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            while (await receive())["type"] != "http.disconnect":
                pass
            with suppress(ConnectionError):  # as calls do for a notification
                await send(part(b"late"))
            await send(part(b"later"))

        async with pair() as both:
            asking = asyncio.create_task(both.ask(app))
            await eventually(lambda: both.received, what="the beginning of the response")
            asking.cancel()
            await eventually(lambda: not len(both.there._tasks), what="the end of the request")

    asyncio.run(give_up(), loop_factory=loop_factory)
    assert caplog.messages == []


def answering(body: bytes) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (scope[FOR_ONE_KEY], TAKE_KEY in scope) == (True, True)
        assert await body_of(receive) == b""
        await send({**START, "status": HTTPStatus.OK})
        await send(part(body[:1]))
        await send(part(body[1:], more=False))

    return app


async def never(_: Scope, receive: Receive, _send: Send) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize("drains", [False, True])
async def test_a_request_to_all_is_answered_by_each_other_process_also_while_it_drains(drains: bool) -> None:
    async with pair() as both:
        both.drains, both.there.app = drains, answering(b"two parts")
        assert await both.ask_all() == [ProcessAnswer(200, [(b"content-type", b"text/event-stream")], b"two parts")]


async def test_processes_that_are_late_have_ended_serve_nothing_or_say_too_much_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(forwarding, "MOST_ASKED_BYTES", 1000)
    async with pair() as both, AsyncExitStack() as stack:
        folder = both.folder
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(socket_of(folder, "2" * 8)))  # of a process that was killed
        hung = stack.enter_context(socket.socket(socket.AF_UNIX))
        hung.bind(str(socket_of(folder, "3" * 8)))
        hung.listen()  # its process is stopped
        for app in (never, None, answering(b"x" * 2000)):
            both.there.app = app
            assert await both.ask_all() == []
        both.there.app = answering(b"fine")
        assert [one.body for one in await both.ask_all()] == [b"fine"]


async def test_a_process_that_is_late_is_asked_by_a_limited_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "MOST_UNTAKEN", 2)
    monkeypatch.setattr(forwarding, "ASK_SECONDS", 60)
    asked = 0

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal asked
        asked += 1
        await never(scope, receive, send)

    async with pair() as both:
        both.there.app = counting
        waiting = [asyncio.create_task(both.ask_all()) for _ in range(2)]
        await eventually(lambda: asked == 2, what="two requests")
        assert await both.ask_all() == []
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        both.there.app = answering(b"fine")
        assert [one.body for one in await both.ask_all()] == [b"fine"]


async def test_a_process_that_is_alone_has_no_others_to_ask() -> None:
    assert await Elsewhere().ask_all(Request(SCOPE)) == ()
