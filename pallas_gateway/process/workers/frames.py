"""Plain values on a stream between processes of the gateway: the length of each, and the value by `marshal`."""

from __future__ import annotations

import errno
import marshal
import struct
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

_LENGTH = struct.Struct("!Q")


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
