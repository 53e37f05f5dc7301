"""The part of the MCP registry's API that reads: the agents' entries in pages, by name and by version.

Format: https://github.com/modelcontextprotocol/registry, docs/reference/api/openapi.yaml; v0 is the same for clients of
its time. An agent has one version, that of the deployment, which is the latest too.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AwareDatetime, BaseModel, Field, ValidationError
from starlette.responses import JSONResponse

from pallas_gateway.features.registry import registry
from pallas_gateway.features.registry.registry import OFFICIAL, PUBLISHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.identity.grants import Grants

    type Entry = dict[str, Any]

PATH = "/v0.1/servers"
_PATHS = (PATH, "/v0/servers")
_LATEST = "latest"
# Decoded: clients write the `/` of a name as `%2F`, and some of v0 as it is.
_BELOW = re.compile(r"(?P<name>[^/]+/[^/]+)(?P<versions>/versions(/(?P<version>.+))?)?")


class RegistryQuery(BaseModel):
    """The parameters of the list. Others have no effect: `include_deleted` finds nothing, as no entry is deleted."""

    search: str = ""
    version: str = _LATEST
    updated_since: AwareDatetime | None = None
    cursor: str = ""
    limit: Annotated[int, Field(ge=1)] | None = None

    def matches(self, entry: Entry) -> bool:
        """Return True for an entry that the client asked for, on any page."""
        texts = (entry["server"]["name"], entry["server"]["_meta"][PUBLISHER]["description"])
        if not any(self.search.casefold() in text.casefold() for text in texts):
            return False
        if self.version not in (_LATEST, entry["server"]["version"]):
            return False
        return self.updated_since is None or _updated_at(entry) > self.updated_since


def is_path(path: str) -> bool:
    """Return True for a path of the API."""
    return any(f"{path}/".startswith(f"{known}/") for known in _PATHS)


def respond(gateway: Gateway, request: Request, viewer: Grants) -> Response:
    """Answer a request for the agents that the viewer may view."""
    entries = sorted(registry.entries(gateway, viewer), key=_name)
    if below := request.scope["path"].partition("/servers")[2].strip("/"):
        document = named(entries, below)
        if document is None:
            return JSONResponse({"error": "Server not found"}, status_code=404)
        return registry.respond(request, document)
    try:
        query = RegistryQuery.model_validate({key: value for key, value in request.query_params.items() if value})
    except ValidationError as error:
        problem = error.errors()[0]
        return JSONResponse({"error": f"{problem['loc'][0]}: {problem['msg']}"}, status_code=400)
    return registry.respond(request, page(entries, query))


def page(entries: Sequence[Entry], query: RegistryQuery) -> dict[str, Any]:
    """Return the matching entries after the cursor, up to the limit; all without a limit.

    Args:
        entries: sorted by name.
        query: Its cursor is the `name:version` of the last entry that the client has.
    """
    last = query.cursor.partition(":")[0]
    found = [entry for entry in entries if _name(entry) > last and query.matches(entry)]
    shown = found[: query.limit]
    document = _list(shown)
    if len(shown) < len(found):
        document["metadata"]["nextCursor"] = f"{_name(shown[-1])}:{shown[-1]['server']['version']}"
    return document


def named(entries: Sequence[Entry], below: str) -> dict[str, Any] | None:
    """Return the document at `NAME`, `NAME/versions` or `NAME/versions/VERSION`; None if there is no such entry."""
    match = _BELOW.fullmatch(below)
    entry = next((one for one in entries if match and _name(one) == match["name"]), None)
    if match is None or entry is None or match["version"] not in (None, _LATEST, entry["server"]["version"]):
        return None
    return _list([entry]) if match["versions"] and match["version"] is None else entry


def _list(entries: Sequence[Entry]) -> dict[str, Any]:
    return {"servers": entries, "metadata": {"count": len(entries)}}


def _name(entry: Entry) -> str:
    name: str = entry["server"]["name"]
    return name


def _updated_at(entry: Entry) -> datetime:
    return datetime.fromisoformat(entry["_meta"][OFFICIAL]["updatedAt"])
