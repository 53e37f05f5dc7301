"""Imports a project's agent modules, each in a thread of its own, so that a slow one does not block the event loop."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from fast_agent.core.fastagent import FastAgent
from pydantic import ValidationError

from pallas_gateway.config.loading.fastagent_file import settings_files
from pallas_gateway.daemon_threads import begin
from pallas_gateway.errors import AgentStartError
from pallas_gateway.file_stamps import (
    Files,
    forget_compiled,
    have_changed,
    loaded_modules,
    possible_files,
    project_folders,
    python_files,
    stamps,
)
from pallas_gateway.limits import RuntimeLimits
from pallas_gateway.runtime.failures import what_is_invalid
from pallas_gateway.telemetry.redaction import shortened

_LONGEST_REASON = 300
"""Most characters that are shown of a module's exception."""

_log = logging.getLogger("pallas.runtime")


class Imports:
    """Imports modules, usually one at a time: FastAgent's constructor replaces a global while it reads its file.

    Once a Python file of the project has changed, the next import reads all modules of the project again. Agents that
    run keep the modules that they have.
    """

    def __init__(
        self,
        settings_files: Iterable[Path] = (),
        folder: Path | None = None,
        on_slow_import: Callable[[str, float], object] | None = None,
        limits: RuntimeLimits | None = None,
    ) -> None:
        """Configure the imports of a project.

        Args:
            settings_files: files that FastAgent's constructor looks for and reads during an import.
            folder: contains modules of the project, as the working directory does.
            on_slow_import: called with a module that is slow to import and its time limit in seconds; None logs it.
            limits: `import_seconds` and `import_turn_seconds`.
        """
        self._limits = limits or RuntimeLimits()
        self._on_slow_import = on_slow_import or _log_slow_import
        self._settings_files = tuple(settings_files)
        self._folder = folder
        self._project: Files = {}  # its Python files, as they were before the last import
        self._read: dict[str, Files] = {}  # by module: other files that its import may have read
        self._turn = asyncio.Lock()
        self._running: dict[str, tuple[asyncio.Future[FastAgent], float]] = {}  # and until when starts wait for it
        self._files: WeakKeyDictionary[FastAgent, Files] = WeakKeyDictionary()

    async def load_fast(self, module_name: str, watched: Collection[Path] = (), *, reread: bool = False) -> FastAgent:
        """Import `module_name` and return its `FastAgent`.

        Args:
            module_name: dotted.
            watched: files that the import may read.
            reread: read the project's modules again also if one of `watched` was not watched when the module was
                imported.

        Raises:
            AgentStartError: `module_missing`, `import_failed` or `no_fast`, with the place and the cause.
        """
        running = self._running.get(module_name)
        if running is None:  # otherwise an earlier attempt still hangs; a second thread would hang too
            running = await self._begin(module_name, watched, reread=reread)
        loading, end = running
        try:
            return await asyncio.wait_for(asyncio.shield(loading), max(0.0, end - monotonic()))
        except TimeoutError:
            message = f"module '{module_name}' is still importing after {self._limits.import_seconds:g} s"
            raise AgentStartError(message, reason="import_failed") from None
        except AgentStartError as error:
            self.watch(module_name, error)
            raise

    def watch(self, module_name: str, error: AgentStartError) -> None:
        """Have `error` report when a file of the project, or one that the module may have read, changes."""
        possible = stamps((*possible_files(module_name, self._folder), *self._settings_files))
        error.may_be_mended = partial(have_changed, {**possible, **self._project, **self._read.get(module_name, {})})

    def start_failed(self, module_name: str, error: AgentStartError) -> None:
        """Handle an agent that failed to start after the import: the next attempt reads the module again."""
        forget(module_name)
        self.watch(module_name, error)

    def files_behind(self, fast: FastAgent) -> Files:
        """The project's Python files and the module of `fast`, with their stamps when they were read."""
        return self._files[fast]

    async def _begin(
        self, module_name: str, watched: Collection[Path], *, reread: bool
    ) -> tuple[asyncio.Future[FastAgent], float]:
        async with self._turn:
            project = await begin(lambda: stamps(python_files(self._folder)), name="project-files")
            self._forget_outdated(module_name, project, watched, reread=reread)
            loading = begin(partial(self._load_and_note, module_name, self._project), name="agent-import")
            running = self._running[module_name] = loading, monotonic() + self._limits.import_seconds
            loading.add_done_callback(lambda done: self._forget(module_name, done))
            await asyncio.wait({loading}, timeout=self._limits.import_turn_seconds)
            if not loading.done():
                self._on_slow_import(module_name, self._limits.import_seconds)
        return running

    def _forget_outdated(self, module_name: str, now: Files, watched: Collection[Path], *, reread: bool) -> None:
        """Remove the project's modules from `sys.modules` if a file has changed; `now` has its Python files."""
        before = self._project
        changed = before.items() - now.items()
        read = self._read.get(module_name, {})
        is_unknown = reread and module_name in sys.modules and not read.keys() >= set(watched)
        if changed or is_unknown or have_changed(read):
            for path in (*dict(changed), *read):
                forget_compiled(path)
            for name in {module_name, *loaded_modules(self._folder)} - self._running.keys():
                sys.modules.pop(name, None)
                self._read.pop(name, None)
        if now != before:  # else all agents share one
            self._project = now
        self._read[module_name] = {**stamps((*self._settings_files, *watched)), **self._read.get(module_name, {})}

    def _load_and_note(self, module_name: str, project: Files) -> FastAgent:
        fast = _load(module_name, self._folder)
        file = getattr(sys.modules.get(module_name), "__file__", None)
        own = stamps([Path(file)] if file else ())
        settings = stamps(settings_files(Path(fast.config_path)) if fast.config_path else ())
        self._read[module_name] = {**own, **settings, **self._read[module_name]}
        self._files[fast] = {**own, **project}
        return fast

    def _forget(self, module_name: str, loading: asyncio.Future[FastAgent]) -> None:
        self._running.pop(module_name, None)
        if not loading.cancelled():
            loading.exception()  # retrieved, else asyncio logs it if the gateway has stopped

    def give_up(self) -> None:
        """Stop waiting for imports that hang; their threads end with the process."""
        for loading, _ in list(self._running.values()):
            loading.cancel()


def _log_slow_import(module_name: str, seconds: float) -> None:
    # After that time its agents are `failed`.
    _log.warning("slow module import", extra={"agent_module": module_name, "limit_seconds": seconds})


def forget(module_name: str) -> None:
    """Have the next attempt read the module and its submodules again: the file may be corrected by then."""
    for name in list(sys.modules):  # a copy, because other threads import
        if name == module_name or name.startswith(f"{module_name}."):
            sys.modules.pop(name, None)


def _load(module_name: str, folder: Path | None) -> FastAgent:
    """Import a module and return its only `FastAgent`, or the one called `fast` if it has several."""
    module = _import(module_name, folder)
    fast = getattr(module, "fast", None)
    if isinstance(fast, FastAgent):
        return fast
    named = {name: value for name, value in vars(module).items() if isinstance(value, FastAgent)}
    if len({id(one) for one in named.values()}) == 1:
        return next(iter(named.values()))
    forget(module_name)
    if named:
        message = f"module '{module_name}' has several FastAgents ({', '.join(named)}); call the one to serve `fast`"
    else:
        message = f"module '{module_name}' has no FastAgent; define `fast = FastAgent(…)`"
    raise AgentStartError(message, reason="no_fast")


def _import(module_name: str, folder: Path | None) -> Any:
    importlib.invalidate_caches()
    if module_name.startswith("."):  # a path: Python has no relative import here
        raise AgentStartError(_why_missing(module_name, folder), reason="module_missing")
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise AgentStartError(_why_missing(module_name, folder), reason="module_missing") from error
        raise AgentStartError(_import_failure(module_name, error), reason="import_failed") from error
    except BaseException as error:  # a module may raise anything; Ctrl-C and cancellation do not arrive in this thread
        raise AgentStartError(_import_failure(module_name, error), reason="import_failed") from error


def _why_missing(module_name: str, folder: Path | None) -> str:
    """`no module 'agents.a' in /srv/project/agents`, or the folders in which its first package is missing."""
    if "/" in module_name or module_name.endswith(".py"):
        dotted = ".".join(part for part in module_name.removesuffix(".py").split("/") if part.strip("."))
        return f"no module '{module_name}'; write '{dotted}': a module is named with dots, and without .py"
    package = module_name.rpartition(".")[0]
    while package and package not in sys.modules:
        package = package.rpartition(".")[0]
    if package:
        places = [str(place) for place in getattr(sys.modules[package], "__path__", ())]
        return f"no module '{module_name}' in {' or '.join(places) or f'{package}, which is no package'}"
    places = [str(place) for place in project_folders(folder)]
    return f"no module '{module_name}' in {' or '.join(places)}, and none is installed"


def _import_failure(module_name: str, error: BaseException) -> str:
    """`module 'agents.a' failed to import: ValueError: … (agents/a.py:3)`, with the innermost line of the project."""
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({error.filename}:{error.lineno})"
    else:
        traceback = error.__traceback__
        while traceback is not None:
            name = traceback.tb_frame.f_globals.get("__name__", "")
            if name == module_name or name.startswith(module_name.rpartition(".")[0] + "."):
                where = f" ({traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno})"
            traceback = traceback.tb_next
    text = str(error.msg if isinstance(error, SyntaxError) else error).strip().splitlines()
    if isinstance(error, ValidationError):
        text = [what_is_invalid(error)]
    why = shortened(text[0] if text else "", _LONGEST_REASON)
    return f"module '{module_name}' failed to import: {type(error).__name__}: {why}{where}"
