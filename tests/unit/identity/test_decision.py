"""The table of who may do what with an agent."""

import pytest

from pallas_gateway.identity.caller import ANONYMOUS, Caller
from pallas_gateway.identity.decision import Action, Decision, decide, decide_on_all
from pallas_gateway.identity.grants import Grants

ALLOWED, TOKEN_NEEDED, HIDDEN, NO_GRANT = Decision
VIEW, RUN, READ_INSTRUCTION, CREATE, EDIT, HAND_OVER, DELETE, DELETE_THREADS = Action


def caller(*grants: str, authenticated: bool = True) -> Caller:
    return Caller(grants=Grants.of(grants), authenticated=authenticated)


STRANGER = caller(authenticated=False)
VIEWER = caller("view:agents:echo")
RUNNER = caller("run:agents:echo")


@pytest.mark.parametrize(
    ("who", "of_echo", "of_other", "of_none"),
    [
        (ANONYMOUS, (ALLOWED, ALLOWED), (ALLOWED, ALLOWED), (ALLOWED, ALLOWED)),
        (STRANGER, (TOKEN_NEEDED, TOKEN_NEEDED), (TOKEN_NEEDED, TOKEN_NEEDED), (TOKEN_NEEDED, TOKEN_NEEDED)),
        (caller(), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN)),
        (VIEWER, (ALLOWED, NO_GRANT), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN)),
        (RUNNER, (ALLOWED, ALLOWED), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN)),
        (caller("view:agents"), (ALLOWED, NO_GRANT), (ALLOWED, NO_GRANT), (HIDDEN, HIDDEN)),
        (caller("run:agents"), (ALLOWED, ALLOWED), (ALLOWED, ALLOWED), (HIDDEN, HIDDEN)),
        (caller("view:metrics"), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN)),
        (
            caller("view:agents:echo", authenticated=False),
            (ALLOWED, TOKEN_NEEDED),
            (TOKEN_NEEDED, TOKEN_NEEDED),
            (TOKEN_NEEDED, TOKEN_NEEDED),
        ),
    ],
)
def test_the_table(
    who: Caller,
    of_echo: tuple[Decision, Decision],
    of_other: tuple[Decision, Decision],
    of_none: tuple[Decision, Decision],
) -> None:
    def of(agent: str | None, *, exists: bool) -> tuple[Decision, Decision]:
        return decide(who, agent, VIEW, exists=exists), decide(who, agent, RUN, exists=exists)

    assert (of("echo", exists=True), of("other", exists=True)) == (of_echo, of_other)
    assert (of("gone", exists=False), of(None, exists=False)) == (of_none, of_none)


@pytest.mark.parametrize(
    ("grants", "decision"),
    [
        (("view:agents:echo", "view:instructions:echo"), ALLOWED),
        (("run:agents", "view:instructions"), ALLOWED),
        (("run:agents:echo",), NO_GRANT),
        (("view:agents:echo", "view:instructions:other"), NO_GRANT),
        (("view:instructions",), HIDDEN),
    ],
)
def test_an_instruction_requires_the_grant_to_view_its_agent_too(grants: tuple[str, ...], decision: Decision) -> None:
    assert decide(caller(*grants), "echo", READ_INSTRUCTION, exists=True) is decision
    without_token = ALLOWED if decision is ALLOWED else TOKEN_NEEDED
    assert decide(caller(*grants, authenticated=False), "echo", READ_INSTRUCTION, exists=True) is without_token


@pytest.mark.parametrize(
    ("who", "of_both", "of_none"),
    [
        (ANONYMOUS, ALLOWED, ALLOWED),
        (STRANGER, TOKEN_NEEDED, ALLOWED),  # without agents there is nothing to refuse
        (caller(), NO_GRANT, ALLOWED),
        (VIEWER, ALLOWED, ALLOWED),
        (RUNNER, ALLOWED, ALLOWED),
        (caller("view:agents:gone"), NO_GRANT, ALLOWED),
    ],
)
def test_all_agents_require_a_grant_for_one_of_them(who: Caller, of_both: Decision, of_none: Decision) -> None:
    assert (decide_on_all(who, ["echo", "other"]), decide_on_all(who, [])) == (of_both, of_none)


OWNERS = {"poet": "key:ann", "judge": "key:bob"}
OWNER = Caller("ann", grants=Grants.of([]), authenticated=True, owner="key:ann", kind="key")
SOME = (EDIT, HAND_OVER, DELETE, DELETE_THREADS)


@pytest.mark.parametrize(
    ("who", "of_poet", "of_judge"),
    [
        (ANONYMOUS, (ALLOWED,) * 4, (ALLOWED,) * 4),
        (OWNER, (ALLOWED, ALLOWED, ALLOWED, NO_GRANT), (HIDDEN,) * 4),
        (STRANGER, (TOKEN_NEEDED,) * 4, (TOKEN_NEEDED,) * 4),
        (caller("run:agents"), (NO_GRANT,) * 4, (NO_GRANT,) * 4),
        (caller("edit:agents:poet"), (ALLOWED, NO_GRANT, NO_GRANT, NO_GRANT), (HIDDEN,) * 4),
        (caller("delete:agents:poet"), (HIDDEN,) * 4, (HIDDEN,) * 4),
        (caller("view:agents:poet", "delete:agents:poet"), (NO_GRANT, NO_GRANT, ALLOWED, NO_GRANT), (HIDDEN,) * 4),
        (caller("view:agents", "delete:agents"), (NO_GRANT, NO_GRANT, ALLOWED, ALLOWED),
         (NO_GRANT, NO_GRANT, ALLOWED, ALLOWED)),
        (caller("edit:agents", authenticated=False), (ALLOWED, *(TOKEN_NEEDED,) * 3), (ALLOWED, *(TOKEN_NEEDED,) * 3)),
    ],
)  # fmt: skip
def test_the_table_of_changes(who: Caller, of_poet: tuple[Decision, ...], of_judge: tuple[Decision, ...]) -> None:
    held = who.among(OWNERS)
    found = [tuple(decide(held, name, action, exists=True) for action in SOME) for name in OWNERS]
    assert found == [of_poet, of_judge]
    may_change_a_file = [decide(held, "echo", action, exists=True) is ALLOWED for action in SOME]
    assert may_change_a_file == [who is ANONYMOUS] * 4  # without authentication the route answers that


@pytest.mark.parametrize(
    ("who", "decision"),
    [
        (ANONYMOUS, ALLOWED),
        (caller("create:agents"), ALLOWED),
        (caller("create:agents", authenticated=False), ALLOWED),
        (caller("run:agents", "edit:agents", "delete:agents"), NO_GRANT),
        (STRANGER, TOKEN_NEEDED),
    ],
)
def test_creating_requires_its_own_grant(who: Caller, decision: Decision) -> None:
    assert decide(who, None, CREATE, exists=False) is decision


def test_an_owner_is_compared_as_owner_and_not_by_name() -> None:
    namesake = Caller(
        "ann", grants=Grants.of([]), authenticated=True, owner="token:https://login sub ann", kind="token"
    )
    without_subject = Caller("ann", grants=Grants.of([]), authenticated=True, owner=None, kind="token")
    for who in (namesake, without_subject):
        assert decide(who.among(OWNERS), "poet", VIEW, exists=True) is HIDDEN


def test_agents_made_without_authentication_belong_to_no_caller_without_a_token() -> None:
    owners = {"poet": "anonymous"}
    assert decide(STRANGER.among(owners), "poet", VIEW, exists=True) is TOKEN_NEEDED
    runner = caller("run:agents", authenticated=False)
    assert decide(runner.among(owners), "poet", EDIT, exists=True) is TOKEN_NEEDED
    creator = caller("create:agents", authenticated=False)  # the operator lets everybody make agents
    assert decide(creator.among(owners), "poet", DELETE, exists=True) is ALLOWED
