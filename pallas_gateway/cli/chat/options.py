"""What a chat was started with. Cheap to import: every command pays for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whom to talk to and in which thread.

    With `resume` the `thread` (None: the latest) must be there, otherwise it is made; None is a new one. `settings` are
    `NAME=VALUE`.
    """

    agent: str
    url: str
    bearer: str | None = field(repr=False)
    thread: str | None = field(kw_only=True)
    resume: bool = field(kw_only=True)
    images: Sequence[Path] = field(kw_only=True)
    settings: Sequence[str] = field(kw_only=True)
