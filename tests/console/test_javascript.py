"""The console's modules: types in their comments (TypeScript) and rules (ESLint)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pallas_gateway.web.console.files import STATIC
from tests.console.vendor import MODULES, name_of
from tests.support_programs import program, require_program

HERE = Path(__file__).parent
PROGRAMS = HERE / "node_modules" / ".bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the modules, in which the declarations of the vendored libraries stand for their minified code."""
    shutil.copytree(STATIC, tmp_path / "static", ignore=shutil.ignore_patterns("vendor"))
    (tmp_path / "static/vendor").mkdir()
    for specifier in MODULES:
        exported = "{ default }" if specifier == "htm" else "*"
        declarations = tmp_path / "static/vendor" / name_of(specifier).replace(".js", ".d.ts")
        declarations.write_text(f"export {exported} from '{specifier}';\n")
    for name in ("node_modules", "tsconfig.json", "eslint.config.js"):
        (tmp_path / name).symlink_to(HERE / name)
    return tmp_path


def output_of(name: str, *arguments: str, folder: Path) -> str:
    path = PROGRAMS / name
    node = program("node", "nodejs")
    found = require_program(path if path.exists() else None, f"{name} is not installed (make programs)")
    ran = subprocess.run([node, found, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


def test_the_types_of_the_modules_hold(project: Path) -> None:
    assert output_of("tsc", "-p", "tsconfig.json", "--pretty", "false", folder=project) == ""


def test_the_modules_follow_the_rules(project: Path) -> None:
    assert output_of("eslint", "--max-warnings", "0", "static", folder=project) == ""
