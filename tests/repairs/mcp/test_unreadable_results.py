"""A result that the SDK cannot read is a failure of its tool."""

from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.repairs.mcp import unreadable_results
from tests.support.calling import ask
from tests.support.odd_server import hostile, odd_server
from tests.support.one_user import use, world
from tests.support.result_forms import FORMS, TEXT

BOOK: tuple[str, dict[str, Any]] = ("odd__book", {})


@pytest.mark.parametrize("era", ["initialize", "modern"])
async def test_a_model_reads_of_each_form_of_result_what_can_be_read(era: str, tmp_path: Path) -> None:
    documents = hostile(era)
    read: dict[str, str] = {}
    with odd_server(documents) as server:
        async with world(tmp_path, use(BOOK), odd=f"{server.url}/mcp") as it:
            for name, (form, _) in FORMS.items():
                result: Any = {"resultType": "complete", **form} if isinstance(form, dict) else form
                documents["tools/call"] = (200, {"result": result})
                await ask(it.url)
                [read[name]] = it.tool_results()
        calls = [rpc for _, _, rpc in server.seen if rpc.get("method") == "tools/call"]

    assert read == {name: expected for name, (_, expected) in FORMS.items()}
    assert len(calls) == len(FORMS) >= 38


@pytest.mark.parametrize(
    ("era", "structured", "expected"),
    [("initialize", ["A", 5], 'booked ["A", 5]'), ("modern", ["A", 5], '["A",5]')],
)
async def test_a_structure_that_is_a_list_is_read_where_the_protocol_has_it(
    era: str, structured: object, expected: str, tmp_path: Path
) -> None:
    documents = hostile(era)
    result = {"resultType": "complete", "content": [TEXT], "structuredContent": structured}
    documents["tools/call"] = (200, {"result": result})
    with odd_server(documents) as server:
        async with world(tmp_path, use(BOOK), odd=f"{server.url}/mcp") as it:
            await ask(it.url)
            assert it.tool_results() == [expected]


def test_metadata_is_checked_once_and_of_many_blocks_the_first_are_read() -> None:
    checked: list[bool] = []

    def fits(result: dict[str, Any]) -> bool:
        checked.append("_meta" in result)
        return all(block["type"] == "text" for block in result["content"])

    blocks = [{"type": "video"}] * (unreadable_results._MOST_BLOCKS + 5)
    read = unreadable_results._readable({"content": blocks, "_meta": {"a": 1}}, fits)
    assert (checked.count(True), read["_meta"]) == (1, {"a": 1})
    assert "the last 5 blocks; content[0]: unknown type 'video'" in read["content"][-1]["text"]
