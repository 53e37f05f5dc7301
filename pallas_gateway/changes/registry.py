"""The registry of the changes of libraries: it checks, installs, switches and closes them.

Libraries are changed for the whole process, so there is one registry for it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import AsyncExitStack
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from threading import RLock
from types import ModuleType
from typing import Any

from pallas_gateway import changes
from pallas_gateway.changes.change import (
    FAST_PATH,
    LOADED,
    REPAIR,
    Change,
    EachClass,
    Kind,
    Loaded,
    Name,
    Replaced,
    When,
)
from pallas_gateway.changes.names import incompatible, installed, is_loaded, misfit, places, replace
from pallas_gateway.changes.versions import SETTINGS, TESTED
from pallas_gateway.config.problems import ConfigurationError, Problem, did_you_mean
from pallas_gateway.errors import PlatformError

CHANGES = "PALLAS_CHANGES"
"""Names changes that are switched off, each with `-` before it and commas between them."""
FAST_PATHS = "PALLAS_FAST_PATHS"
"""Names fast paths that are switched off, with commas between them; `off` for all."""
ALL = "off"
_SWITCHED_OFF = "switched off by the environment"
_log = logging.getLogger("pallas.changes")
_log_of_fast_paths = logging.getLogger("pallas.fast_paths")


class Registered:
    """A change with its file, and how far it is made."""

    def __init__(self, change: Change, module: ModuleType) -> None:
        self.change = change
        self.module = module
        self.is_on: bool | None = None  # until it is needed
        self._done: set[tuple[int, str]] = set()
        self._is_installed = False

    def decide(self) -> bool:
        """Return True if the change is to be made; decided once, when it is first needed.

        Raises:
            PlatformError: a repair does not fit the installed library.
        """
        if self.is_on is None:
            self.is_on = self._decided()
        return self.is_on

    def make(self) -> None:
        """Replace every name that is there and not yet replaced.

        Raises:
            PlatformError: a repair cannot be made.
        """
        try:
            makers = import_module(self.change.made_in) if self.change.made_in else self.module
            for what in self.change.replaces:
                if isinstance(what, Name) and isinstance(self.change.when, Loaded) and not is_loaded(what.path):
                    continue
                for holder, name in places(what):
                    key = (id(holder), name.path)
                    if key not in self._done:
                        self._require(misfit((name,)))
                        replace(holder, name, getattr(makers, name.by))
                        self._done.add(key)
            if not self._is_installed and (install := getattr(makers, "install", None)) is not None:
                install()
            self._is_installed = True
        except Exception as error:
            if self.change.kind is REPAIR:
                raise
            self.is_on = False
            self._note_off(logging.WARNING, f"{type(error).__name__}: {error}")

    def _decided(self) -> bool:
        change = self.change
        if _is_switched_off(change.name, change.kind):
            level = logging.INFO if change.kind is FAST_PATH else logging.WARNING
            self._note_off(level, _SWITCHED_OFF)
            return False
        if change.kind is FAST_PATH:
            for library in change.libraries:
                if (found := installed(library)) != (tested := TESTED[library]):
                    self._note_off(logging.WARNING, f"{library} is {found}, tested is {tested}")
                    return False
        names = [one for one in change.replaces if isinstance(one, Name) and self._is_needed(one)]
        why = misfit((*names, *change.relies_on))
        if why is not None and change.kind is FAST_PATH:
            self._note_off(logging.WARNING, why)
            return False
        self._require(why)
        return True

    def _is_needed(self, name: Name) -> bool:
        """Names of a library that is imported late are checked when their module is there."""
        return not isinstance(self.change.when, Loaded) or is_loaded(name.path)

    def _require(self, why: str | None) -> None:
        if why is not None:
            raise incompatible(self.change.libraries[0], why)

    def _note_off(self, level: int, reason: str) -> None:
        if self.change.kind is FAST_PATH:
            _note_off(level, self.change.name, reason)
        else:
            # By a failed check, or [`PALLAS_CHANGES`](reloading.md#fast-paths).
            _log.warning("repair off", extra={"repair": self.change.name, "reason": reason})


class Registry:
    """The changes of some packages."""

    def __init__(self, packages: Iterable[ModuleType]) -> None:
        files = [module for package in packages for module in _files_of(package)]
        found: dict[str, Registered] = {}
        for file in files:
            if (change := getattr(file, "CHANGE", None)) is not None:
                if change.name in found:
                    raise ValueError(f"{file.__name__} and {found[change.name].module.__name__} are both {change.name}")
                found[change.name] = Registered(change, file)
        needs = {name: one.change.needs for name, one in found.items()}
        if unknown := [(name, need) for name, those in needs.items() for need in those if need not in found]:
            raise ValueError("; ".join(f"{name} needs {need}, which is no change" for name, need in unknown))
        self.changes = {name: found[name] for name in TopologicalSorter(needs).static_order()}
        _require_order([one.change for one in self.changes.values()])
        self._libraries = {name.partition(".")[0] for one in found.values() for name in _modules_of(one.change)}
        self._complete_for: dict[str, ModuleType] | None = None
        self._settings: dict[str, bool] = {}
        self._lock = RLock()

    def install(self, when: str, users: Collection[str] | None = None) -> None:
        """Make the changes of START, SERVER or LOADED; the last are those of all modules that are imported by now.

        Args:
            when: one of the three.
            users: modules. A repair that does not fit is an error only if one of them is changed, or uses what is
                changed: one provider whose library does not fit must not stop the others. None for all modules.

        Raises:
            PlatformError: a repair does not fit an installed library; the message names what is missing.
        """
        imported = self._imported() if when == LOADED else None
        if imported is not None and imported == self._complete_for:  # as when most agents start; to look takes 7 ms
            return
        with self._lock:
            failed = self._make_due(when, are_all_required=users is None)
            self._complete_for = None if failed else imported
        for change, misfit_of_it in failed:
            if users is None or _concerns(change, users):
                raise misfit_of_it

    def _make_due(self, when: str, *, are_all_required: bool) -> list[tuple[Change, PlatformError]]:
        failed: list[tuple[Change, PlatformError]] = []
        due: list[Registered] = []
        for one in self.changes.values():  # all are checked before the first is made
            try:
                if _is_due(one.change.when, when) and one.decide():
                    due.append(one)
            except PlatformError as error:
                failed.append((one.change, error))
        for one in due if not (are_all_required and failed) else ():
            try:
                one.make()
            except PlatformError as error:
                failed.append((one.change, error))
        return failed

    def _imported(self) -> dict[str, ModuleType]:
        """The modules of changed libraries that are imported by now."""
        return {name: one for name, one in list(sys.modules.items()) if name.partition(".")[0] in self._libraries}

    def states(self) -> dict[str, bool]:
        """The fast paths and settings of the process that were needed so far, and whether each is on."""
        known = self.changes.items()
        fast = {name: one.is_on for name, one in known if one.change.kind is FAST_PATH and one.is_on is not None}
        return {**fast, **self._settings}

    def is_setting_on(self, name: str, misfit: str | None = None) -> bool:
        """Return True if a setting of the process, one of `versions.SETTINGS`, is to be made; decided once.

        Args:
            name: of the setting.
            misfit: why it cannot be made here, a clause.
        """
        if name not in self._settings:
            is_switched_off = _is_switched_off(name, FAST_PATH)
            self._settings[name] = not is_switched_off and misfit is None
            if is_switched_off:
                _note_off(logging.INFO, name, _SWITCHED_OFF)
            elif misfit is not None:
                _note_off(logging.WARNING, name, misfit)
        return self._settings[name]

    def check_switches(self) -> None:
        """Check the values of `PALLAS_CHANGES` and `PALLAS_FAST_PATHS`.

        Names of no change, as of those that an earlier release had, are one warning.

        Raises:
            ConfigurationError: `PALLAS_CHANGES` has a name without `-` before it.
        """
        fast_paths = [name for name, one in self.changes.items() if one.change.kind is FAST_PATH] + [*SETTINGS]
        problems = [
            Problem(CHANGES, None, "", f"'{part}' must begin with '-': changes can only be switched off")
            for part in _parts(CHANGES)
            if not part.startswith("-")
        ]
        if problems:
            raise ConfigurationError(problems)
        given = [(CHANGES, part.removeprefix("-"), [*self.changes, *SETTINGS]) for part in _parts(CHANGES)]
        given += [(FAST_PATHS, part, [*fast_paths, ALL]) for part in _parts(FAST_PATHS)]
        unknown = [f"{name} in {where}{did_you_mean(name, known)}" for where, name, known in given if name not in known]
        if unknown:
            # In [`PALLAS_CHANGES` or `PALLAS_FAST_PATHS`](reloading.md#fast-paths).
            _log.warning("unknown changes", extra={"names": ", ".join(unknown)})

    async def settled(self) -> None:
        """Wait for what the changes do in the background before an agent has started."""
        for one in self.changes.values():
            if one.is_on and (settled := getattr(one.module, "settled", None)) is not None:
                await settled()

    async def close(self) -> None:
        """Close what the changes hold, the last ones first, also where one of them fails."""
        async with AsyncExitStack() as stack:
            for one in self.changes.values():
                if one.is_on and (close := getattr(one.module, "close", None)) is not None:
                    stack.push_async_callback(close)


_registry: Registry | None = None


def registry() -> Registry:
    """The registry of the process.

    Raises:
        RuntimeError: the composition root was not called: the gateway would run without its repairs.
    """
    global _registry  # noqa: PLW0603  libraries are changed for the whole process
    if _registry is None:
        if not changes.packages:
            raise RuntimeError("composition.use_changes() was not called")
        _registry = Registry(changes.packages)
    return _registry


def _note_off(level: int, fast_path: str, reason: str) -> None:
    # At INFO where [`PALLAS_FAST_PATHS`](reloading.md#fast-paths) switches it off.
    _log_of_fast_paths.log(level, "fast path off", extra={"fast_path": fast_path, "reason": reason})


def _modules_of(change: Change) -> set[str]:
    """The modules or packages that it waits for or changes."""
    awaited = change.when.modules if isinstance(change.when, Loaded) else ()
    return _changed_by(change).union(awaited)


def _changed_by(change: Change) -> set[str]:
    return {what.path.partition(":")[0] if isinstance(what, Name) else what.package for what in change.replaces}


def _concerns(change: Change, users: Collection[str]) -> bool:
    """True if one of the modules is changed, or has a name of a changed library."""
    changed = _changed_by(change)
    for user in users:
        if any(user == module or user.startswith(f"{module}.") for module in changed):
            return True
        libraries = {module.partition(".")[0] for module in changed} - {user.partition(".")[0]}
        used = {str(getattr(one, "__module__", None) or "") for one in list(vars(sys.modules[user]).values())}
        if libraries & {module.partition(".")[0] for module in used}:
            return True
    return False


def _is_due(its: When, when: str) -> bool:
    return when == LOADED and any(map(is_loaded, its.modules)) if isinstance(its, Loaded) else its == when


def _require_order(changes: list[Change]) -> None:
    """Refuse two changes of one name of which none needs the other, directly or by those between; in their order."""
    before: dict[str, set[str]] = {}
    for number, change in enumerate(changes):
        before[change.name] = {*change.needs, *(one for need in change.needs for one in before[need])}
        for other in changes[:number]:
            both = [what for what in change.replaces if any(_overlap(what, one) for one in other.replaces)]
            if both and other.name not in before[change.name]:
                shown = " of ".join(reversed(_rule(both[0])[:2]))
                raise ValueError(f"{change.name} and {other.name} both replace {shown}; one must need the other")


def _overlap(one: Replaced, other: Replaced) -> bool:
    if isinstance(one, Name) and isinstance(other, Name):
        return one.path == other.path
    (package, name, of_class), (other_package, other_name, of_other_class) = _rule(one), _rule(other)
    is_below = f"{package}.".startswith(f"{other_package}.") or f"{other_package}.".startswith(f"{package}.")
    return is_below and name == other_name and of_class == of_other_class


def _rule(what: Replaced) -> tuple[str, str, bool]:
    """Package or module, name in it, and True if that is an attribute of a class."""
    if isinstance(what, Name):
        package, _, path = what.path.partition(":")
        return package, path.rpartition(".")[2], "." in path
    return what.package, what.name, isinstance(what, EachClass)


def _files_of(package: ModuleType) -> Iterator[Any]:
    for path in package.__path__:
        for folder, _, files in os.walk(path):
            if "__init__.py" not in files and any(Path(folder).rglob("*.py")):  # `walk_packages` would skip it
                raise ValueError(f"the folder {folder} has files of Python but no __init__.py")
    for found in walk_packages(package.__path__, f"{package.__name__}."):
        if not found.ispkg and not found.name.rpartition(".")[2].startswith("_"):
            yield import_module(found.name)


def _parts(variable: str) -> list[str]:
    return [name for part in os.environ.get(variable, "").split(",") if (name := part.strip())]


def _is_switched_off(name: str, kind: Kind) -> bool:
    return f"-{name}" in _parts(CHANGES) or (kind is FAST_PATH and not {name, ALL}.isdisjoint(_parts(FAST_PATHS)))
