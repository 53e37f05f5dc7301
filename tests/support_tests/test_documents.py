"""The documents' anchors, and their texts without code."""

from pathlib import Path

from tests.support.documents import anchors, documents, pages, without_code


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# The `code` of *it*\n## A/B: what?\n## Twice\n## Twice\n## [Link](there.md) here\n"
        '<a name="by_hand"></a>\n```\n# no heading\n```\n## snake_case, dash-case\n'
    )
    assert anchors(page) == {
        "the-code-of-it",
        "ab-what",
        "twice",
        "twice-1",
        "link-here",
        "by_hand",
        "snake_case-dash-case",
    }


def test_code_is_no_prose() -> None:
    assert without_code("a `[b](c)` [`d`](e)\n```\n[f](g)\n```\n") == "a  [](e)\n\n"


def test_the_repositorys_own_documents_are_found() -> None:
    found = {file.name for file in documents()}
    assert {"README.md", "SECURITY.md", "pull_request_template.md", "audit.md", "0001-the-house.md"} <= found
    assert not [file for file in documents() if "node_modules" in file.parts or ".venv" in file.parts]
    assert {"README.md", "docs/operate/limits.md"} <= pages().keys()
