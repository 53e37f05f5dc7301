"""`${NAME:-default}` in a configuration file is read as `-default`.

Symptom: `${MODEL:-passthrough}` becomes `-passthrough` in fastagent.config.yaml if the variable is unset, and the
empty text if it is empty.

Repair: the form is replaced before fast-agent reads its own, `${NAME:default}`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Name

CHANGE = Change(
    "braced-defaults",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    # It recurses through its module's global, so items of containers are resolved, too.
    replaces=(Name("fast_agent.config:resolve_env_vars", ("config_item",)),),
    gone_when="`resolve_env_vars` knows `${NAME:-default}`",
)
_BRACED_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):-([^}]*)\}")


def changed(original: Callable[[Any], Any], holder: Any) -> Callable[[Any], Any]:
    """Resolve the form of shells first."""
    del holder

    def resolve_env_vars(config_item: Any) -> Any:
        if isinstance(config_item, str):
            config_item = _BRACED_DEFAULT.sub(lambda found: os.environ.get(found[1]) or found[2], config_item)
        return original(config_item)

    return resolve_env_vars
