"""The console's modules: types in their comments (TypeScript) and rules (ESLint)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pallas_gateway.features.console.files import STATIC, served_content
from tests.console.vendor import MODULES, name_of
from tests.support_programs import program

HERE = Path(__file__).parent
PROGRAMS = HERE / "node_modules" / ".bin"
COMPILED = "--allowJs --noResolve --removeComments --ignoreConfig --target esnext --module esnext"
MANY = 50


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
    ran = subprocess.run(
        [program("console-tools"), PROGRAMS / name, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return ran.stdout + ran.stderr


@pytest.mark.needs("console-tools")
def test_the_types_of_the_modules_hold(project: Path) -> None:
    assert output_of("tsc", "-p", "tsconfig.json", "--pretty", "false", folder=project) == ""


@pytest.mark.needs("console-tools")
def test_the_modules_are_the_same_program_as_served_without_comments(tmp_path: Path) -> None:
    written, served, options = tmp_path / "written", tmp_path / "served", COMPILED.split()
    for path in STATIC.rglob("*.js"):
        name, content = path.relative_to(STATIC), path.read_bytes()
        if path.parent.name != "vendor":
            for folder, text in ((written, content), (served, served_content(content, ".js"))):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(text)
    for folder in (written, served):
        modules = [str(path.relative_to(folder)) for path in folder.rglob("*.js")]
        output_of("tsc", *options, "--outDir", "compiled", *modules, folder=folder)
    programs = {path.relative_to(written): path.read_text() for path in (written / "compiled").rglob("*.js")}
    assert len(programs) > MANY
    assert programs == {path: (served / path).read_text() for path in programs}
    assert not any("@type" in text for text in programs.values())  # the compiler has removed comments of both


@pytest.mark.needs("console-tools")
def test_the_modules_follow_the_rules(project: Path) -> None:
    assert output_of("eslint", "--max-warnings", "0", "static", folder=project) == ""
