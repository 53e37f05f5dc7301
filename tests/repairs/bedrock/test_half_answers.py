"""Half an answer of Bedrock is a whole one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.repairs.bedrock.half_answers import whole
from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import BEDROCK
from tests.support.scripted_llm import end_early


async def test_an_answer_without_its_end_is_a_failure(tmp_path: Path) -> None:
    async with serving(tmp_path, BEDROCK, [end_early(["Once ", "upon "])]) as served:
        answer = await ask(served.url)

    assert (answer.is_error, answer.meta["stop_reason"]) == (True, "llm_error")
    assert answer.text.endswith(": the provider's answer ended early")


class Stream:
    """Events of an answer, and then silence."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = events
        self.is_closed = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self._events
        raise TimeoutError("Bedrock was silent")

    def close(self) -> None:
        self.is_closed = True


def test_an_answer_whose_body_does_not_end_is_whole_after_its_last_event() -> None:
    stream = Stream({"messageStart": {}}, {"messageStop": {}}, {"metadata": {}})

    assert [*whole(stream)] == [{"messageStart": {}}, {"messageStop": {}}, {"metadata": {}}]
    assert stream.is_closed


def test_silence_before_the_last_event_is_a_failure() -> None:
    with pytest.raises(TimeoutError, match="silent"):
        list(whole(Stream({"messageStart": {}})))
