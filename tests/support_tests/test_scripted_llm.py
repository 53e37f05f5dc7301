"""The scripted model: what no script foresaw fails the test."""

import httpx
import pytest

from tests.support.scripted_llm import say, scripted_llm

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
