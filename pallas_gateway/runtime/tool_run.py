"""A tool call that runs: its result, what its server requires, and its questions to the caller."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_types import CallToolResult, InputRequiredResult

    from pallas_gateway.calls.asking.asking import Questions
    from pallas_gateway.calls.questions import Answer, Question

OF_SERVER = "input "
"""Begins what a question of the server is about."""


@dataclass
class ToolRun:
    """One tool call.

    Attributes:
        result: None until it ends.
        input_required: what its server requires before it goes on, in 2026-07-28.
        repeats: `input_required` was recorded by another process and takes the place of the first request.
        questions: ids of those that can be put again, by what they are about.
        answers: to these questions.
        asked_under: the policy by which its approval is asked for; None if it is not.
        texts: that another process had for the model, to be read in the result.
        is_refused: the gateway has not run it.
        has_begun: it works, or has worked; False while nothing of it runs.
    """

    result: CallToolResult | None = None
    input_required: InputRequiredResult | None = None
    repeats: bool = False
    questions: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    asked_under: Sequence[str] | None = None
    texts: Sequence[str] = ()
    is_refused: bool = False
    has_begun: bool = False

    @property
    def can_be_repeated(self) -> bool:
        """Return whether the tool waits for questions that can be put again: then nothing of it runs meanwhile."""
        return bool(self.questions.keys() - self.answers.keys())

    def require(self, required: InputRequiredResult | None) -> None:
        """Take what the server requires now; the questions of its earlier answer are over."""
        self.input_required = required
        for about in [one for one in self.questions if one.startswith(OF_SERVER)]:
            del self.questions[about]
            self.answers.pop(about, None)

    async def ask(self, about: str, question: Question, questions: Questions) -> Answer:
        """Put a question of this tool call to the caller by `questions`, unless its answer was recorded."""
        if (known := self.answers.get(about)) is not None:
            return known
        id_ = self.questions.setdefault(about, question.id)
        self.has_begun = False
        self.answers[about] = answer = await questions.ask(replace(question, id=id_))
        return answer
