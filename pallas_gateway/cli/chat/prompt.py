"""The line one writes on: several lines, history of inputs, and what Tab offers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.shortcuts import CompleteStyle

from pallas_gateway.cli.chat.commands import COMMANDS
from pallas_gateway.cli.chat.store import make_private
from pallas_gateway.cli.parameters import SYSTEM_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.key_binding import KeyPressEvent

CONTINUED = "\\"


def prompt_session(inputs: Path | None, choices: Choices) -> PromptSession[str]:
    """Asks for one input after the other, and keeps them in the file `inputs`; None keeps them for this chat only."""
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
    """Inputs in a file for its owner's eyes; where that cannot be written, the chat goes on without."""

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
    """What Tab offers: commands, and behind a command what it takes.

    The functions tell what there is now: parameters with what they do, and names of threads.
    """

    def __init__(self, parameters: Callable[[], Mapping[str, str]], threads: Callable[[], Sequence[str]]) -> None:
        self._parameters = parameters
        self._threads = threads
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """For the text before the cursor."""
        text = document.text_before_cursor
        if not text.startswith("/"):
            return
        name, space, rest = text[1:].partition(" ")
        if not space:
            words = {f"/{one.name}{' ' if one.arguments else ''}": one.does for one in COMMANDS.values()}
            yield from _beginning_with(text, words)
        elif name in COMMANDS:
            yield from self._arguments(COMMANDS[name].completes, rest, complete_event)

    def _arguments(self, kind: str, rest: str, event: CompleteEvent) -> Iterable[Completion]:
        if kind in {"image", "file"}:
            return self._paths.get_completions(Document(rest), event)
        if kind == "thread":
            return _beginning_with(rest, dict.fromkeys(self._threads(), ""))
        if kind == "parameter":
            return _beginning_with(rest, self._parameters())
        if kind == "system":
            return _beginning_with(rest, dict.fromkeys([*SYSTEM_PARAMETERS, "off"], ""))
        return ()


def _beginning_with(start: str, words: Mapping[str, str]) -> Iterable[Completion]:
    for word, does in words.items():
        if word.startswith(start):
            yield Completion(word, start_position=-len(start), display_meta=does)


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
