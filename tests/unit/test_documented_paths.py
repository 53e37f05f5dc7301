"""The documents name modules where they are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pallas_gateway"
FOLDERS = {one.name for one in PACKAGE.iterdir() if one.is_dir()} - {"agents"}  # projects have that folder, too
OWN_PATH = re.compile(rf"`((?:{'|'.join(sorted(FOLDERS))})/[\w/]+\.py)`")


def test_each_module_that_a_document_names_exists() -> None:
    named = [
        (file.name, path)
        for file in (*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md")
        for path in OWN_PATH.findall(file.read_text())
    ]
    assert named
    assert [one for one in named if not (PACKAGE / one[1]).is_file()] == []
