"""Names of libraries: found, checked and replaced. Most of them are private.

The meaning of a name cannot be checked, only that it is there and takes what it is called with. The tests of each
change show the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import getattr_static, isfunction, signature, unwrap
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from pallas_gateway.changes.change import EachClass, EachModule, Name, Replaced
from pallas_gateway.errors import PlatformError

replaced: dict[tuple[str, str], Any] = {}
"""By holder (`module` or `module:Class`) and attribute, each replacement made so far."""
_originals: dict[tuple[str, str], Any] = {}


def misfit(names: Iterable[Name]) -> str | None:
    """Return a clause about the first name that is missing or has changed; None if all fit."""
    for name in names:
        holder, attribute = _located(name.path)
        owner = getattr(holder, "__name__", name.path.partition(":")[0])
        if holder is None or not _has(holder, attribute):
            return f"{owner}.{attribute} is missing or has changed"
        found: Any = getattr(holder, attribute, None)
        if (key := (shown(holder), attribute)) in replaced and replaced[key] is found:
            found = _originals[key]  # the library's own
        if not _takes(found, name.takes):
            return f"{owner}.{attribute} is missing or has changed"
        for read in name.reads:
            if read not in unwrap(found).__code__.co_names:
                return f"{owner}.{attribute} does not read {read}"
    return None


def incompatible(library: str, why: str) -> PlatformError:
    """The error for a library that does not fit; `why` is a clause."""
    return PlatformError(
        f"{library} {installed(library)} does not fit: {why}. Install the versions of requirements.lock."
    )


def installed(library: str) -> str | None:
    """The installed version of a distribution; None if it is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def is_loaded(path: str) -> bool:
    """True if the module of a path has been imported."""
    return path.partition(":")[0] in sys.modules


def places(what: Replaced) -> Iterator[tuple[Any, Name]]:
    """Yield each object that holds the name, as far as its module is imported, with the name in it."""
    if isinstance(what, Name):
        holder, _ = _located(what.path)
        if holder is not None:
            yield holder, what
        return
    for module in _modules_below(what.package):
        if isinstance(what, EachModule) and what.name in vars(module):
            yield module, Name(f"{module.__name__}:{what.name}", what.takes, by=what.by)
        elif isinstance(what, EachClass):
            for each in [one for one in list(vars(module).values()) if isinstance(one, type)]:
                if each.__module__ == module.__name__ and what.name in vars(each):
                    yield each, Name(f"{module.__name__}:{each.__qualname__}.{what.name}", what.takes, by=what.by)


def replace(holder: Any, name: Name, make: Callable[[Any, Any], Any]) -> None:
    """Put what `make(original, holder)` returns in the place of a name; static methods stay static."""
    attribute = name.path.rpartition(":")[2].rpartition(".")[2]
    original, key = getattr(holder, attribute), (shown(holder), attribute)
    made = make(original, holder)
    is_static = isinstance(getattr_static(holder, attribute), staticmethod)
    setattr(holder, attribute, staticmethod(made) if is_static else made)
    if replaced.get(key) is not original:
        _originals[key] = original
    replaced[key] = made


def shown(holder: Any) -> str:
    """The key of a module, class or object in `replaced`."""
    if isinstance(holder, ModuleType):
        return holder.__name__
    return f"{holder.__module__}:{getattr(holder, '__qualname__', type(holder).__qualname__)}"


def _modules_below(package: str) -> list[ModuleType]:
    names = [name for name in list(sys.modules) if name == package or name.startswith(f"{package}.")]
    # A module that another thread imports just now is waited for.
    return [import_module(name) for name in names if isinstance(sys.modules.get(name), ModuleType)]


def _located(path: str) -> tuple[Any, str]:
    """Import the holder of a name; None if it has none."""
    module, _, attribute = path.partition(":")
    holder, _, last = attribute.rpartition(".")
    try:
        return resolve_name(f"{module}:{holder}" if holder else module), last
    except (ImportError, AttributeError):
        return None, last


def _has(holder: Any, name: str) -> bool:
    makers = (vars(each).get("__init__") for each in getattr(holder, "__mro__", ()))
    return hasattr(holder, name) or any(isfunction(one) and name in one.__code__.co_names for one in makers)


def _takes(found: Any, parameters: tuple[str, ...]) -> bool:
    return not parameters or (callable(found) and set(parameters) <= signature(found).parameters.keys())
