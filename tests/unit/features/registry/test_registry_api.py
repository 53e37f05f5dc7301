"""Pages, filters and names of the registry API, over entries as the registry writes them."""

from typing import Any

import pytest
from pydantic import ValidationError

from pallas_gateway.features.registry.registry_api import RegistryQuery, is_path, named, page

OFFICIAL = "io.modelcontextprotocol.registry/official"
PUBLISHER = "io.modelcontextprotocol.registry/publisher-provided"


def entry(name: str, description: str = "Answers.", updated: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    server = {"name": f"com.example/{name}", "version": "1.2.0", "_meta": {PUBLISHER: {"description": description}}}
    return {"server": server, "_meta": {OFFICIAL: {"updatedAt": updated}}}


FOUR = [entry("a", "Finds Books."), entry("b", updated="2026-01-02T00:00:00Z"), entry("books"), entry("c")]


def names(document: dict[str, Any]) -> list[str]:
    return [one["server"]["name"].removeprefix("com.example/") for one in document["servers"]]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ["a", "b", "books", "c"]),
        ({"version": "latest"}, ["a", "b", "books", "c"]),
        ({"version": "1.2.0"}, ["a", "b", "books", "c"]),
        ({"version": "1.2"}, []),
        ({"search": "BOOKS"}, ["a", "books"]),
        ({"search": "com.example/b"}, ["b", "books"]),
        ({"search": "nothing"}, []),
        ({"updated_since": "2026-01-01T00:00:00Z"}, ["b"]),
        ({"updated_since": "2026-01-01T23:59:59.5+00:30"}, ["b"]),
        ({"updated_since": "2026-01-02T00:00:00Z"}, []),
        ({"search": "books", "cursor": "com.example/a:1.2.0"}, ["books"]),
        ({"cursor": "com.example/c:1.2.0"}, []),
        ({"include_deleted": "true", "source": "cli"}, ["a", "b", "books", "c"]),
    ],
)
def test_a_list_has_the_entries_that_match(asked: dict[str, str], found: list[str]) -> None:
    document = page(FOUR, RegistryQuery.model_validate(asked))
    assert names(document) == found
    assert document["metadata"] == {"count": len(found)}


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_the_pages_of_a_list_have_every_entry_once(limit: int) -> None:
    seen, cursors = [], [""]
    while len(cursors) <= len(FOUR):
        document = page(FOUR, RegistryQuery(limit=limit, cursor=cursors[-1]))
        seen += names(document)
        if "nextCursor" not in document["metadata"]:
            break
        cursors.append(document["metadata"]["nextCursor"])
    assert seen == names({"servers": FOUR})
    assert len(cursors) == -(-len(FOUR) // limit)


@pytest.mark.parametrize(
    "asked",
    [{"limit": "0"}, {"limit": "ten"}, {"updated_since": "yesterday"}, {"updated_since": "2026-01-01T00:00:00"}],
)
def test_a_parameter_that_cannot_be_read_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        RegistryQuery.model_validate(asked)


def test_an_entry_is_found_by_its_name_and_version() -> None:
    assert named(FOUR, "com.example/b") == FOUR[1]
    assert named(FOUR, "com.example/b/versions") == {"servers": [FOUR[1]], "metadata": {"count": 1}}
    assert named(FOUR, "com.example/b/versions/latest") == FOUR[1]
    assert named(FOUR, "com.example/b/versions/1.2.0") == FOUR[1]


@pytest.mark.parametrize(
    "below",
    [
        *("b", "com.example", "com.example/z", "com.example/z/versions", "com.example/b/versions/1.2", "versions"),
        *("com.example/b/status", "com.example/b/versions/1.2.0/status", "com.example//b"),
    ],
)
def test_other_names_and_versions_are_not_found(below: str) -> None:
    assert named(FOUR, below) is None


def test_both_versions_of_the_api_have_one_is_path() -> None:
    below = ("", "/", "/com.example/a", "/com.example/a/versions/latest")
    assert {is_path(f"/{version}/servers{path}") for version in ("v0", "v0.1") for path in below} == {True}
    assert [is_path(path) for path in ("/v0.1/serversx", "/v1/servers", "/")] == [False, False, False]
