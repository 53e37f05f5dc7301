"""Advisories, builds, and the files that say how to work on the project."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 24, tzinfo=UTC)
LOCK = "aiohttp==3.14.5 \\\n    --hash=sha256:00\nPyYAML==6.0.3 ; sys_platform != 'win32' \\\n    --hash=sha256:11\n"


@pytest.fixture(scope="module")
def advisories() -> ModuleType:
    spec = importlib.util.spec_from_file_location("advisories", ROOT / ".ci/supply_chain/advisories.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def advisory(name: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    affected = {
        "package": {"ecosystem": "PyPI", "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
        "versions": more.pop("versions", []),
    }
    return {"id": "GHSA-1", "summary": "It fails.", "modified": "2026-11-20T10:00:00Z", "affected": [affected], **more}


def exported(folder: Path, *documents: object) -> Path:
    path = folder / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number, document in enumerate(documents):
            archive.writestr(f"{number}.json", json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("document", "is_found"),
    [
        (advisory("pyyaml", {"introduced": "0"}, {"fixed": "6.0.4"}), True),
        (advisory("PyYAML", {"introduced": "0"}, {"fixed": "6.0.3"}), False),
        (advisory("pyyaml", {"introduced": "0"}, {"last_affected": "6.0.3"}), True),
        (advisory("pyyaml", {"introduced": "6.1"}), False),
        (advisory("pyyaml", {"introduced": "0"}, {"fixed": "5.0"}, {"introduced": "6.0"}, {"fixed": "6.0.9"}), True),
        (advisory("pyyaml", versions=["6.0.3"]), True),
        (advisory("pyyaml", {"introduced": "0"}, withdrawn="2026-11-21T00:00:00Z"), False),
        (advisory("numpy", {"introduced": "0"}), False),
    ],
)
def test_an_advisory_is_found_if_it_concerns_the_locked_version(
    advisories: ModuleType, document: dict[str, Any], *, is_found: bool
) -> None:
    found = list(advisories.findings(advisories.locked(LOCK), [document]))
    assert found == (["pyyaml 6.0.3: GHSA-1 It fails."] if is_found else [])


def test_an_export_of_this_month_is_read(advisories: ModuleType, tmp_path: Path) -> None:
    document = advisory("pyyaml", {"introduced": "0"})
    assert advisories.read(str(exported(tmp_path, document)), NOW) == [document]


def test_an_export_that_says_nothing_about_today_is_refused(advisories: ModuleType, tmp_path: Path) -> None:
    old = exported(tmp_path, advisory("pyyaml", modified="2026-10-24T00:00:00Z"))
    with pytest.raises(advisories.UnusableExportError, match="newest advisory is of 2026-10-24, more than 30 days ago"):
        advisories.read(str(old), NOW)
    with pytest.raises(advisories.UnusableExportError, match="has no advisory"):
        advisories.read(str(exported(tmp_path)), NOW)
    with pytest.raises(advisories.UnusableExportError, match="no export of advisories"):
        advisories.read(str(ROOT / "LICENSE"), NOW)


@pytest.mark.whole
def test_two_builds_of_the_wheel_are_the_same_byte_for_byte(tmp_path: Path) -> None:
    built = []
    for name in ("one", "two"):
        copy = tmp_path / name
        copy.mkdir()
        for part in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "agents.example.yaml"):
            shutil.copy(ROOT / part, copy)
        for folder in ("pallas_gateway", "docs"):
            shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(copy / "dist")]
        subprocess.run(build, cwd=copy, check=True, capture_output=True)
        (wheel,) = (copy / "dist").glob("*.whl")
        built.append((wheel.name, wheel.read_bytes()))
    assert built[0] == built[1]
    with zipfile.ZipFile(tmp_path / "one" / "dist" / built[0][0]) as archive:
        assert {"pallas_gateway/py.typed", "pallas_gateway/docs/README.md"} <= set(archive.namelist())


def test_each_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (file.name, target)
        for file in (ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / ".github").rglob("*.*"))
        for target in re.findall(r"(?:`|\$ |run: )make ([a-z-]+)", file.read_text())
    }
    assert named
    assert [one for one in named if one[1] not in targets] == []


def test_workflows_and_templates_can_be_read_and_run_what_ci_runs() -> None:
    read = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github").rglob("*.yaml")}
    job = read["check.yaml"]["jobs"]["check"]
    assert any("bash .ci/run" in step.get("run", "") for step in job["steps"])
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert set(declared) <= set(job["strategy"]["matrix"]["python"])
    assert [one for one in ("problem.yaml", "wish.yaml") if not read[one]["body"]] == []
