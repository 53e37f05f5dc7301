"""`python -m tests.layout`: lists unit tests whose module is gone, and modules without a unit test.

The tests of `a/b.py` are tests/unit/a/test_b.py; where they are of several subjects, tests/unit/a/test_b_<subject>.py.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
_PACKAGE, _TESTS = ROOT / "pallas_gateway", ROOT / "tests/unit"
_NO_MODULES = {"__init__", "__main__"}


def modules() -> set[str]:
    """The modules and packages below the package, as `a/b`."""
    found = (one for one in _PACKAGE.rglob("*.py") if one.stem not in _NO_MODULES)
    packages = (one.parent for one in _PACKAGE.rglob("*/__init__.py"))
    return {str(one.relative_to(_PACKAGE).with_suffix("")) for one in (*found, *packages)}


def without_module() -> list[str]:
    """Files of unit tests that are named after no module."""
    known = modules()
    tests = (one.relative_to(_TESTS) for one in _TESTS.rglob("test_*.py"))
    return sorted(str(one) for one in tests if not any(_is_of(name, one) for name in known))


def without_test() -> list[str]:
    """Modules without a file of unit tests; other tests reach most of them."""
    tests = [one.relative_to(_TESTS) for one in _TESTS.rglob("test_*.py")]
    files = (name for name in modules() if (_PACKAGE / f"{name}.py").is_file())
    return sorted(name for name in files if not any(_is_of(name, one) for one in tests))


def _is_of(module: str, test: Path) -> bool:
    folder, _, name = module.rpartition("/")
    return str(test.parent) == (folder or ".") and f"{test.stem}_".startswith(f"test_{name}_")


if __name__ == "__main__":
    print("unit tests without a module:", *without_module(), sep="\n  ")
    print("modules without a unit test:", *without_test(), sep="\n  ")
