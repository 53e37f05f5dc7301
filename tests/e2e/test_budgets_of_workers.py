"""A day's budget over several workers: each turn is charged in the parent before the next one begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.e2e.fleet import fleet
from tests.support.calling import ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.fleet import WorkerManager


async def answer_of(served: WorkerManager, pid: int) -> Any:
    """The answer of a call of three turns with 15 tokens each, the second of its peer, at this worker."""
    with served.only(pid):
        return await ask(served.url("root"), "delegate hello")


async def test_a_call_ends_by_what_calls_at_another_worker_have_used(tmp_path: Path) -> None:
    limits = {"rules": [{"name": "daily", "tokens_per_day": 70}]}
    async with fleet(tmp_path, limits=limits) as served:
        one, other = sorted(served.pids)
        whole = await answer_of(served, one)
        ended = await answer_of(served, other)
        refused = await answer_of(served, one)
        assert len(served.llm.requests) == 3 + 2
        halted = await served.metric("pallas_agent_loop_aborted_total", agent="root", reason="limited")
    assert (whole.is_error, whole.meta["stop_reason"]) == (False, "endTurn")
    assert (ended.is_error, ended.meta["stop_reason"], ended.meta["stopped"]) == (False, "limited", "limited")
    assert (refused.is_error, refused.meta["stop_reason"]) == (True, "limited")
    assert halted == 1
