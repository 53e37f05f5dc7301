"""Fast paths: code that makes calls faster and changes nothing else. The gateway answers every call without them.

A fast path is on if the libraries that it replaces parts of have the versions with which the test suite has passed, if
every name that it relies on is there, and if `PALLAS_FAST_PATHS` does not switch it off. All are listed at the end.
"""

from __future__ import annotations

import logging
import os
from functools import cached_property
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from pallas_gateway.config.problems import ConfigurationError, Problem, did_you_mean
from pallas_gateway.runtime.compat.requirements import misfit

if TYPE_CHECKING:
    from pallas_gateway.runtime.compat.requirements import ReliedOn

VARIABLE = "PALLAS_FAST_PATHS"
"""Names fast paths that are switched off, with commas between them."""
ALL = "off"
"""The value that switches off all of them."""
TESTED_VERSIONS = {
    "aiohttp": "3.14.4",
    "anthropic": "1.11.0",
    "fast-agent-mcp": "0.10.46",
    "filelock": "4.0.12",
    "google-genai": "2.28.0",
    "mcp": "2.3.0",
    "openai": "3.24.0",
    "pydantic": "2.14.0",
}
"""The versions of requirements.lock (a test compares them)."""
_log = logging.getLogger("pallas.fast_paths")
_states: dict[str, bool] = {}


class FastPath:
    """One fast path. It is decided when it is first needed, because importing a provider's library takes a second.

    Args:
        name: its name in the metric and in `PALLAS_FAST_PATHS`.
        module: the module that implements it; `RELIED_ON`, if it has any, lists the names that must be there.
        libraries: distributions that must have a tested version.
        requires: more names that must be there.
    """

    def __init__(self, name: str, module: str, *libraries: str, requires: ReliedOn = ()) -> None:
        self.name = name
        self.module = module
        self._libraries = libraries
        self.requires = requires

    @cached_property
    def is_on(self) -> bool:
        """False if it is switched off, does not fit or cannot be installed, which is logged once."""
        is_switched_off = bool(_switched_off() & {self.name, ALL})
        reason = f"switched off by {VARIABLE}" if is_switched_off else self._misfit()
        _states[self.name] = True
        if reason is not None:
            self._note_off(logging.INFO if is_switched_off else logging.WARNING, reason)
        return reason is None

    def install(self, *given: object) -> None:
        """Call `install` of its module, which may be called repeatedly, if the fast path is on."""
        if not self.is_on:
            return
        try:
            import_module(self.module).install(*given)
        except Exception as error:  # noqa: BLE001  the gateway serves without it
            self.is_on = False
            self._note_off(logging.WARNING, f"{type(error).__name__}: {error}")

    def _note_off(self, level: int, reason: str) -> None:
        _states[self.name] = False
        _log.log(level, "fast path off", extra={"fast_path": self.name, "reason": reason})

    def accelerate[T](self, plain: T) -> T:
        """Return what `accelerate` of its module makes of a class or a reader; `plain` if the fast path is off."""
        accelerated: T = import_module(self.module).accelerate(plain) if self.is_on else plain
        return accelerated

    def _misfit(self) -> str | None:
        for library in self._libraries:
            if (installed := _installed(library)) != (tested := TESTED_VERSIONS[library]):
                return f"{library} is {installed}, tested is {tested}"
        try:
            relied_on = getattr(import_module(self.module), "RELIED_ON", ())
        except Exception as error:  # noqa: BLE001  whatever a library does that lacks what the module uses
            return str(error)
        return misfit((*relied_on, *self.requires))


def states() -> dict[str, bool]:
    """The fast paths that were needed so far, and whether each is on."""
    return dict(_states)


def check_switch() -> None:
    """Check the value of `PALLAS_FAST_PATHS`.

    Raises:
        ConfigurationError: it names an unknown fast path.
    """
    names = [path.name for path in PATHS]
    unknown = sorted(_switched_off() - {*names, ALL})
    if unknown:
        missing = ", ".join(f"no fast path '{name}'{did_you_mean(name, names)}" for name in unknown)
        known = f"known are {', '.join(names)}, and '{ALL}' for all"
        raise ConfigurationError([Problem(VARIABLE, None, "", f"{missing}; {known}")])


def _switched_off() -> set[str]:
    return {name for part in os.environ.get(VARIABLE, "").split(",") if (name := part.strip())}


def _installed(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _transport_of(library: str) -> ReliedOn:
    transport = f"{library}._vendor.httpx_aiohttp.transport:AiohttpTransport"
    return ((library, "DefaultAioHttpClient", ()), (transport, "client", ()), (transport, "ssl_context", ()))


_HERE = "pallas_gateway.runtime.fast_paths"
_SOCKETS = "pallas_gateway.runtime.llm.sockets"
DEEP_COPIES = FastPath("deep_copies", f"{_HERE}.deep_copies", "fast-agent-mcp", "pydantic")
OPENAI_CHUNKS = FastPath("openai_chunks", f"{_HERE}.openai_chunks", "openai", "pydantic")
OPENAI_MESSAGES = FastPath("openai_messages", f"{_HERE}.openai_messages", "openai")
OPENAI_REQUESTS = FastPath("openai_requests", f"{_HERE}.openai_requests", "openai")
OPENAI_RUNS = FastPath("openai_runs", f"{_HERE}.openai_runs", "fast-agent-mcp", "openai", "pydantic")
OPENAI_TEXTS = FastPath("openai_texts", f"{_HERE}.openai_texts", "fast-agent-mcp", "openai", "pydantic")
GOOGLE_CHUNKS = FastPath("google_chunks", f"{_HERE}.google_chunks", "google-genai", "pydantic")
KEPT_CLIENTS = FastPath("kept_clients", _SOCKETS, "aiohttp", "openai", requires=_transport_of("openai"))
KEPT_ANTHROPIC_CLIENTS = FastPath(
    "kept_anthropic_clients", _SOCKETS, "aiohttp", "anthropic", requires=_transport_of("anthropic")
)
PACED_READS = FastPath("paced_reads", f"{_HERE}.paced_reads", "aiohttp")
DELTA_EVENTS = FastPath("delta_events", f"{_HERE}.delta_events", "anthropic", "fast-agent-mcp", "openai")
OF_FAST_AGENT = (DEEP_COPIES,)
"""Those that are installed before an agent is started."""
PATHS = (
    *OF_FAST_AGENT,
    *(OPENAI_CHUNKS, OPENAI_MESSAGES, OPENAI_REQUESTS, OPENAI_RUNS, OPENAI_TEXTS, GOOGLE_CHUNKS),
    *(KEPT_CLIENTS, KEPT_ANTHROPIC_CLIENTS, PACED_READS, DELTA_EVENTS),
)
