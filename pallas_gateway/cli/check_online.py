"""Checks that need a network: downstreams answer, tool filters match, keys are accepted, models exist."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from fnmatch import fnmatch, fnmatchcase
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

from pallas_gateway.calls.tool_names import renamed_tools
from pallas_gateway.client.output import without_controls
from pallas_gateway.config.loading.cross_checks import TOOL_SEPARATOR
from pallas_gateway.config.loading.tool_policies import policies
from pallas_gateway.config.problems import Problem, did_you_mean
from pallas_gateway.core.health import preflight
from pallas_gateway.core.health.probe import probe
from pallas_gateway.limits import HealthLimits, RuntimeLimits
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.redaction import end_of, quoted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence

    import httpx

    from pallas_gateway.cli.check_project import Findings
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.health.verdict import LlmResult
    from pallas_gateway.runtime.protocols import Downstream, LlmProvider
    from pallas_gateway.runtime.started_agent import StartedAgent

_LIMITS = HealthLimits()
_MOST_STDERR = 64 * 1024
"""Bytes of a program's stderr that are read,"""
_SHOWN_STDERR, _SHOWN_LINES = 2000, 10
"""and the characters and lines of it that are shown."""
_END_SECONDS = 3.5
"""Time limit for ending the programs and sessions that probes opened."""


class Online:
    """Asks the downstreams and providers of started agents, each server and each model once.

    Attributes:
        default: the provider of the project's default model.
    """

    default: LlmProvider | None = None

    def __init__(
        self,
        configuration: Configuration,
        found: Findings,
        *,
        client: httpx.AsyncClient,
        tasks: TaskOwner,
        start_seconds: float,
    ) -> None:
        """Take `start_seconds`, the time for which a call waits for a process of a stdio server."""
        self._configuration = configuration
        self._found = found
        self._client = client
        self._tasks = tasks
        self._limits_of_programs = replace(_LIMITS, probe_seconds=start_seconds)
        self._servers: list[tuple[Downstream, bool]] = []
        self._asked: list[LlmProvider] = []

    async def check(self, name: str, started: StartedAgent) -> None:
        """Ask the downstreams and providers of one started agent."""
        remote = [one for one in started.downstreams if one.peer is None]  # peers are checked as agents
        async with asyncio.TaskGroup() as group:
            for downstream in remote:
                group.create_task(self._check_downstream(name, started, downstream))
            for path, provider in self._providers(name, started):
                group.create_task(self._check_provider(path, provider))

    async def check_unused(self, providers: tuple[LlmProvider, ...]) -> None:
        """Ask providers that have a key and that no agent uses; their problems are warnings."""
        unused = [one for one in providers if one.model is None and one.name not in {each.name for each in self._asked}]
        for result in await asyncio.gather(
            *(preflight.ask(one, self._client, seconds=_LIMITS.preflight_seconds) for one in unused)
        ):
            if result.status == "failed":
                self._found.warn(self._configuration.fastagent.problem(result.provider, _format(result)))

    async def _check_downstream(self, name: str, started: StartedAgent, downstream: Downstream) -> None:
        known = next((answers for server, answers in self._servers if server == downstream), None)
        is_new = known is None
        if known is None:
            limits = _LIMITS if downstream.program is None else self._limits_of_programs
            with TemporaryFile() as stderr:
                result = await probe(downstream, self._client, self._tasks, limits, stderr=stderr.fileno())
                printed = _last_lines(stderr) if result.error is not None else ""
            known = result.error is None
            self._servers.append((downstream, known))
            if result.error is not None:
                message = f"does not answer: {result.error}{printed}"
                self._found.problems.append(self._of_server(name, downstream.name, message))
        settings = self._configuration.deployment.agents[name]
        entries = policies(settings.approve, settings.tool_limits)
        entries = [one for one in entries if one[1].startswith(f"{downstream.name}/")]
        if known and (is_new or entries or started.tool_filters.get(downstream.name)):
            await self._check_tools(name, started, downstream, entries, is_new=is_new)

    async def _check_tools(
        self,
        name: str,
        started: StartedAgent,
        downstream: Downstream,
        entries: Sequence[tuple[str, str]],
        *,
        is_new: bool,
    ) -> None:
        """Warn of tools that are left out or renamed, and of filters, `approve` and `tool_limits` that match none."""
        server, patterns = downstream.name, started.tool_filters.get(downstream.name, ())
        if downstream.forwards_bearer and not (patterns or entries):
            return
        if downstream.forwards_bearer:
            message = f"the tools of '{server}' are listed for callers with a token only, so filters are not checked"
            self._found.warn(self._of_server(name, server, message))
            return
        try:
            tools, faults = await started.tools_of(server)
        except ConnectionError as error:
            problem = self._of_server(name, server, f"its tools cannot be listed: {error}")
            if problem not in self._found.problems:  # of another agent
                self._found.problems.append(problem)
            return
        if is_new:
            for message in (*faults, *_renamed(server, tools, [one.name for one in started.downstreams])):
                self._found.warn(self._of_server(name, server, message))
        self._warn_of_unmatched(name, server, tools, patterns, entries)

    def _warn_of_unmatched(
        self,
        name: str,
        server: str,
        tools: Collection[str],
        patterns: Iterable[str],
        entries: Iterable[tuple[str, str]],
    ) -> None:
        for pattern in patterns:
            if not any(fnmatch(tool, pattern) for tool in tools):
                message = (
                    f"'{server}{TOOL_SEPARATOR}{pattern}' matches no tool of the server{did_you_mean(pattern, tools)}"
                )
                self._found.warn(self._of_filter(name, f"{server}{TOOL_SEPARATOR}{pattern}", message))
        named = [f"{server}/{tool}" for tool in sorted(tools)]
        for place, pattern in entries:
            if not any(fnmatchcase(tool, pattern) for tool in named):
                message = f"'{pattern}' matches no tool of the server{did_you_mean(pattern, named)}"
                self._found.warn(self._of_agent(name, place, message))

    def _providers(self, name: str, started: StartedAgent) -> Iterator[tuple[Problem, LlmProvider]]:
        """Yield the providers of the agent's models, then of those that callers may choose, each with its place."""
        settings = self._configuration.deployment.agents[name]
        for provider in started.providers:
            yield self._place_of_model(name, provider), provider
        for index, spec in enumerate(settings.models):
            for provider in started.providers_named(spec):
                yield self._of_agent(name, f"models.{index}", ""), provider

    def _place_of_model(self, name: str, provider: LlmProvider) -> Problem:
        fastagent, settings = self._configuration.fastagent, self._configuration.deployment.agents[name]
        if not settings.model and fastagent.default_model is not None and provider == self.default:
            return fastagent.problem("default_model", "")
        return self._of_agent(name, "model" if settings.model else settings.makings[0], "")

    async def _check_provider(self, place: Problem, provider: LlmProvider) -> None:
        if provider in self._asked:
            return
        self._asked.append(provider)
        result = await preflight.ask(provider, self._client, seconds=_LIMITS.preflight_seconds)
        problem = Problem(place.file, place.line, place.path, _format(result))
        if result.status == "failed":
            self._found.problems.append(problem)
        elif result.status == "not checked" or result.warning is not None:
            self._found.warn(problem)

    def _of_server(self, agent: str, server: str, message: str) -> Problem:
        """Place a message at the server's declaration, or at the agent if a card or the module's file has it."""
        if server in self._configuration.fastagent.servers:
            return self._configuration.fastagent.problem(f"mcp.servers.{server}", message)
        return self._of_agent(agent, self._made_of(agent), f"server '{server}' {message}")

    def _of_filter(self, agent: str, tool: str, message: str) -> Problem:
        tools = self._configuration.deployment.agents[agent].tools or ()
        return self._of_agent(agent, f"tools.{tools.index(tool)}" if tool in tools else self._made_of(agent), message)

    def _of_agent(self, agent: str, key: str, message: str) -> Problem:
        return self._configuration.problem(f"agents.{agent}.{key}", message)

    def _made_of(self, agent: str) -> str:
        return self._configuration.deployment.agents[agent].makings[0]


@asynccontextmanager
async def online_checks(
    configuration: Configuration, found: Findings, limits: RuntimeLimits | None
) -> AsyncIterator[Online]:
    """Yield an `Online` with an HTTP client; programs and sessions of its probes are ended afterwards."""
    from pallas_gateway.core.gateway import http_client  # noqa: PLC0415  as in `serve`

    async with http_client() as client, TaskOwner(close_seconds=_END_SECONDS) as tasks:
        start_seconds = (limits or RuntimeLimits()).programs.start_seconds
        yield Online(configuration, found, client=client, tasks=tasks, start_seconds=start_seconds)


def _renamed(server: str, tools: Iterable[str], servers: Collection[str]) -> Iterator[str]:
    for tool, shown in renamed_tools(server, sorted(tools), servers).items():
        yield f"its tool {quoted(tool)} has the name '{shown}' at the model"


def _format(result: LlmResult) -> str:
    model = f" with the model '{result.model}'" if result.model is not None else ""
    verbs = {"ok": "answers, but", "not checked": "is not checked:", "failed": "cannot be used:"}
    return f"LLM provider '{result.provider}'{model} {verbs[result.status]} {result.error or result.warning}"


def _last_lines(stderr: IO[bytes]) -> str:
    """Return the end of what a program has printed to stderr, without secrets and control characters, indented."""
    size = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, size - _MOST_STDERR))
    text = end_of(without_controls(stderr.read().decode(errors="replace")), _SHOWN_STDERR).strip()
    lines = [f"\n    {line.rstrip()}" for line in text.splitlines()[-_SHOWN_LINES:]]
    return "".join(["; the end of its stderr:", *lines]) if lines else ""
