"""fast-agent's settings for a server: no output, nothing on disk, no LLM calls and OAuth logins of its own."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fast_agent.config import MCPServerAuthSettings, MCPServerSettings, MCPSettings
from mcp.client.stdio import get_default_environment
from mcp_types import Implementation
from pydantic import ValidationError

from pallas_gateway import __version__
from pallas_gateway.changes.change import Fault
from pallas_gateway.config.loading.secret_values import secret_values, secrets_of_environment
from pallas_gateway.config.model.downstreams import (
    Forwarding,
    ProcessSettings,
    has_own_authorization,
    why_never_exchanged,
    why_without_processes,
)
from pallas_gateway.config.model.section import Section
from pallas_gateway.config.yaml.expansion import ExpandedText
from pallas_gateway.errors import AgentStartError
from pallas_gateway.identity.secret import Secret
from pallas_gateway.identity.token_exchange import TokenExchange
from pallas_gateway.runtime import fast_agent_api
from pallas_gateway.runtime.failures import what_is_invalid
from pallas_gateway.runtime.protocols import Downstream, StdioProgram
from pallas_gateway.runtime.settings import programmatic_tools, provider_addresses
from pallas_gateway.telemetry import redaction, traces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fast_agent.config import Settings
    from fast_agent.core.fastagent import FastAgent

    from pallas_gateway.config.model.downstreams import TokenExchangeSettings

_log = logging.getLogger("pallas.runtime")
FAULTS = (
    Fault(
        title="Images for xAI get a public address",
        text="""\
Symptom: with a section `xai` in fastagent.config.yaml, each call uploads its images to xAI, which serves them to
all who have the URL for 24 h.

Repair: `xai.image_upload_mode` is `inline` unless the project sets it.
""",
        library="fast_agent",
        gone_when="`inline` is fast-agent's default",
        test="tests/e2e/test_provider_messages.py",
    ),
)
_UNSET = re.compile(r"^\$\{[^}]*\}$")


def settings_of(fast: FastAgent) -> Settings:
    """The settings that `fast` read when it was constructed."""
    return fast._settings


def settings_for_hosting(fast: FastAgent, *, config_file: Path | None) -> Settings:
    """Prepare the settings that `fast` will run with.

    Args:
        fast: has read its configuration at the import, from the working directory or its `config_path`.
        config_file: the project's `fastagent_config`; replaces the file of the working directory.
    """
    settings = fast._settings
    if config_file is not None and fast.config_path is None:
        settings = fast_agent_api.use_settings(config_file)
        # FastAgent keeps its settings in these two attributes and has no way to change them after the import.
        fast._settings = settings
        fast.app._config_or_path = settings
    tame(settings)
    _hide_secrets(fast, settings)
    return settings


def _hide_secrets(fast: FastAgent, settings: Settings) -> None:
    """Hide secrets that the command line does not know: of a module's own file, of decorators and of variables."""
    keys = (data["config"].api_key for data in fast.agents.values())
    redaction.configured.add(secret_values(settings.model_dump(warnings=False)))
    redaction.configured.add({*secrets_of_environment(os.environ), *filter(None, keys)})


def tame(settings: Settings) -> None:
    """Switch off everything that writes, prints, or calls a model on its own."""
    settings.session_history = False
    settings.logger.type = "none"
    settings.logger.progress_display = False
    settings.logger.show_chat = False
    settings.logger.show_tools = False
    settings.compaction.auto = False
    programmatic_tools.switch_off(settings)
    if settings.mcp is not None:
        settings.mcp.diagnostics.enabled = False  # would parse every message again to show it in a terminal
    _tame_tracing(settings)
    if settings.xai is not None and "image_upload_mode" not in settings.xai.model_fields_set:
        settings.xai.image_upload_mode = "inline"  # otherwise xAI gives each image of a caller a public URL
    if "llm_retries" not in settings.model_fields_set:
        # The provider's client repeats requests; fast-agent's retries wait 10 s and more without a message.
        settings.llm_retries = 0
    forget_unset_placeholders(settings)


def _tame_tracing(settings: Settings) -> None:
    """Switch off fast-agent's tracing: it would repeat every span of a call, by default with its content."""
    if settings.otel is None or not settings.otel.enabled:
        return
    if traces.are_on():
        settings.otel.enabled = False
        # The gateway traces calls; fast-agent's own tracing is off.
        _log.info("fast-agent tracing off")
    else:
        traces.keep_content_out()


def forget_unset_placeholders(settings: Settings) -> None:
    """Read an unset `${KEY}` as no key or the provider's default URL, not as these characters.

    The same holds for an empty variable, which the providers' clients would use as the address.
    """
    for variable in provider_addresses.VARIABLES:
        if not os.environ.get(variable, "set").strip():
            del os.environ[variable]
    for provider in (getattr(settings, name, None) for name in type(settings).model_fields):
        for field in ("api_key", "base_url"):
            value = getattr(provider, field, None)
            if isinstance(value, str) and (not value.strip() or _UNSET.match(value.strip())):
                setattr(provider, field, None)
    provider_addresses.settle(settings)


def declare_peers(settings: Settings, servers: Mapping[str, str]) -> None:
    """Add agents of this gateway as servers, by name and URL, except where the project declares such a server."""
    if not servers:
        return
    if settings.mcp is None:
        settings.mcp = MCPSettings()
    for name, url in servers.items():
        settings.mcp.servers.setdefault(name, MCPServerSettings(name=name, transport="http", url=url))


def prepare_servers(settings: Settings, peers: Mapping[str, str]) -> dict[str, Downstream]:
    """Prepare every configured MCP server for connections of calls, and return them as values.

    Args:
        settings: changed in place: OAuth is off unless configured.
        peers: names of hosted agents by their addresses.

    Raises:
        AgentStartError: `start_failed`; the settings of a server for the caller's token are invalid.
    """
    if settings.mcp is None:
        return {}
    downstreams = {}
    for name, server in settings.mcp.servers.items():
        if server.management == "provider":
            continue  # the model's provider connects to it
        declared = settings.mcp.server_declarations.get(name)
        extra = (declared.model_extra if declared else None) or {}
        downstream = _prepare_server(name, server, peers, _forwarding(name, server, extra))
        downstreams[name] = replace(downstream, program=_program(server, _processes(name, server, extra)))
    return downstreams


def _forwarding(name: str, server: MCPServerSettings, extra: Mapping[str, Any]) -> Forwarding:
    """The gateway's keys of a server. The configuration's are checked already, those of a module's own file are not.

    Raises:
        AgentStartError: `start_failed`; an invalid key, with which a token might be sent to the wrong server.
    """
    forwarding = _own_keys(Forwarding, name, extra)
    why = why_never_exchanged(
        forwarding,
        url=server.url,
        own_authorization=has_own_authorization(server.headers, server.url),
        sent_by_fast_agent=_is_sent_by_fast_agent(server),
    )
    if why is not None:
        raise AgentStartError(f"server '{name}': token_exchange {why}")
    return forwarding


def _processes(name: str, server: MCPServerSettings, extra: Mapping[str, Any]) -> ProcessSettings:
    """The gateway's keys of a stdio server; see `_forwarding`."""
    processes = _own_keys(ProcessSettings, name, extra)
    if (why := why_without_processes(processes, server.transport)) is not None:
        raise AgentStartError(f"server '{name}': {why}")
    return processes


def _own_keys[Keys: Section](section: type[Keys], name: str, extra: Mapping[str, Any]) -> Keys:
    keys = {key: ExpandedText(value) if isinstance(value, str) else value for key, value in extra.items()}
    try:
        return section.model_validate(keys)
    except ValidationError as error:
        raise AgentStartError(f"server '{name}': {what_is_invalid(error)}") from None


def _is_sent_by_fast_agent(server: MCPServerSettings) -> bool:
    return server.auth is not None and server.auth.forward is not None


def _prepare_server(
    name: str, server: MCPServerSettings, peers: Mapping[str, str], forwarding: Forwarding
) -> Downstream:
    server.name = name  # CallAuth finds its downstream by this name
    server.implementation = server.implementation or Implementation(name="pallas-gateway", version=__version__)
    marked = bool(forwarding.forward_inbound_auth) or _is_sent_by_fast_agent(server)
    auth = server.auth or MCPServerAuthSettings()
    if "oauth" not in auth.model_fields_set:
        auth.oauth = False  # otherwise a 401 starts a login in a browser
    server.auth = auth
    documented = server.url or ""
    peer = peers.get(documented.rstrip("/"))
    if peer is not None:
        auth.forward = None  # fast-agent would open a connection for each request that forwards a token
    return Downstream(
        name,
        server.url,
        headers=dict(server.headers or {}),
        forwards_bearer=marked and not has_own_authorization(server.headers, documented),
        peer=peer,
        read_timeout_seconds=server.read_timeout_seconds,
        transport=server.transport,
        token_exchange=_token_exchange(name, documented, forwarding.token_exchange),
        listing_seconds=forwarding.listing_seconds,
    )


def _program(server: MCPServerSettings, processes: ProcessSettings) -> StdioProgram | None:
    """The program of a stdio server, with its environment in a call."""
    if server.transport != "stdio" or not server.command:
        return None
    environ = {**get_default_environment(), **(server.env or {})}
    return StdioProgram(server.command, tuple(server.args or ()), environ, server.cwd, processes)


def _token_exchange(name: str, url: str, settings: TokenExchangeSettings | None) -> TokenExchange | None:
    """The exchange as a value. Its resource is the configured address, which the authorization server knows."""
    if settings is None:
        return None
    return TokenExchange(
        server=name,
        token_endpoint=settings.token_endpoint,
        resource=settings.resource or _without_secrets(url),
        audience=settings.audience,
        scope=settings.scope,
        client_id=settings.client_id,
        client_secret=Secret(settings.client_secret) if settings.client_secret else None,
        client_auth=settings.client_auth,
    )


def _without_secrets(url: str) -> str:
    """The URL as a resource name (RFC 8707 section 2), without user and query, which may be credentials."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
