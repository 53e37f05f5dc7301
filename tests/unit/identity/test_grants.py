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
    "word",
    ["", "openid", "run:agents:", "run:agents:a:b", "RUN:AGENTS", "run", "view:metrics:x", "run:agents echo", "*"],
)
def test_other_words_allow_nothing(word: str) -> None:
    assert Grants.of([word]) == NOTHING


def test_everything_is_everything_and_nothing_nothing() -> None:
    assert (EVERYTHING.may_view("x"), EVERYTHING.may_run("x"), EVERYTHING.has("view:metrics")) == (True, True, True)
    assert (NOTHING.may_view("x"), NOTHING.may_run("x"), NOTHING.has("view:metrics")) == (False, False, False)


def test_a_grant_for_one_agent_is_none_for_another_with_a_longer_name() -> None:
    assert not Grants.of(["run:agents:echo"]).may_view("echo2")
