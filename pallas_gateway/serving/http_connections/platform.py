"""Checks at import that Hypercorn and h2 have the names that this package overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.errors import PlatformError

if TYPE_CHECKING:
    from types import ModuleType


def require(owner: type | ModuleType, *names: str) -> None:
    """Check that a class or module of a library has the attributes that are overridden, replaced or used.

    Raises:
        PlatformError: names the first that is missing.
    """
    for name in names:
        if not hasattr(owner, name):
            library = getattr(owner, "__module__", owner.__name__).partition(".")[0]
            raise PlatformError(
                f"{library} does not fit: {owner.__name__}.{name} is missing. Install requirements.lock."
            )
