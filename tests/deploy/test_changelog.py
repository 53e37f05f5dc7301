"""The form of CHANGELOG.md. `tests/unit/test_documented_paths.py` follows its links."""

import re
from datetime import date

from pallas_gateway import __version__
from tests.deploy.adapting import ROOT

MOST_LINES = 60
"""Of a release after the first one, with its headings."""
SECTIONS = ("Added", "Changed", "Removed", "Fixed")
RELEASE = re.compile(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})")
PAGE = re.compile(r"\]\((?:docs/|README\.md|SECURITY\.md)")


def test_a_release_has_its_changes_in_a_few_short_sections() -> None:
    for title, body in releases():
        found = re.findall(r"^### (.+)$", body, re.MULTILINE)
        assert found == [name for name in SECTIONS if name in found], title
        assert found, title
    assert [title for title, body in releases()[:-1] if len(body.strip().splitlines()) > MOST_LINES] == []


def test_each_change_of_a_release_names_the_page_that_describes_it() -> None:
    changes = [change for _, body in releases() for change in re.findall(r"^- (?:.|\n  )+", body, re.MULTILINE)]
    assert changes
    assert [change for change in changes if not PAGE.search(change)] == []


def test_the_newest_release_stands_first_and_is_the_version_of_the_package() -> None:
    assert sections()[0][0] == "[Unreleased]"
    dated = [RELEASE.fullmatch(title) for title, _ in releases()]
    assert None not in dated
    facts = [(tuple(map(int, one[1].split("."))), date.fromisoformat(one[2])) for one in dated if one]
    assert facts == sorted(facts, reverse=True)
    assert dated[0] is not None
    assert dated[0][1] == __version__
    assert f"\nVersion {__version__} of " in (ROOT / "README.md").read_text()


def releases() -> list[tuple[str, str]]:
    return sections()[1:]


def sections() -> list[tuple[str, str]]:
    _, *parts = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    return [(title, body) for title, _, body in (part.partition("\n") for part in parts)]
