"""Checks that an installed library has the names the gateway relies on, most of them private.

The meaning of a name cannot be checked: what a map of an aggregator or a session maps, that fast-agent reads it before
it asks a server, that a transport's requests use its pool. The tests of the code that relies on it show that.
"""

from __future__ import annotations

from inspect import isfunction, signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pallas_gateway.errors import PlatformError

if TYPE_CHECKING:
    from collections.abc import Iterable

type ReliedOn = tuple[tuple[Any, str, tuple[str, ...]], ...]
"""Each as "owner, attribute, parameters it must take".

The owner is a module or a class, or the name of one (`package.module:Class`) that is not imported at start. Attributes
that are assigned in `__init__` count as class attributes.
"""


def check_names(relied_on: ReliedOn) -> None:
    """Raise `PlatformError` unless every name exists and takes the parameters that it is called with."""
    if (why := misfit(relied_on)) is not None:
        raise incompatible(why)


def misfit(relied_on: ReliedOn) -> str | None:
    """Return a clause about the first name that is missing or takes other parameters; None if all fit."""
    for owner, name, parameters in relied_on:
        holder = _imported(owner) if isinstance(owner, str) else owner
        if not _has(holder, name) or not _takes(getattr(holder, name, None), parameters):
            return f"{getattr(holder, '__name__', owner)}.{name} is missing or has changed"
    return None


def check_reads(reads: Iterable[tuple[Any, str, str]]) -> None:
    """Raise `PlatformError` unless every method, as "class, method, attribute", reads the attribute."""
    for owner, method, name in reads:
        if name not in getattr(owner, method).__code__.co_names:
            raise incompatible(f"{owner.__name__}.{method} does not read {name}")


def incompatible(why: str) -> PlatformError:
    """The error for a library that does not fit; `why` is a clause."""
    message = f"fast-agent {_version()} does not fit: {why}"
    return PlatformError(f"{message}. Install the versions of requirements.lock.")


def _imported(owner: str) -> Any:
    try:
        return resolve_name(owner)
    except (ImportError, AttributeError):
        return None  # has none of the names


def _has(holder: Any, name: str) -> bool:
    makers = (vars(each).get("__init__") for each in getattr(holder, "__mro__", ()))
    return hasattr(holder, name) or any(isfunction(one) and name in one.__code__.co_names for one in makers)


def _takes(found: Any, parameters: tuple[str, ...]) -> bool:
    return not parameters or (callable(found) and set(parameters) <= signature(found).parameters.keys())


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415  needed for an error message only

    return version("fast-agent-mcp")
