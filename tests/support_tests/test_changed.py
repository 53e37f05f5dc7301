import pytest

from tests.areas import AREAS, GROUND, area_of
from tests.changed import TESTS, base_commit, files_for, within

PACKAGE = TESTS.parent / "pallas_gateway"


def test_each_folder_of_the_package_has_files_for_its_area() -> None:
    modules = [one.relative_to(PACKAGE).parts for one in PACKAGE.rglob("*.py") if len(one.read_text().splitlines()) > 1]
    assert {"/".join(one[:-1]) for one in modules if not area_of(one[:-1])} == set()
    assert [area for area in AREAS if not (PACKAGE / area).is_dir()] == []


def test_each_path_of_an_area_is_there() -> None:
    globs = [glob for area in (*AREAS.values(), GROUND) for glob in area]
    assert [glob for glob in globs if not any(TESTS.glob(glob))] == []


def test_a_module_has_its_unit_tests_and_those_of_its_area() -> None:
    own, area = files_for(["pallas_gateway/core/admission.py"])
    assert own == ["tests/unit/core/test_admission.py"]
    assert "tests/e2e/test_load.py" in area


def test_a_module_of_the_ground_has_its_unit_tests_and_the_main_job() -> None:
    assert files_for(["pallas_gateway/urls.py"]) == (["tests/unit/test_urls.py"], ["tests/e2e/test_main_job.py"])


def test_a_changed_test_and_the_tests_below_a_changed_conftest_run() -> None:
    assert files_for(["tests/unit/test_urls.py"])[0] == ["tests/unit/test_urls.py"]
    assert "tests/example/test_serving.py" in files_for(["tests/example/conftest.py"])[0]


def test_documents_have_their_tests_and_other_files_none() -> None:
    assert "tests/e2e/test_documented_requests.py" in files_for(["docs/README.md"])[1]
    assert files_for(["Makefile", "tests/support/gateway.py"]) == ([], [])


def test_what_takes_too_long_is_left_out() -> None:
    costs = {"a": 3.0, "b": 9.0, "c": 4.0}
    assert within(8.0, ["a", "b", "c"], costs) == (["a", "c"], ["b"])
    assert within(5.0, ["unknown", "a"], costs) == (["unknown", "a"], [])


def test_a_commit_that_does_not_exist_ends_with_a_sentence() -> None:
    with pytest.raises(SystemExit, match="no commit nosuch to compare with; name one: --base COMMIT"):
        base_commit("nosuch")
