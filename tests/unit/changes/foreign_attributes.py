"""Prints the attributes of foreign modules and classes that hold code of the gateway, after one served call.

`python -m tests.unit.changes.foreign_attributes FOLDER` loads every provider and serves an agent of a project that it
writes to FOLDER. It needs a process of its own: tests replace names, too. Each line is `holder`, `attribute`, the
module of the gateway that made it, and `registry` if the registry of changes did, separated by tabs.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import _lru_cache_wrapper, cached_property, partial, partialmethod
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pallas_gateway
from pallas_gateway import composition
from pallas_gateway.changes import names

PACKAGE = pallas_gateway.__name__
FOLDER = f"{Path(pallas_gateway.__file__).parent}/"
OURS = (PACKAGE, "tests", "agents_of_a_test", "__main__")


def found() -> Iterator[tuple[str, str, str, bool]]:
    """Yield holder, attribute, module of the gateway, and True if the registry knows it."""
    loaded: list[object] = list(sys.modules.values())  # other objects, too, in a few libraries
    registered = {id(one) for one in names.replaced.values()}  # some modules import what is replaced elsewhere
    for module in [one for one in loaded if isinstance(one, ModuleType)]:
        if module.__name__.partition(".")[0] in OURS:
            continue
        holders: list[Any] = [module, *_classes_of(module)]
        for holder in holders:
            for attribute, value in list(vars(holder).items()):
                if (maker := maker_of(value)) is not None:
                    yield names.shown(holder), attribute, maker, id(getattr(holder, attribute)) in registered


def _classes_of(module: ModuleType) -> list[type]:
    classes = [one for one in list(vars(module).values()) if isinstance(one, type)]
    return [one for one in classes if one.__module__ == module.__name__]


def maker_of(value: Any) -> str | None:
    """The module of the gateway whose function, class or object this is, or that is inside it."""
    for one in _layers(value):
        if isinstance(one, FunctionType):  # `wraps` copies `__module__`
            if one.__code__.co_filename.startswith(FOLDER):
                return _module_at(one.__code__.co_filename)
        else:
            made_in: Any = (one if isinstance(one, type) else type(one)).__module__  # a property, in some classes
            if isinstance(made_in, str) and made_in.partition(".")[0] == PACKAGE:
                return made_in
    return None


def _layers(value: Any) -> Iterator[Any]:
    """Yield a value and what it wraps."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, property):
            waiting += [one.fget, one.fset, one.fdel]
        elif isinstance(one, staticmethod | classmethod | MethodType):
            waiting.append(one.__func__)
        elif isinstance(one, partial | partialmethod | cached_property):
            waiting.append(one.func)
        elif isinstance(one, FunctionType | _lru_cache_wrapper):
            waiting.append(vars(one).get("__wrapped__"))


def _module_at(file: str) -> str:
    path = Path(file).relative_to(Path(FOLDER).parent).with_suffix("")
    return ".".join(path.parts).removesuffix(".__init__")


async def serve(folder: Path) -> None:
    """Serve an agent with a downstream, and answer a call."""
    from tests.support.calling import ask  # noqa: PLC0415  imports much
    from tests.support.gateway import Agent, gateway_and_model  # noqa: PLC0415  likewise

    async with gateway_and_model(folder, {"echo": Agent()}) as (served, _):
        assert not (await ask(served.url("echo"), "Hello")).is_error


def load_each_provider() -> None:
    """Load the classes of all providers, as a start does."""
    from fast_agent.core.exceptions import ModelConfigError  # noqa: PLC0415  after the changes before its import
    from fast_agent.llm.model_factory import ModelFactory  # noqa: PLC0415  likewise
    from fast_agent.llm.provider_types import Provider  # noqa: PLC0415  likewise

    for provider in Provider:
        with suppress(ModelConfigError):  # it serves no such model
            ModelFactory._load_provider_class(provider)


def main(folder: Path) -> None:
    """Print a line for each attribute."""
    from pallas_gateway.process.process import expect_calls  # noqa: PLC0415  likewise
    from pallas_gateway.runtime import preparation  # noqa: PLC0415  after `use_changes`

    composition.use_changes()
    expect_calls()
    preparation.prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_each_provider()
    asyncio.run(serve(folder))
    for holder, attribute, maker, is_registered in sorted(set(found())):
        print(holder, attribute, maker, "registry" if is_registered else "", sep="\t")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
