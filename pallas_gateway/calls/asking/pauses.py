"""Deadlines and slots of a call that pause while a question to its caller is open. Nothing here waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Pausable(Protocol):
    """A deadline or a slot of a call that pauses while its caller is asked."""

    def pause(self) -> None:
        """The first question is open."""

    def resume(self) -> None:
        """The last question is closed."""


class Pauses:
    """Pauses the deadlines and slots of one call while questions of it are open."""

    def __init__(self) -> None:
        self.questions = 0
        self._members: dict[Pausable, None] = {}

    @contextmanager
    def including(self, member: Pausable) -> Iterator[None]:
        """Pause `member` while questions are open. After the block it is not changed."""
        self._members[member] = None
        if self.questions:
            member.pause()
        try:
            yield
        finally:
            del self._members[member]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count an open question for the block: the first one pauses all members, the last one resumes them."""
        self.questions += 1
        if self.questions == 1:
            for member in self._members:
                member.pause()
        try:
            yield
        finally:
            self.questions -= 1
            if not self.questions:
                for member in self._members:
                    member.resume()


class PausableDeadline:
    """A deadline that does not count the time of its pauses. Use it within the deadline's own block."""

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self._deadline = deadline
        self._seconds_left: float | None = None

    def pause(self) -> None:
        """Suspend the deadline."""
        at = self._deadline.when()
        if at is not None and not self._deadline.expired():
            self._seconds_left = at - asyncio.get_running_loop().time()
            self._deadline.reschedule(None)

    def resume(self) -> None:
        """Continue with the seconds that were left."""
        if self._seconds_left is not None and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._seconds_left)
            self._seconds_left = None
