"""Agents as JSON: in lists, with their definitions, and their versions. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.parameters import params_schema
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.doors.api.models import written
from pallas_gateway.features.definitions.definition import in_camel_case
from pallas_gateway.telemetry.redaction import cleaned, cleaned_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.features.definitions.records import Definition, DefinitionVersion, Ratings, StoredAgent

type Json = dict[str, Any]

_CALLED = AgentSettings(instruction="-")
"""Callers of an agent of the database may set the default parameters."""


def of_file(hosted: HostedAgent) -> Json:
    """An agent of a file in a list."""
    return {**_head(hosted.name, hosted.settings), "source": "file", **_state(hosted)}


def whole_of_file(hosted: HostedAgent, definition: Definition, *, shows_instruction: bool) -> Json:
    """An agent of a file; `definition` is empty unless it is a declared one."""
    shown = _shown(definition, shows_instruction=shows_instruction)
    return {**cleaned_data(shown), **of_file(hosted), "paramsSchema": params_schema(hosted.settings)}


def of_database(stored: StoredAgent, hosted: HostedAgent | None, refused: str | None) -> Json:
    """An agent of the database in a list.

    Args:
        stored: its latest version.
        hosted: as this process has it; None if it does not have it, or not yet.
        refused: why it is not hosted under its name.
    """
    return {
        "name": stored.name,
        **_shown_names(stored),
        "source": "database",
        "owner": stored.owner_name,
        "version": stored.version,
        **({"state": "failed", "reason": refused, "runningVersion": None} if refused else _life(hosted)),
    }


def whole_of_database(
    stored: StoredAgent, hosted: HostedAgent | None, refused: str | None, *, shows_instruction: bool
) -> Json:
    """An agent of the database with its definition."""
    return {
        **_shown(stored.definition, shows_instruction=shows_instruction),
        **of_database(stored, hosted, refused),
        "createdAt": written(stored.created_at),
        "updatedAt": written(stored.updated_at),
        "paramsSchema": params_schema(hosted.settings if hosted is not None else _CALLED),
    }


def hosted_of_database(hosted: HostedAgent) -> Json:
    """An agent of the database as this process has it, while the database is away."""
    version = {"version": hosted.identity.version} if hosted.identity is not None else {}
    return {**_head(hosted.name, hosted.settings), "source": "database", **version, **_life(hosted)}


def shown_defaults(stored: StoredAgent) -> Json:
    """The keys of a definition that answers have although it does not."""
    return {key: value for key, value in _shown_names(stored).items() if key not in stored.definition}


def versions(found: Sequence[DefinitionVersion]) -> Json:
    """The versions of an agent."""
    return {"versions": [_version(one) for one in found]}


def ratings(found: Ratings) -> Json:
    """What callers think of an agent's answers."""
    notes = [
        {
            "rating": one.rating,
            "note": one.note,
            "ratedAt": written(one.rated_at),
            "question": one.question,
            "answer": one.answer,
        }
        for one in found.notes
    ]
    return {"good": found.counts.get("good", 0), "bad": found.counts.get("bad", 0), "notes": notes}


def possible_owners(names: Mapping[str, str]) -> Json:
    """Callers that an agent may be handed over to."""
    known = ((id_, id_.partition(":")[0], name) for id_, name in names.items())
    return {"callers": [{"id": id_, "name": cleaned(name), "kind": kind} for id_, kind, name in known]}


def whole_version(one: DefinitionVersion, *, shows_instruction: bool) -> Json:
    """One version with its definition."""
    return {**_shown(one.definition, shows_instruction=shows_instruction), **_version(one)}


def _shown_names(stored: StoredAgent) -> Json:
    title = stored.definition.get("title") or stored.name.title()
    return {"title": title, "description": stored.definition.get("description") or title}


def _head(name: str, settings: AgentSettings) -> Json:
    title = settings.shown_title(name)
    return {"name": name, "title": title, "description": settings.description or title}


def _life(hosted: HostedAgent | None) -> Json:
    if hosted is None:
        return {"state": "pending", "runningVersion": None}
    running = hosted.identity.version if hosted.identity is not None and hosted.runtime is not None else None
    return {**_state(hosted), "runningVersion": running}


def _state(hosted: HostedAgent) -> Json:
    reason = hosted.kept_back or hosted.status.reason
    return {"state": hosted.status.state.value, **({"reason": cleaned(reason)} if reason else {})}


def _shown(definition: Definition, *, shows_instruction: bool) -> Json:
    return in_camel_case({key: value for key, value in definition.items() if key != "instruction" or shows_instruction})


def _version(one: DefinitionVersion) -> Json:
    reason = {"why": cleaned(one.why)} if one.why else {}
    return {"version": one.version, "editor": one.editor, "updatedAt": written(one.updated_at), **reason}
