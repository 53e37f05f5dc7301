"""Branch coverage from `sys.monitoring` on Python 3.13, where coverage itself still sets a trace function for it.

With a trace function the interpreter stops at every line of every library: an end-to-end test took twice the CPU time.
`sys.monitoring` stops in the measured files alone, and coverage uses it from Python 3.14 on. In 3.13 a branch has one
event for both its ways, which cannot be switched off after one of them: here it is once both were seen.

A plugin of coverage, named in pyproject.toml. It leans on coverage's internals, so `test_branch_events.py` compares
what both ways of measuring say. It can go with Python 3.13.
"""

from __future__ import annotations

import dis
import sys
from typing import TYPE_CHECKING, cast

from coverage import CoveragePlugin, bytecode, core, env
from coverage.sysmon import DISABLE, CodeInfo, MonitorReturn, SysMonitor

if TYPE_CHECKING:
    from types import CodeType

    from coverage.plugin_support import Plugins
    from coverage.types import TArc, TConfigurable

ASYNC_LOOP_END = dis.opmap["END_ASYNC_FOR"]


def coverage_init(plugins: Plugins, options: object) -> None:
    """What coverage calls in a plugin."""
    if sys.version_info[:2] == (3, 13):
        plugins.add_configurer(BranchEvents())


class BranchEvents(CoveragePlugin):
    """Has coverage measure with `BranchEventMonitor`."""

    def configure(self, config: TConfigurable) -> None:
        """Choose the core that uses `sys.monitoring`, and let it measure branches."""
        env.PYBEHAVIOR.branch_right_left = True
        bytecode.RETURNS.add(dis.opmap["RETURN_CONST"])  # gone in 3.14, so coverage does not know it
        core.SysMonitor = BranchEventMonitor  # type: ignore[attr-defined]
        config.set_option("run:core", "sysmon")


class BranchEventMonitor(SysMonitor):
    """`SysMonitor` with the events that Python 3.13 has."""

    def __init__(self) -> None:
        super().__init__()
        self._first_ways: dict[tuple[int, int], int] = {}
        """Where each branch went that has gone one way only, by the ids of code and instruction."""
        self._followed: set[int] = set()
        """Ids of code with an `async for`: its end is no branch to Python 3.13, so such code is followed by lines."""
        self._last_lines: dict[int, int] = {}
        """Where each frame of such code is, by its id."""

    def start(self) -> None:
        """Start measuring."""
        with self.lock:
            monitoring, events = sys.monitoring, sys.monitoring.events
            monitoring.use_tool_id(self.myid, "coverage.py")
            monitoring.set_events(self.myid, events.PY_START)
            monitoring.register_callback(self.myid, events.PY_START, self._started)
            monitoring.register_callback(self.myid, events.LINE, self._reached)
            monitoring.register_callback(self.myid, events.BRANCH, self._branched)
            monitoring.register_callback(self.myid, events.PY_RETURN, self._returned)
            monitoring.restart_events()
            self.sysmon_on = True

    def _started(self, code: CodeType, offset: int) -> MonitorReturn:
        self._activity = True
        self._know(code)
        if id(code) not in self._followed:
            return DISABLE
        self._last_lines[id(sys._getframe(1))] = -code.co_firstlineno
        return None

    def _reached(self, code: CodeType, line: int) -> MonitorReturn:
        info = self._know(code)
        if id(code) not in self._followed:
            return cast("MonitorReturn", self.sysmon_line_arcs(code, line))
        frame = id(sys._getframe(1))
        cast("set[TArc]", info.file_data).add((self._last_lines.get(frame, line), line))
        self._last_lines[frame] = line
        return None

    def _branched(self, code: CodeType, offset: int, destination: int) -> MonitorReturn:
        branch = id(code), offset
        first = self._first_ways.get(branch)
        if first == destination:
            return None
        self._know(code)
        self.sysmon_branch_either(code, offset, destination)
        if first is None:
            self._first_ways[branch] = destination
            return None
        return DISABLE

    def _returned(self, code: CodeType, offset: int, value: object) -> MonitorReturn:
        self._know(code)
        return cast("MonitorReturn", self.sysmon_py_return(code, offset, value))

    def _know(self, code: CodeType) -> CodeInfo:
        """What is known of `code`. When it is first seen and is to be measured, its events come from then on."""
        return self.code_infos.get(id(code)) or self._look_at(code)

    def _look_at(self, code: CodeType) -> CodeInfo:
        if (file := self.should_trace_cache.get(code.co_filename)) is None:
            file = self.should_trace_cache[code.co_filename] = self.should_trace(code.co_filename, sys._getframe(3))
        info = CodeInfo(tracing=file.trace, file_data=None, byte_to_line=None, branch_resolver=None)
        if file.trace:
            info.file_data = self.data.setdefault(str(file.source_filename), set())
            info.byte_to_line = bytecode.bytes_to_lines(code)
            if ASYNC_LOOP_END in code.co_code[::2]:
                self._followed.add(id(code))
            events = sys.monitoring.events
            sys.monitoring.set_local_events(self.myid, code, events.LINE | events.BRANCH | events.PY_RETURN)
        self.code_infos[id(code)] = info
        self.code_objects.append(code)  # or its id would be another's one day
        return info
