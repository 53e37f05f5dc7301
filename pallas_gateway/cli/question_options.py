"""The options of `call` and `chat` that answer an agent's questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.cli.questions import Person

AnswersOption = Annotated[
    list[str] | None,
    typer.Option("--answer", help="FIELD=VALUE for forms of the agent, by key or title; may be repeated."),
]
ApproveOption = Annotated[
    list[str] | None, typer.Option("--approve", help="Approve tools: a glob over SERVER/TOOL; may be repeated.")
]
NoAskOption = Annotated[bool, typer.Option("--no-ask", help="Decline what the agent asks, ask nothing.")]


def person_by(answers: Sequence[str], approve: Sequence[str], *, asks: bool) -> Person | None:
    """Return who answers the questions of calls; None declares that this client cannot be asked.

    Raises:
        UsageError: the options cannot be used.
    """
    from pallas_gateway.cli.questions import person_for  # noqa: PLC0415  most commands ask nothing

    return person_for(answers, approve, asks=asks)
