"""A change of a library, which is a repair or a fast path, as a value. The registry makes it.

A file of `repairs/` or `fast_paths/` describes its change by a constant `CHANGE` and makes it by functions:

    CHANGE = Change("bedrock-errors", REPAIR, "fast-agent-mcp", seen_in="0.10.48", ...)

    def changed(original, holder):   # returns what replaces the name; called once for each name
    def install():                   # optional; what is no replacement of a name
    async def settled():             # optional; waits for what it does in the background before an agent has started
    async def close():               # optional; releases what the change holds

The first two may be in another module, `made_in`, which imports libraries that the file must not import so early.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What becomes of the gateway without the change."""

    REPAIR = "repair"
    """An answer would be wrong, or another call harmed. A name that is missing is a `PlatformError`."""
    FAST_PATH = "fast path"
    """Calls would only be slower. A misfit is one warning, and the fast path is off."""


REPAIR, FAST_PATH = Kind.REPAIR, Kind.FAST_PATH
START = "start"
"""Before the first agent starts; fast-agent is imported."""
SERVER = "server"
"""In a process that serves, before fast-agent is imported."""

LOADED = "loaded"
"""After libraries were imported: the changes whose `Loaded` names one of them."""


@dataclass(frozen=True, slots=True, init=False)
class Loaded:
    """As soon as one of some modules, or one below it, has been imported; providers' libraries are imported late."""

    modules: tuple[str, ...]

    def __init__(self, *modules: str) -> None:
        object.__setattr__(self, "modules", modules)


type When = str | Loaded


@dataclass(frozen=True, slots=True)
class Name:
    """A name of a library.

    Attributes:
        path: `package.module:name` or `package.module:Class.name`. Attributes assigned in `__init__` count.
        takes: parameters that it is called with.
        reads: attributes that its code must read, because the change sets them.
        by: the function of the file that makes the replacement.
    """

    path: str
    takes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    by: str = "changed"


@dataclass(frozen=True, slots=True)
class EachModule:
    """A name in every imported module below `package` that has it; see `Name` for the other attributes."""

    package: str
    name: str
    takes: tuple[str, ...] = ()
    by: str = "changed"


@dataclass(frozen=True, slots=True)
class EachClass:
    """A method of every class that defines it itself, in the imported modules below `package`."""

    package: str
    name: str
    takes: tuple[str, ...] = ()
    by: str = "changed"


type Replaced = Name | EachModule | EachClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a library that no file of `repairs/` mends: a method of an adapter does, or another choice of ours.

    Its module lists its faults in a constant `FAULTS`, so that docs/upstream.md has them.

    Attributes:
        title: a sentence without its full stop.
        text: paragraphs that begin with `Symptom:` and `Repair:`.
        library: the distribution.
        gone_when: a clause; when the code that mends it can go.
        script: a program that shows the fault without the gateway, a file of tests/upstream/.
        test: the file with the test of what mends it.
    """

    title: str
    text: str
    library: str
    gone_when: str
    script: str | None = None
    test: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a library.

    Attributes:
        name: in `PALLAS_CHANGES`; of a fast path also in `PALLAS_FAST_PATHS` and in the metric `pallas_fast_path`.
        kind: `REPAIR` or `FAST_PATH`.
        libraries: distributions. A fast path is on only with the versions of `versions.TESTED`.
        seen_in: of a repair, the version of the first library in which the fault was seen last.
        when: it is made.
        replaces: names that it replaces.
        relies_on: other names that it needs.
        needs: names of changes that are made before this one.
        gone_when: a clause; when its file can be deleted. A fast path may have none.
        script: a program that shows the fault without the gateway, a file of tests/upstream/.
        made_in: the module with the functions that make it, imported only then; empty for the file itself.
    """

    name: str
    kind: Kind
    libraries: tuple[str, ...]
    seen_in: str = field(default="", kw_only=True)
    when: When = field(default=START, kw_only=True)
    replaces: tuple[Replaced, ...] = field(default=(), kw_only=True)
    relies_on: tuple[Name, ...] = field(default=(), kw_only=True)
    needs: tuple[str, ...] = field(default=(), kw_only=True)
    gone_when: str = field(default="", kw_only=True)
    script: str | None = field(default=None, kw_only=True)
    made_in: str = field(default="", kw_only=True)
