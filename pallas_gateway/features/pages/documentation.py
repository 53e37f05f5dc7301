"""The documentation that is installed, below `/docs/`: Markdown, and for browsers the same as pages.

The files are those of the package's folder `docs`, and no others. A page has no script and loads images of the
documentation alone.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from pallas_gateway.doors.http.page_headers import page_headers, this_style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from starlette.requests import Request

INDEX = "/docs/README.md"
_FOLDER = Path(__file__).parents[2] / "docs"
_STYLE = (
    ":root{color-scheme:light dark;background:Canvas;color:CanvasText}a{color:LinkText}"
    "body{font:16px/1.55 system-ui,sans-serif;margin:1.5rem auto;max-width:52rem;padding:0 1rem;"
    "overflow-wrap:break-word}"
    "nav{border-bottom:1px solid;padding-bottom:.5rem}"
    "pre,.wide{border:1px solid;overflow-x:auto}pre{padding:.7rem}code{font-size:.9em}"
    ":not(pre)>code{overflow-wrap:break-word}"
    "table{border-collapse:collapse;width:100%}th,td{border-bottom:1px solid;padding:.35rem .6rem;text-align:left;"
    "vertical-align:top}img{max-width:100%;height:auto}"
)
_HEADERS = page_headers(f"img-src 'self'; {this_style(_STYLE)}") | {"Cache-Control": "no-cache", "Vary": "Accept"}
_READERS = {
    "": "Documentation",
    "use/": "For those who use agents, and write clients and agents",
    "operate/": "For those who run the gateway",
    "develop/": "For those who change the gateway",
}


@cache
def documents() -> dict[str, Path]:
    """Return the files of the documentation, by URL path."""
    return {f"/docs/{file.relative_to(_FOLDER)}": file for file in sorted(_FOLDER.rglob("*.md"))}


@cache
def images() -> dict[str, Path]:
    """Return the images of the documentation, by URL path."""
    return {f"/docs/{file.relative_to(_FOLDER)}": file for file in sorted(_FOLDER.rglob("*.png"))}


@cache
def contents() -> dict[str, dict[str, str]]:
    """Return the titles of all pages but the decisions, by URL path, in one table for each reader."""
    pages = [path for path in documents() if "/decisions/" not in path]
    return {
        reader: {path: _title(path) for path in pages if path.removeprefix("/docs/").rpartition("/")[0] == folder[:-1]}
        for folder, reader in _READERS.items()
    }


async def document(request: Request) -> Response:
    """Return a document as Markdown, or for browsers as a page in HTML."""
    from pallas_gateway.features.pages.front_page import prefers_html  # noqa: PLC0415  imported for the first page only

    path = request.scope["path"]
    if prefers_html(request):
        return HTMLResponse(await asyncio.to_thread(_page, path), headers=_HEADERS)  # a long one takes 0.2 s
    return PlainTextResponse(documents()[path].read_text(encoding="utf-8"), headers=_HEADERS)


async def image(request: Request) -> Response:
    """Return an image of the documentation."""
    return Response(images()[request.scope["path"]].read_bytes(), media_type="image/png", headers=_HEADERS)


async def index(request: Request) -> Response:
    """Return a redirect to the index, relative to the request: a proxy may add a prefix."""
    return RedirectResponse(_relative(INDEX, request.scope["path"]), 308, headers=_HEADERS)


def _relative(target: str, path: str) -> str:
    """Return the path of a target for a link on the page of the other path."""
    return posixpath.relpath(target, posixpath.dirname(path))


def _title(path: str) -> str:
    with documents()[path].open(encoding="utf-8") as file:
        return next(line for line in file if line.startswith("# ")).removeprefix("# ").strip().replace("`", "")


@cache  # of the files that are installed
def _page(path: str) -> str:
    markdown = _markdown()
    tokens = markdown.parse(documents()[path].read_text(encoding="utf-8"))
    _name_headings(tokens)
    _mend_links(tokens, path)
    _unname_columns(tokens)
    body = markdown.renderer.render(tokens, markdown.options, {})
    title = escape(_title(path))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title} · Pallas Gateway</title>'
        '<meta name="viewport" content="width=device-width">'
        f'<style>{_STYLE}</style></head><body><nav aria-label="Documentation">'
        f'<a href="{_relative("/", path)}">Gateway</a> · '
        f'<a href="{_relative(INDEX, path)}">Documentation</a></nav><main>{body}</main></body></html>\n'
    )


def _markdown() -> MarkdownIt:
    """Return a parser of the Markdown that the documentation uses; HTML in it is text."""
    from markdown_it import MarkdownIt  # noqa: PLC0415  imported for the first page only

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    # What may be wider than a phone scrolls by itself, also by keyboard.
    markdown.add_render_rule("table_open", lambda *_: '<div class="wide" role="group" tabindex="0"><table>\n')
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
    for block in ("fence", "code_block"):
        markdown.add_render_rule(block, _code)
    return markdown


def _code(_renderer: object, tokens: Sequence[Token], index: int, *_: object) -> str:
    return f'<pre tabindex="0"><code>{escape(tokens[index].content)}</code></pre>\n'


def _name_headings(tokens: Sequence[Token]) -> None:
    """Give headings the ids by which links name them, as on GitHub: of equal ones, the second has -1."""
    seen: dict[str, int] = {}
    for token, inside in pairwise(tokens):
        if token.type == "heading_open":
            text = "".join(child.content for child in inside.children or ())
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            seen[name] = seen.get(name, -1) + 1
            token.attrSet("id", f"{name}-{seen[name]}" if seen[name] else name)


def _unname_columns(tokens: Sequence[Token]) -> None:
    """Make headers of columns that have no name plain cells."""
    for opened, inside, closed in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if opened.type == "th_open" and not inside.content:
            opened.tag = closed.tag = "td"


def _mend_links(tokens: Sequence[Token], path: str) -> None:
    """Make links that lead out of the documentation text: the rest of the repository is not installed."""
    for token in tokens:
        dead = False
        for child in token.children or ():
            if child.type == "link_open":
                dead = _leads_out(str(child.attrGet("href")), path)
            if dead and child.type in ("link_open", "link_close"):
                child.tag, child.attrs = "span", {}


def _leads_out(target: str, path: str) -> bool:
    place = target.partition("#")[0]
    if not place or re.match(r"[a-z]+:", target):
        return False
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), place)) not in documents()
