"""What each command of `pallas-gateway agents` does; `command.py` declares them and their options."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import typer

from pallas_gateway.client.agents import editing
from pallas_gateway.client.agents.agents_api import DATABASE, PATH, AgentsClient, DefinedAgent, outcome
from pallas_gateway.client.agents.applying import NOTHING, make, ordered, planned
from pallas_gateway.client.agents.definitions import definitions_of, is_wanted, show_difference
from pallas_gateway.client.arguments import UsageError, message_text
from pallas_gateway.client.gateway_api import ApiRefusedError, request
from pallas_gateway.client.gateway_client import NOTHING_SHOWN, RemoteAgent, fetch_agents, fetch_readiness
from pallas_gateway.client.output import problem, result, shown, table
from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.config.yaml.definitions import left_out_lines
from pallas_gateway.config.yaml.editing import rendered
from pallas_gateway.errors import GatewayError

_STORED = ("source", "version", "owner")


@dataclass(frozen=True, slots=True)
class AgentActions:
    """The commands, at one gateway with one token."""

    url: str
    bearer: str | None

    def list_all(self, *, as_json: bool) -> None:
        """Print all agents; for those of the database also their versions and owners."""
        found, stored, lacks_stored = asyncio.run(_fetch(self.url, self.bearer))
        if lacks_stored:
            problem(f"The database of {self.url} cannot be used now, so agents of it may be missing in the list.")
        if as_json:
            rows = [{**one.document, "state": state, **stored.get(one.name, {})} for one, state, _ in found]
            result(json.dumps(rows, indent=2))
            return
        if not found:
            problem(NOTHING_SHOWN[0].upper() + NOTHING_SHOWN[1:])
            return
        more = _STORED if stored else ()
        lines = [
            (
                one.name,
                state,
                *(shown(stored.get(one.name, {}).get(key, "")) for key in more),
                one.title,
                one.model,
                one.url,
                one.description,
            )
            for one, state, _ in found
        ]
        table("AGENT", "STATE", *map(str.upper, more), "TITLE", "MODEL", "URL", "DESCRIPTION", rows=lines)
        if reasons := [f"{agent.name}: {reason}" for agent, _, reason in found if reason]:
            result("\n".join(["", *reasons]))

    def create(
        self, name: str, given: Mapping[str, Any], instruction: str | None, copy_of: str | None, *, dry_run: bool
    ) -> None:
        """Make one agent, of an instruction or as a copy; `given` are other keys of its definition."""
        definition = dict(given)
        if instruction is not None:
            definition["instruction"] = message_text(instruction, has_images=False)
        try:
            document = self._api.create(name, definition, copy_of=copy_of, dry_run=dry_run)
        except ApiRefusedError as error:
            if not error.problems:
                raise
            raise ConfigurationError(Problem("", None, path, message) for path, message in error.problems) from error
        if dry_run:
            problem(f"{NOTHING}: --dry-run")
        else:
            result(outcome(f"added {name}", document))

    def create_from(self, file: str, *, dry_run: bool) -> None:
        wanted, api = definitions_of(file), self._api
        changes = ordered(planned(api, wanted, new_only=True))
        for line in left_out_lines(wanted):
            problem(line)
        if dry_run:
            for one in changes:
                one.show()
            problem(f"{NOTHING}: --dry-run")
            return
        make(api, wanted, changes)

    def get(self, name: str, output: Literal["yaml", "json"], version: int | None) -> None:
        agent = self._api.get(name)
        if version is not None:
            definition = self._api.version(name, version)
            agent = DefinedAgent(agent.name, agent.etag, definition, {**agent.document, "version": version})
        if output == "json":
            document = (
                agent.document if version is None else {"name": agent.name, "version": version, **agent.definition}
            )
            result(json.dumps(document, indent=2, ensure_ascii=False))
            return
        facts = agent.facts if version is None else f"Agent '{agent.name}', {agent.version}"
        result(f"# {facts}\n{agent.text}".removesuffix("\n"))

    def edit(self, name: str) -> None:
        editing.edit(self._api, name)

    def give(self, name: str, owner: list[str]) -> None:
        """Hand an agent over to a principal, or to the issuer and subject of tokens."""
        if len(owner) not in (1, 2):
            raise UsageError("OWNER is key:NAME, anonymous, or ISSUER SUBJECT.")
        agent = self._api.get(name)
        self._api.give(agent, owner[0] if len(owner) == 1 else {"issuer": owner[0], "subject": owner[1]})
        result(f"gave {agent.name} to {' '.join(owner)}; without a grant for it you may no longer see it")

    def delete(self, name: str, *, threads: bool, yes: bool) -> None:
        agent = self._api.get(name)
        with_threads = " and all threads with it" if threads else ""
        question = f"Delete {agent.name} ({agent.version}){with_threads} at {self.url}?"
        if not yes and not is_wanted(question, can_ask=True, nothing="nothing was deleted", yes_does="deletes it"):
            raise typer.Exit(1)
        self._api.delete(agent, threads=threads)
        result(f"deleted {agent.name}{with_threads}")

    def versions(self, name: str, *, as_json: bool) -> None:
        found = self._api.versions(self._api.get(name).name)
        if as_json:
            result(json.dumps({"versions": found}, indent=2))
            return
        rows = [tuple(shown(one.get(key)) for key in ("version", "editor", "updatedAt")) for one in found]
        table("VERSION", "EDITOR", "UPDATED (UTC)", rows=rows)

    def restore(self, name: str, number: int) -> None:
        agent = self._api.get(name)
        earlier = self._api.version(name, number)
        document = self._api.restore(agent, number)
        show_difference(rendered({agent.name: dict(agent.definition)}), rendered({agent.name: earlier}), agent.name)
        result(outcome(f"restored version {number} of {agent.name}", document))

    @property
    def _api(self) -> AgentsClient:
        return AgentsClient(self.url, self.bearer)


async def _fetch(
    url: str, bearer: str | None
) -> tuple[list[tuple[RemoteAgent, str, str]], Mapping[str, Mapping[str, Any]], bool]:
    """Return the agents of the registry with state and reason, those of the database, and if some may be missing."""
    agents = await fetch_agents(url, bearer)
    stored, is_incomplete = await _stored(url, bearer)
    readiness = await fetch_readiness(url, bearer)
    found = [(agent, *readiness.state_of(agent)) for agent in agents]
    return found, stored, is_incomplete or readiness.lacks_stored_agents


async def _stored(url: str, bearer: str | None) -> tuple[Mapping[str, Mapping[str, Any]], bool]:
    try:
        document = await request("GET", url, PATH, bearer)
        rows = [one for one in document["agents"] if one.get("source") == DATABASE]
        return {one["name"]: {key: one.get(key) for key in _STORED} for one in rows}, bool(document.get("incomplete"))
    except (GatewayError, LookupError, TypeError, AttributeError):  # no database, or an older gateway
        return {}, False
