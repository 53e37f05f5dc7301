"""The options of `call` and `chat` that answer an agent's questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pallas_gateway.cli.questions import Person

AnswersOption = Annotated[
    list[str] | None, typer.Option("--answer", help="FIELD=VALUE for forms of the agent; may be repeated.")
]
ApproveOption = Annotated[
    list[str] | None, typer.Option("--approve", help="Approve tools: a glob over server/tool; may be repeated.")
]
NoAskOption = Annotated[bool, typer.Option("--no-ask", help="Decline what the agent asks, ask nothing.")]


def person_by(
    answers: Sequence[str], approve: Sequence[str], *, asks: bool
) -> Callable[[Collection[str]], Person | None]:
    """Return the function that gives an `AgentClient` its `Person`."""

    def person(agents: Collection[str]) -> Person | None:
        from pallas_gateway.cli.questions import person_for  # noqa: PLC0415  not needed before a call

        return person_for(answers, approve, agents, asks=asks)

    return person
