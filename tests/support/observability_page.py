"""docs/operate/observability.md, a section at a time, for the tests that hold it against the code."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "operate" / "observability.md").read_text()
_TITLE = re.compile(r"^## (.+)$", re.MULTILINE)


def section(title: str) -> str:
    """The text below the heading of this title, up to the next of its kind.

    Raises:
        LookupError: there is no such section.
    """
    parts = _TITLE.split(TEXT)
    for found, text in zip(parts[1::2], parts[2::2], strict=True):
        if found == title:
            return text
    raise LookupError(title)
