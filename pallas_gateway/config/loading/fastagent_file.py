"""The keys of `fastagent.config.yaml` and its secrets file that the gateway reads; all others are fast-agent's."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pydantic import ConfigDict, Field

from pallas_gateway.config.loading.downstream_servers import (
    DownstreamServer,
    ServerSection,
    downstream_server,
    keys_without_effect,
)
from pallas_gateway.config.loading.error_messages import Location, located, validated, without, wrong_places
from pallas_gateway.config.loading.secret_values import secret_values
from pallas_gateway.config.model.agents import ModelCapabilities
from pallas_gateway.config.model.section import Section
from pallas_gateway.config.problems import Problem
from pallas_gateway.config.yaml.source import Document, UnsetVariable, read_document

# fast-agent accepts each of these names, and refuses a directory that has two of a kind.
CONFIG_NAMES = ("fast-agent.yaml", "fast-agent.config.yaml", "fastagent.config.yaml")
SECRETS_NAMES = ("fast-agent.secrets.yaml", "fastagent.secrets.yaml")

SERVERS = ("mcp", "servers")
STREAM_LIVE_ONLY = "stream_live_only"
"""Key of a provider: its answers are streamed for callers who read live text, others are requested as a whole."""
_MAY_WAIT = ("azure", "generic", "groq", "hf", "moonshot", "openai", "openrouter", "tensorzero", "zai")


@dataclass(frozen=True)
class FastAgentFile:
    """The configuration and the secrets file as one; empty when there is neither.

    Attributes:
        path: The configuration file, if there is one.
        default_model: `provider.model`, if one is set.
        model_capabilities: The block for all agents, if declared.
        servers: The downstream servers by name.
        logger_level: `logger.level`, if set.
        unset: Placeholders without a value, left in the values as written.
        secrets: Every secret in the two files, fast-agent's own keys included: never to be shown.
        documents: The files as they were read; values of the later one count.
        is_readable: False if a file cannot be read or parsed; all else is then empty.
        wrong: Places of wrong values, which are left out here, and of servers with keys that have no effect.
    """

    path: Path | None = None
    default_model: str | None = None
    model_capabilities: ModelCapabilities | None = None
    servers: Mapping[str, DownstreamServer] = field(default_factory=dict)
    logger_level: str | None = None
    unset: tuple[UnsetVariable, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    documents: tuple[Document, ...] = field(default=(), repr=False, compare=False)
    is_readable: bool = True
    wrong: tuple[Location, ...] = ()

    @property
    def written(self) -> dict[str, object]:
        """The contents of the files as one mapping; may hold secrets."""
        return _written(self.documents)

    def problem(self, path: str, message: str) -> Problem:
        """Return a problem of the key at `path`, in the file whose value counts."""
        if not self.documents:
            return Problem(CONFIG_NAMES[-1], None, path, message)
        return _place(self.documents, path).problem(path, message)


class _ForeignSection(Section):
    model_config = ConfigDict(extra="ignore")


class _Mcp(_ForeignSection):
    servers: dict[str, ServerSection] | None = None


class _Logger(_ForeignSection):
    level: str | None = None


class _File(_ForeignSection):
    default_model: str | None = None
    model_capabilities: ModelCapabilities | None = None
    mcp: _Mcp = Field(default_factory=_Mcp)
    logger: _Logger = Field(default_factory=_Logger)


def settings_files(named: Path | None) -> list[Path]:
    """Return every file that fast-agent's settings may come from, whether it exists or not."""
    folder = named.parent if named is not None else Path.cwd()
    return [*([named] if named else []), *(folder / name for name in (*CONFIG_NAMES, *SECRETS_NAMES))]


def servers_at(places: Iterable[Location]) -> frozenset[str]:
    """Return the names of the servers at, or around, the places."""
    depth = len(SERVERS)
    return frozenset(str(place[depth]) for place in places if tuple(place[:depth]) == SERVERS and len(place) > depth)


def read_fastagent_file(
    named: Path | None, environ: Mapping[str, str], *, folder: Path | None = None
) -> tuple[FastAgentFile, list[Problem]]:
    """Read the file the operator named, else the one in the working directory, else the one in `folder`.

    The secrets file is read from the same folder. With problems, the file holds what could be read.
    """
    if named and not named.exists():
        problem = Problem(str(named), None, "", "no such file (named by fastagent_config)")
        return FastAgentFile(is_readable=False), [problem]
    directory = named.parent if named else _default_folder(folder)
    configs = [named] if named else _existing(directory, CONFIG_NAMES)
    secrets = _existing(directory, SECRETS_NAMES)
    documents = [read_document(path, environ) for path in (*configs[:1], *secrets[:1])]
    problems = [*_ambiguous(configs), *_ambiguous(secrets)]
    for document in documents:
        problems += document.problems
        if not document.problems and document.data is not None and not isinstance(document.data, dict):
            problems.append(Problem(document.file, 1, "", "must be a mapping of keys, such as 'default_model: …'"))
    if problems:
        return FastAgentFile(is_readable=False), problems
    return _parsed(configs[0] if configs else None, documents)


def _default_folder(folder: Path | None) -> Path:
    """Return the working directory, unless only `folder` has a file of fast-agent's."""
    is_here = _existing(Path(), (*CONFIG_NAMES, *SECRETS_NAMES))
    return Path() if folder is None or is_here or not _existing(folder, CONFIG_NAMES) else folder


def _existing(directory: Path, names: tuple[str, ...]) -> list[Path]:
    return [directory / name for name in names if (directory / name).is_file()]


def _ambiguous(found: list[Path]) -> list[Problem]:
    if len(found) < 2:  # noqa: PLR2004 - two of a kind
        return []
    return [Problem(str(found[-1]), None, "", f"{found[0].name} exists too; keep one, as fast-agent refuses both")]


def _parsed(path: Path | None, documents: list[Document]) -> tuple[FastAgentFile, list[Problem]]:
    data = _written(documents)
    file, errors = validated(_File, data)
    wrong = wrong_places(errors)
    file = file or _valid_part(data, wrong)
    unset = tuple(one for doc in documents for one in doc.unset if _place(documents, one.path) is doc)
    written = file.mcp.servers or {}
    servers = {name: downstream_server(name, one, _line_of_server(documents, name)) for name, one in written.items()}
    found = [*located(_File, errors)]
    for name, block in data.items():
        allowed = (True, False) if name in _MAY_WAIT else (False,)
        if isinstance(block, dict) and not any(block.get(STREAM_LIVE_ONLY, False) is one for one in allowed):
            message = f"must be true or false, and may be true for {', '.join(_MAY_WAIT)}"
            found.append((f"{name}.{STREAM_LIVE_ONLY}", message))
    for name in servers.keys() - servers_at(wrong):
        if useless := [*keys_without_effect(written[name], servers[name])]:
            found += useless
            wrong.append((*SERVERS, name))
    result = FastAgentFile(
        path=path,
        default_model=file.default_model or None,
        model_capabilities=file.model_capabilities,
        servers=MappingProxyType(servers),
        logger_level=file.logger.level or None,
        unset=unset,
        secrets=secret_values(data),
        documents=tuple(documents),
        wrong=tuple(wrong),
    )
    return result, [result.problem(where, message) for where, message in found]


def _valid_part(data: object, wrong: list[Location]) -> _File:
    """Remove the values at `wrong`, and those that are wrong only without them; add the latter to `wrong`."""
    file = None
    while file is None:
        file, errors = validated(_File, without(data, wrong))
        wrong += wrong_places(errors)
    return file


def _written(documents: Iterable[Document]) -> dict[str, object]:
    data: dict[str, object] = {}
    for document in documents:
        data = _merged(data, document.data or {})
    return data


def _merged(base: object, over: object) -> dict[str, object]:
    merged = dict(base) if isinstance(base, dict) else {}
    for key, value in over.items() if isinstance(over, dict) else ():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _place(documents: Sequence[Document], path: str) -> Document:
    """Return the file whose value counts: the last that has the key, else the first."""
    return next((document for document in reversed(documents) if path in document.lines), documents[0])


def _line_of_server(documents: Sequence[Document], name: str) -> int | None:
    path = f"mcp.servers.{name}"
    return _place(documents, path).line_of(path)
