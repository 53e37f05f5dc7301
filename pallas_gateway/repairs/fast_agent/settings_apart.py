"""Reading settings takes away those of the process.

Symptom: while another thread imports an agent's module or reads a configuration, calls fail or run with defaults.

Repair: `FastAgent._load_config` reads settings apart.
"""

from __future__ import annotations

from inspect import unwrap
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from pallas_gateway.changes.change import REPAIR, Change, Name

if TYPE_CHECKING:
    from collections.abc import Callable

    from fast_agent.config import Settings

CHANGE = Change(
    "settings-apart",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    replaces=(Name("fast_agent.core.fastagent:FastAgent._load_config", ("self",), reads=("_home_override",)),),
    relies_on=(
        Name("fast_agent.config:get_settings", ("config_path", "home", "no_home")),
        Name("fast_agent.config:_settings"),
        Name("fast_agent.io.source_resolver:materialize_text_source", ("source", "label", "suffix")),
    ),
    gone_when="`_load_config` leaves the process-wide settings as they are",
)


def changed(original: Callable[[Any], Settings], holder: Any) -> Callable[[Any], Settings]:
    """Return `_load_config` without effects on the process."""
    del original, holder
    import fast_agent.config  # noqa: PLC0415
    from fast_agent.io.source_resolver import materialize_text_source  # noqa: PLC0415

    def load_config(self: Any) -> Settings:
        path = self.config_path
        source = materialize_text_source(path, label="config file", suffix=".yaml") if path is not None else None
        read = unwrap(fast_agent.config.get_settings)
        apart = FunctionType(read.__code__, {**vars(fast_agent.config), "_settings": None})
        apart.__defaults__, apart.__kwdefaults__ = read.__defaults__, read.__kwdefaults__
        no_home = bool(getattr(self.args, "no_home", False))
        return cast("Settings", apart(source, home=self._home_override, no_home=no_home))

    return load_config
