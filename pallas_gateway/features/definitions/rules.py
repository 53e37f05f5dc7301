"""The rules for agents of the database: what the operator has released, their names, and other agents. Pure.

A definition is judged when it is stored, and again whenever the configuration changes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pallas_gateway.config.loading.cross_checks import (
    AGENT_NAME,
    MAX_REGISTRY_NAME_CHARACTERS,
    MESSAGE_TOOL,
    TOOL_SEPARATOR,
    registry_name,
)
from pallas_gateway.config.loading.tool_policies import of_no_server, policies
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.config.model.values import HEALTH_TOOL
from pallas_gateway.config.problems import did_you_mean
from pallas_gateway.features.definitions.records import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.config.loading.downstream_servers import DownstreamServer
    from pallas_gateway.config.model.agents_may_use import AgentsMayUseSettings
    from pallas_gateway.config.model.deployment import Deployment, GatewaySettings
    from pallas_gateway.features.definitions.records import Definition

LONGEST_NAME = 64


def key_of(name: str) -> str:
    """Return what is the same of two names that take each other."""
    return name.lower().replace("_", "-")


def taker_of(name: str, names: Iterable[str]) -> str | None:
    """Return which of `names` takes a name; None if it is free."""
    key = key_of(name)
    return next((one for one in names if key_of(one) == key), None)


def why_no_name(name: object, deployment: Deployment) -> str | None:
    """Return why an agent of the database cannot have a name; None if it can."""
    if not isinstance(name, str) or not AGENT_NAME.fullmatch(name):
        return "must begin with a letter or digit and hold only letters, digits, '_', '.' and '-'"
    if len(name) > LONGEST_NAME:
        return f"must have at most {LONGEST_NAME} characters"
    if TOOL_SEPARATOR in name:
        return f"must not hold '{TOOL_SEPARATOR}', which separates agents and tools"
    if name in {MESSAGE_TOOL, HEALTH_TOOL, *deployment.gateway.tool_names}:
        return f"an agent cannot be named like the tool '{name}'"
    if len(registry_name(deployment, name)) > MAX_REGISTRY_NAME_CHARACTERS:
        return f"its registry name with the namespace is longer than {MAX_REGISTRY_NAME_CHARACTERS} characters"
    return None


WILDCARDS = "*?"
_KEY = r"(?:reasoning|verbosity|instant|temperature|temp|top_p|topP|top_k|topK|min_p|minP|max_tokens|maxTokens)"
_HARMLESS = re.compile(rf"{_KEY}=[\w.-]+(?:&{_KEY}=[\w.-]+)*", re.ASCII)
"""Settings in a model's name that only change how it answers."""


def is_released(name: str, globs: Iterable[str]) -> bool:
    """Return True if one of the globs matches a name, which is no pattern."""
    return any(fnmatchcase(name, glob) for glob in globs)


def is_model_released(model: str, globs: Iterable[str]) -> bool:
    """Return True if one of the globs matches a model; what follows `?` in it must be harmless, or released literally.

    fast-agent reads settings there, some of which are tools of the provider that read the web.
    """
    base, mark, settings = model.partition("?")
    if not mark or _HARMLESS.fullmatch(settings):
        return any(fnmatchcase(base, glob) or glob == model for glob in globs)
    literal = (glob.partition("?") for glob in globs)
    return any(released == settings and fnmatchcase(base, glob) for glob, _, released in literal)


def is_contained(pattern: str, globs: Iterable[str]) -> bool:
    """Return True if one of the globs matches all that the pattern, of texts, `*` and `?`, can match."""
    return any(_contains(glob, pattern) for glob in globs)


def _contains(glob: str, pattern: str) -> bool:
    """Match a pattern character by character: its `*` is matched by one of the glob alone, its `?` also by a `?`."""
    if "[" in glob:  # a set of characters, which contains no wildcard
        return glob == pattern or (not any(one in pattern for one in WILDCARDS) and fnmatchcase(pattern, glob))
    place = at = 0
    star, tried = -1, 0  # the last `*` of the glob, and where in the pattern what it matches ends
    while at < len(pattern):
        if place < len(glob) and glob[place] == "*":
            star, tried = place, at
            place += 1
        elif place < len(glob) and _is_matched(pattern[at], glob[place]):
            place, at = place + 1, at + 1
        elif star >= 0:
            tried += 1
            place, at = star + 1, tried
        else:
            return False
    return not glob[place:].strip("*")


def _is_matched(one: str, glob: str) -> bool:
    return one == glob or (glob == "?" and one != "*")


BOUNDS = ("max_iterations", "call_timeout_seconds", "max_tokens_per_call")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a definition is judged by.

    Attributes:
        floors: what the operator has released.
        default_model: of the project.
        servers: under `mcp.servers`.
        agents: that can be sub-agents, of files and of the database. An editor's: those that it may run, and those
            that the agent has already; others are unknown to it.
        is_stored: the definition is stored already, and is judged by a configuration. Defaults of upper bounds do not
            hold for it. No similar agent is named for one that does not exist: all who may view the agent read the
            problems, and some of them may not see the other one.
    """

    floors: AgentsMayUseSettings
    default_model: str | None
    servers: Mapping[str, DownstreamServer]
    agents: Collection[str]
    is_stored: bool = False

    @classmethod
    def of(cls, configuration: Configuration, agents: Collection[str], *, is_stored: bool = False) -> Surroundings:
        fastagent = configuration.fastagent
        floors = configuration.deployment.gateway.agents_may_use
        return cls(floors, fastagent.default_model, fastagent.servers, agents, is_stored)


def problems(name: str, definition: Definition, around: Surroundings) -> list[Place]:
    """Return every rule that a definition breaks, but for circles; paths are those of the stored form."""
    return [
        *_model(definition, around),
        *_servers(definition, around),
        *_tools(definition, around),
        *_sub_agents(name, definition, around),
        *_bounds(definition, around),
    ]


def without_place(owners: Sequence[str], owner: str, settings: GatewaySettings, path: str) -> list[Place]:
    """Return the problems of one more agent of an owner; with a `path` it is one that is there already.

    `owners` are those of all agents.
    """
    most, of_owner = settings.agents_may_use.most_agents, settings.agents_may_use.most_agents_per_owner
    if of_owner is None:
        of_owner = most if settings.auth is None else math.ceil(most / 4)
    found = []
    if len(owners) >= most and not path:
        found.append(Place(path, f"there are {len(owners)} agents in the database already; {most} may be there"))
    if (own := owners.count(owner)) >= of_owner:
        found.append(Place(path, f"{own} agents have this owner already; {of_owner} may (most_agents_per_owner)"))
    return found


def circle(
    name: str, definition: Definition, others: Mapping[str, Sequence[str]], visible: Collection[str]
) -> list[Place]:
    """Return the problem of sub-agents that go in a circle; `others` are the sub-agents of agents of the database."""
    graph = {**others, name: tuple(definition.get("agents", ()))}
    if not (way := _circle_of(name, graph)):
        return []
    shown = (one if one in visible or one == name else "…" for one in way)
    return [Place(f"agents.{graph[name].index(way[1])}", f"goes in a circle: {' -> '.join(shown)}")]


def policies_of_no_server(definition: Definition, servers: Collection[str]) -> list[Place]:
    """Return entries of `approve` and `tool_limits` that can match no tool. Stored agents with such entries run on."""
    entries = policies(definition.get("approve", ()), definition.get("tool_limits", ()))
    return [Place(place, message) for place, message in of_no_server(entries, servers)]


def effective(definition: Definition, floors: AgentsMayUseSettings) -> dict[str, Any]:
    """Return a valid definition with what the floors add: explicit tools, approvals, bounds in place of defaults."""
    servers = definition.get("servers", ())
    released = [f"{one}{TOOL_SEPARATOR}{glob}" for one in servers for glob in floors.servers[one].tools]
    bounds = {key: _within(key, bound) for key, bound in _upper_bounds(floors, with_defaults=False)}
    approve = [*dict.fromkeys((*definition.get("approve", ()), *floors.approve))]
    return {"tools": released, **bounds, **definition, "approve": approve}


def _within(key: str, bound: float) -> float:
    """Return the default of a key if it is within the bound, else the bound."""
    default = AgentSettings.model_fields[key].default
    return bound if default is None else min(default, bound)


def _model(definition: Definition, around: Surroundings) -> Iterator[Place]:
    model, globs = definition.get("model"), around.floors.models
    if model is not None:
        if not is_model_released(model, globs):
            yield Place("model", _unreleased(f"model '{model}'", "models", globs))
    elif around.default_model is None:
        yield Place("model", "is required, because the gateway has no default model")
    elif not is_model_released(around.default_model.partition("?")[0], globs):
        yield Place("model", f"is required, because the default model is not released; {_released(globs)}")


def _servers(definition: Definition, around: Surroundings) -> Iterator[Place]:
    released = around.floors.servers
    for index, name in enumerate(servers := definition.get("servers", ())):
        if name in servers[:index]:
            yield Place(f"servers.{index}", f"'{name}' stands twice")
        elif name not in released:
            yield Place(f"servers.{index}", _unreleased(f"server '{name}'", "servers", released))
        elif name not in around.servers:
            yield Place(f"servers.{index}", f"no server '{name}' under mcp.servers of fastagent.config.yaml")
        elif around.servers[name].forward_inbound_auth and not released[name].forwards:
            message = f"server '{name}' receives the callers' tokens, and is not released for that (forwards: true)"
            yield Place(f"servers.{index}", message)


def _tools(definition: Definition, around: Surroundings) -> Iterator[Place]:
    servers, agents = definition.get("servers", ()), definition.get("agents", ())
    for index, pattern in enumerate(definition.get("tools", ())):
        server, separator, tool = pattern.partition(TOOL_SEPARATOR)
        if not separator or not tool:
            yield Place(f"tools.{index}", f"'{pattern}' must be written as the agent sees it, server__tool")
        elif "[" in tool:
            yield Place(f"tools.{index}", "may have * and ? as patterns")
        elif server in agents:
            continue
        elif server not in servers:
            known = did_you_mean(server, (*servers, *agents))
            yield Place(f"tools.{index}", f"'{pattern}' is of no server or sub-agent of this agent{known}")
        elif server in around.floors.servers and not is_contained(tool, globs := around.floors.servers[server].tools):
            yield Place(f"tools.{index}", f"'{pattern}' is not released; of server '{server}' {_released(globs)}")


def _sub_agents(name: str, definition: Definition, around: Surroundings) -> Iterator[Place]:
    named = definition.get("agents", ())
    for index, one in enumerate(named):
        path = f"agents.{index}"
        if one in named[:index]:
            yield Place(path, f"'{one}' stands twice")
        elif one not in around.agents and one != name:
            yield Place(path, f"no agent '{one}'{did_you_mean(one, () if around.is_stored else around.agents)}")
        elif not is_released(one, around.floors.agents):
            yield Place(path, _unreleased(f"agent '{one}'", "sub-agents", around.floors.agents))
        elif "." in one or TOOL_SEPARATOR in one:
            yield Place(path, f"'{one}' would be part of a tool's name, in which models take no '.' and no '__'")
        elif one in around.servers:
            yield Place(path, f"'{one}' is the name of a server too, which would be called instead")


def _bounds(definition: Definition, around: Surroundings) -> Iterator[Place]:
    for key, bound in _upper_bounds(around.floors, with_defaults=not around.is_stored):
        if definition.get(key, 0) > bound:
            yield Place(key, f"must be at most {bound:g}")


def _upper_bounds(floors: AgentsMayUseSettings, *, with_defaults: bool) -> Iterator[tuple[str, float]]:
    for key in BOUNDS if with_defaults else [key for key in BOUNDS if key in floors.most.model_fields_set]:
        if (bound := getattr(floors.most, key)) is not None:
            yield key, bound


def _circle_of(name: str, graph: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the agents on the shortest way from an agent back to itself; none without one."""
    ways, seen = [[name]], set[str]()
    for way in ways:
        for sub in graph.get(way[-1], ()):
            if sub == name:
                return [*way, name]
            if sub not in seen:
                seen.add(sub)
                ways.append([*way, sub])
    return []


def _unreleased(what: str, kind: str, released: Collection[str]) -> str:
    return f"{what} is not released for {kind} of these agents; {_released(released)}"


def _released(names: Collection[str]) -> str:
    return f"released: {', '.join(names)}" if names else "none is released (gateway.agents_may_use)"
