"""A definition in the person's editor, until it is stored or given up. Nothing that was typed is lost."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from pallas_gateway.client.agents.agents_api import CONFLICT, AgentsClient, DefinedAgent, NotRunningError, outcome
from pallas_gateway.client.agents.definitions import difference, malformed, placed
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.gateway_api import ApiRefusedError
from pallas_gateway.client.output import result, without_controls
from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.config.yaml.definitions import AGENTS, DeclaredDefinitions, read_definitions, same
from pallas_gateway.errors import GatewayError

_MARK = "# >>> "
"""Begins the lines that show problems; they are taken out of what was saved."""
_HELP = "# Save and leave the editor to store it. Without a change, or with an empty file, nothing is stored."
_EDITORS = ("VISUAL", "EDITOR")
_DEFAULT_EDITOR = "vi"


class NotStoredError(GatewayError):
    """Nothing is stored."""

    reason = "not_stored"


class KeptError(NotStoredError):
    """As its base class; the message names the file that keeps what was typed."""


@dataclass
class _Session:
    """One agent in the editor.

    Attributes:
        api: its gateway.
        agent: the version that was read last; a change names it.
        path: the file that the editor opens.
        marks: lines that were added to show problems.
    """

    api: AgentsClient
    agent: DefinedAgent
    path: Path
    marks: frozenset[str] = field(default=frozenset())

    def run(self) -> None:
        """Open the editor until the definition is stored, unchanged or given up.

        Raises:
            NotStoredError: it is not stored; the file is kept.
        """
        text = f"# {self.agent.facts} at {self.api.url}.\n{_HELP}\n{self.agent.text}"
        original = text
        while True:
            edited = self._edited(text)
            if not any(_words(edited)):
                raise NotStoredError("The file is empty, so nothing was changed.")
            if edited == text:
                if text == original:
                    result(f"{self.agent.name}: nothing changes")
                    return
                raise self._kept("not stored, because you saved it without another change")
            typed = self._without_marks(edited)
            found = self._store(typed)
            if found is None:
                return
            text = self._marked(typed, found)

    def _edited(self, text: str) -> str:
        """Return what the person saves."""
        self.path.write_text(text, encoding="utf-8")
        editor = next((value for name in _EDITORS if (value := os.environ.get(name, "").strip())), _DEFAULT_EDITOR)
        command = [*shlex.split(editor), str(self.path)]
        try:
            with _left_to_the_editor():
                ended = subprocess.run(command, check=False)  # noqa: S603  the person's own editor
        except OSError as error:
            why = f"the editor {command[0]} cannot be started: {error.strerror}; set EDITOR"
            raise self._not_stored(why, text) from error
        if ended.returncode != 0:
            raise self._not_stored(f"the editor {command[0]} ended with {ended.returncode}", text)
        try:
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError:
            raise self._kept("not UTF-8, so it is not stored") from None

    def _not_stored(self, why: str, text: str) -> NotStoredError:
        """Return the error of an editor that failed; the file is kept if it may have what a person has typed."""
        if not self.marks and self.path.read_bytes() == text.encode():
            return NotStoredError(f"Nothing was changed, because {why}.")
        return self._kept(f"not stored, because {why}")

    def _store(self, typed: str) -> list[Problem] | None:
        """Store what was typed; return problems to show in place, or None if it is stored, or the same as before."""
        try:
            wanted = read_definitions(typed, str(self.path))
            definition = _only(wanted, self.agent.name)
        except ConfigurationError as error:
            return list(error.problems)
        if same(definition, self.agent.definition):
            result(f"{self.agent.name}: nothing changes")
            return None
        try:
            document = self.api.replace(self.agent, definition)
        except ApiRefusedError as error:
            if error.problems:
                return placed(wanted, self.agent.name, error.problems)
            if error.error == CONFLICT:
                return self._changes_of_others()
            raise self._kept(f"not stored. {error}") from error
        except GatewayError as error:
            raise self._kept(f"not stored. {error}") from error
        except KeyboardInterrupt:
            raise self._kept("perhaps not stored, because you cancelled the request") from None
        result(outcome(f"changed {self.agent.name}", document))
        return None

    def _changes_of_others(self) -> list[Problem]:
        """Read the agent again; return what others have changed in it."""
        before = self.agent
        try:
            after = self.api.find(before.name)
        except GatewayError as error:
            raise self._kept(f"not stored. {error}") from error
        if after is None or not after.is_whole:
            raise self._kept(f"not stored, because agent '{before.name}' was deleted or you may not read it any more")
        self.agent = after
        lines = list(difference(before.text, after.text, before.version, after.version))[2:]
        head = (
            f"Not stored: others have changed this agent, {before.version} is now {after.version}. Their changes are "
            "below, and are not in your text. Put in what shall stay, remove these lines, and save again."
        )
        return [Problem("", None, "", line) for line in [head, *lines]]

    def _marked(self, typed: str, found: Iterable[Problem]) -> str:
        """Return the text with each problem above its line, or at the top."""
        lines = typed.splitlines(keepends=True)
        above: dict[int, list[str]] = {}
        for one in found:
            number = min(one.line, len(lines)) - 1 if one.line else -1
            line = lines[number] if number >= 0 else ""
            indent = line[: len(line) - len(line.lstrip(" "))]
            message = " ".join(without_controls(f"{one.path}: {one.message}" if one.path else one.message).splitlines())
            above.setdefault(number, []).append(f"{indent}{_MARK}{message}\n")
        self.marks = frozenset(mark.strip() for marks in above.values() for mark in marks)
        marked = [part for number, line in enumerate(lines) for part in (*above.get(number, ()), line)]
        return "".join([*above.get(-1, ()), *marked])

    def _without_marks(self, edited: str) -> str:
        return "".join(line for line in edited.splitlines(keepends=True) if line.strip() not in self.marks)

    def _kept(self, why: str) -> KeptError:
        text = self.path.read_text(encoding="utf-8", errors="surrogateescape")
        self.path.write_text(self._without_marks(text), encoding="utf-8", errors="surrogateescape")
        command = f"pallas-gateway apply --url {self.api.url} -f {shlex.quote(str(self.path))}"
        return KeptError(f"Your text is {why.rstrip('.')}. It is kept: {command} stores it.")


def edit(api: AgentsClient, name: str) -> None:
    """Edit an agent of the database.

    Raises:
        UsageError: it cannot be edited.
        NotStoredError: what was typed is not stored.
    """
    agent = api.get(name)
    if not agent.is_stored:
        raise UsageError(f"Agent '{name}' is one of agents.yaml; change it there.")
    folder = Path(tempfile.mkdtemp(prefix="pallas-agents-"))  # of this user alone
    session = _Session(api, agent, folder / f"{quote(agent.name, safe='')}.yaml")
    try:
        session.run()
    except (NotStoredError, NotRunningError) as error:
        if not isinstance(error, KeptError):
            shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def _only(wanted: DeclaredDefinitions, name: str) -> Mapping[str, object]:
    """Return the definition of the agent that is edited.

    Raises:
        ConfigurationError: the text defines another one, or is malformed.
    """
    others = [one for one in wanted.agents if one != name]
    problems = [
        Problem(wanted.file, wanted.lines.get(f"{AGENTS}.{one}"), f"{AGENTS}.{one}", f"only '{name}' is edited here")
        for one in others
    ]
    if name not in wanted.agents:
        problems.append(Problem(wanted.file, None, "", f"the agent '{name}' is missing"))
    else:
        problems += malformed(wanted, [name])
    if problems:
        raise ConfigurationError(problems)
    definition: Mapping[str, object] = wanted.agents[name]
    return definition


def _words(text: str) -> Iterator[str]:
    """Yield the lines that say something."""
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


@contextmanager
def _left_to_the_editor() -> Iterator[None]:
    """Leave Ctrl-C to the editor. A handler, because a program inherits that a signal is ignored."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
