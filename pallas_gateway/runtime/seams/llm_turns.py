"""Turns of models, the classes of their providers, and the models that an agent declares."""

from __future__ import annotations

from functools import partial, wraps
from threading import Lock
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import LOADED
from pallas_gateway.changes.registry import registry
from pallas_gateway.runtime.llm.attempts import run_turn
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.runtime.settings.declared_models import RuntimeModels

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import ModuleType

    from fast_agent.llm.fastagent_llm import FastAgentLLM
    from fast_agent.llm.model_database import ModelParameters

_loading = Lock()
_loaded: set[str] = set()


def execute_with_retry(original: Callable[..., Awaitable[Any]], _: type[FastAgentLLM[Any, Any]]) -> Callable[..., Any]:
    """Return the method that runs a turn of a model: counted, with repeated requests and an explained failure."""

    @wraps(original)
    async def execute(self: Any, func: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
        run = partial(run_turn, self, func, lambda attempts: original(self, attempts, *arguments, **options))
        turns = current_scope.get().turns
        return await (run() if turns is None else turns.run(self, arguments, run))

    return execute


def import_provider(original: Callable[[str], ModuleType], _: ModuleType) -> Callable[[str], ModuleType]:
    """Return the function that imports a provider's module: its library is changed when it has been imported."""

    @wraps(original)
    def import_module(name: str) -> ModuleType:
        if name in _loaded:  # without the lock, which a thread may hold that imports another library
            return original(name)
        with _loading:
            module = original(name)
            own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == name]
            registry().install(LOADED, {name, *(base.__module__ for one in own for base in one.__mro__)})
            _loaded.add(name)
        return module

    return import_module


def runtime_models(original: Mapping[str, ModelParameters], _: type) -> RuntimeModels:
    """Return fast-agent's table of models that it does not ship; each agent finds those that it declares."""
    return RuntimeModels(original)
