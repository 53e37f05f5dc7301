"""A token as a type that cannot be printed. Tokens are deliberately not stored: they live as long as their request."""

from __future__ import annotations

import hmac
from typing import override


class Secret:
    """A string that no repr, format or log record shows; `reveal()` is the only way out."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value, for the line that sends it."""
        return self._value

    @override
    def __repr__(self) -> str:
        """Return one text for all values."""
        return "Secret(****)"

    __str__ = __repr__

    @override
    def __eq__(self, other: object) -> bool:
        """Constant-time comparison with another `Secret`."""
        return isinstance(other, Secret) and hmac.compare_digest(self._value.encode(), other._value.encode())

    @override
    def __hash__(self) -> int:
        """Hash of the value."""
        return hash(self._value)


def bearer_of(authorization: str | None) -> Secret | None:
    """The token of an `Authorization: Bearer …` header value (RFC 6750), None without one."""
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    return Secret(token) if scheme.lower() == "bearer" and token else None
