"""Chunks of a streamed answer, made by pydantic's compiled validator from their bytes. Imported once an LLM is used.

The OpenAI library passes each chunk through four generators before it makes objects of it, field by field. An event
that is no chunk as specified, and all that follows it, is left to the library.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import httpx2
from openai import APIConnectionError, APITimeoutError, AsyncOpenAI, AsyncStream, _models
from openai._httpx2 import request_exceptions, timeout_exceptions
from openai._models import FinalRequestOptions
from openai._streaming import ServerSentEvent, SSEDecoder, _SSELineDecoder
from openai._utils import is_given
from openai.types.chat import ChatCompletionChunk
from pydantic import ValidationError

from pallas_gateway.runtime import fast_paths

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pallas_gateway.runtime.compat.requirements import ReliedOn

    type _Event = bytes | ServerSentEvent

LONG_BYTES = 65_536
"""A piece of an answer without an end after so many bytes is left to the library, which looks at no byte twice."""
RELIED_ON: ReliedOn = (
    (AsyncOpenAI, "_process_response", ("self", "cast_to", "options", "response", "stream", "stream_cls")),
    (AsyncOpenAI, "_process_response_data", ("self", "data", "cast_to", "response")),
    (_models, "FinalRequestOptions", ("post_parser", "synthesize_event_and_data")),
    (AsyncStream, "__init__", ("self", "cast_to", "response", "client", "options")),
    (AsyncStream, "__stream__", ("self",)),
    (AsyncStream, "_iter_events", ("self",)),
    (AsyncStream, "_iterator", ()),
    (SSEDecoder, "_decode_lines", ("self", "lines")),
    (_SSELineDecoder, "feed", ("self", "chunk")),
)
_CHUNKS = AsyncStream[ChatCompletionChunk]
_RAW_RESPONSE_HEADER = "X-Stainless-Raw-Response"
_END = b"\n\n"
_FIELD = b"data:"
_DONE = b"[DONE]"


def accelerate(client_class: type[Any]) -> type[Any]:
    """A client class of the OpenAI library that does the same with less work."""
    streams = {"_stream_class": fast_paths.OPENAI_TEXTS.accelerate(ChunkStream)}
    return type(client_class.__name__, (_Accelerated, client_class), streams)  # a name that the User-Agent has


class _Accelerated:
    """Goes before the class of a client."""

    async def _process_response(self: Any, **given: Any) -> Any:
        if not _is_stream_of_chunks(**given):
            return await super()._process_response(**given)  # type: ignore[misc]
        return self._stream_class(
            cast_to=ChatCompletionChunk, response=given["response"], client=self, options=given["options"]
        )

    def _process_response_data(self: Any, *, data: object, cast_to: Any, response: Any) -> Any:
        if cast_to is ChatCompletionChunk:
            try:
                return ChatCompletionChunk.model_validate(data)
            except ValidationError:
                pass  # the library takes anything
        return super()._process_response_data(data=data, cast_to=cast_to, response=response)  # type: ignore[misc]


def _is_stream_of_chunks(
    *, options: FinalRequestOptions, response: httpx2.Response, stream: bool, stream_cls: Any, **_: Any
) -> bool:
    return (
        stream
        and stream_cls == _CHUNKS
        and not options.synthesize_event_and_data
        and not is_given(options.post_parser)
        and _RAW_RESPONSE_HEADER not in response.request.headers
    )


class ChunkStream(AsyncStream[ChatCompletionChunk]):
    """A streamed answer. From the first event on that is no chunk as specified, the library goes on with it."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._events = _Events()
        self._received = self.response.aiter_bytes()
        self._left: Iterator[_Event] = iter(())
        self.is_done = False  # whether the provider has said that this is all

    def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        return self._iterator

    async def __stream__(self) -> AsyncIterator[ChatCompletionChunk]:
        try:
            while (piece := await self._receive()) is not None:
                events = self._ended_by(piece)
                for event in events:
                    if (chunk := self._chunk(event)) is not None:
                        yield chunk
                        continue
                    if isinstance(event, bytes) and event.startswith(_DONE):
                        self.is_done = True
                        return
                    self._left = chain((event,), events)
                    async for other in super().__stream__():
                        yield other
                    return
            self._events.end()
        finally:
            await self._received.aclose()
            await self.response.aclose()

    def _ended_by(self, piece: bytes) -> Iterator[_Event]:
        return self._events.ended_by(piece)

    def _chunk(self, event: _Event) -> ChatCompletionChunk | None:
        return _chunk(event)

    async def _iter_events(self) -> AsyncIterator[ServerSentEvent]:
        """What the library goes on with."""
        events = self._left
        while True:
            for event in events:
                sent = ServerSentEvent(data=event.decode()) if isinstance(event, bytes) else event
                self.is_done = self.is_done or sent.data.startswith("[DONE]")
                yield sent
            if (piece := await self._receive()) is None:
                return
            events = self._events.ended_by(piece)

    async def _receive(self) -> bytes | None:
        try:
            return await anext(self._received, None)
        except timeout_exceptions() as error:
            raise APITimeoutError(request=self.response.request) from error
        except request_exceptions() as error:
            raise APIConnectionError(request=self.response.request) from error


class _Events:
    """The events of a stream, as it comes in.

    Those of one line `data: ...` are what follows it; once there are others, the library takes them apart.
    https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """

    def __init__(self) -> None:
        self._rest = b""
        self._lines: _SSELineDecoder | None = None
        self._decoder = SSEDecoder()

    def end(self) -> None:
        """Refuse an incomplete last event that cannot be decoded, as the library does."""
        self._rest.decode()

    def ended_by(self, piece: bytes) -> Iterator[_Event]:
        """The events that end with this piece of the stream."""
        if self._lines is None:
            whole, end, rest = (self._rest + piece).rpartition(_END)
            blocks = whole.split(_END) if end else []
            if len(rest) <= LONG_BYTES and b"\r" not in piece and all(map(_is_plain, blocks)):
                self._rest = rest
                return (_value(block) for block in blocks if block.startswith(_FIELD))
            piece, self._rest = self._rest + piece, b""
            self._lines = _SSELineDecoder()
        return self._decoder._decode_lines(self._lines.feed(piece))


def _is_plain(block: bytes) -> bool:
    """Return True for one line of data, or a comment."""
    return block.startswith((_FIELD, b":")) and b"\n" not in block


def _value(block: bytes) -> bytes:
    return block[len(_FIELD) :].removeprefix(b" ")


def _chunk(event: _Event) -> ChatCompletionChunk | None:
    """The chunk that an event is, None if it is anything else, or reports an error."""
    if not isinstance(event, bytes):
        return None
    try:
        chunk = ChatCompletionChunk.model_validate_json(event)
    except ValidationError:
        return None
    return None if (chunk.model_extra or {}).get("error") else chunk
