"""Limits on the calls of single tools in one call of an agent (`tool_limits`). Pure."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class ToolLimits:
    """The calls of tools in one call, by globs over `server/tool`, for all agents of a workflow together."""

    def __init__(self, most: Mapping[str, int] | None = None) -> None:
        self._most = most or {}
        self._calls: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """True if there is a limit."""
        return bool(self._most)

    def acquire(self, names: Collection[str]) -> str | None:
        """Count a call of a tool, which may have several names; if it must not run, return the limit as a clause."""
        matching = self._matching(names)
        if (full := next((glob for glob in matching if self._calls[glob] >= self._most[glob]), None)) is not None:
            return f"the limit of one call for tools of '{full}' is {self._most[full]}, and it is reached"
        self._calls.update(matching)
        return None

    def release(self, names: Collection[str]) -> None:
        """Take back the count of a tool call that did not run."""
        self._calls.subtract(self._matching(names))

    def _matching(self, names: Collection[str]) -> list[str]:
        return [glob for glob in self._most if any(fnmatchcase(name, glob) for name in names)]


NO_TOOL_LIMITS = ToolLimits()
