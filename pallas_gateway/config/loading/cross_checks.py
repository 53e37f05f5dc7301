"""Rules between values of `agents.yaml`. Pure; lines are added by the loader."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pallas_gateway.config.model.agents import MAKINGS, AgentSettings
from pallas_gateway.config.model.deployment import Deployment
from pallas_gateway.config.model.values import HEALTH_TOOL
from pallas_gateway.config.problems import did_you_mean

AGENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
MAX_REGISTRY_NAME_CHARACTERS = 200  # the registry schema's
MESSAGE_TOOL = "send_message"
_SYSLOG_SERVER = re.compile(r"([^:\s]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}")
OF_INSTRUCTIONS = ("model", "servers", "tools", "human_input")
"""Keys that only an agent with an instruction may have; a module or card has its own."""
TOOL_SEPARATOR = "__"  # fast-agent's, between the name of a server and that of its tool


@dataclass(frozen=True)
class Finding:
    """A broken rule: `path` is the key to name, `at` a more exact one for the line, if there is one."""

    path: str
    message: str
    at: str | None = None


def slug(agent: str) -> str:
    """Return an agent's name as the registry writes it."""
    return agent.replace("_", "-")


def registry_name(deployment: Deployment, agent: str) -> str:
    """Return the agent's full name in the registry."""
    namespace = deployment.namespace or "local." + re.sub(r"[^a-zA-Z0-9.-]", "-", deployment.name)
    return f"{namespace}/{slug(agent)}"


def broken_rules(deployment: Deployment, only_agent: str | None) -> Iterator[Finding]:
    """Yield every rule that the deployment breaks; `only_agent` is the agent to serve alone, if there is one."""
    yield from _agent_names(deployment)
    yield from _registry_names(deployment)
    yield from _tool_names(deployment)
    yield from _ports(deployment, only_agent)
    yield from _icons(deployment)
    yield from _models(deployment)
    yield from _costs(deployment)
    yield from _limits(deployment)
    yield from _tasks(deployment)
    yield from _audit_log(deployment)
    yield from _sign_in(deployment)
    yield from _key_names(deployment)
    yield from _makings(deployment)
    yield from _allowed_tools(deployment)
    yield from _unknown_peers(deployment)
    yield from _uncallable_agents(deployment)
    yield from _dependency_cycles(deployment)


def _agent_names(deployment: Deployment) -> Iterator[Finding]:
    for name in deployment.agents:
        if not AGENT_NAME.fullmatch(name):
            message = "an agent's name begins with a letter or digit and holds only letters, digits, '_', '.' and '-'"
            yield Finding(f"agents.{name}", message)


def _registry_names(deployment: Deployment) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    for name in deployment.agents:
        first = owners.setdefault(slug(name), name)
        if first != name:
            yield Finding(f"agents.{name}", f"has the same registry name '{slug(name)}' as agent '{first}'; rename one")
        if len(registry_name(deployment, name)) > MAX_REGISTRY_NAME_CHARACTERS:
            message = f"its registry name with the namespace is longer than {MAX_REGISTRY_NAME_CHARACTERS} characters"
            yield Finding(f"agents.{name}", message)


def _tool_names(deployment: Deployment) -> Iterator[Finding]:
    templates = deployment.gateway.tool_names
    fixed = {MESSAGE_TOOL, HEALTH_TOOL, *(name for name in templates if "{agent}" not in name)}
    for agent in deployment.agents:
        if agent in fixed:
            yield Finding(f"agents.{agent}", f"an agent cannot be named like the tool '{agent}'; rename it")
            continue
        offered = [HEALTH_TOOL, *(name.replace("{agent}", agent) for name in templates)]
        for tool in sorted({tool for tool in offered if offered.count(tool) > 1}):
            yield Finding("gateway.tool_names", f"agent '{agent}' would have two tools named '{tool}'")


def _ports(deployment: Deployment, only_agent: str | None) -> Iterator[Finding]:
    owners: dict[int, str] = {}
    if deployment.gateway.per_port and not only_agent:
        owners[deployment.registry_port] = "registry_port"
    for name, agent in deployment.agents.items():
        if agent.port is None:
            yield from _missing_port(deployment, name, only_agent)
        elif agent.port in owners:
            yield Finding(f"agents.{name}.port", f"port {agent.port} is already taken by {owners[agent.port]}")
        else:
            owners[agent.port] = f"agents.{name}"


def _missing_port(deployment: Deployment, name: str, only_agent: str | None) -> Iterator[Finding]:
    if name == only_agent:
        yield Finding(f"agents.{name}.port", "is required with --agent")
    elif deployment.gateway.per_port and not only_agent:
        yield Finding(f"agents.{name}.port", "is required with --per-port, which `pallas` implies")


def _icons(deployment: Deployment) -> Iterator[Finding]:
    for name, agent in deployment.agents.items():
        if agent.icon and agent.icons:
            yield Finding(f"agents.{name}.icons", "give either icon or icons, not both")


def _models(deployment: Deployment) -> Iterator[Finding]:
    for name, agent in deployment.agents.items():
        path = f"agents.{name}"
        if "model" in agent.caller_params.allowed and not agent.models:
            message = "callers may set 'model', but there is none; list some as models"
            yield Finding(f"{path}.caller_params", message)
        if agent.models and "model" not in agent.caller_params.allowed:
            message = "callers may choose one only if caller_params names 'model'"
            yield Finding(f"{path}.models", message)


def _costs(deployment: Deployment) -> Iterator[Finding]:
    if deployment.gateway.prices:
        return
    for name, agent in deployment.agents.items():
        if agent.max_cost_per_call is not None:
            message = "limits nothing without prices; add those of its models to gateway.prices"
            yield Finding(f"agents.{name}.max_cost_per_call", message)


def _limits(deployment: Deployment) -> Iterator[Finding]:
    gateway = deployment.gateway
    if gateway.limits.store is not None and gateway.database is None:
        message = "requires 'gateway.database', the database in which the counters are"
        yield Finding("gateway.limits.store", message)
    if "agents_may_use" in gateway.model_fields_set and gateway.database is None:
        yield Finding("gateway.agents_may_use", "requires 'gateway.database', the database in which these agents are")
    places: dict[str, int] = {}
    for index, name in enumerate(gateway.limits.rule_names):
        first = places.setdefault(name, index)
        if first != index:
            message = f"is named '{name}', as rule {first + 1}; give it a name of its own"
            yield Finding(f"gateway.limits.rules.{index}", message)


def _tasks(deployment: Deployment) -> Iterator[Finding]:
    tasks = deployment.gateway.tasks
    if tasks is None:
        for name, agent in deployment.agents.items():
            if agent.tasks == "required":
                yield Finding(f"agents.{name}.tasks", "requires 'gateway.tasks', which switches tasks on")
        return
    if deployment.gateway.database is None:
        yield Finding("gateway.tasks", "requires 'gateway.database', the database in which tasks are")
    if tasks.ttl_seconds < tasks.ask_seconds:
        message = f"is less than ask_seconds ({tasks.ask_seconds:g}): a task would expire before its questions"
        yield Finding("gateway.tasks.ttl_seconds", message)


def _audit_log(deployment: Deployment) -> Iterator[Finding]:
    gateway = deployment.gateway
    if gateway.audit_names == "hashed" and not gateway.state_keys:
        message = "'hashed' requires 'gateway.state_keys', by the first of which names are hashed"
        yield Finding("gateway.audit_names", message)
    if gateway.audit_required and gateway.audit_log is None:
        yield Finding("gateway.audit_required", "requires 'gateway.audit_log', which says where lines are written")
    _, is_syslog, address = (gateway.audit_log or "").partition("syslog:")
    if is_syslog and address and "/" not in address and not _SYSLOG_SERVER.fullmatch(address):
        message = f"'{gateway.audit_log}' is neither syslog:HOST:PORT nor syslog:/PATH"
        yield Finding("gateway.audit_log", message)


def _sign_in(deployment: Deployment) -> Iterator[Finding]:
    auth = deployment.gateway.auth
    if auth is None or auth.console_client_id is None:
        return
    if auth.jwt is None:
        message = "requires 'gateway.auth.jwt', the authorization server at which people sign in"
        yield Finding("gateway.auth.console_client_id", message)
    elif "?" in auth.jwt.issuer:
        message = "must have no query ('?') where people sign in: clients find the server's metadata by it (RFC 8414)"
        yield Finding("gateway.auth.jwt.issuer", message)


def _key_names(deployment: Deployment) -> Iterator[Finding]:
    keys = deployment.gateway.auth.tokens if deployment.gateway.auth else ()
    for index, key in enumerate(keys):
        path = f"gateway.auth.tokens.{index}"
        if key.name in {other.name for other in keys[:index]}:
            yield Finding(f"{path}.name", f"'{key.name}' is used twice; give each key its own name")
        if not {*key.sha256}.isdisjoint(one for other in keys[:index] for one in other.sha256):
            yield Finding(f"{path}.sha256", "is the same key as another entry's; one key has one name")


def _makings(deployment: Deployment) -> Iterator[Finding]:
    for name, agent in deployment.agents.items():
        if not agent.makings:
            yield Finding(f"agents.{name}", "requires a module, an instruction, an instruction_file or a card")
            continue
        first, *others = agent.makings
        for other in others:
            message = f"stands beside {first}; an agent has one of {', '.join(MAKINGS[:-1])} and {MAKINGS[-1]}"
            yield Finding(f"agents.{name}.{other}", message)
        if agent.is_instructed and agent.agent is not None:
            yield Finding(f"agents.{name}.agent", f"goes with module or card; with {first} there is only one agent")
        if not agent.is_instructed:
            given = (key for key in OF_INSTRUCTIONS if key in agent.model_fields_set)
            for key in given:
                message = f"goes with instruction or instruction_file; a {first} says this itself"
                yield Finding(f"agents.{name}.{key}", message)


def _allowed_tools(deployment: Deployment) -> Iterator[Finding]:
    for name, agent in deployment.agents.items():
        path, servers = f"agents.{name}.tools", (*agent.servers, *agent.agents)
        for index, tool in enumerate(agent.tools or () if agent.is_instructed else ()):
            if not any(tool.startswith(f"{server}{TOOL_SEPARATOR}") for server in servers):
                yield Finding(path, _why_no_tool(tool, servers), at=f"{path}.{index}")


def _why_no_tool(tool: str, servers: Iterable[str]) -> str:
    server, separator, _ = tool.partition(TOOL_SEPARATOR)
    if not separator:
        return f"'{tool}' must be written as the agent sees it, server__tool"
    return f"'{tool}' is of no server or sub-agent of this agent{did_you_mean(server, servers)}"


def _unknown_peers(deployment: Deployment) -> Iterator[Finding]:
    for name, agent in deployment.agents.items():
        for key, others in (("depends_on", agent.depends_on), ("agents", agent.agents)):
            path = f"agents.{name}.{key}"
            for index, other in enumerate(others):
                if other not in deployment.agents:
                    message = f"no agent '{other}'{did_you_mean(other, deployment.agents)}"
                    yield Finding(path, message, at=f"{path}.{index}")


def _uncallable_agents(deployment: Deployment) -> Iterator[Finding]:
    for name, agent in deployment.agents.items():
        for index, other in enumerate(agent.agents):
            if "." in other:
                message = f"'{other}' would be part of a tool's name, in which models take no '.'; rename that agent"
                yield Finding(f"agents.{name}.agents", message, at=f"agents.{name}.agents.{index}")


def _dependency_cycles(deployment: Deployment) -> Iterator[Finding]:
    finished: set[str] = set()
    for name in deployment.agents:
        for cycle in _cycles_from(name, (), deployment.agents, finished):
            first, second, *_ = cycle
            key = "depends_on" if second in deployment.agents[first].depends_on else "agents"
            yield Finding(f"agents.{first}.{key}", f"goes in a circle: {' -> '.join(cycle)}")


def _cycles_from(
    name: str, trail: tuple[str, ...], agents: Mapping[str, AgentSettings], finished: set[str]
) -> Iterator[tuple[str, ...]]:
    if name in trail:
        yield (*trail[trail.index(name) :], name)
        return
    if name in finished or name not in agents:
        return
    for other in agents[name].peers:
        yield from _cycles_from(other, (*trail, name), agents, finished)
    finished.add(name)
