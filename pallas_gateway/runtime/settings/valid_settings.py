"""Reads fast-agent's settings without their wrong values, so that `check` can start agents and find more problems."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fast_agent.config
from fast_agent.config import MCPSettings, Settings
from pydantic import ValidationError

from pallas_gateway.changes.change import Name
from pallas_gateway.changes.names import incompatible, misfit
from pallas_gateway.config.loading.error_messages import without, wrong_places
from pallas_gateway.config.loading.fastagent_file import SERVERS, servers_at, settings_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pydantic_core import ErrorDetails

    from pallas_gateway.config.loading.error_messages import Location

RELIED_ON = (Name("fast_agent.config:_settings_from_sources", ("sources",)),)
_ROUNDS = 5
"""Without a wrong value, another one may be found."""
_STAND_INS = {"default_model": "passthrough"}
_SERVER = {"url": "http://localhost/mcp"}


@contextmanager
def wrong_values_left_out(config_file: Path | None, known: Iterable[Location] = ()) -> Iterator[list[ErrorDetails]]:
    """Leave wrong values out of the settings of the project's files that are read in the block.

    Agents still have what they name: `default_model` and servers are replaced by usable ones. Yields the errors of the
    values that were left out, without those at `known`; they are complete after the first reading.

    Args:
        config_file: the file that the project names; None for those of the working directory.
        known: places of values that only the gateway finds wrong.

    Raises:
        PlatformError: the installed fast-agent does not fit.
    """
    if (why := misfit(RELIED_ON)) is not None:
        raise incompatible("fast-agent-mcp", why)
    original = fast_agent.config._settings_from_sources
    project = {path.absolute() for path in settings_files(config_file)}
    places = list(known)
    found: list[ErrorDetails] = []

    def settings_from_sources(sources: Any, **options: Any) -> Settings:
        file = sources.config_file or sources.secrets_file
        if file is None or file.absolute() not in project:
            return original(sources, **options)  # a module's own file, whose problems are reported at the agent
        found.extend(_of_servers(_usable(sources.merged_settings, places)))
        places.extend(wrong_places(found))
        for round_ in range(_ROUNDS):
            try:
                usable = _usable(sources.merged_settings, places)
                return original(replace(sources, merged_settings=usable), **options)
            except ValidationError as error:
                errors = error.errors(include_url=False)
                places.extend(wrong_places(errors))
                found.extend(errors if round_ == 0 else ())
        return original(sources, **options)

    fast_agent.config._settings_from_sources = settings_from_sources
    try:
        yield found
    finally:
        fast_agent.config._settings_from_sources = original


def _usable(written: dict[str, Any], places: list[Location]) -> dict[str, Any]:
    settings: dict[str, Any] = without(written, places)
    settings |= {key: value for key, value in _STAND_INS.items() if key in written and key not in settings}
    for name in servers_at(places):
        settings.setdefault("mcp", {}).setdefault("servers", {})[name] = dict(_SERVER)
    return settings


def _of_servers(written: dict[str, Any]) -> Iterator[ErrorDetails]:
    """Yield the errors of each server alone: of all together, fast-agent reports some without the server's name."""
    section = written.get("mcp")
    servers = section.get("servers") if isinstance(section, dict) else None
    for name, server in servers.items() if isinstance(servers, dict) else ():
        try:
            MCPSettings.model_validate({"servers": {name: server}})
        except ValidationError as error:
            for one in error.errors(include_url=False):
                inside = one["loc"][2:] if one["loc"][:2] == ("servers", name) else one["loc"]
                yield {**one, "loc": (*SERVERS, name, *inside)}
        except TypeError as error:  # of some of fast-agent's own checks
            message = f"fast-agent cannot read a value of this server: {error}"
            yield {"type": "type_error", "loc": (*SERVERS, name), "msg": message, "input": None}
