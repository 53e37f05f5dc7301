"""The worked examples of docs/develop/README.md, applied to a copy of the repository.

Of `make docs`, only the pages that the examples change are written: the others take longer.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT

PAGE = (ROOT / "docs/develop/README.md").read_text()
EXAMPLES = {
    title: text
    for title, _, text in (part.partition("\n") for part in re.split(r"^## ", PAGE, flags=re.MULTILINE))
    if "```diff" in text
}
COPIED = ("pallas_gateway", "tests", "docs", "pyproject.toml", "README.md")
LEFT_OUT = shutil.ignore_patterns("node_modules", ".venv", "images")
WRITTEN = ("docs/operate/configuration.md", "docs/operate/metrics.md")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=LEFT_OUT)
        else:
            shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_the_page_has_a_setting_a_metric_and_a_parameter() -> None:
    assert list(EXAMPLES) == ["A setting", "A metric", "A parameter of a provider"]


@pytest.mark.whole
@pytest.mark.timeout(300)
@pytest.mark.parametrize("title", EXAMPLES)
def test_the_test_of_a_worked_example_fails_first_and_passes_with_the_rest(title: str, copy: Path) -> None:
    first, *others = re.findall(r"^```diff\n(.*?)^```$", EXAMPLES[title], re.MULTILINE | re.DOTALL)
    [*_, command] = re.findall(r"^\$ \.venv/bin/(pytest .+)$", EXAMPLES[title], re.MULTILINE)
    apply(first, copy)
    *_, changed = re.findall(r"^\+\+\+ b/(.+)$", first, re.MULTILINE)
    assert run(copy, "pytest", "-q", "-x", "-p", "no:cacheprovider", changed).returncode == 1
    for diff in others:
        apply(diff, copy)
    for edit in re.findall(r"^\$ (sed .+)$", EXAMPLES[title], re.MULTILINE):
        subprocess.run(shlex.split(edit), cwd=copy, check=True)
    if "$ make docs\n" in EXAMPLES[title]:
        assert run(copy, "tests.pages", *WRITTEN).returncode == 0
    done = run(copy, *shlex.split(command), "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    modules = sorted(set(re.findall(r"^\+\+\+ b/(.+\.py)$", EXAMPLES[title], re.MULTILINE)))
    for linter in (("check",), ("format", "--check")):
        linted = run(copy, "ruff", *linter, "--no-cache", "-q", *modules)
        assert linted.returncode == 0, linted.stdout


def apply(diff: str, folder: Path) -> None:
    command = ["git", "apply", "--unidiff-zero", "-"]
    # Not as a part of a repository around the folder: git would apply what lies outside of it to nothing.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, input=diff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python in the folder, without the options of the tests around it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    environment = {**kept, "PYTHONDONTWRITEBYTECODE": ""}  # what the first run has compiled serves the second
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
