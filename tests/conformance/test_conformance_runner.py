import json
from pathlib import Path

import pytest

from .conformance import (
    Check,
    Conformance,
    SuiteDidNotRunError,
    SuiteResult,
    installed_conformance,
    read_checks,
    read_expected,
    run_suite,
)

RESULT = SuiteResult(
    (
        Check("ping", "ping", "SUCCESS"),
        Check("caching", "ttl", "SUCCESS"),
        Check("caching", "ttl", "FAILURE", "too long"),
        Check("caching", "scope", "SUCCESS"),
        Check("resources", "error-code", "WARNING", "another code"),
        Check("resources", "wire-schema-valid", "SUCCESS"),
        Check("session", "skipped", "INFO"),
    )
)


def test_a_check_that_failed_once_has_failed() -> None:
    assert set(RESULT.failed) == {"caching:ttl", "resources:error-code"}
    assert RESULT.passed == {"ping:ping", "caching:scope"}


def test_a_result_names_what_differs_from_the_expected_failures() -> None:
    assert RESULT.differences({"caching:ttl", "resources:error-code"}) == []
    assert RESULT.differences({"caching:ttl", "ping:ping", "pink:pink"}) == [
        "WARNING resources:error-code: another code",
        "does not fail, take it off the list: ping:ping",
        "does not fail, take it off the list: pink:pink",
    ]


def test_checks_are_read_from_the_folders_of_the_scenarios(tmp_path: Path) -> None:
    folder = tmp_path / "server-tools-call-image-2026-11-21T22-08-52-400Z"
    folder.mkdir()
    (tmp_path / "something-else").mkdir()
    checks = [{"id": "one", "status": "FAILURE", "errorMessage": "no image"}, {"id": "two", "status": "SUCCESS"}]
    (folder / "checks.json").write_text(json.dumps(checks), encoding="utf-8")

    assert list(read_checks(tmp_path)) == [
        Check("tools-call-image", "one", "FAILURE", "no image"),
        Check("tools-call-image", "two", "SUCCESS"),
    ]


def test_every_expected_failure_has_its_reason_on_its_line() -> None:
    files = sorted((Path(__file__).parent / "expected").iterdir())
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("  -")]

    assert len(lines) == sum(len(read_expected(file)) for file in files)
    assert [line for line in lines if "  # " not in line] == []


def test_a_scenario_without_checks_is_no_result(tmp_path: Path) -> None:
    node = _fake_node(tmp_path, "echo '=== SUMMARY ==='; echo '✗ ping: 0 passed, 1 failed'; exit 1")
    (tmp_path / "results").mkdir()

    with pytest.raises(SuiteDidNotRunError, match="no checks of ping"):
        run_suite(
            Conformance(node, tmp_path / "index.js"),
            "http://127.0.0.1:1/mcp",
            spec_version="2025-11-25",
            output=tmp_path / "results",
        )


def _fake_node(folder: Path, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    node = folder / "node"
    node.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    node.chmod(0o755)
    return node


@pytest.mark.needs("typescript")
def test_the_installed_suite_refuses_a_version_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(SuiteDidNotRunError, match="Unknown spec version: 1999-12-31"):
        run_suite(installed_conformance(), "http://127.0.0.1:1/mcp", spec_version="1999-12-31", output=tmp_path)
