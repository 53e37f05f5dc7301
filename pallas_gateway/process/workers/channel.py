"""The channel between a worker and its parent: each side calls methods of the other's services.

Its frames are plain values: the length of each, and the value by `marshal`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import marshal
import struct
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from math import inf
from time import perf_counter
from types import CoroutineType
from typing import Any

from pallas_gateway.errors import STOPPING, AgentUnavailableError, GatewayError
from pallas_gateway.shared.protocol import SharedAwayError
from pallas_gateway.tasks import TaskOwner

ANSWER_SECONDS = 15.0
"""Longest wait for an answer of the parent, which itself waits for the disk, with `audit_sync: line` up to 5 s."""
_LONG_SECONDS = 0.0005
"""After calls that took longer, the event loop runs everything else that is ready."""
_MOST_UNREAD = 256 << 10
_MOST_BYTES = 256 << 20
"""Of a frame; a longer one is none."""
_LENGTH = struct.Struct("!Q")
_log = logging.getLogger("pallas.workers")

type _Entry = tuple[Any, ...]
"""A call: number (0 if it is not answered), service, method, values. Or an answer: number, has failed, value."""
_CALL_LENGTH = 3
"""Without the number."""


class ChannelError(GatewayError):
    """The called method has failed at the other side, whose log has the reason."""


class ChannelEndedError(AgentUnavailableError):
    """The other side is gone."""


class Channel:
    """Calls methods of the other side by `(service, method, values)`, and carries out its calls in their order.

    Values and what methods return are plain (`None`, bool, int, float, str, bytes, tuple, list, dict), of any length.
    A frame is the list of the calls and answers of one iteration of the event loop.

    Args:
        reader: from the other side.
        writer: to the other side, which the owner of the channel closes.
        services: names of objects, whose public methods the other side may call. What a method returns is answered at
            once, without a task switch; a coroutine runs as a task, and calls after it do not wait for it.
        on_sent: called after each frame; `unread` grows while the other side does not read.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        services: Mapping[str, object],
        on_sent: Callable[[], object] = lambda: None,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._services = services
        self._on_sent = on_sent
        self._unsent: list[_Entry] = []
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._has_ended = False
        self._tasks = TaskOwner(close_seconds=0)

    def tell(self, service: str, method: str, *values: Any) -> None:
        """Call a method without an answer; does nothing when the other side is gone."""
        self._add(0, service, method, values)

    async def ask(self, service: str, method: str, *values: Any) -> Any:
        """Call a method and return what it returns. If the caller is cancelled, the answer is ignored.

        Raises:
            ChannelError: the method has failed.
            ChannelEndedError: the other side is gone.
        """
        if self._has_ended:
            raise ChannelEndedError(STOPPING)
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._add(number, service, method, values)
        try:
            return await answer
        finally:
            del self._asked[number]

    async def listen(self) -> None:
        """Carry out calls until the other side is gone. Then open asks fail, and tasks of calls are cancelled.

        Calls that fail, and frames without calls, are logged.

        Raises:
            OSError: a frame is too large to be one.
        """
        try:
            while (entries := await self._received()) is not None:
                began = perf_counter()
                for entry in entries:
                    self._take(*entry)
                    if perf_counter() - began > _LONG_SECONDS:
                        await asyncio.sleep(0)
                        began = perf_counter()
        finally:
            self._has_ended = True
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(ChannelEndedError(STOPPING))
            await self._tasks.cancel_all()

    def flush(self) -> None:
        """Send at once what was told; a process that ends does so."""
        entries, self._unsent = self._unsent, []
        if entries and not self._writer.is_closing():
            self._writer.write(self._packed(entries))
            self._on_sent()

    @property
    def unread(self) -> int:
        """Bytes that wait here until the other side reads."""
        return self._writer.transport.get_write_buffer_size()

    def _add(self, *entry: Any) -> None:
        if self._has_ended:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unsent.append(entry)

    def _packed(self, entries: list[_Entry]) -> bytes:
        try:
            return packed(entries)
        except ValueError as error:
            if len(entries) > 1:
                return b"".join(self._packed([entry]) for entry in entries)  # only one of them may be wrong
            number, *call = entries[0]
            is_answer = len(call) != _CALL_LENGTH
            what = "an answer" if is_answer else ".".join(call[:-1])
            _log.error("worker message unsendable", extra={"why": f"{error} in {what}"})
            if is_answer:
                return packed([(number, True, None)])
            self._take(number, True, None)
            return b""

    async def _received(self) -> list[_Entry] | None:
        while True:
            try:
                entries: list[_Entry] | None = await read(self._reader, _MOST_BYTES)
            except ValueError as error:
                _log.error("worker message unreadable", extra={"why": str(error)})
            else:
                return entries

    def _take(self, number: int, *entry: Any) -> None:
        if len(entry) == _CALL_LENGTH:
            self._carry_out(number, *entry)
        elif (answer := self._asked.get(number)) is not None and not answer.done():
            has_failed, value = entry
            if has_failed:
                answer.set_exception(ChannelError("The other process could not answer; the log has the reason."))
            else:
                answer.set_result(value)

    def _carry_out(self, number: int, service: str, method: str, values: tuple[Any, ...]) -> None:
        try:
            if method.startswith("_"):
                raise AttributeError(f"{method} is not public")
            value = getattr(self._services[service], method)(*values)
        except Exception:  # noqa: BLE001  of any kind: later calls are those of others
            self._answer_failed(number, service, method)
            return
        if isinstance(value, CoroutineType):
            work = self._finish(number, service, method, value)
            self._tasks.spawn(work, name=f"{service}.{method}", is_eager=True)
        elif number:
            self._add(number, False, value)

    async def _finish(self, number: int, service: str, method: str, work: Coroutine[Any, Any, Any]) -> None:
        try:
            value = await work
        except BaseException:
            if not self._has_ended:
                self._answer_failed(number, service, method)
            raise
        if number:
            self._add(number, False, value)

    def _answer_failed(self, number: int, service: str, method: str) -> None:
        _log.exception("worker message failed", extra={"service": service, "method": method})
        if number:
            self._add(number, True, None)


class AskedParent:
    """The `ParentProcess` of a worker. One that hangs must not hold calls."""

    def __init__(self, channel: Channel) -> None:
        self.tell = channel.tell
        self._channel = channel
        self._is_silent = False

    def is_behind(self) -> bool:
        """Return True while the parent has not read much of what it was told."""
        return self._channel.unread > _MOST_UNREAD

    async def ask(self, service: str, method: str, *values: Any) -> Any:
        """Return what a method of the parent returns.

        Raises:
            SharedAwayError: it is gone, does not answer in time, or has failed.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._channel.ask(service, method, *values)
        except TimeoutError:
            if not self._is_silent:
                self._is_silent = True
                # Calls that a rule may limit are refused until it does.
                _log.error("parent does not answer", extra={"seconds": ANSWER_SECONDS})
            raise SharedAwayError from None
        except (ChannelError, ChannelEndedError):
            raise SharedAwayError from None
        self._is_silent = False
        return answer


def frame_of_call(service: str, method: str, *values: Any) -> bytes:
    """Return a call without an answer as a frame, for a process without a `Channel`."""
    return packed([(0, service, method, values)])


def packed(value: Any) -> bytes:
    """Return the frame of a value of plain types, no subclasses of them.

    Raises:
        ValueError: the value holds something else.
    """
    data = marshal.dumps(value)  # between processes of the same program
    return _LENGTH.pack(len(data)) + data


async def read(reader: asyncio.StreamReader, most_bytes: float = inf) -> Any:
    """Return the next value; None at the end of the connection. An incomplete value at the end is ignored.

    Raises:
        OSError: the value is larger than `most_bytes`; nothing can be read after it.
        ValueError: the frame holds no value; the next one can be read.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        data = await reader.readexactly(length) if length <= most_bytes else None
    except (OSError, EOFError):
        return None
    if data is None:
        raise OSError(errno.EMSGSIZE, f"a frame has {length} bytes")
    try:
        return marshal.loads(data)  # noqa: S302  written by `packed`
    except (EOFError, TypeError) as error:
        raise ValueError(str(error)) from error
