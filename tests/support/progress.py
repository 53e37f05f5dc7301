"""What a person sees of `make test`: a pytest plugin, used with `--tier`.

A line for each folder of tests as it ends, with the time left by `costs.json`; each failure at once; skips by the
missing program, with the command that installs it.
"""

import re
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.costs import known_costs

_REASON = re.compile(r"^Skipped: (.+) \((.+)\)$")


@dataclass(eq=False)
class Progress:
    terminal: pytest.TerminalReporter
    left: dict[str, int] = field(default_factory=Counter)
    began: dict[str, float] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        if not self.left and ids:
            self._expect(ids)

    def _expect(self, ids: Collection[str]) -> None:
        self.left = Counter(map(_folder, ids))
        self.files = Counter(map(_file, ids))
        if ids:
            self.terminal.write_line(f"{len(ids):,} tests{_about(self._seconds_left())}")

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        if hasattr(report, "wasxfail"):
            return "xfailed" if report.skipped else "xpassed", "", ""
        if report.when != "call" and report.passed:
            return None
        return ("error" if report.failed and report.when != "call" else report.outcome), "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = _folder(report.nodeid)
        self.began.setdefault(folder, time.monotonic())
        counts = self.counts.setdefault(folder, Counter())
        if report.when == "call" or not report.passed:
            counts[report.outcome] += 1
        if report.failed:
            self.terminal.write_line(f"\nFAILED {report.nodeid} ({report.when})", red=True, bold=True)
            self.terminal.write_line(report.longreprtext)
        if report.skipped and isinstance(report.longrepr, tuple):
            found = _REASON.match(report.longrepr[2])
            self.skipped[(found[1], found[2]) if found else (report.longrepr[2], "")] += 1
        if report.when == "teardown":
            self._end(folder, report.nodeid)

    def _end(self, folder: str, nodeid: str) -> None:
        self.left[folder] -= 1
        self.files[_file(nodeid)] -= 1
        if self.left[folder] == 0:
            counts = self.counts[folder]
            said = ", ".join(
                f"{counts[outcome]:,} {outcome}" for outcome in ("passed", "failed", "skipped") if counts[outcome]
            )
            seconds = time.monotonic() - self.began[folder]
            self.terminal.write_line(f"{folder:14} {said}, {_clock(seconds)}{_about(self._seconds_left())}")

    def _seconds_left(self) -> float:
        options = self.terminal.config.option
        known = known_costs(options.tier)
        left = sum(known[name].wall for name, count in self.files.items() if count and name in known)
        return left / (getattr(options, "numprocesses", None) or 1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self.terminal.config.option.tbstyle = "no"  # each failure was printed when it came
        self.terminal.reportchars = ""

    def pytest_terminal_summary(self) -> None:
        for (what, install), count in sorted(self.skipped.items()):
            self.terminal.write_line(f"not run here: {count:5,}  {what}{f': {install}' if install else ''}")


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _folder(nodeid: str) -> str:
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 else parts[-1]


def _clock(seconds: float) -> str:
    return f"{seconds // 60:.0f}:{seconds % 60:02.0f}"


def _about(seconds: float) -> str:
    return f", about {_clock(seconds)} left" if seconds else ""


@pytest.hookimpl(trylast=True)  # after the terminal's own
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if config.getoption("tier") is not None and terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(terminal), "pallas-progress")
