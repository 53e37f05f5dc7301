"""The repository's documents, for the tests that hold them against the code and follow their links."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_OF_OTHERS = {"node_modules", "__pycache__", "dist", "site-packages"}
_HEADING = re.compile(r"^#{1,6} (.+?)(?: #+)?$", re.MULTILINE)
_FENCED = re.compile(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^\1\2`*$", re.MULTILINE | re.DOTALL)
_HTML_ANCHOR = re.compile(r'<a (?:name|id)="([^"]+)">')
_CODE = re.compile(r"(`+)[^`].*?\1")


@cache
def files(*endings: str) -> tuple[Path, ...]:
    """The repository's own files with one of these endings, without environments, caches and links to folders."""
    found = []
    for folder, folders, names in ROOT.walk():
        folders[:] = sorted(one for one in folders if _is_own(folder / one))
        found += [folder / name for name in sorted(names) if name.endswith(endings)]
    return tuple(found)


def _is_own(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") and folder.name not in {".github", ".ci"}
    return folder.name not in _OF_OTHERS and not is_hidden and not folder.is_symlink()


def documents() -> tuple[Path, ...]:
    """All documents of the repository: guides, decisions, and those beside the code."""
    return files(".md")


def pages() -> dict[str, str]:
    """The texts of README.md and of the pages below docs/ that describe the product as it is, by path."""
    found = (ROOT / "README.md", *(one for one in documents() if one.is_relative_to(DOCS)))
    return {name_of(one): one.read_text() for one in found if "/decisions/" not in str(one)}


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def prose(text: str) -> str:
    """The text without its blocks of code."""
    return _FENCED.sub("", text)


def without_code(text: str) -> str:
    """The text without its blocks of code, and without the code between backticks."""
    return _CODE.sub("", prose(text))


@cache
def anchors(file: Path) -> frozenset[str]:
    """The anchors of a page: those that GitHub gives to headings, and those that are written as HTML."""
    text = file.read_text()
    given: dict[str, int] = {}
    found = set(_HTML_ANCHOR.findall(text))
    for heading in _HEADING.findall(prose(text)):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        earlier = given.get(slug, 0)
        given[slug] = earlier + 1
        found.add(f"{slug}-{earlier}" if earlier else slug)
    return frozenset(found)
