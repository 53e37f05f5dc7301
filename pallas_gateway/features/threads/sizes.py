"""Sizes of turns, the choice of those that a model is sent, and the quota of each owner.

Tokens are estimated, because no tokenizer knows every model: three bytes of text are a token, an image is 1,600. That
is more than most models count, so that a history which fits by this estimate fits. Of a PDF, whose pages are not read,
48 bytes are a token, and 1,600 more: between a page of text (some KB, 2,000 tokens) and a scanned one (100 KB, 2,000).

Of the quota, messages, answers, images and steps take their bytes as they are stored, and each thread and each turn
`ROW_BYTES` more. An answer is always stored, so one turn may exceed it, as may requests that arrive at the same moment.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import func, select

from pallas_gateway.calls.call import PDF
from pallas_gateway.features.threads.records import ThreadsFullError
from pallas_gateway.shared.database.tables import threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import ColumnElement, ScalarSelect
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.call import Message, Step

BYTES_OF_A_TOKEN = 3
TOKENS_OF_AN_IMAGE = 1600
BASE64_OF_A_TOKEN = 64
"""Characters of the base64 of a PDF."""
UNKNOWN_WINDOW = 128_000
"""Tokens of the context window of a model that neither fast-agent nor the project describes."""
QUARTERS = 4


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes as stored, and estimated tokens; `steps_bytes` are the part of the bytes that steps have."""

    bytes: int = 0
    tokens: int = 0
    steps_bytes: int = 0

    @classmethod
    def of(cls, message: Message) -> Self:
        text = len(message.text.encode("utf-8", "replace"))
        images = sum(len(image.data) + len(image.mime_type) + len(image.name) for image in message.images)
        pdfs = sum(len(image.data) // BASE64_OF_A_TOKEN for image in message.images if image.mime_type == PDF)
        tokens = text // BYTES_OF_A_TOKEN + 1 + TOKENS_OF_AN_IMAGE * len(message.images) + pdfs
        return cls(text + images, tokens)

    @classmethod
    def of_params(cls, params: Mapping[str, Any] | None) -> Self:
        """The size of the parameters of a call, which no later call is sent."""
        return cls(len(json.dumps(params)) if params else 0)

    @classmethod
    def of_step(cls, step: Step) -> Self:
        size = len(step.data.encode())
        return cls(size, size // BYTES_OF_A_TOKEN, size)

    def __add__(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.tokens + other.tokens, self.steps_bytes + other.steps_bytes)


@dataclass(frozen=True, slots=True)
class Room:
    """What a history may have at most."""

    turns: int
    bytes: int
    tokens: int

    def too_much(self, turns: int, bytes: int, tokens: int) -> tuple[int, int, int]:  # noqa: A002  the field's name
        """Return how many turns, bytes and tokens of so many are left out: whole quarters of what may be sent.

        The beginning of what a model is sent then stays the same over many messages, and with it the provider's cache
        of it.
        """
        return _quarters(turns, self.turns), _quarters(bytes, self.bytes), _quarters(tokens, self.tokens)


def _quarters(total: int, most: int) -> int:
    quarter = max(most // QUARTERS, 1)
    return -(-max(total - most, 0) // quarter) * quarter


def left_out(too_much: tuple[int, int, int], oldest_first: Iterable[tuple[int, int, int]]) -> tuple[int, int]:
    """Return the number of the last turn that is left out, and how many are, given number, bytes and tokens of each."""
    last = turns = bytes_ = tokens = 0
    for number, of_bytes, of_tokens in oldest_first:
        last, turns, bytes_, tokens = number, turns + 1, bytes_ + of_bytes, tokens + of_tokens
        if turns >= too_much[0] and bytes_ >= too_much[1] and tokens >= too_much[2]:
            break
    return last, turns


ROW_BYTES = 1024


class Quota:
    """The most bytes of one owner, None for any number; a reload may change it."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes

    async def refuse_beyond(
        self, sql: AsyncConnection, owner: str | ScalarSelect[str] | ColumnElement[str], more: int
    ) -> None:
        """Check that an owner may store so many more bytes.

        Raises:
            ThreadsFullError: it may not.
        """
        if self.max_bytes is None:
            return
        used = select(func.coalesce(func.sum(threads.c.bytes), 0)).where(threads.c.owner == owner)
        if (await sql.execute(used)).scalar_one() + more > self.max_bytes:
            raise ThreadsFullError(
                f"Your threads may have {self.max_bytes} bytes in all, and this would be more. Delete threads that you "
                "no longer need, or ask the operator for more (gateway.threads_max_bytes)."
            )
