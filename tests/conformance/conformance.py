"""Runs the official MCP conformance suite (npm `@modelcontextprotocol/conformance`) against a server that is up.

The suite is a Node program. Its verdict is read from the `checks.json` it writes for each scenario, and compared with
the expected failures here, not by the suite: that passes over an entry it does not know, and over one that passes now.
"""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.support_programs import program

HERE = Path(__file__).parent
PROGRAMS = HERE / "node_modules"
PATIENT = HERE / "patient.mjs"
SUITE_SECONDS = 240  # the suite allows a scenario 30 s; a whole run takes 2 s against a server that answers
TAIL_LINES = 60
# Added to every scenario that exchanged messages, so its success says nothing about the scenario; its failure does.
WIRE_CHECK = "wire-schema-valid"

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_VERDICT = re.compile(r"^[✓✗] (\S+): \d+ passed, \d+ failed$", re.MULTILINE)
_RESULT_FOLDER = re.compile(r"^server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")


class SuiteDidNotRunError(Exception):
    """The suite ended without a whole result: wrong arguments, a scenario that crashed, a broken installation."""


@dataclass(frozen=True)
class Conformance:
    """An installed suite: the Node that runs it, and its entry script."""

    node: Path
    script: Path


@dataclass(frozen=True)
class Check:
    """One check of one scenario; `status` is `SUCCESS`, `FAILURE`, `WARNING`, `SKIPPED` or `INFO`."""

    scenario: str
    id: str
    status: str
    message: str = ""

    @property
    def name(self) -> str:
        """As a list of expected failures has it."""
        return f"{self.scenario}:{self.id}"


@dataclass(frozen=True)
class SuiteResult:
    """Every check of one run. A warning counts as a failure."""

    checks: tuple[Check, ...]

    @property
    def failed(self) -> dict[str, Check]:
        """Checks that failed, by name. Some scenarios use one id twice: it has failed if either did."""
        return {check.name: check for check in self.checks if check.status in {"FAILURE", "WARNING"}}

    @property
    def passed(self) -> set[str]:
        """Names of the checks that succeeded every time, `WIRE_CHECK` aside."""
        succeeded = {check.name for check in self.checks if check.status == "SUCCESS" and check.id != WIRE_CHECK}
        return succeeded - set(self.failed)

    def differences(self, expected: set[str]) -> list[str]:
        """A sentence for each check that failed or passed against what `expected` says, and for each mistyped name."""
        failed = self.failed
        found = [f"{check.status} {name}: {check.message}" for name, check in failed.items() if name not in expected]
        return found + [f"does not fail, take it off the list: {name}" for name in sorted(expected - set(failed))]


def scenarios_of(names: Iterable[str]) -> set[str]:
    return {name.partition(":")[0] for name in names}


def read_expected(file: Path) -> set[str]:
    """Return the `scenario:check` names of a list of expected failures (the suite's own format)."""
    names: list[str] = yaml.safe_load(file.read_text(encoding="utf-8"))["server"]
    return set(names)


def installed_conformance() -> Conformance:
    """Return the suite that `make programs` installed, with a Node that can run it."""
    return Conformance(Path(program("typescript")), PROGRAMS / "@modelcontextprotocol/conformance/dist/index.js")


def run_suite(
    conformance: Conformance,
    url: str,
    *,
    spec_version: str,
    output: Path,
    preload: Path | None = None,
    scenario: str | None = None,
) -> SuiteResult:
    """Run every scenario of `spec_version` (such as `2025-11-25`) against the MCP endpoint `url`, and wait for the end.

    With `scenario`, this one alone: those of extensions belong to no version.

    Blocks: a test that serves `url` from its own event loop calls this in a thread. `output` is a folder to write
    results to, which is made; `preload` a module that Node loads before the suite. The server has to be up already:
    some scenarios pass against nothing at all.

    Raises:
        SuiteDidNotRunError: the suite ended without a summary, or without the checks of a scenario.
    """
    preloads = [word for one in (PATIENT, preload) if one for word in ("--import", one.as_uri())]
    which = ["--suite", "all"] if scenario is None else ["--scenario", scenario, "--force", "--timeout", "120000"]
    arguments = ["--url", url, *which, "--spec-version", spec_version, "--output-dir", str(output)]
    run = subprocess.run(
        [conformance.node, *preloads, conformance.script, "server", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
        check=False,
    )
    said = _ANSI.sub("", run.stdout + run.stderr)
    scenarios = set(_VERDICT.findall(said)) if scenario is None else {scenario}
    if not scenarios:
        raise SuiteDidNotRunError(f"exit code {run.returncode}: {_tail(said)}")
    checks = tuple(read_checks(output))
    if missing := scenarios - {check.scenario for check in checks}:
        raise SuiteDidNotRunError(f"no checks of {', '.join(sorted(missing))}: {_tail(said)}")
    return SuiteResult(checks)


def read_checks(output: Path) -> Iterator[Check]:
    for folder in sorted(output.iterdir()):
        name = _RESULT_FOLDER.match(folder.name)
        if not name:
            continue
        for check in json.loads((folder / "checks.json").read_text(encoding="utf-8")):
            yield Check(name["scenario"], check["id"], check["status"], check.get("errorMessage") or "")


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-TAIL_LINES:])
