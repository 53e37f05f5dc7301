"""The checks of `check` beyond reading the files. They need no network, except with `online`.

A problem prevents `serve`, or one agent, from starting. A warning does not.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from pallas_gateway.cli.check_exposure import exposure_warnings
from pallas_gateway.client.output import stdout_for_results_only
from pallas_gateway.config.loading.cross_checks import OF_INSTRUCTIONS
from pallas_gateway.config.loading.unknown_names import unknown_models, unknown_names
from pallas_gateway.config.model.agents import MAKINGS
from pallas_gateway.config.problems import Problem, suggesting
from pallas_gateway.errors import AgentStartError
from pallas_gateway.process import certificates
from pallas_gateway.urls import Addresses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pallas_gateway.cli.check_online import Online
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.config.loading.fastagent_file import FastAgentFile
    from pallas_gateway.config.yaml.source import UnsetVariable
    from pallas_gateway.limits import RuntimeLimits
    from pallas_gateway.runtime.protocols import AgentRuntime, ModelFacts
    from pallas_gateway.runtime.runtime import FastAgentRuntime

_MAY_BE_UNSET = ("api_key", "base_url")
"""Keys of a provider; without a value it is not used, or at its own address."""


@dataclass
class Findings:
    """Problems and warnings, in no order; a warning that concerns several agents is listed once.

    `unknown_models` are undeclared models that fast-agent does not know, each with the agents that use it; `models` are
    the names of all that started agents use. `reported` are the paths of problems that the loader has found.
    """

    reported: frozenset[str] = frozenset()
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    unknown_models: dict[ModelFacts, list[str]] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)

    def add(self, problem: Problem) -> None:
        """Add a problem, unless the loader has found one at its path."""
        if problem.path not in self.reported:
            self.problems.append(problem)

    def warn(self, warning: Problem) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)


def inspect(
    configuration: Configuration,
    known: Sequence[Problem],
    *,
    online: bool = False,
    limits: RuntimeLimits | None = None,
) -> Findings:
    """Return findings beyond the `known` problems of the files: variables, URLs, exposure, agents that fail to start.

    With `online`, downstreams, providers and the database are asked as well. `limits` are those of the runtime.
    """
    fastagent = configuration.fastagent
    found = Findings(frozenset(one.path for one in known))
    for problem in (*_unset_variables(fastagent.unset), *_url_problems(fastagent), *_tls_problems(configuration)):
        found.add(problem)
    if (why := certificates.warning_of(configuration)) is not None:
        found.warn(configuration.problem(certificates.SETTING, why))
    is_gateway_read = not any(one.path.partition(".")[0] in ("gateway", "auth") for one in known)  # else only in part
    if is_gateway_read:
        for warning in (*(one.as_problem for one in exposure_warnings(configuration)), *unknown_names(configuration)):
            found.warn(warning)
    logging.disable(logging.CRITICAL)  # problems are printed with file and line
    try:
        with stdout_for_results_only():
            if online and is_gateway_read:
                _check_database(configuration, found)
            if fastagent.is_readable:  # else no agent can start
                asyncio.run(_start_all(configuration, found, limits, online=online))
    finally:
        logging.disable(logging.NOTSET)
    return found


def _check_database(configuration: Configuration, found: Findings) -> None:
    from pallas_gateway.cli.database import why_unusable  # noqa: PLC0415  asked only here

    if (why := why_unusable(configuration)) is not None:
        found.add(configuration.problem("gateway.database", why))


def _unset_variables(unset: Sequence[UnsetVariable]) -> list[Problem]:
    return [
        Problem(
            str(one.file),
            one.line,
            one.path,
            f"environment variable {one.variable} is not set; set it, or write ${{{one.variable}:-default}}",
        )
        for one in unset
        if one.path.partition(".")[2] not in _MAY_BE_UNSET
    ]


def _url_problems(fastagent: FastAgentFile) -> list[Problem]:
    """Return URLs of fast-agent's file that are invalid, except those with unset variables, which are reported."""
    remote = (server for server in fastagent.servers.values() if server.transport in ("http", "sse"))
    servers = {f"mcp.servers.{server.name}.url": server.url for server in remote}
    blocks = {name: block for name, block in fastagent.written.items() if isinstance(block, dict)}
    written = {f"{name}.base_url": block["base_url"] for name, block in blocks.items() if "base_url" in block}
    # An empty one means the provider's own.
    providers = {path: url.strip() for path, url in written.items() if isinstance(url, str) and url.strip()}
    unset = {one.path for one in fastagent.unset}
    return [
        fastagent.problem(path, "must be an http:// or https:// URL with a host")
        for path, url in (servers | providers).items()
        if path not in unset and not _is_web_url(url or "")
    ]


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _tls_problems(configuration: Configuration) -> list[Problem]:
    from pallas_gateway.process.hypercorn_server import TlsError, check_tls  # noqa: PLC0415  as in `serve`

    if not all(file.is_file() for file in configuration.tls_files or ()):
        return []  # missing files are reported already
    try:
        check_tls(configuration)
    except TlsError as error:
        return [configuration.problem(certificates.SETTING, str(error))]
    return []


async def _start_all(
    configuration: Configuration, found: Findings, limits: RuntimeLimits | None, *, online: bool
) -> None:
    """Start each agent as `serve` would and stop it at once, except those whose entries have problems."""
    from pallas_gateway.cli.check_online import online_checks  # noqa: PLC0415  as in `serve`
    from pallas_gateway.runtime.runtime import FastAgentRuntime  # noqa: PLC0415

    fastagent = configuration.fastagent
    starting = FastAgentRuntime(
        config_file=configuration.named_fastagent_file,
        folder=configuration.folder,
        on_slow_import=lambda module, seconds: typer.echo(
            f"module '{module}' is slow to import, waiting up to {seconds:g} s", err=True
        ),
        limits=limits,
    )
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(starting)
        for path, message in runtime.review(fastagent.written):
            _add_setting(fastagent, path, message, found)
        wrong = stack.enter_context(runtime.wrong_values_left_out(fastagent.wrong))
        providers = runtime.llm_providers()
        default = next((one for one in providers if one.model is not None), None)
        checks = None
        if online and not (fastagent.wrong or wrong):  # else keys might be sent to an address that is not meant
            checks = await stack.enter_async_context(online_checks(configuration, found, limits))
            checks.default = default
        for name in configuration.deployment.agents:
            if not any(_is_of_its_start(path, name) for path in found.reported):
                await _start(configuration, runtime, name, found, checks)
        if checks is not None:
            await checks.check_unused(providers)
    found.warnings.extend(_unknown_models(configuration, found, default.model if default else None))
    if not found.problems and not found.reported:  # else an agent may be missing, and its models with it
        found.warnings.extend(unknown_models(configuration, found.models))


def _is_of_its_start(path: str, agent: str) -> bool:
    """True if the agent cannot start because of a wrong key, whose problem is reported already.

    An agent's name may contain dots.
    """
    keys = (*MAKINGS, *OF_INSTRUCTIONS, "agents")
    its_own = path.removeprefix(f"agents.{agent}.").partition(".")[0]
    return path == f"agents.{agent}" or (its_own in keys and path.startswith(f"agents.{agent}."))


def _add_setting(fastagent: FastAgentFile, path: str, message: str, found: Findings) -> None:
    """Add a problem of fast-agent's files, unless its key, or the URL in a section, is reported already."""
    reported = {one.path for one in fastagent.unset} | {one.path for one in found.problems}
    if reported.isdisjoint((path, f"{path}.url")):
        found.add(fastagent.problem(path, message))


async def _start(
    configuration: Configuration, runtime: FastAgentRuntime, name: str, found: Findings, checks: Online | None
) -> None:
    """Start one agent and add findings."""
    from pallas_gateway.core.agent_specs import agent_spec  # noqa: PLC0415  as in `serve`

    settings = configuration.deployment.agents[name]
    made_of = settings.makings[0]
    try:
        async with runtime.start(agent_spec(configuration, Addresses(configuration), name)) as started:
            found.models |= started.model_names
            if not started.model.is_known:
                found.unknown_models.setdefault(started.model, []).append(name)
            _warn_of_uncalled_agents(configuration, name, started, found)
            if checks is None:
                _warn_of_commands(configuration.fastagent, started, found)
            else:
                await checks.check(name, started)
    except AgentStartError as error:
        for setting, message in error.settings:
            _add_setting(configuration.fastagent, setting, message, found)
        for key, message in error.places or (() if error.settings else ((made_of, str(error)),)):
            found.problems.append(configuration.problem(f"agents.{name}.{key}", message))


def _unknown_models(configuration: Configuration, found: Findings, default: str | None) -> Iterator[Problem]:
    """Yield a warning for each model: at `default_model` if it is that, else at the first agent that uses it."""
    for model, (name, *others) in found.unknown_models.items():
        message = (
            f"fast-agent does not know the model '{model.name}'{suggesting(model.meant)}; it gets text only, and "
            "fast-agent's defaults for its limits. Declare `model_capabilities` to say what it can do"
        )
        if model.name == default and configuration.fastagent.default_model is not None:
            yield configuration.fastagent.problem("default_model", message)
            continue
        too = f"; {', '.join(others)} {'use' if others[1:] else 'uses'} it, too" if others else ""
        settings = configuration.deployment.agents[name]
        line = configuration.line_of(f"agents.{name}.{'model' if settings.model else settings.makings[0]}")
        yield Problem(str(configuration.path), line, f"agents.{name}", f"{message}{too}")


def _warn_of_uncalled_agents(configuration: Configuration, name: str, started: AgentRuntime, found: Findings) -> None:
    used = {downstream.name for downstream in started.downstreams}
    for index, agent in enumerate(configuration.deployment.agents[name].agents):
        if agent not in used:
            message = f"'{agent}' is never called; name it in the `servers` of the module or card, too"
            line = configuration.line_of(f"agents.{name}.agents.{index}")
            found.warn(Problem(str(configuration.path), line, f"agents.{name}.agents", message))


def _warn_of_commands(fastagent: FastAgentFile, started: AgentRuntime, found: Findings) -> None:
    from pallas_gateway.child_processes import not_found  # noqa: PLC0415  `--help` does not load it

    for downstream in started.downstreams:
        if downstream.program is not None and not downstream.program.is_installed:
            server = fastagent.servers.get(downstream.name)
            message = f"{not_found(downstream.program.command)}; agents run without this server's tools"
            path = f"mcp.servers.{downstream.name}.command"
            found.warn(Problem(str(fastagent.path), server.line if server else None, path, message))
