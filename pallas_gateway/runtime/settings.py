"""fast-agent's settings made fit for a server: quiet, nothing on disk, no surprise LLM calls, no OAuth by itself."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from fast_agent.config import MCPServerAuthSettings, get_settings
from mcp_types import Implementation

from pallas_gateway import __version__
from pallas_gateway.runtime.ports import Downstream
from pallas_gateway.telemetry import traces

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fast_agent.config import MCPServerSettings, Settings
    from fast_agent.core.fastagent import FastAgent

_log = logging.getLogger("pallas.runtime")
_UNSET = re.compile(r"^\$\{[^}]*\}$")


def settings_for_hosting(fast: FastAgent, *, config_file: Path | None) -> Settings:
    """The settings `fast` will run with, tamed.

    Args:
        fast: read its configuration when its module was imported, from the working directory or its `config_path`.
        config_file: the project's `fastagent_config`; takes the place of the working directory's file.
    """
    settings = fast._settings
    if config_file is not None and fast.config_path is None:
        settings = get_settings(str(config_file))
        # These two are where FastAgent keeps its settings; it offers no way to change them after the import.
        fast._settings = settings
        fast.app._config_or_path = settings
    tame(settings)
    return settings


def tame(settings: Settings) -> None:
    """Switch off whatever writes, prints, or calls a model on its own."""
    settings.session_history = False
    settings.logger.type = "none"
    settings.logger.progress_display = False
    settings.logger.show_chat = False
    settings.logger.show_tools = False
    settings.compaction.auto = False
    _tame_tracing(settings)
    if "llm_retries" not in settings.model_fields_set:
        # The provider's client retries by itself; fast-agent's own retries wait 10 s and more, silently.
        settings.llm_retries = 0
    _forget_unset_placeholders(settings)


def _tame_tracing(settings: Settings) -> None:
    """fast-agent's own tracing says all of a call again, and by default with the words of it."""
    if settings.otel is None or not settings.otel.enabled:
        return
    if traces.are_on():
        settings.otel.enabled = False
        _log.info("the gateway traces calls, fast-agent's own tracing (`otel`) stays off")
    else:
        traces.keep_content_out()


def _forget_unset_placeholders(settings: Settings) -> None:
    """An unset `${KEY}` must read as "no key" and "the provider's own URL", not as those characters."""
    for provider in (getattr(settings, name, None) for name in type(settings).model_fields):
        for field in ("api_key", "base_url"):
            value = getattr(provider, field, None)
            if isinstance(value, str) and (not value.strip() or _UNSET.match(value.strip())):
                setattr(provider, field, None)


def prepare_servers(settings: Settings, peers: Mapping[str, tuple[str, str]]) -> dict[str, Downstream]:
    """Make every configured MCP server ready for per-call connections and return them as values.

    Args:
        settings: changed in place: peers' documented addresses become the gateway's own, OAuth is off unless asked for.
        peers: documented address of a hosted agent → (its name, where it really is).
    """
    if settings.mcp is None:
        return {}
    downstreams = {}
    for name, server in settings.mcp.servers.items():
        declared = settings.mcp.server_declarations.get(name)
        extra = (declared.model_extra if declared else None) or {}
        downstreams[name] = _prepare_server(name, server, peers, forwards=bool(extra.get("forward_inbound_auth")))
    return downstreams


def _prepare_server(
    name: str, server: MCPServerSettings, peers: Mapping[str, tuple[str, str]], *, forwards: bool
) -> Downstream:
    server.name = name  # CallAuth finds its downstream by this
    server.implementation = server.implementation or Implementation(name="pallas-gateway", version=__version__)
    auth = server.auth or MCPServerAuthSettings()
    forwards = forwards or auth.forward is not None
    if "oauth" not in auth.model_fields_set:
        auth.oauth = False  # else a 401 starts a browser login that nobody sees
    server.auth = auth
    peer, url = peers.get((server.url or "").rstrip("/"), (None, server.url))
    server.url = url
    return Downstream(name, url, dict(server.headers or {}), forwards, peer, server.transport)
