"""Objects that can be reached from others, as far as they belong to one call."""

import gc
from collections.abc import Iterable
from enum import Enum
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType

NEVER_CHANGING = (str, bytes, int, float, Enum, type(None), type, ModuleType, CodeType, BuiltinFunctionType)
OF_MANY_CALLS = {  # and ways to other calls
    *("Settings", "LoggerSettings", "Context", "AgentConfig", "AgentSpec", "ServerRegistry", "SkillRegistry"),
    *("ModelParameters", "ReasoningEffortSetting", "ReasoningEffortSpec", "ResolvedModelSpec", "TextVerbositySpec"),
    *("Logger", "Executor", "LocalEnvironment", "RetryBoundary", "TypeVar", "_GenericAlias"),
    *("Call", "EventQueue", "Future", "AbstractEventLoop"),
}


def reachable(*roots: object, but: Iterable[object] = ()) -> dict[int, object]:
    """The objects of a call that can change, by `id`; those of `but` are left out."""
    found: dict[int, object] = {}
    todo, left_out = [*roots], {*map(id, but)}
    while todo:
        one = todo.pop()
        is_others = isinstance(one, NEVER_CHANGING) or any(kind.__name__ in OF_MANY_CALLS for kind in type(one).__mro__)
        if id(one) not in found and id(one) not in left_out and not is_others:
            found[id(one)] = one
            if not isinstance(one, FunctionType):
                todo += gc.get_referents(one)
            elif "<locals>" in one.__qualname__ and "fast_paths" not in one.__module__:  # which keep templates
                todo += (*(one.__closure__ or ()), *(one.__defaults__ or ()))
    return {key: one for key, one in found.items() if not isinstance(one, (tuple, frozenset, FunctionType, CellType))}
