"""Names of tools at a model: unchanged where they can be, else allowed, short and each tool's own."""

import re

import pytest

from pallas_gateway.calls.tool_names import accepted, name_at_model

ALLOWED = re.compile("[a-zA-Z0-9_-]{1,64}")
LONG = "a" * 40


@pytest.mark.parametrize(
    ("server", "tool", "servers"),
    [
        ("files", "read", ()),
        ("a__b", "c", ("a__b", "b")),
        ("a", "b__c", ("a", "a__b")),
        ("s", "t" * 61, ()),
        ("s", "report-2026-11-27", ()),
    ],
)
def test_a_name_that_models_accept_and_no_other_tool_can_have_is_kept(
    server: str, tool: str, servers: tuple[str, ...]
) -> None:
    assert name_at_model(server, tool, servers) == f"{server}__{tool}"


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("files", "größe", r"files__gr__e-[0-9a-f]{8}"),
        ("files", "a.b", r"files__a_b-[0-9a-f]{8}"),
        ("Größe", "a b", r"Gr__e__a_b-[0-9a-f]{8}"),
        (LONG, "create_issue", rf"{LONG}__create_issue"),
        (LONG, "create_issue_in_project", r"a{30}__create_issue_in_project-[0-9a-f]{8}"),
        (LONG, "x" * 70, r"a{24}__x{29}-[0-9a-f]{8}"),
        ("files", "read-0123abcd", r"files__read-0123abcd-[0-9a-f]{8}"),
        ("\ud800", "x", r"___x-[0-9a-f]{8}"),
    ],
)
def test_a_changed_name_is_allowed_and_ends_in_a_hash(server: str, tool: str, name: str) -> None:
    found = name_at_model(server, tool)
    assert re.fullmatch(name, found)
    assert ALLOWED.fullmatch(found)


@pytest.mark.parametrize(
    "tools",
    [
        [(LONG, f"create_issue_in_project_with_template{end}") for end in ("", "_and_watchers", "s_delete_all")],
        [("a", "b__c"), ("a__b", "c")],
        [("a", "_b"), ("a_", "b")],
        [("x", one) for one in ("a.b", "a/b", "a b", "a:b", "a_b", "日本", "本日")],
        [("a", name_at_model("a__b", "c", ("a",)).removeprefix("a__")), ("a__b", "c")],
        [("a.b", "c"), ("a b", "c"), ("a_b", "c")],
        [("x", "y" * 64), ("x", "y" * 65)],
    ],
)
def test_each_tool_has_a_name_of_its_own(tools: list[tuple[str, str]]) -> None:
    servers = {server for server, _ in tools}
    names = [name_at_model(server, tool, servers) for server, tool in tools]
    assert len(set(names)) == len(tools)
    assert all(map(ALLOWED.fullmatch, names))


def test_a_name_without_a_server_is_kept_or_hashed() -> None:
    assert accepted("agent-echo") == "agent-echo"
    assert re.fullmatch(r"agent-e\.?_cho-[0-9a-f]{8}", accepted("agent-e.cho"))
    assert len(accepted("agent-" + "x" * 60)) == 64
