"""Makes the `FastAgent` of an agent without a module, from an instruction or from a card of fast-agent's.

It is an ordinary `FastAgent`, as an imported module has one. All problems of a declaration are reported at once, each
with its key in `agents.yaml`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fast_agent.config import MCPSettings
from fast_agent.core.agent_card_paths import is_agent_card_path
from fast_agent.core.fastagent import FastAgent
from fast_agent.mcp.common import SEP
from fast_agent.skills import SKILLS_DEFAULT

from pallas_gateway.calls.tool_names import real_name
from pallas_gateway.config.problems import did_you_mean
from pallas_gateway.errors import AgentStartError
from pallas_gateway.runtime.failures import start_reason
from pallas_gateway.runtime.loading.agent_choice import served_agent
from pallas_gateway.runtime.settings.hosting import declare_peers, settings_of
from pallas_gateway.runtime.settings.model_names import (
    DEFAULT,
    default_model,
    in_settings,
    why_default_unusable,
    why_unusable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from fast_agent.agents.agent_types import AgentConfig
    from fast_agent.config import MCPServerSettings, Settings

    from pallas_gateway.runtime.protocols import AgentSpec, Declared

type Place = tuple[str, str]
"""A key of the agent in `agents.yaml`, and its problem."""

_NO_MODEL = "no model is configured; set it here, or `default_model` in fastagent.config.yaml"


def make(spec: AgentSpec, declared: Declared, config_file: Path | None) -> FastAgent:
    """Make the agent of a declaration, with fast-agent's settings of `config_file`, else of the working directory.

    It blocks: it reads files, and fetches the URLs of `{{url:…}}` in an instruction.

    Raises:
        AgentStartError: `bad_declaration` with all problems as `places`, or `start_failed` for bad settings.
    """
    try:
        fast = FastAgent(spec.name, config_path=str(config_file) if config_file else None, parse_cli_args=False)
    except (Exception, SystemExit) as error:  # fast-agent exits if the file is not YAML
        raise AgentStartError(f"agent '{spec.name}' failed to start: {start_reason(error)}") from error
    settings = settings_of(fast)
    declare_peers(settings, spec.peer_servers)
    if declared.card is not None:
        wrong = list(_of_card(fast, declared.card, settings, spec))
    else:
        wrong = list(_of_instruction(fast, declared, settings, spec))
    wrong += missing_files(spec)
    uses_default = any(not data["config"].model for data in fast.agents.values())
    why = why_default_unusable(settings) if uses_default else None
    of_settings = [] if why is None else [(DEFAULT, why)]
    if wrong or of_settings:
        message = "; ".join([*(what for _, what in wrong), *map(in_settings, of_settings)])
        raise AgentStartError(message, reason="bad_declaration", places=wrong, settings=of_settings)
    return fast


def files_of(declared: Declared) -> list[Path]:
    """The files that the declaration names, existing or not, and the folder if it names a folder of cards."""
    if declared.instruction_file is not None:
        return [declared.instruction_file]
    if declared.card is None:
        return []
    return [declared.card, *(path for path in declared.card.glob("*") if is_agent_card_path(path))]


def missing_files(spec: AgentSpec) -> list[Place]:
    """Return the problems of the files that the agent watches."""
    return [("watch", f"no file to watch: {path}") for path in spec.watch if not path.is_file()]


def tool_filters(declared: Declared) -> dict[str, list[str]]:
    """The allowed tools as fast-agent's filters: patterns by the part of a tool's name before the first `__`.

    fast-agent allows all tools of a server without an entry, so each server has one, which may be empty.
    """
    servers = (*declared.servers, *declared.agents)
    allowed = declared.tools if declared.tools is not None else [f"{server}{SEP}*" for server in declared.servers]
    of_agents = [real_name(agent, tool) for agent, tool in declared.agents.items()]
    filters: dict[str, list[str]] = {server.partition(SEP)[0]: [] for server in servers}
    for name in (*allowed, *of_agents):
        server, _, tool = name.partition(SEP)
        filters[server].append(tool)
    return filters


def _of_instruction(fast: FastAgent, declared: Declared, settings: Settings, spec: AgentSpec) -> Iterator[Place]:
    """Add the agent; yield its problems."""
    key = "instruction" if declared.instruction is not None else "instruction_file"
    try:
        _add_agent(fast, declared, spec.name)
    except Exception as error:  # noqa: BLE001  reading a file or fetching a `{{url:…}}` may raise anything
        yield key, _why_unreadable(error)
    for index, name in enumerate(declared.servers):
        if (why := _why_unknown(name, settings, spec)) is not None:
            yield f"servers.{index}", why
    for index, name in enumerate(declared.agents):
        if name not in _server_names(settings):
            yield f"agents.{index}", f"agent '{name}' has no port; with --agent it is reached at its own"
    if declared.model is None and default_model(settings) is None:
        yield "model", _NO_MODEL
    if declared.model is not None and (why := why_unusable(declared.model, settings)) is not None:
        yield "model", why


def _add_agent(fast: FastAgent, declared: Declared, name: str) -> None:
    async def served() -> None:
        """Required by the decorator, never called."""

    decorate = fast.agent(
        name=name,
        instruction=_instruction(declared),
        servers=[*dict.fromkeys((*declared.servers, *declared.agents))],
        tools=tool_filters(declared),
        skills=SKILLS_DEFAULT if declared.tools is None else None,  # skills bring tools of their own
        model=declared.model,
        human_input=declared.human_input,
        default=True,
    )
    decorate(served)


def _instruction(declared: Declared) -> str:
    if declared.instruction_file is None:
        return declared.instruction or ""
    text = declared.instruction_file.read_text(encoding="utf-8-sig").strip()
    if not text:
        raise ValueError("the file is empty")
    return text


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"no such file: {error.filename}"
    if isinstance(error, UnicodeDecodeError):
        return "the file is not UTF-8 text; save it as UTF-8"
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot be read: {error.strerror}: {error.filename}"
    return str(error) if type(error) is ValueError else start_reason(error)


def _of_card(fast: FastAgent, card: Path, settings: Settings, spec: AgentSpec) -> Iterator[Place]:
    """Add the agents of the card or cards; yield their problems."""
    unreadable = [("card", why) for why in read_card(fast, card, settings)]
    yield from unreadable
    if fast.agents or not unreadable:
        yield from _why_none_is_served(fast, spec)
    for name, data in fast.agents.items():
        config = data["config"]
        wrong = [_why_unknown(server, settings, spec) for server in config.servers]
        wrong.append(why_unusable(config.model, settings) if config.model else None)
        yield from (("card", f"agent '{name}': {why}") for why in wrong if why is not None)


def _why_none_is_served(fast: FastAgent, spec: AgentSpec) -> Sequence[Place]:
    try:
        served_agent(fast, spec)
    except AgentStartError as error:
        return error.places
    return ()


def _why_unknown(server: str, settings: Settings, spec: AgentSpec) -> str | None:
    known = _server_names(settings)
    if server in known:
        return None
    if server in spec.peers.values():
        return f"no server '{server}'; to call the agent of that name, list it under agents"
    return f"no server '{server}' under mcp.servers of fastagent.config.yaml{did_you_mean(server, known)}"


def _server_names(settings: Settings) -> Iterable[str]:
    return settings.mcp.servers if settings.mcp else ()


def read_card(fast: FastAgent, card: Path, settings: Settings) -> Iterator[str]:
    """Add the agents of a card, or of all cards in a folder, to `fast`, and their servers to `settings`.

    Yields problems of the cards, but not of the servers and models that they name.
    """
    if not card.exists():
        yield f"no such file or folder: {card}"
        return
    try:
        fast.load_agents(card)
    except Exception as error:  # noqa: BLE001  cards and the files that they name may raise anything
        yield start_reason(error)
        return
    for data in fast.agents.values():
        yield from _declare_servers(data["config"], settings)


def _declare_servers(config: AgentConfig, settings: Settings) -> Iterator[str]:
    """Add the servers that a card declares itself (`mcp_connect`) to those of the project.

    fast-agent would make them when the agent starts, under generated names: without limits, health checks and metrics,
    and with a login in the browser after a 401. Connectors of a provider are left to fast-agent.
    """
    mcp = settings.mcp = settings.mcp or MCPSettings()
    defaults = mcp.defaults.model_dump()
    own = [entry for entry in config.mcp_connect if entry.connector_id is None]
    config.mcp_connect = [entry for entry in config.mcp_connect if entry.connector_id is not None]
    for index, entry in enumerate(own):
        try:
            server = entry.materialize(source_path=f"mcp_connect[{index}]", defaults=defaults)
        except Exception as error:  # noqa: BLE001  reported like other problems of a card
            yield f"agent '{config.name}': mcp_connect: {start_reason(error)}"
            continue
        name = server.name or f"server-{index + 1}"
        if _settings(mcp.servers.setdefault(name, server)) != _settings(server):
            yield f"agent '{config.name}': mcp_connect: there is another server '{name}'; give this one another name"
        config.servers = [*dict.fromkeys((*config.servers, name))]


def _settings(server: MCPServerSettings) -> dict[str, Any]:
    return server.model_dump(exclude={"name"})
