import asyncio
from typing import Any

import pytest

from pallas_gateway.runtime.downstreams.listings import reading


async def test_the_rest_of_a_page_is_checked_once_and_not_with_each_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[dict[str, Any]] = []

    def check(_: str, version: str, page: dict[str, Any]) -> None:
        del version
        checked.append(page)

    monkeypatch.setattr(reading, "validate_server_result", check)
    tools = [{"name": f"tool{number}", "inputSchema": {"type": "object"}} for number in range(3)]
    page = {"tools": tools, "resultType": "complete", "_meta": {f"key{number}": number for number in range(1000)}}
    listing = reading._Reading("2026-07-28")
    assert await listing.add(page) is None
    assert [tool.name for tool in listing.result().tools] == ["tool0", "tool1", "tool2"]
    assert [("_meta" in one, len(one["tools"])) for one in checked] == [(True, 0), *[(False, 1)] * 3]


async def test_what_a_connection_raises_that_is_cut_off_is_not_the_reason() -> None:
    is_cut_off = asyncio.Event()

    async def connected() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await is_cut_off.wait()
            raise ConnectionError("closed") from None

    with pytest.raises(TimeoutError, match=r"^no answer within 0 s$"):
        async with reading.listing_within(0, is_cut_off.set):
            await connected()
