"""Agents that come, go, change and come back while calls run: who answers, and what the metrics say of them."""

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from pallas_gateway.core.agent_set import Changes
from pallas_gateway.errors import AgentStartError, AgentUnavailableError
from pallas_gateway.runtime.protocols import Downstream
from tests.support.memory_hosting import Hosting, StoredAgent, hosting
from tests.support.memory_runtime import MemoryAgent, MemoryRuntime, text_of
from tests.support.waiting import Gate, eventually, tick

DEAD = Downstream("dead", "http://127.0.0.1:1/mcp")


def held() -> tuple[MemoryAgent, Gate]:
    gate = Gate()
    return MemoryAgent(answering=gate), gate


async def test_an_agent_that_goes_and_comes_back_counts_its_earlier_calls_on(tmp_path: Path) -> None:
    memory, gate = held()
    async with hosting(tmp_path, {"a": memory, "b": MemoryAgent()}, {"a": {}, "b": {}}) as host:
        await host.up("a", "b")
        first = host.call("a", "first")
        await gate.wait_for_entered()
        assert (await host.reload({"b": {}})).removed == ("a",)
        assert host.series_of("a") == {"pallas_calls_in_flight", "pallas_instances_live", "pallas_questions_open"}
        assert (await host.reload({"a": {}, "b": {}})).added == ("a",)
        await host.up("a")
        second = host.call("a", "second")
        await gate.wait_for_entered(2)
        for name in ("calls_in_flight", "instances_live"):
            assert host.metric(name, agent="a") == 2
        assert host.metric("agent_state", agent="a", state="ready") == 1
        gate.open()
        assert [text_of(await call) for call in (first, second)] == ["first", "second"]
        await memory.until(lambda one: one.leaves == 1)
        for name in ("calls_in_flight", "instances_live"):
            assert host.metric(name, agent="a") == 0
        assert host.metric("send_message_total", agent="a", outcome="ok") == 2


async def test_nothing_but_counters_is_left_of_an_agent_that_went(tmp_path: Path) -> None:
    async with hosting(tmp_path, {"a": MemoryAgent(), "b": MemoryAgent()}, {"a": {}, "b": {}}) as host:
        await host.up("a")
        await host.call("a")
        agent = host.agent("a")
        await host.gateway.check_health(agent)
        await host.reload({"b": {}})
        await eventually(lambda: not host.series_of("a"), what="no gauge of it")
        assert (await host.gateway.check_health(agent)).status == "error"  # asked before it went
        assert host.series_of("a") == set()
        assert host.metric("send_message_total", agent="a", outcome="ok") == 1


async def test_a_reload_gives_way_between_the_agents_that_it_looks_at(tmp_path: Path) -> None:
    names = [f"agent{number}" for number in range(20)]
    entries: dict[str, Any] = {name: {} for name in names}
    async with hosting(tmp_path, {name: MemoryAgent() for name in names}, entries) as host:
        await host.up(*names)
        for name in names:
            host.agent(name).runtime.is_current = takes_a_while  # type: ignore[union-attr, method-assign]
        turns, over = 0, asyncio.Event()

        async def count() -> None:
            nonlocal turns
            while not over.is_set():
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        assert await host.reload(entries) == Changes()
        over.set()
        await counting
    assert turns >= len(names)


def takes_a_while(_: object) -> bool:
    end = perf_counter() + 0.001
    while perf_counter() < end:
        pass
    return True


async def test_an_agent_that_comes_up_while_a_reload_looks_at_others_is_looked_at(tmp_path: Path) -> None:
    gate = Gate()
    memory = {"a": MemoryAgent(starting=gate), "b": MemoryAgent()}
    async with hosting(tmp_path, memory, {"a": {}, "b": {}}) as host:
        await host.up("b")
        await gate.wait_for_entered()

        async def come_up() -> None:
            gate.open()
            await host.up("a")

        coming: list[asyncio.Task[None]] = []

        def is_current(_: object) -> bool:
            coming.append(asyncio.create_task(come_up()))
            return takes_a_while(_)

        host.agent("b").runtime.is_current = is_current  # type: ignore[union-attr, method-assign]
        await host.reload({"a": {"module": "agents.another"}, "b": {}})
        await eventually(lambda: memory["a"].starts == 2, what="a start with the new settings")


async def test_agents_that_a_reload_leaves_alone_keep_their_servers(tmp_path: Path) -> None:
    async with hosting(tmp_path, {"a": MemoryAgent(), "b": MemoryAgent()}, {"a": {}, "b": {}}) as host:
        await host.up("a", "b")
        before = {name: one.endpoint._manager.app for name, one in host.servers.by_agent.items()}
        await host.reload({"a": {"title": "Another"}, "b": {}})
        after = {name: one.endpoint._manager.app for name, one in host.servers.by_agent.items()}
        assert after["b"] is before["b"]
        assert after["a"] is not before["a"]
        await host.reload({"a": {"title": "Another"}, "b": {"port": 7}})
        assert host.metric("agent_info", agent="b", port="7") == 1


async def test_an_agent_may_go_while_it_starts(tmp_path: Path) -> None:
    gate = Gate()
    async with hosting(tmp_path, {"a": MemoryAgent(starting=gate), "b": MemoryAgent()}, {"a": {}, "b": {}}) as host:
        await gate.wait_for_entered()
        await host.reload({"b": {}})
        await gate.wait_for_cancelled()
        await asyncio.wait_for(host.gateway.wait_until_tried(), 5)
        await eventually(lambda: not host.series_of("a"), what="no gauge of it")


async def test_a_changed_agent_that_is_not_up_is_started_by_its_new_entry(tmp_path: Path) -> None:
    gate = Gate()
    async with hosting(tmp_path, {"a": MemoryAgent(starting=gate)}, {"a": {}}) as host:
        await gate.wait_for_entered()
        await host.reload({"a": {"max_iterations": 3}})
        await gate.wait_for_entered(2)
        assert gate.cancelled == ["a"]
        gate.open()
        await host.up("a")
        runtime = host.gateway._runtime
        assert isinstance(runtime, MemoryRuntime)
        assert [spec.max_iterations for spec in runtime.specs] == [15, 3]


@pytest.mark.parametrize("edited", [True, False])
async def test_an_agent_that_comes_up_by_what_was_edited_before_the_reload_asks_for_another(
    edited: bool, tmp_path: Path
) -> None:
    gate, asked = Gate(), asyncio.Event()
    memory = MemoryAgent(starting=gate)
    async with hosting(tmp_path, {"a": memory}, {"a": {}}) as host:
        host.gateway.when_outdated(asked.set)
        await gate.wait_for_entered()
        memory.edited = edited  # too late for the start under way
        await host.reload({"a": {}})
        assert not asked.is_set()
        gate.open()
        await host.up("a")
        assert (memory.starts, asked.is_set()) == (1, edited)
        before = host.agent("a").runtime
        assert (await host.reload({"a": {}})).changed == (("a",) if edited else ())
        assert (host.agent("a").runtime is before) == (not edited)


async def test_an_agent_that_came_up_while_others_were_prepared_is_looked_at_too(tmp_path: Path) -> None:
    late, changing = Gate(), Gate()
    memory = {"late": MemoryAgent(starting=late), "changes": MemoryAgent()}
    async with hosting(tmp_path, memory, {"late": {}, "changes": {}}) as host:
        await host.up("changes")
        await late.wait_for_entered()
        memory["changes"].starting, memory["changes"].edited = changing, True
        new = {"late": {"max_iterations": 3}, "changes": {}}
        reloading = asyncio.create_task(host.reload(new))
        await changing.wait_for_entered()
        late.open()
        await host.up("late")
        by_old_plan = host.agent("late").runtime
        changing.open()
        assert set((await reloading).changed) == {"late", "changes"}
        assert host.agent("late").runtime is not by_old_plan
        await tick()
        assert memory["late"].starts == 2


async def test_a_version_kept_back_goes_on_by_its_own_settings_and_the_gateways_new_ones(tmp_path: Path) -> None:
    memory, gate = held()
    async with hosting(tmp_path, {"a": memory}, {"a": {"call_timeout_seconds": 60}}) as host:
        await host.up("a")
        memory.start_failures.append(AgentStartError("half an edit"))
        changed = {"a": {"max_iterations": 3, "call_timeout_seconds": 7}}
        changes = await host.reload(changed, max_in_flight=1, queue_seconds=0)
        assert [str(error) for error in changes.kept_back.values()] == ["half an edit"]
        assert host.agent("a").settings.call_timeout_seconds == 60
        running = host.call("a")
        await gate.wait_for_entered()
        assert await busy(host)
        gate.open()
        await running
        assert (await host.reload(changed)).changed == ("a",)
        assert host.agent("a").settings.call_timeout_seconds == 7


async def test_limits_that_stay_the_same_count_on(tmp_path: Path) -> None:
    memory, gate = held()
    limits = {"max_in_flight": 1}
    async with hosting(tmp_path, {"a": memory}, {"a": limits}, queue_seconds=0) as host:
        await host.up("a")
        running = host.call("a")
        await gate.wait_for_entered()
        await host.reload({"a": {**limits, "title": "Another"}}, queue_seconds=0)
        assert await busy(host)
        memory.edited = True
        await host.reload({"a": limits}, queue_seconds=0)
        assert await busy(host)
        await host.reload({"a": {"max_in_flight": 2}}, queue_seconds=0)
        second = host.call("a")
        await gate.wait_for_entered(2)
        gate.open()
        await asyncio.gather(running, second)


async def busy(host: Hosting) -> bool:
    call = host.call("a", "one too many")
    await asyncio.wait({call})
    return getattr(call.exception(), "reason", "") == "busy"


async def test_calls_that_wait_for_a_slot_get_it_though_the_limit_is_another_one(tmp_path: Path) -> None:
    memory, gate = held()
    async with hosting(tmp_path, {"a": memory}, {"a": {}}, max_in_flight=1, queue_seconds=60) as host:
        await host.up("a")
        first = host.call("a", "first")
        await gate.wait_for_entered()
        waiting = host.call("a", "waiting")
        await tick()
        await host.reload({"a": {}}, max_in_flight=5, queue_seconds=60)
        new = host.call("a", "new")
        await gate.wait_for_entered(2)
        assert gate.entered == ["first", "new"]
        gate.open()
        assert [text_of(await call) for call in (first, waiting, new)] == ["first", "waiting", "new"]


async def test_a_reload_that_is_given_up_leaves_what_it_had_started(tmp_path: Path) -> None:
    memory = {"quick": MemoryAgent(), "hangs": MemoryAgent()}
    async with hosting(tmp_path, memory, {"quick": {}, "hangs": {}}) as host:
        await host.up("quick", "hangs")
        for agent in memory.values():
            agent.edited = True
        memory["hangs"].starting = Gate()
        reloading = asyncio.create_task(host.reload({"quick": {}, "hangs": {}}))
        await memory["hangs"].starting.wait_for_entered()
        await memory["quick"].until(lambda one: one.starts == 2)
        await tick()
        reloading.cancel()
        await memory["quick"].until(lambda one: one.leaves == 1)
        await memory["hangs"].starting.wait_for_cancelled()
        assert text_of(await host.call("quick")) == "hello"


async def test_health_of_a_changed_agent_forgets_servers_it_no_longer_has(tmp_path: Path) -> None:
    memory = MemoryAgent(downstreams=(DEAD,))
    async with hosting(tmp_path, {"a": memory}, {"a": {}}) as host:
        await host.up("a")
        await host.gateway.check_health(host.agent("a"))
        assert host.metric("agent_health_status", agent="a") == 0.5
        assert host.metric("downstream_up", agent="a", server="dead") == 0
        memory.downstreams, memory.edited = (), True
        await host.reload({"a": {}})
        assert host.metric("downstream_up", agent="a", server="dead") is None
        assert host.metric("agent_health_status", agent="a") == 1


async def test_a_refused_agent_fails_at_once_and_its_running_call_ends_on_its_version(tmp_path: Path) -> None:
    memory, gate = held()
    async with hosting(tmp_path, {"a": MemoryAgent(), "stored": memory}, {"a": {}}) as host:
        await host.reload_stored({"a": {}}, StoredAgent("stored"))
        await host.up("a", "stored")
        assert (host.agent("a").id, host.agent("stored").id) == ("", "1")
        running = host.call("stored", "begun before")
        await gate.wait_for_entered()
        await host.reload_stored({"a": {}}, StoredAgent("stored", refused="model 'm' is not released"))
        agent = host.agent("stored")
        assert (agent.status.state, agent.status.reason) == ("failed", "model 'm' is not released")
        with pytest.raises(AgentUnavailableError, match=r"cannot take calls: model 'm' is not released$"):
            await host.call("stored", "begun after")
        gate.open()
        assert text_of(await running) == "begun before"
        await memory.until(lambda one: one.leaves == 1)
        assert memory.starts == 1
        assert (await host.reload_stored({"a": {}}, StoredAgent("stored"))).kept_back == {}
        await host.up("stored")
        assert text_of(await host.call("stored", "released again")) == "released again"


async def test_an_agent_that_is_refused_before_the_start_is_not_started(tmp_path: Path) -> None:
    memory = MemoryAgent()
    async with hosting(tmp_path, {"a": MemoryAgent(), "stored": memory}, {"a": {}}) as host:
        changes = await host.reload_stored({"a": {}}, StoredAgent("stored", refused="not released"))
        assert changes.added == ("stored",)
        assert (host.agent("stored").status.state, host.agent("stored").status.reason) == ("failed", "not released")
        await host.gateway.wait_until_tried()
        await host.up("a")
        assert memory.starts == 0
        assert (await host.reload({"a": {}})).removed == ("stored",)


async def test_a_version_that_does_not_start_is_kept_back_with_its_reason_and_version(tmp_path: Path) -> None:
    memory = MemoryAgent()
    async with hosting(tmp_path, {"a": MemoryAgent(), "stored": memory}, {"a": {}}) as host:
        await host.reload_stored({"a": {}}, StoredAgent("stored"))
        await host.up("stored")
        memory.start_failures.append(AgentStartError("no such model"))
        second = StoredAgent("stored", version=2, settings={"max_iterations": 3})
        await host.reload_stored({"a": {}}, second)
        agent = host.agent("stored")
        assert agent.identity is not None
        assert (agent.identity.version, agent.kept_back) == (1, "no such model")
        await host.reload_stored({"a": {}}, second)
        assert (agent.identity.version, agent.kept_back) == (2, None)


async def test_an_agent_never_answers_for_another_one_that_has_got_its_name(tmp_path: Path) -> None:
    """A file claims the name of an agent of the database, and does not start."""
    memory, gate = held()
    async with hosting(tmp_path, {"a": MemoryAgent(), "b": memory}, {"a": {}}) as host:
        await host.reload_stored({"a": {}}, StoredAgent("b"))
        await host.up("b")
        running = host.call("b", "begun before")
        await gate.wait_for_entered()
        memory.start_failures += [AgentStartError("broken"), AgentStartError("broken")]
        changes = await host.reload_stored({"a": {}, "b": {"max_iterations": 3}}, StoredAgent("b"))
        assert changes.kept_back == {}
        agent = host.agent("b")
        assert (agent.id, agent.runtime) == ("", None)
        await eventually(lambda: agent.status.state == "failed", what="the failure of the file's agent")
        with pytest.raises(AgentUnavailableError, match="broken"):
            await host.call("b", "begun after")
        gate.open()
        assert text_of(await running) == "begun before"
        await host.reload_stored({"a": {}}, StoredAgent("b"))  # the file gives the name back
        assert agent.id == "1"
        await host.up("b")
