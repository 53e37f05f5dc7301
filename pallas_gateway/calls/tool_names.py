"""Names of tools at a model: unique, in the characters that providers accept, and not longer than they accept.

A name that has to be changed ends in a hash of the real one. A real name that looks as if it did gets a hash as well,
so no two tools have the same name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from hashlib import blake2b

SEPARATOR = "__"
LONGEST_NAME = 64
_HASH_BYTES = 4
_KEPT = LONGEST_NAME - 2 * _HASH_BYTES - 1
_SHORTEST_SERVER = 24
_REFUSED = re.compile("[^a-zA-Z0-9_-]")
_CHANGED = re.compile(f"-[0-9a-f]{{{2 * _HASH_BYTES}}}\\Z")


def real_name(server: str, tool: str) -> str:
    """Return the name of a server's tool in filters, uncut."""
    return f"{server}{SEPARATOR}{tool}"


def name_at_model(server: str, tool: str, servers: Collection[str] = ()) -> str:
    """Return the name of a server's tool at a model; `servers` are all that the agent has.

    `a` with `b__c` and `a__b` with `c` have the same real name, so the longer server's tools are renamed.
    """
    name = real_name(server, tool)
    is_ambiguous = any(f"{server}{SEPARATOR}".startswith(f"{one}{SEPARATOR}") for one in servers if one != server)
    if not is_ambiguous and is_accepted(name):
        return name
    kept = server[: max(_SHORTEST_SERVER, _KEPT - len(SEPARATOR) - len(tool))]
    return _hashed(real_name(kept, tool), f"{server}\0{tool}")


def renamed_tools(server: str, tools: Iterable[str], servers: Collection[str]) -> dict[str, str]:
    """Return the names at a model of those tools of a server that have another one there."""
    names = {tool: name_at_model(server, tool, servers) for tool in tools}
    return {tool: name for tool, name in names.items() if name != real_name(server, tool)}


def accepted(name: str) -> str:
    """Return `name` if models accept it, else one that they accept."""
    return name if is_accepted(name) else _hashed(name, name)


def is_accepted(name: str) -> bool:
    """Return True if `name` is not changed for models."""
    return len(name) <= LONGEST_NAME and not _REFUSED.search(name) and not _CHANGED.search(name)


def _hashed(name: str, real: str) -> str:
    digest = blake2b(real.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).hexdigest()
    return f"{_REFUSED.sub('_', name)[:_KEPT]}-{digest}"
