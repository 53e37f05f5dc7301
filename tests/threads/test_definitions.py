"""Agents of the database: changes, versions, and many writers at once, on each kind of database."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from pallas_gateway.calls.call import Message
from pallas_gateway.config.loading.downstream_servers import DownstreamServer
from pallas_gateway.errors import GatewayError
from pallas_gateway.features.definitions import store
from pallas_gateway.features.definitions.records import (
    AgentNotFoundError,
    InvalidDefinitionError,
    NameTakenError,
    Place,
    StoredAgent,
    VersionConflictError,
)
from pallas_gateway.features.definitions.service import Owner
from pallas_gateway.features.definitions.store import KEPT_VERSIONS
from pallas_gateway.features.threads.records import AgentDeletedError, NewThread
from pallas_gateway.shared.database import tables
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from tests.support.definers import RELEASED, SIMPLE, configured, definitions, editor
from tests.support.stored_threads import listed, services

ANN, BOB = editor("ann"), editor("bob")


def with_(**keys: Any) -> dict[str, Any]:
    return {**SIMPLE, **keys}


async def refusal(change: Any) -> list[Place]:
    with pytest.raises(InvalidDefinitionError) as refused:
        await change
    return list(refused.value.problems)


async def test_an_agent_is_stored_as_its_owner_has_written_it(database_url: str) -> None:
    written = with_(maxIterations=3, params={"maxTokens": 100, "top_p": 0.5}, tools=["notes__get_*"], servers=["notes"])
    async with definitions(database_url) as made:
        agent = await made.create("helper", written, ANN)
        assert (agent.name, agent.owner, agent.owner_name, agent.version) == ("helper", "key:ann", "ann", 1)
        assert agent.created_at == agent.updated_at
        assert agent.definition == {
            **SIMPLE,
            "max_iterations": 3,
            "params": {"max_tokens": 100, "top_p": 0.5},
            "servers": ["notes"],
            "tools": ["notes__get_*"],
        }
        assert await made.find("helper") == agent
        snapshot = await made.snapshot()
        assert (snapshot.number, snapshot.agents) == (1, (agent,))
        for name in ("other", "a\0b", "a\ud800", "..", "", "x" * 100_000):
            with pytest.raises(AgentNotFoundError):
                await made.find(name)


async def test_policies_over_servers_that_are_not_there_are_problems(database_url: str) -> None:
    policies = {"approve": ["notes/x", "mail/*", "*/y", "desk/z", "secret/*"], "tool_limits": {"note/*": 1}}
    async with definitions(database_url) as made:
        said = "is of no server or agent of this project"
        assert [(one.path, one.message) for one in await refusal(made.create("helper", with_(**policies), ANN))] == [
            ("approve.1", f"'mail/*' {said}"),
            ("tool_limits.note/*", f"'note/*' {said} (did you mean 'notes'?)"),
        ]


async def test_the_newest_versions_are_kept_and_none_of_a_deleted_agent(database_url: str) -> None:
    async with definitions(database_url) as made:
        await made.create("helper", SIMPLE, ANN)
        await made.create("other", SIMPLE, ANN)
        for number in range(KEPT_VERSIONS + 1):
            await made.patch("helper", {"title": f"Helper {number}"}, ANN, expected=None)
        kept = [one.version for one in await made.versions("helper")]
        with pytest.raises(AgentNotFoundError):
            await made.restore("helper", 2, ANN, expected=None)
        await made.restore("helper", 3, ANN, expected=None)
        await made.remove("helper", ANN, expected=None)
        left = await made._read(lambda sql: sql.execute(select(tables.agent_versions.c.agent_id)))
        other = await made.find("other")
        returned = await made.create("helper", SIMPLE, ANN)
    assert kept == [*range(KEPT_VERSIONS + 2, 2, -1)]
    assert left.scalars().all() == [other.id]
    assert returned.version == KEPT_VERSIONS + 4


async def test_definitions_that_are_known_are_not_read_again(database_url: str) -> None:
    async with definitions(database_url) as made:
        for name in ("first", "second", "third"):
            await made.create(name, SIMPLE, ANN)
        before = await made.snapshot()
        changed = await made.patch("second", {"title": "Second"}, ANN, expected=None)
        await made.remove("third", ANN, expected=None)
        after = await made.snapshot()
    assert (after.number, [one.name for one in after.agents]) == (5, ["first", "second"])
    assert after.agents[0].definition is before.agents[0].definition
    assert after.agents[1] == changed


async def test_a_change_that_changes_nothing_is_no_version_but_a_restored_one_is(database_url: str) -> None:
    async with definitions(database_url) as made:
        await made.create("helper", SIMPLE, ANN)
        for unchanged in (
            await made.replace("helper", SIMPLE, BOB, expected=1),
            await made.patch("helper", {}, BOB, expected=1),
        ):
            assert unchanged.version == 1
        assert await made.number() == 1
        assert (await made.restore("helper", 1, BOB, expected=1)).version == 2


async def test_a_change_of_another_version_than_the_present_one_is_refused(database_url: str) -> None:
    async with definitions(database_url) as made:
        await made.create("helper", SIMPLE, ANN)
        await made.patch("helper", {"title": "Two"}, ANN, expected=1)
        for change in (
            made.replace("helper", SIMPLE, ANN, expected=1),
            made.patch("helper", {"title": "Three"}, ANN, expected=3),
            made.restore("helper", 1, ANN, expected=1),
            made.remove("helper", ANN, expected=1),
        ):
            with pytest.raises(VersionConflictError) as conflict:
                await change
            assert conflict.value.version == 2
        assert (await made.replace("helper", SIMPLE, ANN, expected=None)).version == 3
        assert await made.number() == 3


async def test_version_numbers_go_on_when_a_name_returns_with_another_id_and_without_its_history(
    database_url: str,
) -> None:
    async with definitions(database_url) as made:
        first = await made.create("my_helper", SIMPLE, ANN)
        await made.patch("my_helper", {"title": "Two"}, ANN, expected=1)
        removed = await made.remove("my_helper", ANN, expected=2)
        assert removed.id == first.id
        with pytest.raises(AgentNotFoundError):
            await made.find("my_helper")
        second = await made.create("my-helper", SIMPLE, BOB)
        assert (second.version, second.owner) == (3, "key:bob")
        assert second.id != first.id
        assert [one.version for one in await made.versions("my-helper")] == [3]
        with pytest.raises(AgentNotFoundError):
            await made.version("my-helper", 2)


async def test_a_name_that_a_server_of_files_leads_to_is_taken(database_url: str) -> None:
    present = configured()
    servers = dict(present.fastagent.servers)
    servers["ghost"] = DownstreamServer("ghost", "http", url="http://localhost:24200/agents/ghost/mcp")
    configuration = replace(present, fastagent=replace(present.fastagent, servers=servers))
    async with definitions(database_url, configuration) as made:
        with pytest.raises(NameTakenError, match="has the URL of an agent 'ghost'"):
            await made.create("GHOST", SIMPLE, ANN)
        await made.create("guest", SIMPLE, ANN)


async def test_the_permission_is_asked_for_the_agent_that_is_changed(database_url: str) -> None:
    async with definitions(database_url) as made:
        await made.create("helper", SIMPLE, ANN)
        asked: list[StoredAgent] = []

        def permit(agent: StoredAgent) -> None:
            asked.append(agent)
            if agent.owner != "key:bob":
                raise GatewayError("no", reason="insufficient_scope")

        bob = editor("bob", permit=permit)
        for change in (
            made.replace("helper", with_(title="T"), bob, expected=7),
            made.patch("helper", {}, bob, expected=None),
            made.restore("helper", 1, bob, expected=1),
            made.remove("helper", bob, expected=1),
        ):
            with pytest.raises(GatewayError, match="no"):
                await change
        assert [one.name for one in asked] == ["helper"] * 4
        assert await made.number() == 1


async def test_problems_of_the_definition_the_floors_and_the_runtime_come_at_once_with_the_clients_paths(
    database_url: str,
) -> None:
    async def check(model: str | None, servers: tuple[str, ...]) -> Sequence[tuple[str, str]]:
        assert (model, servers) == (None, ("secret",))
        return [("servers.0", "no server"), ("call_timeout_seconds", "runtime"), ("model", "no key")]

    async with definitions(database_url) as made:
        made.check = check
        written = {"servers": ["secret"], "maxIterations": 0, "callTimeoutSeconds": 5, "color": "red"}
        found = await refusal(made.create("..", written, ANN))
        assert {one.path for one in found} == {
            "name", "instruction", "servers.0", "maxIterations", "color", "callTimeoutSeconds", "model",
        }  # fmt: skip
        [server] = [one for one in found if one.path == "servers.0"]
        assert "not released" in server.message


async def test_the_runtime_is_asked_again_if_another_change_has_brought_what_it_has_not_checked(
    database_url: str,
) -> None:
    checked = list[Any]()

    async with definitions(database_url) as made:
        await made.create("helper", SIMPLE, ANN)

        async def check(model: str | None, _: tuple[str, ...]) -> Sequence[tuple[str, str]]:
            checked.append(model)
            if len(checked) == 1:
                made.check = None
                await made.patch("helper", {"model": "openai.other"}, BOB, expected=1)
                made.check = check
            return []

        made.check = check
        changed = await made.patch("helper", {"title": "T"}, ANN, expected=None)
    assert checked == ["openai.gpt-5", "openai.other"]
    assert (changed.version, changed.definition) == (3, with_(title="T", model="openai.other"))


async def test_a_version_is_not_restored_to_another_agent_that_has_got_the_name(database_url: str) -> None:
    async with definitions(database_url) as made:
        await made.create("helper", with_(title="Ann's"), ANN)

        async def check(_: str | None, __: tuple[str, ...]) -> Sequence[tuple[str, str]]:
            made.check = None
            await made.remove("helper", ANN, expected=1)
            await made.create("helper", SIMPLE, BOB)
            return []

        made.check = check
        with pytest.raises(AgentNotFoundError, match="no version 1"):
            await made.restore("helper", 1, ANN, expected=None)
        assert (await made.find("helper")).definition == SIMPLE


async def test_a_declared_agent_of_a_file_or_of_the_database_is_copied_with_changes(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "prompt.md").write_text("You are from a file.\n")
    agents: dict[str, dict[str, Any]] = {
        "desk": {"instruction": "You are the desk.", "depends_on": ["filed"], "default_params": {"temperature": 0.5}},
        "filed": {"instruction_file": "prompt.md"},
        "lost": {"instruction_file": "none.md"},
        "coded": {"module": "coded"},
    }
    configuration = configured(agents=agents)
    object.__setattr__(configuration, "path", tmp_path / "agents.yaml")
    async with definitions(database_url, configuration) as made:
        desk = await made.copy("desk", "desk2", {"title": "Second"}, ANN)
        expected = {"instruction": "You are the desk.", "params": {"temperature": 0.5}, "title": "Second"}
        assert desk.definition == expected
        again = await made.copy("desk2", "desk3", {"title": None}, BOB)
        assert (again.owner, again.definition) == ("key:bob", {key: expected[key] for key in ("instruction", "params")})
        assert (await made.copy("filed", "filed2", {}, ANN)).definition == {"instruction": "You are from a file."}
        for name in ("coded", "lost"):
            [problem] = await refusal(made.copy(name, "other", {}, ANN))
            assert problem.path == "copyOf"
        with pytest.raises(AgentNotFoundError):
            await made.copy("absent", "other", {}, ANN)


async def test_of_fifty_writers_on_ten_agents_each_accepted_write_is_a_version(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(definitions(database_url)) for _ in range(4)]
        names = [f"agent-{number}" for number in range(10)]
        for name in names:
            await opened[0].create(name, SIMPLE, ANN)
        conflicts = 0

        async def write(writer: int) -> list[tuple[str, int, str]]:
            """Make three versions; by `If-Match` where the writer is odd."""
            nonlocal conflicts
            made, name, accepted = opened[writer % 4], names[writer % 10], list[tuple[str, int, str]]()
            for turn in range(3):
                title = f"by {writer} in {turn}"
                while True:
                    expected = (await made.find(name)).version if writer % 2 else None
                    try:
                        written = await made.patch(name, {"title": title}, editor(str(writer)), expected=expected)
                    except VersionConflictError:
                        conflicts += 1
                        continue
                    break
                accepted.append((name, written.version, title))
            return accepted

        accepted = [one for some in await asyncio.gather(*map(write, range(50))) for one in some]
        stored = [
            (name, one.version, one.definition["title"])
            for name in names
            for one in await opened[0].versions(name)
            if one.version > 1
        ]
        assert sorted(stored) == sorted(accepted)
        assert len(stored) == 150
        assert await opened[-1].number() == 160
        assert {one.version for one in (await opened[-1].snapshot()).agents} == {16}


async def both(one: Any, other: Any) -> list[Any]:
    return [*await asyncio.gather(one, other, return_exceptions=True)]


async def test_of_two_changes_at_once_that_would_form_a_circle_one_is_refused(database_url: str) -> None:
    async with definitions(database_url) as one, definitions(database_url) as two:
        for turn in range(5):
            names = f"a{turn}", f"b{turn}"
            for name in names:
                await one.create(name, SIMPLE, ANN)
            outcomes = await both(
                one.patch(names[0], {"agents": [names[1]]}, ANN, expected=1),
                two.patch(names[1], {"agents": [names[0]]}, ANN, expected=1),
            )
            [refused] = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            assert isinstance(refused, InvalidDefinitionError)
            assert "goes in a circle" in str(refused)


async def test_no_more_agents_are_made_at_once_than_there_may_be(database_url: str) -> None:
    few = configured({**RELEASED, "most_agents": 3})
    async with definitions(database_url, few) as one, definitions(database_url, few) as two:
        outcomes = await asyncio.gather(
            *((one, two)[number % 2].create(f"agent-{number}", SIMPLE, ANN) for number in range(10)),
            return_exceptions=True,
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert len(refused) == 7
        assert all(isinstance(outcome, InvalidDefinitionError) for outcome in refused)
        assert len((await one.snapshot()).agents) == 3
        assert (await one.patch((await one.snapshot()).agents[0].name, {"title": "T"}, ANN, expected=1)).version == 2


async def test_one_owner_has_a_part_of_the_places_also_of_agents_that_it_is_given(database_url: str) -> None:
    auth = {"tokens": [{"name": "ann", "sha256": "0" * 64, "grants": ["create:agents"]}]}
    released = {**RELEASED, "most_agents": 5}
    async with definitions(database_url, configured(released, auth=auth)) as made:  # two, a quarter
        first = await made.create("one", SIMPLE, ANN)
        await made.create("two", SIMPLE, ANN)
        of_ann = Place("", "2 agents have this owner already; 2 may (most_agents_per_owner)")
        assert await refusal(made.create("three", SIMPLE, ANN)) == [of_ann]
        assert await refusal(made.create("three", SIMPLE, ANN, dry_run=True)) == [of_ann]
        of_bob = await made.create("three", SIMPLE, BOB)
        given = editor("bob", gives_to=Owner(owner="key:ann", name="ann"))
        assert await refusal(made.patch(of_bob.name, {}, given, expected=1)) == [Place("owner", of_ann.message)]
        assert (await made.patch(first.name, {"title": "T"}, ANN, expected=1)).version == 2
    async with definitions(database_url, configured({**released, "most_agents_per_owner": 3}, auth=auth)) as more:
        assert (await more.create("four", SIMPLE, ANN)).name == "four"


async def test_of_writers_that_make_the_same_name_at_once_one_succeeds(database_url: str) -> None:
    async with definitions(database_url) as one, definitions(database_url) as two:
        outcomes = await asyncio.gather(
            *(
                (one, two)[number % 2].create(("Same_name", "same-name")[number % 2], SIMPLE, ANN)
                for number in range(8)
            ),
            return_exceptions=True,
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert len(refused) == 7
        assert all(isinstance(outcome, NameTakenError) for outcome in refused)


async def test_a_deletion_and_a_new_user_of_the_agent_at_once_exclude_each_other(database_url: str) -> None:
    async with definitions(database_url) as one, definitions(database_url) as two:
        for turn in range(5):
            await one.create(f"helper-{turn}", SIMPLE, ANN)
            outcomes = await both(
                one.remove(f"helper-{turn}", ANN, expected=1),
                two.create(f"user-{turn}", with_(agents=[f"helper-{turn}"]), ANN),
            )
            assert [isinstance(one, Exception) for one in outcomes].count(True) == 1


async def test_no_thread_is_begun_with_an_agent_that_was_deleted(database_url: str) -> None:
    async with services(database_url, configuration=configured) as one, services(database_url) as two:
        agent = await one.definitions.create("helper", SIMPLE, ANN)
        kept = await two.threads.store.create("me", agent.name, agent_id=agent.id)
        new = NewThread("me", agent.name, agent.id)
        await one.definitions.remove(agent.name, ANN, expected=1, drops_threads=True)
        for begun in (
            two.threads.store.create("me", agent.name, agent_id=agent.id),
            two.threads.store.begin_thread(new, Message("user", "hello"), "call"),
            two.threads.changes.fork(kept.id, 1),
        ):
            with pytest.raises(AgentDeletedError):
                await begun
        assert [one.id for one in await listed(two.threads, agent=agent.name, agent_id=agent.id)] == [kept.id]


async def test_threads_that_others_begin_while_an_agent_is_deleted_with_all_threads_are_deleted(
    database_url: str,
) -> None:
    async with services(database_url, configuration=configured) as one, services(database_url) as two:
        agent = await one.definitions.create("helper", SIMPLE, ANN)

        async def deleted() -> None:
            await one.definitions.remove(agent.name, ANN, expected=1, drops_threads=True)
            await one.drop_threads()

        beginning = [two.threads.store.create("me", agent.name, agent_id=agent.id) for _ in range(30)]
        await asyncio.gather(*beginning[:15], deleted(), *beginning[15:], return_exceptions=True)
        assert await listed(two.threads, agent=agent.name, agent_id=agent.id) == []


async def test_a_deleted_agent_is_looked_for_a_minute_longer(database_url: str) -> None:
    """A gateway of an older release may begin a thread with it."""
    older = insert(tables.threads).values(id="0" * 32, owner="me", agent="helper", turns=0, created_at=1, updated_at=1)
    long_ago = update(tables.agents).values(deleted_at=tables.agents.c.deleted_at - store.NOTED_MILLISECONDS)
    async with services(database_url, configuration=configured) as one:
        agent = await one.definitions.create("helper", SIMPLE, ANN)
        await one.definitions.remove(agent.name, ANN, expected=1, drops_threads=True)
        found = []
        for _ in range(2):
            await one.drop_threads()
            await one.database.connections.write(lambda sql: sql.execute(older.values(agent_id=agent.id)))
            await one.drop_threads()
            found.append(len(await listed(one.threads, agent=agent.name, agent_id=agent.id)))
            await one.database.connections.write(lambda sql: sql.execute(long_ago))
    assert found == [0, 1]


async def test_names_of_callers_that_are_no_text_are_kept_without_what_is_none(database_url: str) -> None:
    async with definitions(database_url) as made:
        await made.note_caller("token:x sub y", "Ann\0\ud83d")
        assert await made.callers() == {"token:x sub y": "Ann\N{REPLACEMENT CHARACTER}?"}
        agent = await made.create("helper", SIMPLE, replace(ANN, name="Ann\ud83d"))
        assert (agent.owner_name, (await made.versions("helper"))[0].editor) == ("Ann?", "Ann?")


async def test_a_database_that_was_never_there_refuses_changes(tmp_path: Path) -> None:
    async with definitions(f"sqlite:///{tmp_path}/no/such/folder.db") as made:
        for asked in (made.number(), made.snapshot(), made.find("a"), made.create("a", SIMPLE, ANN)):
            with pytest.raises(DatabaseUnavailableError):
                await asked
