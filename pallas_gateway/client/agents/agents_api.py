"""Requests to `/api/v1/agents` of a running gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from pallas_gateway.client.agents.definitions import body_of, definition_in
from pallas_gateway.client.arguments import CommandError, UsageError
from pallas_gateway.client.gateway_api import ApiRefusedError, Response, ask, reading
from pallas_gateway.client.gateway_client import fetch_readiness
from pallas_gateway.client.output import shown
from pallas_gateway.config.yaml.editing import rendered
from pallas_gateway.errors import GatewayError

PATH = "/api/v1/agents"
DATABASE = "database"
CONFLICT = "version_conflict"
NOT_FOUND = "not_found"
_LONGEST_SECONDS = 40.0
"""Longer than a gateway waits for a new version to start, which is 30 seconds."""


class NotRunningError(GatewayError):
    """A version is stored, and does not run; the exit code is 1."""

    reason = "not_running"


@dataclass(frozen=True, slots=True)
class DefinedAgent:
    """An agent of a gateway with its definition, as far as the caller may see it.

    Attributes:
        name: its name.
        etag: what a change of this version names.
        definition: with the keys of `agents.yaml`; without `instruction` if the caller may not read it.
        document: what the API shows.
    """

    name: str
    etag: str
    definition: Mapping[str, Any]
    document: Mapping[str, Any]

    @property
    def is_stored(self) -> bool:
        """True for an agent of the database, false for one of agents.yaml."""
        return self.document.get("source") == DATABASE

    @property
    def is_whole(self) -> bool:
        """True if the definition is complete."""
        return "instruction" in self.definition

    @property
    def text(self) -> str:
        """The definition as YAML.

        Raises:
            UsageError: there is none that the caller may read.
        """
        if not self.is_whole:
            why = "you may not read its instruction" if self.is_stored else "it is made of files of the gateway"
            raise UsageError(f"Agent '{self.name}' has no definition to show: {why}.")
        return rendered({self.name: dict(self.definition)})

    @property
    def version(self) -> str:
        """Its number for people."""
        return f"version {shown(self.document.get('version'))}"

    @property
    def facts(self) -> str:
        """Version, owner and state in one line."""
        document = self.document
        if not self.is_stored:
            return f"Agent '{self.name}' of agents.yaml, {shown(document.get('state'))}"
        owner, state, running = (shown(document.get(key)) for key in ("owner", "state", "runningVersion"))
        if document.get("runningVersion") is None:
            in_use = f"; no version runs: {shown(document.get('reason') or state)}"
        else:
            in_use = "" if document["runningVersion"] == document.get("version") else f", version {running} runs"
        return f"Agent '{self.name}', {self.version}, owner {owner}, {state}{in_use}"


@dataclass(frozen=True, slots=True)
class AgentsClient:
    """The agents of one gateway. Methods raise `GatewayError` if it does not answer, or refuses."""

    url: str
    bearer: str | None = field(default=None, repr=False)

    def stored(self) -> list[str]:
        """Return the names of all agents of the database that the caller may see.

        Raises:
            CommandError: the gateway cannot list them all now.
        """
        document = self._ask("GET", "").document
        # The list comes first: what was away before it, and is back, has not made it incomplete afterwards. The list
        # of a gateway that has read the database before is not marked.
        is_away = asyncio.run(fetch_readiness(self.url, self.bearer)).lacks_stored_agents
        with reading(self.url, PATH):
            if is_away or document.get("incomplete") is True:
                raise CommandError(
                    f"The database of {self.url} cannot be used now, so agents may be missing. Try again later."
                )
            return [str(one["name"]) for one in document["agents"] if one.get("source") == DATABASE]

    def get(self, name: str) -> DefinedAgent:
        """Return one agent.

        Raises:
            UsageError: there is none of that name.
        """
        found = self.find(name)
        if found is None:
            raise UsageError(f"{self.url} has no agent '{name}' that you may see; `agents` lists them.")
        return found

    def find(self, name: str) -> DefinedAgent | None:
        """Return one agent; None if there is none, or the caller may not see it."""
        try:
            response = self._ask("GET", f"/{_quoted(name)}")
        except ApiRefusedError as error:
            if error.error != NOT_FOUND:
                raise
            return None
        document = response.document
        with reading(self.url, PATH):
            # The document of a stored agent shows titles and descriptions that it does not define.
            is_stored = document.get("source") == DATABASE
            definition = self.version(name, int(document["version"])) if is_stored else definition_in(document)
            return DefinedAgent(str(document.get("name", name)), response.etag or "*", definition, document)

    def versions(self, name: str) -> list[Mapping[str, Any]]:
        """Return the versions of an agent of the database, the newest first."""
        document = self._ask("GET", f"/{_quoted(name)}/versions").document
        with reading(self.url, PATH):
            return [{**one} for one in document["versions"]]

    def version(self, name: str, number: int) -> dict[str, Any]:
        """Return the definition of one version."""
        document = self._ask("GET", f"/{_quoted(name)}/versions/{number}").document
        with reading(self.url, PATH):
            return definition_in(document)

    def create(
        self, name: str, definition: Mapping[str, Any], *, copy_of: str | None = None, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Make an agent, also as a copy of another one with changes; `dry_run` only checks it."""
        source = {"copyOf": copy_of} if copy_of is not None else {}
        return self._changed("POST", "", {**body_of(definition), **source, "name": name}, dry_run=dry_run)

    def replace(
        self, agent: DefinedAgent, definition: Mapping[str, Any], *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Give an agent another definition, if it still has this version."""
        return self._changed("PUT", f"/{_quoted(agent.name)}", body_of(definition), etag=agent.etag, dry_run=dry_run)

    def delete(self, agent: DefinedAgent, *, threads: bool) -> None:
        """Delete an agent that still has this version, with `threads` also all threads with it."""
        query = "?threads=delete" if threads else ""
        self._ask("DELETE", f"/{_quoted(agent.name)}{query}", etag=agent.etag)

    def give(self, agent: DefinedAgent, owner: str | Mapping[str, str]) -> None:
        """Hand an agent that still has this version over to another owner."""
        self._ask("PATCH", f"/{_quoted(agent.name)}", body={"owner": owner}, etag=agent.etag)

    def restore(self, agent: DefinedAgent, number: int) -> Mapping[str, Any]:
        """Make a new version with the definition of an earlier one."""
        return self._changed("POST", f"/{_quoted(agent.name)}/versions/{number}/restore", {}, etag=agent.etag)

    def _changed(
        self, method: str, path: str, body: Any, *, etag: str | None = None, dry_run: bool = False
    ) -> Mapping[str, Any]:
        query = "?dry_run=true" if dry_run else "?wait=true"
        document = self._ask(method, f"{path}{query}", body=body, etag=etag).document
        with reading(self.url, PATH):
            return {**document}

    def _ask(self, method: str, path: str, *, body: Any = None, etag: str | None = None) -> Response:
        headers = {"If-Match": etag} if etag else {}
        place = f"{PATH}{path}"
        return asyncio.run(
            ask(method, self.url, place, self.bearer, body=body, headers=headers, seconds=_LONGEST_SECONDS)
        )


def outcome(did: str, document: Mapping[str, Any]) -> str:
    """Return what a change has done.

    Raises:
        NotRunningError: the new version is stored, and does not run.
    """
    version = f"version {shown(document.get('version'))}"
    if reason := document.get("reason"):
        name = shown(document.get("name"))
        why = str(reason).rstrip(".")
        raise NotRunningError(
            f"{did} ({version}), which is stored and does not run ({why}); `pallas-gateway agents edit {name}` changes "
            f"it, and `agents delete {name}` removes the agent."
        )
    return f"{did} ({version})"


def _quoted(name: str) -> str:
    if name in {"", ".", ".."}:  # a path would lose it
        raise UsageError(f"'{name}' is not the name of an agent.")
    return quote(name, safe="")
