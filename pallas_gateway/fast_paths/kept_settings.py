"""Settings that were read before, copied instead of read again.

The start of an agent reads and validates the settings three times. They are copied if the files, the environment and
`.env` have the same values.
"""

from __future__ import annotations

import marshal
import os
from copy import deepcopy
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import FAST_PATH, Change, Name

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGE = Change(
    "kept_settings",
    FAST_PATH,
    ("fast-agent-mcp", "pydantic"),
    replaces=(Name("fast_agent.config:Settings.__init__", ("self",)),),
    gone_when="a start reads the settings once",
)
MOST_KEPT = 8
"""Settings hold secrets: those of an earlier environment or of earlier files are soon forgotten."""
_VERSION = 2
"""Of marshal: the last one in which the same values are always the same bytes."""


def changed(original: Callable[..., None], _: Any) -> Callable[..., None]:
    """Validate the values only if they or their surroundings are new."""
    kept: dict[object, dict[Any, Any]] = {}

    @wraps(original)
    def init(self: Any, **values: Any) -> None:
        try:
            made_of = (type(self), marshal.dumps(values, _VERSION), *_surroundings())
        except ValueError:  # not plain values of a file
            original(self, **values)
            return
        if (state := kept.get(made_of)) is not None:
            self.__setstate__(deepcopy(state))
            return
        original(self, **values)
        while len(kept) >= MOST_KEPT:
            kept.pop(next(iter(kept)), None)
        kept[made_of] = deepcopy(self.__getstate__())

    return init


def _surroundings() -> tuple[object, ...]:
    """Return what pydantic reads besides the values: the environment, and the file `.env` of the working directory."""
    try:
        written = Path(".env").read_bytes()
    except OSError:
        written = None
    return frozenset(os.environ.items()), written
