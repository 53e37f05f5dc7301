"""What a run of the tests costs: CPU and wall time of each test, and how busy the cores are. A pytest plugin.

Each process measures its tests: its own CPU time, and that of programs that ended during the test, started or forked.
The controlling process adds up. A test's wait is its wall time without its CPU time. What the last `make costs`
measured is in tests/figures/costs.json, for each file and command: tests, CPU seconds and wall seconds.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

COSTS = Path(__file__).parents[1] / "figures/costs.json"
_KEY = "costs"
_SHOWN = 10


@dataclass
class Cost:
    """Seconds of CPU and wall time, and of how many tests."""

    cpu: float = 0.0
    wall: float = 0.0
    tests: int = 1

    @property
    def waited(self) -> float:
        """Seconds in which the test used no CPU: it waited, or other processes had the cores."""
        return max(self.wall - self.cpu, 0.0)

    def add(self, other: "Cost") -> None:
        self.cpu, self.wall, self.tests = self.cpu + other.cpu, self.wall + other.wall, self.tests + other.tests


@cache
def known_costs(tier: str | None) -> Mapping[str, Cost]:
    """Return what each file of tests cost when it was measured last, for one command or for all of them."""
    found: dict[str, Cost] = {}
    for name, of_tiers in json.loads(COSTS.read_text()).items() if COSTS.exists() else ():
        for tests, cpu, wall in (cost for one, cost in of_tiers.items() if tier in {None, one}):
            found.setdefault(name, Cost(tests=0)).add(Cost(cpu, wall, tests))
    return found


def cpu_seconds() -> float:
    """Return the CPU time so far of this process, and of its children and forked programs that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    forked = sys.modules.get("tests.support.forked")
    return sum(one.ru_utime + one.ru_stime for one in used) + (forked.cpu_seconds() if forked else 0)


@dataclass
class Costs:
    """Measures a run; `tests` is by node id."""

    config: pytest.Config
    began: float = field(default_factory=time.monotonic)
    tests: dict[str, Cost] = field(default_factory=dict)
    in_processes: float = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        # The last test of a process ends the programs that served all of them, Chromium above all.
        measured = cpu_seconds if nextitem is not None else time.process_time
        cpu, wall = measured(), time.monotonic()
        try:
            return (yield)
        finally:
            self.tests[item.nodeid] = Cost(measured() - cpu, time.monotonic() - wall)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if (output := getattr(self.config, "workeroutput", None)) is not None:
            output[_KEY] = {"cpu": cpu_seconds(), "tests": {k: [v.cpu, v.wall] for k, v in self.tests.items()}}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        found = getattr(node, "workeroutput", {}).get(_KEY)
        if found is not None:  # a process that crashed has sent none
            self.in_processes += found["cpu"]
            self.tests.update({name: Cost(*cost) for name, cost in found["tests"].items()})

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.config.getoption("tier") is not None and len(self.tests) > 10 * _SHOWN:
            for title, key in (("dearest, CPU seconds", "cpu"), ("longest waits, seconds", "waited")):
                terminalreporter.write_line(f"{title}:")
                for name, cost in sorted(self.tests.items(), key=lambda one: -getattr(one[1], key))[:_SHOWN]:
                    terminalreporter.write_line(f"{getattr(cost, key):7.1f}  {name}")
        terminalreporter.write_line(self.line())
        if os.environ.get("PALLAS_COSTS") == "1" and not hasattr(self.config, "workerinput"):
            self._write()

    def line(self) -> str:
        """Return the CPU and wall time of the run, and the share of the cores' time that was the run's."""
        wall = time.monotonic() - self.began
        own = resource.getrusage(resource.RUSAGE_SELF)
        cpu = self.in_processes + own.ru_utime + own.ru_stime if self.in_processes else cpu_seconds()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return f"CPU {cpu:,.0f} s, wall {wall:,.0f} s, {cores} cores busy with it {cpu / (wall * cores):.0%}"

    def _write(self) -> None:
        files: dict[str, Cost] = {}
        for name, cost in self.tests.items():
            files.setdefault(name.partition("::")[0], Cost(tests=0)).add(cost)
        known = json.loads(COSTS.read_text()) if COSTS.exists() else {}
        for name, one in files.items():
            known.setdefault(name, {})[self.config.option.tier] = [one.tests, round(one.cpu, 1), round(one.wall, 1)]
        rows = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known) if Path(name).exists())
        COSTS.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config), "pallas-costs")
