"""The course of a call, compressed for another process."""

import random
import zlib
from types import SimpleNamespace
from typing import Any, override

from fast_agent.types import PromptMessageExtended
from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

from pallas_gateway.calls.asking.asking import NO_QUESTIONS
from pallas_gateway.calls.spending import Spending
from pallas_gateway.runtime.call.journal import CallJournal, packed_within
from pallas_gateway.runtime.scope import current_scope


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

        @override
        def __getitem__(self, key: Any) -> Any:
            self.taken += 1
            return super().__getitem__(key)

    data = Pieces(random.Random(1).randbytes(4_000_000))  # noqa: S311  no secret
    assert packed_within(35_000, data) is None
    assert data.taken < 10


async def test_only_tools_that_have_run_are_counted_when_they_are_played() -> None:
    async def course(journal: CallJournal, counted: list[str]) -> None:
        """One turn of a model with two tools, of which the gateway refuses one."""

        async def turn(*_: object) -> PromptMessageExtended:
            calls = {id_: CallToolRequest(params=CallToolRequestParams(name=id_)) for id_ in ("ran", "refused")}
            return PromptMessageExtended(role="assistant", tool_calls=calls)

        await journal.turn([], turn)
        for id_ in ("ran", "refused"):

            async def run(id_: str = id_) -> CallToolResult:
                tool_run = current_scope.get().tool_run
                assert tool_run is not None
                tool_run.is_refused = id_ == "refused"
                return CallToolResult(content=[])

            await journal.run(id_, run, lambda id_=id_: counted.append(id_))  # type: ignore[misc]

    agent: Any = SimpleNamespace(
        llm=SimpleNamespace(get_request_params=lambda _: SimpleNamespace(use_history=False)), message_history=[]
    )
    first, spending, counted = CallJournal(agent, NO_QUESTIONS, Spending()), Spending(), list[str]()
    await course(first, counted)
    assert counted == []
    checkpoint = first.checkpoint(frozenset())
    assert checkpoint is not None
    again = CallJournal(agent, NO_QUESTIONS, spending, checkpoint)
    assert again.plays
    await course(again, counted)
    assert (counted, again.plays) == (["ran"], False)


def test_a_checkpoint_has_what_the_call_has_used() -> None:
    used, resumed = Spending(), Spending()
    used.resume(120, 0.25)
    journal = CallJournal(object(), NO_QUESTIONS, used)
    journal._turns.append(PromptMessageExtended(role="assistant"))
    CallJournal(object(), NO_QUESTIONS, resumed, journal.checkpoint(frozenset()))
    assert (resumed.tokens, resumed.cost) == (120, 0.25)
