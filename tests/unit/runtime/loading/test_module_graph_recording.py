"""Recording import statements: of one thread, only while a block runs, and next to other replacements."""

from __future__ import annotations

import builtins
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pallas_gateway.runtime.loading.module_graph import recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCOPE = {"__name__": "importer", "__package__": "email", "__builtins__": builtins}


def run(statement: str, scope: Mapping[str, Any] = SCOPE) -> dict[str, Any]:
    variables = dict(scope)
    exec(statement, variables)  # noqa: S102  an import statement with globals of its own
    return variables


class Recorded(list[tuple[Any, list[str]]]):
    def record(self, importer: Mapping[str, Any], imported: Iterable[str]) -> None:
        self.append((importer.get("__name__"), list(imported)))


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("import email.message as m", ["email.message", "email"]),
        ("from email import message", ["email", "email.message"]),
        ("from . import message, charset", ["email", "email.message", "email.charset"]),
        ("from .message import Message", ["email.message", "email", "email.message.Message"]),
    ],
)
def test_an_import_of_a_loaded_module_is_recorded_by_absolute_names(statement: str, names: list[str]) -> None:
    recorded = Recorded()
    run(statement)
    with recording(recorded.record):
        variables = run(statement)
    assert len(variables) > len(SCOPE)
    assert recorded == [("importer", names)]


def test_nothing_is_recorded_outside_of_the_block_and_of_its_thread() -> None:
    original, recorded = builtins.__import__, Recorded()
    with recording(recorded.record):
        thread = threading.Thread(target=run, args=["import json"])
        thread.start()
        thread.join()
        assert builtins.__import__ is not original
        with pytest.raises(ModuleNotFoundError):
            run("import no_such_module_anywhere")
        __import__("json")
    assert builtins.__import__ is original
    run("import json")
    assert [names for _, names in recorded] == [["no_such_module_anywhere"]]


def test_blocks_may_overlap_and_end_in_any_order() -> None:
    original, entered, over = builtins.__import__, threading.Event(), threading.Event()
    slow, quick = Recorded(), Recorded()

    def work() -> None:
        with recording(slow.record):
            entered.set()
            over.wait(30)
            run("import json")

    thread = threading.Thread(target=work)
    with recording(quick.record):
        thread.start()
        entered.wait(30)
        run("import email")
    over.set()
    thread.join()
    assert builtins.__import__ is original
    assert (slow, quick) == ([("importer", ["json"])], [("importer", ["email"])])


def test_a_replacement_that_wraps_it_stays_and_is_recorded_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__import__", original := builtins.__import__)
    calls: list[str] = []
    first, second = Recorded(), Recorded()
    with recording(first.record):
        inner = builtins.__import__

        def wrapped(name: str, *arguments: Any) -> Any:
            calls.append(name)
            return inner(name, *arguments)

        wrapper: Any = wrapped  # such as a debugger's
        builtins.__import__ = wrapper
    assert builtins.__import__ is wrapper
    with recording(second.record):
        run("import json")
    assert (calls, second) == (["json"], [("importer", ["json"])])
    builtins.__import__ = inner
    with recording(first.record):
        pass
    assert builtins.__import__ is original
