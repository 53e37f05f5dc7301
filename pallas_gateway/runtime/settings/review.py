"""Problems in fast-agent's files: invalid values, keys that it does not read, an unusable default model.

fast-agent ignores most unknown keys, and users may keep keys of their own there. So an unknown key is a problem where
fast-agent reads every key (in a server), and elsewhere only if it resembles a known key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args, get_origin

from fast_agent.config import MCPServerSettings, Settings
from fast_agent.core.exceptions import ModelConfigError, ProviderKeyError, walk_exception_chain
from fast_agent.mcp.server_declaration import MCPServerDeclaration
from pydantic import BaseModel, ValidationError

from pallas_gateway.config.loading.error_messages import SENTENCES
from pallas_gateway.config.loading.fastagent_file import STREAM_LIVE_ONLY
from pallas_gateway.config.model.downstreams import Forwarding, ProcessSettings
from pallas_gateway.config.problems import misspelt, nearest, suggesting
from pallas_gateway.config.yaml.source import FREE_PREFIX
from pallas_gateway.errors import AgentStartError
from pallas_gateway.runtime import fast_agent_api
from pallas_gateway.runtime.failures import start_reason
from pallas_gateway.runtime.settings import programmatic_tools
from pallas_gateway.runtime.settings.hosting import forget_unset_placeholders
from pallas_gateway.runtime.settings.model_names import DEFAULT, default_model, provider_of, why_default_unusable
from pallas_gateway.telemetry.redaction import cleaned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pydantic_core import ErrorDetails

type SettingsPlace = tuple[str, str]
"""A dotted key of fast-agent's files, and its problem."""

_GATEWAYS_OWN = ("model_capabilities",)
_MIGRATED = ("auto_sampling", "mcp_timeline")
"""Keys of earlier versions that fast-agent still reads."""
_SERVER_KEYS = {
    *MCPServerSettings.model_fields,
    *MCPServerDeclaration.model_fields,
    *Forwarding.model_fields,
    *ProcessSettings.model_fields,
}
_REACHED_BY = ("url", "command", "target", "connector_id")
_LONGEST = 300
_LACKS = "Missing "
"""Prefix of the provider's name in some messages, such as Azure's."""


def review(written: Mapping[str, Any], config_file: Path | None) -> list[SettingsPlace]:
    """All problems; `written` are the values of the files, `config_file` is the one that the project names."""
    from pallas_gateway.runtime.settings.valid_settings import wrong_values_left_out  # noqa: PLC0415  for `check`

    found = [*_of_keys(written, Settings, "")]
    reported = {path for path, _ in found}
    settings = None
    with wrong_values_left_out(config_file) as errors:
        try:
            settings = fast_agent_api.read_settings(config_file)
            found += _of_default_model(settings)
        except ValidationError as error:
            errors.extend(error.errors(include_url=False))  # of the environment, for example
    if (why := programmatic_tools.why_refused(written, settings)) is not None:
        found.append((programmatic_tools.KEY, why))
    return [*found, *(place for place in dict(_of_values(errors)).items() if place[0] not in reported)]


def _of_default_model(settings: Settings) -> list[SettingsPlace]:
    forget_unset_placeholders(settings)
    why = why_default_unusable(settings)
    return [(DEFAULT, why)] if why is not None else []


def blamed_settings(error: BaseException, settings: Settings | None = None) -> tuple[SettingsPlace, ...]:
    """The places in fast-agent's files that caused a failed start, if they did.

    `settings` are those of the start, None if the agent was not made.
    """
    for cause in walk_exception_chain(error):
        if isinstance(cause, ModelConfigError) and settings is not None:
            return _of_default(cause, settings)
        if isinstance(cause, ProviderKeyError) and settings is not None:
            return _of_key(cause, settings)
        if isinstance(cause, AgentStartError) and cause.settings:
            return cause.settings
        if isinstance(cause, ValidationError) and cause.title == Settings.__name__:
            return tuple(_of_values(cause.errors(include_url=False)))
    return ()


def _of_default(error: ModelConfigError, settings: Settings) -> tuple[SettingsPlace, ...]:
    why = why_default_unusable(settings)
    is_about_it = f" {default_model(settings)}" in f"{error} {error.message}"
    return ((DEFAULT, why),) if why is not None and is_about_it else ()


def _of_key(error: ProviderKeyError, settings: Settings) -> tuple[SettingsPlace, ...]:
    model = default_model(settings)
    provider = provider_of(model) if model is not None else None
    if provider is None or not error.message.removeprefix(_LACKS).startswith(f"{provider.display_name} "):
        return ()
    return ((DEFAULT, f"model '{model}' cannot be used: {start_reason(error)}"),)


def _of_values(errors: Iterable[ErrorDetails]) -> Iterator[SettingsPlace]:
    for one in errors:
        yield ".".join(map(str, one["loc"])), cleaned(_sentence(one))[:_LONGEST]


def _sentence(error: ErrorDetails) -> str:
    """The message without the value, which may be a secret."""
    if error["type"] == "extra_forbidden":
        return "unknown key"
    if error["type"] == "literal_error":
        expected = error["ctx"]["expected"]
        return f"must be {expected}{suggesting(nearest(str(error['input']), expected.split(chr(39))[1::2]))}"
    sentence = SENTENCES.get(error["type"])
    return sentence(error.get("ctx", {})) if sentence else error["msg"]


def _of_keys(written: Mapping[str, Any], section: type[BaseModel], path: str) -> Iterator[SettingsPlace]:
    known = _known_keys(section)
    for key, value in written.items():
        where = f"{path}.{key}" if path else key
        if key.startswith(FREE_PREFIX):
            continue
        if key in section.model_fields:
            yield from _of_value(value, section.model_fields[key].annotation, where)
        elif key not in known:
            yield from _unknown_key(key, where, section, known)
    if section is MCPServerSettings:
        yield from _unreachable(written, path)


def _of_value(value: object, annotation: Any, path: str) -> Iterator[SettingsPlace]:
    """Check a section, or several by name. Sections of several kinds are skipped: only fast-agent can tell the kind."""
    kinds = set(_sections_in(annotation))
    if len(kinds) != 1 or not isinstance(value, Mapping):
        return
    (section,) = kinds
    entries = value.items() if _is_by_name(annotation) else [("", value)]
    for name, entry in entries:
        if isinstance(entry, Mapping):
            yield from _of_keys(entry, section, f"{path}.{name}" if name else path)


def _known_keys(section: type[BaseModel]) -> set[str]:
    if section is MCPServerSettings:
        return _SERVER_KEYS
    own = (*_GATEWAYS_OWN, *_MIGRATED) if section is Settings else (STREAM_LIVE_ONLY,)
    return {*section.model_fields, *own}


def _unknown_key(key: str, path: str, section: type[BaseModel], known: Iterable[str]) -> Iterator[SettingsPlace]:
    if section is MCPServerSettings:
        yield path, f"unknown key{suggesting(nearest(key, known))}"
    elif (meant := misspelt(key, known)) is not None:
        yield path, f"unknown key{suggesting(meant)}"


def _unreachable(server: Mapping[str, Any], path: str) -> Iterator[SettingsPlace]:
    is_meant = (nearest(key, _SERVER_KEYS) in _REACHED_BY for key in server)
    if server.get("transport") not in ("http", "sse") and not any(is_meant):
        yield path, "needs a url, or a command to start"


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def _is_by_name(annotation: Any) -> bool:
    return get_origin(annotation) is dict or any(map(_is_by_name, get_args(annotation)))
