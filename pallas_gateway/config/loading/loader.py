"""Reads `agents.yaml` and fast-agent's file into one `Configuration`, or reports everything wrong with both at once."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from pydantic_core import ErrorDetails

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.cross_checks import broken_rules
from pallas_gateway.config.loading.error_messages import located, mended, validated, without, wrong_places
from pallas_gateway.config.loading.fastagent_file import read_fastagent_file
from pallas_gateway.config.loading.tool_policies import of_no_server, policies
from pallas_gateway.config.model.deployment import Deployment
from pallas_gateway.config.problems import ConfigurationError, Problem, did_you_mean
from pallas_gateway.config.yaml.source import FREE_PREFIX, Document, parse_document, read_document

DATABASE_PACKAGES = ("aiosqlite", "alembic", "asyncpg", "sqlalchemy")
"""Packages of the extra `database`."""
INSTALL_DATABASE = "pip install 'pallas-gateway[database]'"

MISSING = "no such file; 'pallas-gateway init' makes a project; --config or PALLAS_AGENTS_CONFIG names another file"


@dataclass(frozen=True)
class Overrides:
    """Values of the command line; None where the option was not given."""

    host: str | None = None
    port: int | None = None
    public_url: str | None = None
    per_port: bool | None = None
    agent: str | None = None

    def gateway_values(self) -> dict[str, object]:
        """Return the given values by their key under `gateway`."""
        values = {"host": self.host, "port": self.port, "public_url": self.public_url, "per_port": self.per_port}
        return {key: value for key, value in values.items() if value is not None}


NO_OVERRIDES = Overrides()


@dataclass(frozen=True)
class LoadedFiles:
    """The result of reading all files.

    Attributes:
        configuration: As much as could be read. With problems, use it only to find more of them. None if too much is
            wrong.
        problems: All problems of the files: the command line's first, then by line.
    """

    configuration: Configuration | None
    problems: tuple[Problem, ...] = ()

    def usable(self) -> Configuration:
        """Return the configuration.

        Raises:
            ConfigurationError: With all problems, if there are any.
        """
        if self.configuration is None or self.problems:
            raise ConfigurationError(self.problems)
        return self.configuration


def read_deployment(path: Path, *, environ: Mapping[str, str], overrides: Overrides = NO_OVERRIDES) -> LoadedFiles:
    """Read and check the deployment file and fast-agent's file.

    That is the file named by `fastagent_config`, else the one in the working directory, else the one in the folder of
    the deployment file.
    """
    if path.exists():
        document = _as_mapping(read_document(path, environ, free_prefix=FREE_PREFIX))
    else:
        document = _unusable(str(path), MISSING)
    return _loaded(document, path, environ, overrides)


def check_deployment(text: str, path: Path, *, environ: Mapping[str, str]) -> None:
    """Check a text that will be written to `path`.

    Raises:
        ConfigurationError: With every problem; lines are those of `text`.
    """
    document = parse_document(text, str(path), environ, free_prefix=FREE_PREFIX)
    _loaded(_as_mapping(document), path, environ, NO_OVERRIDES).usable()


def _loaded(document: Document, path: Path, environ: Mapping[str, str], overrides: Overrides) -> LoadedFiles:
    data = _overridden(document.data, overrides)
    deployment, errors = validated(Deployment, data)
    shown = deployment or _valid_part(data, errors)
    problems = document.problems or _all_problems(document, errors, shown, overrides)
    named = path.parent / shown.fastagent_config if shown and shown.fastagent_config else None
    fastagent, more = read_fastagent_file(named, environ, folder=path.parent)
    if shown and not more:
        problems = [*problems, *_unknown_servers(document, shown, fastagent.servers)]
    lines = MappingProxyType(document.lines)
    readable = Configuration(shown, path, lines, fastagent, overrides.agent) if shown else None
    return LoadedFiles(readable, (*_in_reading_order(problems), *_in_reading_order(more)))


def _valid_part(data: object, errors: Sequence[ErrorDetails]) -> Deployment | None:
    """Return the deployment without wrong values, or sections whose other values need them; None if nothing is left."""
    part = mended(data, errors)
    while True:
        deployment, errors = validated(Deployment, part)
        less = without(part, wrong_places(errors))
        if deployment is not None or less == part:
            return deployment
        part = less


def _as_mapping(document: Document) -> Document:
    """Return the document, with a problem if it is no mapping."""
    if not document.problems and not isinstance(document.data, dict):
        empty, other = "is empty; agents.example.yaml shows what belongs in it", "such as 'name: my-project'"
        message = empty if document.data is None else f"must be a mapping of keys, {other}"
        return _unusable(document.file, message)
    return document


def _unusable(file: str, message: str) -> Document:
    return Document(file, problems=[Problem(file, None, "", message)])


def _all_problems(
    document: Document, errors: Sequence[ErrorDetails], shown: Deployment | None, overrides: Overrides
) -> list[Problem]:
    """Return the problems of single values, then those between the valid ones (`shown`)."""
    problems = _value_problems(document, located(Deployment, errors), overrides)
    bad = {problem.path for problem in problems}
    if shown:
        problems += _rule_problems(document, shown, overrides, bad)
        problems += _tls_problems(document, shown, bad)
        problems += _database_problems(document, shown)
    return problems


def _overridden(data: object, overrides: Overrides) -> object:
    values = overrides.gateway_values()
    if not values or not isinstance(data, dict):
        return data
    gateway = data.get("gateway") or {}
    return {**data, "gateway": {**gateway, **values}} if isinstance(gateway, dict) else data


def _value_problems(document: Document, found: Iterable[tuple[str, str]], overrides: Overrides) -> list[Problem]:
    """Return unset variables, duplicate keys and wrong values; a value with an unset variable is reported once."""
    problems = list(document.duplicates)
    for one in document.unset:
        message = f"environment variable {one.variable} is not set; set it, or write ${{{one.variable}:-default}}"
        problems.append(Problem(one.file, one.line, one.path, message))
    unset = {one.path for one in document.unset}
    options = {f"gateway.{key}": f"--{key.replace('_', '-')}" for key in overrides.gateway_values()}
    for where, message in found:
        if where in options:
            problems.append(Problem(options[where], None, "", message))
        elif where not in unset:
            problems.append(document.problem(where, message))
    return problems


def _rule_problems(
    document: Document, deployment: Deployment, overrides: Overrides, bad: set[str]
) -> Iterator[Problem]:
    """Yield broken rules, except about values that are reported already."""
    if overrides.agent is not None and overrides.agent not in deployment.agents:
        message = f"no agent '{overrides.agent}'{did_you_mean(overrides.agent, deployment.agents)}"
        yield Problem("--agent", None, "", message)
    judged = bad | {re.sub(r"\.\d+(\..*)?$", "", path) for path in bad}  # one bad entry makes its whole list bad
    for finding in broken_rules(deployment, overrides.agent):
        if finding.path not in judged:
            yield Problem(document.file, document.line_of(finding.at or finding.path), finding.path, finding.message)


def _tls_problems(document: Document, deployment: Deployment, bad: set[str]) -> Iterator[Problem]:
    tls = deployment.gateway.tls
    files = {tls.keyfile: "keyfile", tls.certfile: "certfile"} if tls else {}  # both may be one file
    for name, key in reversed(files.items()):
        path = f"gateway.tls.{key}"
        if path not in bad and not (Path(document.file).parent / name).is_file():
            yield document.problem(path, f"no file '{name}' in the folder of {Path(document.file).name}")


def _database_problems(document: Document, deployment: Deployment) -> Iterator[Problem]:
    missing = [name for name in DATABASE_PACKAGES if find_spec(name) is None]
    if deployment.gateway.database is not None and missing:
        message = f"requires packages that are not installed ({', '.join(missing)}): {INSTALL_DATABASE}"
        named = "threads" if "gateway.threads" in document.lines else "database"
        yield document.problem(f"gateway.{named}", message)


def _unknown_servers(document: Document, deployment: Deployment, servers: Collection[str]) -> Iterator[Problem]:
    """Yield servers that do not exist; those of modules and cards, which may declare some, are known at the start."""
    known = {*servers, *deployment.agents}
    for agent, settings in deployment.agents.items():
        if settings.is_instructed:
            for place, message in of_no_server(policies(settings.approve, settings.tool_limits), known):
                path = f"agents.{agent}.{place.partition('.')[0]}"
                yield Problem(document.file, document.line_of(f"agents.{agent}.{place}"), path, message)
    for name in deployment.gateway.agents_may_use.servers:
        if name not in servers:
            message = f"no server '{name}' under mcp.servers of fastagent.config.yaml{did_you_mean(name, servers)}"
            yield document.problem(f"gateway.agents_may_use.servers.{name}", message)


def _in_reading_order(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: problem.line or 0)
