"""The prompt: several lines, history of inputs, and completions."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, PathCompleter, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.shortcuts import CompleteStyle

from pallas_gateway.cli.chat.commands import COMMANDS
from pallas_gateway.cli.chat.store import make_private
from pallas_gateway.cli.parameters import SYSTEM_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.key_binding import KeyPressEvent

CONTINUED = "\\"


def prompt_session(inputs: Path | None, choices: Choices) -> PromptSession[str]:
    """A prompt that stores its inputs in the file `inputs`; with None they last for this chat only."""
    return PromptSession(
        multiline=True,
        key_bindings=_keys(),
        history=InMemoryHistory() if inputs is None else _PrivateHistory(str(inputs)),
        completer=choices,
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        prompt_continuation=lambda width, _line, _wrapped: "." * (width - 1) + " ",
    )


class _PrivateHistory(FileHistory):
    """A history that its owner alone can read; ignores a file that cannot be read or written."""

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            make_private(Path(str(self.filename)))
            super().store_string(string)


class Choices(Completer):
    """Completions: commands, and the arguments of a command.

    `parameters` returns the present parameters with their descriptions, `threads` the labels of the threads.
    """

    def __init__(self, parameters: Callable[[], dict[str, str]], threads: Callable[[], Sequence[str]]) -> None:
        self._completers: dict[str, Callable[[], Completer]] = {
            "parameter": lambda: _words(parameters()),
            "thread": lambda: _words(dict.fromkeys(threads(), "")),
            "system": lambda: _words(dict.fromkeys([*SYSTEM_PARAMETERS, "off"], "")),
            "file": lambda: PathCompleter(expanduser=True),
        }

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """The completions of the text before the cursor."""
        text = document.text_before_cursor
        name, has_arguments, rest = text.removeprefix("/").partition(" ")
        if not text.startswith("/"):
            return ()
        if not has_arguments:
            words = {f"/{one}{' ' * (' ' in command.usage)}": command.does for one, command in COMMANDS.items()}
            return _words(words).get_completions(document, complete_event)
        completer = self._completers.get(COMMANDS[name].completes) if name in COMMANDS else None
        return completer().get_completions(Document(rest), complete_event) if completer else ()


def _words(words: dict[str, str]) -> WordCompleter:
    return WordCompleter([*words], meta_dict=words, sentence=True)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith(CONTINUED):
            buffer.delete_before_cursor(len(CONTINUED))
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    return keys
