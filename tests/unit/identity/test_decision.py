"""The table of who may do what with an agent."""

from __future__ import annotations

import pytest

from pallas_gateway.identity.caller import ANONYMOUS, Caller
from pallas_gateway.identity.decision import Action, Decision, decide, decide_on_all
from pallas_gateway.identity.grants import Grants

ALLOWED, TOKEN_NEEDED, HIDDEN, NO_GRANT = Decision
VIEW, RUN, READ_INSTRUCTION = Action


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
