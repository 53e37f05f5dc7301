"""What an agent asks of its downstreams is told by server, kind and outcome, and by no name that a model makes up."""

import pytest

from pallas_gateway.runtime.operations import reporting

type Told = tuple[str, str, bool, float]


def told(server: str, operation_type: str) -> list[Told]:
    heard: list[Told] = []

    def on_operation(server: str, operation: str, *, ok: bool, seconds: float) -> None:
        heard.append((server, operation, ok, seconds))

    reporting(on_operation, {"tools", "notes"})(server, operation_type, True, 0.5)
    return heard


@pytest.mark.parametrize(
    ("operation_type", "kind"),
    [
        ("tools/call", "tool"),
        ("prompts/get", "prompt"),
        ("resources/read", "resource"),
        ("resources/directory/read", "resource"),
    ],
)
def test_an_operation_is_told_by_its_kind(operation_type: str, kind: str) -> None:
    assert told("tools", operation_type) == [("tools", kind, True, 0.5)]


@pytest.mark.parametrize("operation_type", ["tools/list", "prompts/list", "resources/list", "completion/complete"])
def test_lists_and_completions_are_not_told_of(operation_type: str) -> None:
    assert told("tools", operation_type) == []


def test_a_server_nobody_configured_is_another() -> None:
    assert told("attached by a model", "tools/call") == [("other", "tool", True, 0.5)]
