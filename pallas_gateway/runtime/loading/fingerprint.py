"""The sources of a started agent. They show whether another start would make the same agent.

Of fast-agent's settings only the parts that the agent uses count: a new server of one agent does not change another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pallas_gateway.config.loading.fastagent_file import settings_files
from pallas_gateway.file_stamps import have_changed, stamps
from pallas_gateway.runtime import fast_agent_api

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fast_agent.config import Settings

    from pallas_gateway.file_stamps import Files
    from pallas_gateway.runtime.protocols import AgentSpec

type Digests = Mapping[str, str]

_SERVER = "mcp.servers."


class SettingsDigests:
    """One digest for each part of fast-agent's current settings, which are read again only when a file has changed."""

    def __init__(self) -> None:
        self._read: dict[Path | None, tuple[Files, Digests]] = {}

    def of(self, config_file: Path | None, servers: Iterable[str]) -> Digests:
        """The digests of the parts that an agent with these servers uses.

        Raises:
            Exception: any that fast-agent raises for a file that it cannot use.
        """
        used = {f"{_SERVER}{name}" for name in servers}
        parts = self._all(config_file)
        return {key: digest for key, digest in parts.items() if key in used or not key.startswith(_SERVER)}

    def _all(self, config_file: Path | None) -> Digests:
        now = stamps(settings_files(config_file))
        known = self._read.get(config_file)
        if known is None or known[0] != now:
            known = self._read[config_file] = (now, _digests(fast_agent_api.read_settings(config_file)))
        return known[1]


@dataclass(frozen=True, slots=True)
class AgentFingerprint:
    """The sources of one start: the spec, the files of the module, and digests of the settings, which hold secrets.

    `addresses` are the configured addresses of the agent's servers; only peers with one of these addresses count.
    """

    spec: AgentSpec
    files: Files
    config_file: Path | None
    servers: frozenset[str]
    addresses: frozenset[str]
    settings: Digests
    settings_now: SettingsDigests = field(compare=False)

    def is_still(self, spec: AgentSpec) -> bool:
        """True if nothing has changed since; settings that cannot be read count as changed."""
        if have_changed(self.files) or self._what_matters(spec) != self._what_matters(self.spec):
            return False
        try:
            return self.settings == self.settings_now.of(self.config_file, self.servers)
        except Exception:  # noqa: BLE001  the next start reports the fault
            return False

    def _what_matters(self, spec: AgentSpec) -> AgentSpec:
        peers = {address: peer for address, peer in spec.peers.items() if address in self.addresses}
        servers = {name: url for name, url in spec.peer_servers.items() if name in self.servers}
        return replace(spec, peers=peers, peer_servers=servers)


def _digests(settings: Settings) -> Digests:
    parts: dict[str, Any] = settings.model_dump(mode="json", warnings=False)
    mcp = parts.pop("mcp", None) or {}
    declared = settings.mcp.server_declarations if settings.mcp else {}
    for name, server in (mcp.pop("servers", None) or {}).items():
        extra = declared[name].model_extra if name in declared else None
        parts[f"{_SERVER}{name}"] = (server, extra)
    mcp.pop("server_declarations", None)
    parts["mcp"] = mcp
    texts = {key: json.dumps(part, sort_keys=True, default=str) for key, part in parts.items()}
    return {key: hashlib.sha256(text.encode()).hexdigest() for key, text in texts.items()}
