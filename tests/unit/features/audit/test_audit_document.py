"""docs/operate/audit.md has every field and action, and no other."""

import ast
import hmac
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pallas_gateway
from pallas_gateway.calls.trail import MOST_OF_ALL, MOST_OF_CLIENT
from pallas_gateway.core.offers import Action
from pallas_gateway.features.audit.audit_log import HASHED_FIELDS, with_hashed_names
from pallas_gateway.features.audit.chain import FIELDS, LONGEST_LINE, LONGEST_VALUE, SHORTEST_HASH
from pallas_gateway.features.definitions.http.api import GRANT_OF

PACKAGE = Path(pallas_gateway.__file__).parent
OTHERS = ("approve", "answer", "request", *get_args(Action.__value__))
"""Actions of questions and of requests, and those that limits count."""
PAGE = (PACKAGE.parent / "docs" / "operate" / "audit.md").read_text()


def first_cells(heading: str) -> list[str]:
    section = PAGE.split(f"{heading}\n", 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def actions() -> Iterator[str]:
    """The actions of decisions and of lines that the package writes."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="record"), args=[ast.Constant(value=str(action)), _, _]):
                    yield action
                case ast.Call(func=ast.Name(id="_of_process"), args=[ast.Constant(value=str(action))]):
                    yield action
                case ast.Dict(keys=[ast.Constant(value="action"), *_], values=[ast.Constant(value=str(action)), *_]):
                    yield action


def test_every_field_has_a_meaning() -> None:
    assert sorted(first_cells("## Format")) == sorted({"seq", "prev", "time", *FIELDS})


def test_every_action_is_listed() -> None:
    assert {*first_cells("### Actions")} == {*actions(), *OTHERS, *GRANT_OF} - {"I", "decline"}


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"at most {LONGEST_LINE:,} bytes" in PAGE
    assert f"cut at {LONGEST_VALUE} bytes" in PAGE
    assert f"{SHORTEST_HASH} digits of its hash are enough" in PAGE
    assert f"at most {MOST_OF_CLIENT} lines a minute together, those of all clients {MOST_OF_ALL}" in PAGE


def test_a_hashed_name_can_be_found_as_the_page_shows() -> None:
    secret = "a secret of at least 32 characters"
    code = PAGE.split("```python\n", 1)[1].split("```", 1)[0]
    begin, expression = code.strip().splitlines()
    names = {"hmac": hmac, "first_state_key": secret}
    exec(begin, names)  # noqa: S102  the document's own example
    assert eval(expression, names) == with_hashed_names({"caller": "key:ci"}, secret)["caller"]  # noqa: S307  as above
    assert HASHED_FIELDS == ("caller", "address", "owner", "new_owner")
