"""The scripted model: what no script foresaw fails the test, and a client that leaves is seen."""

import asyncio

import httpx
import pytest

from tests.support.scripted_llm import hang, say, scripted_llm
from tests.support.waiting import Gate

REQUEST = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("paths", "surprise"),
    [
        (["/chat/completions"] * 2, "request 2 is one more than the 1 scripted"),
        (["/responses"], "POST /v1/responses"),
    ],
)
async def test_what_no_script_foresaw_fails_the_test(paths: list[str], surprise: str) -> None:
    with pytest.raises(AssertionError, match=surprise):  # noqa: PT012
        async with scripted_llm([say("only")]) as llm, httpx.AsyncClient(base_url=llm.base_url) as http:
            answers = [await http.post(path, json=REQUEST) for path in paths]
            assert answers[-1].is_error


async def test_a_client_that_leaves_is_noted_and_one_that_stays_is_not() -> None:
    gate = Gate()
    async with scripted_llm([say("first"), hang(gate)]) as llm, httpx.AsyncClient(base_url=llm.base_url) as http:
        await http.post("/chat/completions", json=REQUEST)
        call = asyncio.create_task(http.post("/chat/completions", json=REQUEST))
        await gate.wait_for_entered()
        assert llm.aborted == []
        call.cancel()
        await llm.wait_for_aborted()
        await llm.wait_until_idle()
    assert [request.number for request in llm.aborted] == [2]
