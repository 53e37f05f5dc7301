"""What each grant allows."""

import pytest

from pallas_gateway.identity.grants import EVERYTHING, NOTHING, Grants


@pytest.mark.parametrize(
    ("grant", "allowed"),
    [
        ("view:agents", {"view echo", "view other"}),
        ("view:agents:echo", {"view echo"}),
        ("run:agents", {"view echo", "run echo", "view other", "run other"}),
        ("run:agents:echo", {"view echo", "run echo"}),
        ("view:metrics", {"metrics"}),
        ("view:gateway", {"gateway"}),
        ("view:instructions", {"instruction echo", "instruction other"}),
        ("view:instructions:echo", {"instruction echo"}),
    ],
)
def test_a_grant_allows_what_it_says(grant: str, allowed: set[str]) -> None:
    grants = Grants.of([grant])
    found = {
        "view echo": grants.may_view("echo"),
        "run echo": grants.may_run("echo"),
        "view other": grants.may_view("other"),
        "run other": grants.may_run("other"),
        "metrics": grants.has("view:metrics"),
        "gateway": grants.has("view:gateway"),
        "instruction echo": grants.may_view_instruction("echo"),
        "instruction other": grants.may_view_instruction("other"),
    }
    assert {name for name, may in found.items() if may} == allowed


@pytest.mark.parametrize(
    ("grants", "owned", "allowed"),
    [
        ([], [], set()),
        ([], ["poet"], {"view poet", "run poet", "instruction poet", "edit poet", "hand_over poet", "delete poet"}),
        (["delete:agents:poet"], ["poet"], {"view poet", "run poet", "instruction poet", "edit poet", "hand_over poet",
                                            "delete poet"}),
        (["edit:agents:poet"], [], {"view poet", "run poet", "instruction poet", "edit poet"}),
        (["edit:agents"], [], {f"{use} {name}" for use in ("view", "run", "instruction", "edit")
                               for name in ("poet", "judge")}),
        (["delete:agents:poet"], [], {"delete poet"}),
        (["delete:agents"], [], {f"{use} {name}" for use in ("delete", "delete_threads")
                                 for name in ("poet", "judge")}),
        (["edit:agents", "delete:agents"], [], {
            f"{use} {name}"
            for use in ("view", "run", "instruction", "edit", "hand_over", "delete", "delete_threads")
            for name in ("poet", "judge")
        }),
        (["edit:agents:poet", "delete:agents"], [], {
            "view poet", "run poet", "instruction poet", "edit poet", "delete poet", "delete_threads poet",
            "delete judge", "delete_threads judge",
        }),
        (["create:agents"], [], set()),
        (["view:agents", "view:instructions:echo"], [], {"view poet", "view judge", "view echo", "instruction echo"}),
        (["edit:agents:echo", "delete:agents:echo"], ["echo"], set()),
    ],
)  # fmt: skip
def test_owners_and_editors_have_rights_on_agents_of_the_database_only(
    grants: list[str], owned: list[str], allowed: set[str]
) -> None:
    stored = ("poet", "judge")
    held = Grants.of(grants).with_own([name for name in owned if name in stored], stored)
    uses = {
        "view": held.may_view, "run": held.may_run, "instruction": held.may_view_instruction, "edit": held.may_edit,
        "hand_over": held.may_hand_over, "delete": held.may_delete, "delete_threads": held.may_delete_threads,
    }  # fmt: skip
    names = ("poet", "judge", "echo")  # echo is of a file
    assert {f"{use} {name}" for use, may in uses.items() for name in names if may(name)} == allowed


def test_the_agents_of_the_database_are_replaced_not_added() -> None:
    before = Grants.of(["edit:agents:judge"]).with_own(["poet"], ["poet", "judge"])
    after = before.with_own([], ["poet"])
    assert [name for name in ("poet", "judge") if after.may_view(name) or after.may_delete(name)] == []


@pytest.mark.parametrize(
    ("grants", "owned", "deciding"),
    [
        (["run:agents"], ["poet"], "run:agents"),
        (["run:agents:poet"], [], "run:agents:poet"),
        (["edit:agents"], [], "edit:agents"),
        (["edit:agents:poet"], [], "edit:agents:poet"),
        (["edit:agents:poet"], ["poet"], "owner"),
    ],
)
def test_the_grant_that_has_allowed_a_call_is_named(grants: list[str], owned: list[str], deciding: str) -> None:
    assert Grants.of(grants).with_own(owned, ["poet"]).deciding("run:agents", "poet") == deciding


@pytest.mark.parametrize(
    "word",
    [
        "",
        "openid",
        "run:agents:",
        "run:agents:a:b",
        "RUN:AGENTS",
        "run",
        "view:metrics:x",
        "run:agents echo",
        "*",
        "create:agents:echo",
        "edit",
    ],
)
def test_other_words_allow_nothing(word: str) -> None:
    assert Grants.of([word]) == NOTHING


def test_everything_is_everything_and_nothing_nothing() -> None:
    assert (EVERYTHING.may_view("x"), EVERYTHING.may_run("x"), EVERYTHING.has("view:metrics")) == (True, True, True)
    assert (NOTHING.may_view("x"), NOTHING.may_run("x"), NOTHING.has("view:metrics")) == (False, False, False)


def test_a_grant_for_one_agent_is_none_for_another_with_a_longer_name() -> None:
    assert not Grants.of(["run:agents:echo"]).may_view("echo2")
