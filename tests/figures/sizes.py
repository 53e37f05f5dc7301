"""`python -m tests.figures.sizes`: how large the project is, beside what tests/figures/budget.toml allows.

A test fails above the budget. To raise a number is a commit of its own, with the reason.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pallas_gateway"
BUDGET = Path(__file__).with_name("budget.toml")
_INSTALLED = {".venv", "node_modules"}


def budget() -> Mapping[str, int]:
    """Return the largest size of each kind."""
    return {kind: int(most) for kind, most in tomllib.loads(BUDGET.read_text()).items()}


def measured() -> Mapping[str, int]:
    """Return the present sizes, without those of a call, which `python -m tests.figures.call_path` counts."""
    modules = [*PACKAGE.rglob("*.py")]
    static = PACKAGE / "features/console/static"
    console = [
        file for kind in ("js", "css", "html") for file in static.rglob(f"*.{kind}") if "vendor" not in file.parts
    ]
    tests = (file for file in (ROOT / "tests").rglob("*.py") if not _INSTALLED & {*file.parts})
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    configuration = (ROOT / "docs/operate/configuration.md").read_text()
    return {
        "lines_of_package": sum(map(_lines, modules)),
        "lines_of_console": sum(map(_lines, console)),
        "lines_of_tests": sum(map(_lines, tests)),
        "modules": sum(file.name != "__init__.py" or _lines(file) > 1 for file in modules),
        "public_names": sum(len({*public_names(ast.parse(file.read_text()))}) for file in modules),
        "settings": len(re.findall(r"^\| `", configuration, re.MULTILINE)),
        "words_of_documents": sum(len(file.read_text().split()) for file in documents),
    }


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def public_names(module: ast.Module) -> Iterator[str]:
    """The names that a module defines at its top, without those that begin with `_`."""
    for one in module.body:
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.TypeAlias(name=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def main() -> None:
    """Print both columns."""
    allowed, found = budget(), measured()
    print("| | now | at most |", "|---|---|---|", sep="\n")
    for kind, most in allowed.items():
        now = f"{found[kind]:,}" if kind in found else "by call_path"
        print(f"| {kind.replace('_', ' ')} | {now} | {most:,} |")


if __name__ == "__main__":
    main()
