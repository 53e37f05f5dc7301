"""`/api/v1/agents`: the hosted agents, and those of the database, which are made and changed here.

Agents are stored by `pallas_gateway.definitions`; this package decodes requests, decides on access and encodes answers.
"""

import re

PREFIX = "/api/v1/agents"
MAY_USE = "_may_use"
"""What follows the prefix in the path of what definitions may use."""
_PATH = re.compile(rf"{PREFIX}({MAY_USE}|/[^/]+(/versions(/[^/]+(/restore)?)?)?)?")


def is_path(path: str) -> bool:
    """Return True for a path of this API; `/chat` and `/threads` of an agent are of that of threads."""
    return _PATH.fullmatch(path) is not None
