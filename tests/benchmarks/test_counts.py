"""The counts of functions and tasks, from a gateway that counts them."""

from pathlib import Path

import pytest

from benchmarks import contenders, counted_gateway, counts
from benchmarks.project import Agent


@pytest.mark.whole("e2e/test_budget.py::test_call_asks_no_more_of_others_than_its_budget")
async def test_functions_and_tasks_of_a_call_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    async with (
        contenders.llm(tmp_path) as llm,
        contenders.gateway(
            folder, {"bare": Agent(contenders.llm_url(llm))}, program=counted_gateway.__name__
        ) as gateway,
    ):
        counted = await counts.of_a_call(folder, gateway["bare"])
        log = gateway["bare"].process.log

    assert counted["functions"] > 1000
    assert counted["tasks"] > 1
    assert "Exception ignored" not in log.read_text()
    table = counts.section({"counts": {"counts": {"calls": {"bare": counted}, "pieces": {"gemini": 4.5}}}})
    assert f"| a bare call | {counted['functions']:,.0f} |" in table
    assert "| a streamed piece, gemini | 4.50 |" in table
