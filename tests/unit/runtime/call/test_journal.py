"""The course of a call, compressed for another process."""

from __future__ import annotations

import random
import zlib
from typing import Any

from pallas_gateway.runtime.call.journal import packed_within


def test_data_is_packed_up_to_a_length_and_no_further() -> None:
    text, noise = b"text " * 100_000, random.Random(1).randbytes(40_000)  # noqa: S311  no secret
    for data in (b"", text, noise):
        packed = packed_within(41_000, data)
        assert packed is not None
        assert zlib.decompress(packed) == data
    assert packed_within(39_000, noise) is None


def test_data_that_is_too_long_is_not_packed_to_its_end() -> None:
    class Pieces(bytes):
        taken = 0

        def __getitem__(self, key: Any) -> Any:
            self.taken += 1
            return super().__getitem__(key)

    data = Pieces(random.Random(1).randbytes(4_000_000))  # noqa: S311  no secret
    assert packed_within(35_000, data) is None
    assert data.taken < 10
