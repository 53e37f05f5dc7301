"""Checks every library name that the gateway relies on, and reports all misfits instead of stopping at the first.

`python -m tests.drift.names` prints one line for each and exits with 1 if there are any. It needs a process of its own:
it replaces the gateway's checks, imports every module and prepares fast-agent with every provider.
"""

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import pallas_gateway
from pallas_gateway import composition
from pallas_gateway.changes.change import Name
from pallas_gateway.changes.names import incompatible, misfit
from pallas_gateway.changes.registry import Registered, registry
from pallas_gateway.errors import PlatformError

PACKAGE = pallas_gateway.__name__
NOT_IMPORTED = (f"{PACKAGE}.__main__", f"{PACKAGE}.example", f"{PACKAGE}.shared.database.migrations")
"""Modules that run something when they are imported, or that the gateway never imports."""
REQUIRED = "required"


class Misfits:
    """What does not fit, as sentences by the module that relies on it; each sentence is kept once."""

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}

    def add(self, module: str, sentence: str) -> None:
        self._modules.setdefault(sentence, module)

    @contextmanager
    def of(self, module: str) -> Iterator[None]:
        """Add the exception that ends the block; the innermost module of the gateway has raised it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever a library does with what it no longer has
            found = _innermost(error) or module
            self.add(module if found.startswith(f"{PACKAGE}.changes.") else found, _sentence(error))

    def lines(self) -> list[str]:
        """One line for each misfit, those without which no call is right first."""
        lines = (f"{_kind(module)}: {module}: {sentence}" for sentence, module in self._modules.items())
        return sorted(lines, key=lambda line: (not line.startswith(REQUIRED), line))


def collect() -> Misfits:
    misfits = Misfits()
    for module in _imported(misfits):
        entered = (name for name, _ in getattr(module, "SEAMS", ()))
        _check_names(module.__name__, "fast-agent-mcp", (*getattr(module, "RELIED_ON", ()), *entered), misfits)
    composition.use_changes()
    for one in registry().changes.values():
        names = (*one.change.replaces, *one.change.relies_on)
        _check_names(one.module.__name__, one.change.libraries[0], names, misfits)
    _make_each_change(misfits)
    _prepare(misfits)
    return misfits


def _check_names(module: str, library: str, names: Iterable[object], misfits: Misfits) -> None:
    for why in filter(None, (misfit((name,)) for name in names if isinstance(name, Name))):
        misfits.add(module, _sentence(incompatible(library, why)))


def _make_each_change(misfits: Misfits) -> None:
    """Have a change that does not fit reported; those after it are made."""
    decide, make = Registered.decide, Registered.make

    def decide_each(one: Registered) -> bool:
        with misfits.of(one.module.__name__):
            return decide(one)
        return False

    def make_each(one: Registered) -> None:
        with misfits.of(one.module.__name__):
            make(one)

    changed: Any = Registered
    changed.decide, changed.make = decide_each, make_each


def _imported(misfits: Misfits) -> list[ModuleType]:
    """The gateway's modules, as far as they can be imported."""
    found: list[ModuleType] = []
    for info in pkgutil.walk_packages(pallas_gateway.__path__, f"{PACKAGE}.", onerror=lambda name: None):
        if not info.name.startswith(NOT_IMPORTED):
            with misfits.of(info.name):
                found.append(importlib.import_module(info.name))
    return found


def _prepare(misfits: Misfits) -> None:
    """Prepare fast-agent and each provider: some modules check a class only when fast-agent loads it."""
    with misfits.of(f"{PACKAGE}.runtime.preparation"):
        from fast_agent.core.exceptions import ModelConfigError  # noqa: PLC0415  may be what is missing
        from fast_agent.llm.model_factory import ModelFactory  # noqa: PLC0415  likewise
        from fast_agent.llm.provider_types import Provider  # noqa: PLC0415  likewise

        from pallas_gateway.runtime import preparation  # noqa: PLC0415  likewise

        preparing: Any = preparation
        preparing.check_seams = lambda: None
        with suppress(AttributeError):  # a name of `SEAMS` is missing, which is reported already
            preparation.prepare()
        for provider in Provider:
            with misfits.of(f"{PACKAGE}.runtime.preparation"), suppress(ModelConfigError):  # it serves no such model
                ModelFactory._load_provider_class(provider)


def _innermost(error: BaseException) -> str | None:
    found, trace = None, error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        found = name if name.startswith(f"{PACKAGE}.") else found
        trace = trace.tb_next
    return found


def _sentence(error: BaseException) -> str:
    if not isinstance(error, PlatformError):
        return f"{type(error).__name__}: {str(error).partition(' (/')[0]}"  # the file that lacks an imported name
    return str(error).partition(" does not fit: ")[2].partition(". Install ")[0]


def _kind(module: str) -> str:
    return "fast path off" if module.startswith(f"{PACKAGE}.fast_paths.") else REQUIRED


def main() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests tell of those that matter
        lines = collect().lines()
    print("\n".join(lines or ["every name fits"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
