"""Which tests `make test` and `make test-all` run; what the first leaves out, it guards by another test."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import tiers
from tests.support.tiers import ALONE

pytest_plugins = ["pytester"]
TESTS = Path(__file__).parents[1]


def marks_of(node: ast.AST) -> Iterator[ast.AST]:
    """The uses of the mark `whole`, with its arguments or without."""
    called = {id(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    for one in ast.walk(node):
        name = ast.unparse(one.func if isinstance(one, ast.Call) else one)
        if name == "pytest.mark.whole" and id(one) not in called:
            yield one


def files() -> list[Path]:
    return sorted(path for path in TESTS.rglob("test_*.py") if not {".venv", "node_modules"} & set(path.parts))


def functions(path: Path) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return {one.name: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_test_left_to_test_all_names_one_of_make_test_for_the_same_behaviour() -> None:
    named = 0
    for path in (one for one in files() if "mark.whole" in one.read_text()):
        folder = path.relative_to(TESTS).parts[0]
        for function in functions(path).values():
            for mark in (one for decorator in function.decorator_list for one in marks_of(decorator)):
                if not isinstance(mark, ast.Call):
                    # a cell of the test: its other cells are in `make test`
                    is_cell = not any(ast.unparse(one) == "pytest.mark.whole" for one in function.decorator_list)
                    assert folder in ALONE or is_cell, f"{path}: {function.name} names no test"
                    continue
                [guard] = [ast.literal_eval(one) for one in mark.args]
                file, _, name = guard.partition("::")
                found = functions(TESTS / file).get(name)
                assert found is not None, f"{path}: {function.name}: there is no test {guard}"
                whole = [one for decorator in found.decorator_list for one in marks_of(decorator)]
                assert not whole, f"{path}: {function.name}: {guard} is left out itself"
                named += 1
    assert named


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder of tests with the plugins of this one."""
    monkeypatch.delenv("PALLAS_COSTS", raising=False)  # it would write the costs of this folder
    pytester.makeini("""
        [pytest]
        asyncio_default_fixture_loop_scope = function
        markers =
            needs(*programs)
            whole(guard)
        """)
    pytester.makeconftest('pytest_plugins = ["tests.support.costs", "tests.support.tiers", "tests.support.progress"]')
    return pytester


EXAMPLE = """
    import pytest

    def test_plain(): pass

    @pytest.mark.whole
    def test_rare(): pass

    @pytest.mark.needs("curl")
    def test_with_a_program(): pass

    @pytest.mark.parametrize("size", [1, 2])
    @pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
    def test_versions(version, size): pass
    """


def names_of(result: pytest.RunResult) -> set[str]:
    return {line.partition("::")[2] for line in result.outlines if "::" in line}


def test_make_test_has_each_behaviour_once_and_test_all_the_rest(project: pytest.Pytester) -> None:
    project.makepyfile(test_example=EXAMPLE)
    found = {tier: names_of(project.runpytest("--collect-only", "-q", "--tier", tier)) for tier in tiers.TIERS}
    assert {"test_plain", "test_with_a_program"} <= found["test"]
    assert {"test_rare", "test_with_a_program"} <= found["all"]
    cells = {tier: {one for one in names if "versions" in one} for tier, names in found.items()}
    assert len(cells["test"]) == len(cells["all"]) == 2
    assert len(cells["test"] | cells["all"]) == 4
    assert {"2025-11-25" in one for one in cells["test"]} == {True, False}


def test_a_run_without_a_tier_has_all_tests(project: pytest.Pytester) -> None:
    project.makepyfile(test_example=EXAMPLE)
    assert len(names_of(project.runpytest("--collect-only", "-q"))) == 7


def test_a_run_says_what_fails_when_it_fails_what_was_skipped_and_what_it_cost(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALLAS_WITHOUT", "curl")
    monkeypatch.delenv("PALLAS_CI", raising=False)
    folder = project.mkpydir("tests") / "unit"
    folder.mkdir()
    (folder / "test_one.py").write_text(
        "import pytest\n\ndef test_plain(): pass\n\n@pytest.mark.needs('curl')\ndef test_curl(): pass\n\n"
        "def test_wrong(): assert 1 == 2, 'not equal'\n"
    )
    result = project.runpytest("--tier", "test", "-q")
    result.stdout.fnmatch_lines(
        [
            "FAILED tests/unit/test_one.py::test_wrong (call)",
            "*not equal*",
            "unit * 1 passed, 1 failed, 1 skipped, [0-9]:[0-9][0-9]*",
            "not run here: * 1  curl: apt-get install curl",
            "CPU * s, wall * s, * cores busy with it *%",
        ]
    )
    assert "= FAILURES =" not in result.stdout.str()
