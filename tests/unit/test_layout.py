"""A module's unit tests are where its name says."""

from tests.layout import without_module

OF_NO_MODULE = {
    "features/audit/test_audit_document.py": "a document",
    "changes/test_nothing_else_is_replaced.py": "all libraries",
    "changes/test_upstream_page.py": "a document",
    "config/test_configuration_page.py": "a document",
    "telemetry/test_metrics_document.py": "a document",
    "test_documented_paths.py": "all documents",
    "test_documented_values.py": "all documents",
    "telemetry/test_patterns.py": "the regular expressions of all modules",
    "test_layout.py": "the tests themselves",
    "test_pages.py": "all generated documents",
    "test_sizes.py": "the whole project",
}


def test_each_file_of_unit_tests_is_named_after_a_module() -> None:
    assert set(without_module()) <= OF_NO_MODULE.keys()
