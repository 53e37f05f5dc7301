"""The configuration of a file with the agents of the database, and why some of them may not run."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.features.definitions.merging import Known, merged
from pallas_gateway.features.definitions.records import Snapshot, StoredAgent
from tests.support.definers import FILE_AGENTS, RELEASED, SIMPLE, configured

CREATED, UPDATED = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)


def stored(name: str, **keys: Any) -> StoredAgent:
    definition = {key: value for key, value in {**SIMPLE, **keys}.items() if value is not None}
    return StoredAgent(f"id-{name}", name, "key:ann", "ann", 3, definition, CREATED, UPDATED)


def merge(*agents: StoredAgent, configuration: Configuration | None = None) -> Configuration:
    return merged(configuration or configured(), Snapshot(7, agents))


def refused(*agents: StoredAgent, configuration: Configuration | None = None) -> dict[str, str]:
    found = merge(*agents, configuration=configuration).stored
    return {name: one.refused for name, one in found.items() if one.refused is not None}


def test_agents_of_the_database_stand_behind_those_of_the_file() -> None:
    both = merge(
        stored("helper", servers=["notes"], title="Helper", params={"seed": 1}), stored("zoe", agents=["helper"])
    )
    assert [*both.deployment.agents] == [*FILE_AGENTS, "helper", "zoe"]
    assert [*both.file_agents] == [*FILE_AGENTS]
    helper = both.deployment.agents["helper"]
    assert (helper.instruction, helper.title) == ("You help.", "Helper")
    assert helper.tools == ("notes__get_*", "notes__search")
    assert helper.default_params.seed == 1
    assert both.deployment.agents["zoe"].agents == ("helper",)
    assert both.deployment.agents["zoe"].tools == ()  # explicit, so that it has none of fast-agent's skills
    facts = both.stored["helper"]
    assert (facts.id, facts.version, facts.owner, facts.owner_name) == ("id-helper", 3, "key:ann", "ann")
    assert (facts.created_at, facts.updated_at, facts.refused) == (CREATED, UPDATED, None)
    assert both.claimed == {}
    assert refused(stored("helper")) == {}


def test_without_agents_of_the_database_the_configuration_is_the_files() -> None:
    configuration = configured()
    both = merged(configuration, Snapshot(0))
    assert (both.deployment, both.stored) == (configuration.deployment, {})


def test_with_ports_of_their_own_there_are_none_of_the_database() -> None:
    for configuration in (configured(per_port=True), replace(configured(), only_agent="desk")):
        assert merge(stored("helper"), configuration=configuration) is configuration


@pytest.mark.parametrize("name", ["desk", "DESK"])
def test_a_name_belongs_to_the_file_first(name: str) -> None:
    both = merge(stored(name, title="Mine"), stored("helper"))
    assert [*both.deployment.agents] == [*FILE_AGENTS, "helper"]
    assert both.deployment.agents["desk"].title is None
    assert both.claimed[name].refused == "the name belongs to agent 'desk' of agents.yaml"
    assert name not in both.stored


def test_a_name_that_the_registry_writes_the_same_belongs_to_the_file_too() -> None:
    configuration = configured(agents={"my_desk": {"instruction": "You are the desk."}})
    assert [*merge(stored("my-desk"), configuration=configuration).deployment.agents] == ["my_desk"]


def test_a_sub_agent_whose_name_the_file_claims_is_the_files() -> None:
    both = merge(stored("desk"), stored("helper", agents=["desk"]))
    assert both.stored["helper"].refused is None
    assert both.deployment.agents["helper"].agents == ("desk",)


@pytest.mark.parametrize(
    ("released", "why"),
    [
        ({"models": []}, "model: model 'openai.gpt-5' is not released"),
        ({"servers": {}}, "servers.0: server 'notes' is not released"),
        ({"servers": {"notes": ["search"]}}, "tools.0: 'notes__get_*' is not released"),
        ({"agents": []}, "agents.0: agent 'desk' is not released"),
        ({"most": {"max_iterations": 2}}, "max_iterations: must be at most 2"),
    ],
)
def test_narrowed_floors_refuse_what_no_longer_fits(released: dict[str, Any], why: str) -> None:
    agent = stored("helper", servers=["notes"], tools=["notes__get_*"], agents=["desk"], max_iterations=3)
    assert refused(agent) == {}
    found = refused(agent, configuration=configured({**RELEASED, **released}))
    assert found["helper"].startswith(why)


def test_default_bounds_refuse_nothing_that_is_stored() -> None:
    much = stored("helper", max_iterations=500, call_timeout_seconds=3600)
    assert refused(much) == {}
    assert merge(much).deployment.agents["helper"].max_iterations == 500


def test_narrowed_floors_narrow_what_an_agent_did_not_name() -> None:
    narrowed = configured(
        {**RELEASED, "servers": {"notes": ["search"]}, "approve": ["notes/*"], "most": {"max_iterations": 2}}
    )
    both = merge(stored("helper", servers=["notes"]), configuration=narrowed)
    helper = both.deployment.agents["helper"]
    assert (helper.tools, helper.approve, helper.max_iterations) == (("notes__search",), ("notes/*",), 2)
    assert both.stored["helper"].refused is None


def test_a_server_that_begins_to_receive_callers_tokens_refuses_its_agents() -> None:
    found = refused(stored("helper", servers=["notes"]), configuration=configured(forwarding=["notes"]))
    assert "receives the callers' tokens" in found["helper"]


def test_agents_above_one_that_may_not_run_may_not_run_either_and_say_why() -> None:
    found = refused(
        stored("bottom", model="anthropic.claude"),
        stored("middle", agents=["bottom"]),
        stored("top", agents=["middle", "desk"]),
        stored("beside"),
        stored("lost", agents=["absent"]),
    )
    assert found == {
        "bottom": "model: model 'anthropic.claude' is not released for models of these agents; released: openai.*",
        "middle": "its sub-agent 'bottom' may not run",
        "top": "its sub-agent 'middle' may not run",
        "lost": "agents.0: no agent 'absent'",
    }


def test_agents_in_a_circle_and_those_above_may_not_run() -> None:
    found = refused(stored("a", agents=["b"]), stored("b", agents=["a"]), stored("top", agents=["a"]))
    assert found["a"] == "agents.0: goes in a circle: a -> b -> a"
    assert found["b"] == "agents.0: goes in a circle: b -> a -> b"
    assert found["top"] == "its sub-agent 'a' may not run"


def test_a_reason_names_no_agents_but_the_sub_agents_that_its_readers_see() -> None:
    similar = refused(stored("lost", agents=["secret-desks"]), stored("secret-desk"))
    circle = refused(stored("a", agents=["b"]), stored("b", agents=["hidden"]), stored("hidden", agents=["a"]))
    assert similar == {"lost": "agents.0: no agent 'secret-desks'"}
    assert circle["a"] == "agents.0: goes in a circle: a -> b -> … -> a"


def test_an_agent_that_may_not_run_is_shown_without_its_sub_agents() -> None:
    lost = merge(stored("lost", agents=["absent"], title="Lost")).deployment.agents["lost"]
    assert (lost.title, lost.agents, lost.instruction) == ("Lost", (), "You help.")


def test_a_definition_of_another_version_of_the_gateway_is_refused_and_harms_no_other() -> None:
    newer = stored("newer", instruction=None, title=5, something={"new": True})
    both = merge(newer, stored("helper"), stored("old-name__x"))
    assert both.stored["helper"].refused is None
    why = both.stored["newer"].refused or ""
    assert all(part in why for part in ("something: unknown key", "title: must be text", "instruction: is required"))
    assert (both.stored["old-name__x"].refused or "").startswith("name: ")
    assert both.deployment.agents["newer"].is_instructed


def test_a_change_of_one_agent_makes_the_settings_of_no_other_one_anew() -> None:
    known, configuration = Known(), configured()
    first = stored("first")
    before = merged(configuration, Snapshot(1, (first, stored("second"))), known)
    both = Snapshot(2, (first, replace(stored("second", title="Another"), version=4)))
    after = merged(configuration, both, known)
    assert after.deployment.agents["first"] is before.deployment.agents["first"]
    assert after.deployment.agents["second"].title == "Another"
    assert merged(configured({"models": ["nothing"]}), both, known).stored["first"].refused is not None
    assert merged(configuration, both, known) == after


def test_agents_that_are_gone_are_forgotten() -> None:
    known, configuration = Known(), configured()
    merged(configuration, Snapshot(1, (stored("first"),)), known)
    merged(configuration, Snapshot(2), known)
    assert known == Known()
