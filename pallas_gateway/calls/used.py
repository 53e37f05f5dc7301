"""What calls use, and whose calls they are, as values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

LONGEST_NAME = 200
"""Characters of a caller's name or account."""


@dataclass(slots=True)
class Used:
    """What calls have used. `calls` are those of clients that were admitted, `nested` those of other agents.

    `estimated` are the tokens of turns without usage of the provider; they are in the other numbers, too.
    """

    calls: int = 0
    refused: int = 0
    nested: int = 0
    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    estimated: int = 0
    cost: float = 0.0

    def __iadd__(self, other: Used) -> Used:
        for name in Used.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


@dataclass(frozen=True, slots=True)
class UsageKey:
    """Whose usage of which agent: `caller` is a `Caller.principal`, `account` its `Caller.account`."""

    caller: str
    account: str
    agent: str

    @classmethod
    def of(cls, caller: str, account: str, agent: str) -> UsageKey:
        """Return the key with texts of limited length; long accounts stay different."""
        if len(account) > LONGEST_NAME:
            account = hashlib.sha256(account.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(caller[:LONGEST_NAME], account, agent)
