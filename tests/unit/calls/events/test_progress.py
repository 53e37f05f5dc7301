"""Progress numbers and words: whatever happens in whatever order, clients see numbers that only rise."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.calls.events import progress
from pallas_gateway.calls.events.events import Event, StepBegan, ToolEnded, ToolStarted
from pallas_gateway.calls.events.progress import ProgressCounter, ProgressEvent


def told(event: Event) -> str | None:
    counted = ProgressCounter().of(event)
    return counted.message if counted else None


happenings = st.lists(st.tuples(st.text(max_size=10), st.booleans()), max_size=60)


@given(happenings)
def test_any_events_give_rising_progress_whose_total_equals_it_exactly_where_a_sub_task_has_ended(
    happened: list[tuple[str, bool]],
) -> None:
    counter, numbers = ProgressCounter(), [0.0]
    for message, ended in happened:
        event = counter.event(message, ended=ended)
        assert event == ProgressEvent(event.progress, event.progress if ended else None, message)
        numbers.append(event.progress)

    assert all(earlier < later for earlier, later in itertools.pairwise(numbers))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (told(ToolStarted("argos", "web_search")), "argos/web_search: started"),
        (told(ToolEnded("argos", "web_search", ok=True)), "argos/web_search: completed"),
        (told(ToolEnded("argos", "web_search", ok=False)), "argos/web_search: failed"),
        (told(StepBegan("harper", 1, "llm")), "harper step 1 (llm)"),
        (told(StepBegan("harper", 2, "tool")), "harper step 2 (tool)"),
        (progress.relayed("peer", "send_message", "peer step 1 (llm)"), "peer/send_message: peer step 1 (llm)"),
        (progress.of_server("files", "copy", "half of it", 1, 2), "files/copy: half of it"),
        (
            progress.of_server("files", "copy", "two\r\n lines\t\x1b[31m\u202e\ud800", 1, 2),
            "files/copy: two lines [31m",
        ),
        (progress.of_server("files", "copy", "completed", 2, 2), 'files/copy: "completed"'),
        (progress.of_server("files", "copy", " failed\n", 2, 2), 'files/copy: "failed"'),
        (progress.of_server("files", "copy", "started again", 2, 2), "files/copy: started again"),
        (progress.of_server("files", "copy", "x" * 200, 2, 2), f"files/copy: {'x' * 200}"),
        (progress.of_server("files", "copy", "x" * 201, 2, 2), f"files/copy: {'x' * 199}…"),
        (progress.of_server("files", "copy", None, 2.0, 3.0), "files/copy: 2/3"),
        (progress.of_server("files", "copy", " \n", 2.5, 10.0), "files/copy: 2.5/10"),
        (progress.of_server("files", "copy", "", 0.1 + 0.2, None), "files/copy: 0.3"),
        (progress.of_server("files", "copy", None, 123456789.0, 1e300), "files/copy: 123456789/1e+300"),
        (progress.heartbeat("harper", 15.04), "harper working (15s)"),
        (progress.heartbeat("harper", 0.2), "harper working (0s)"),
    ],
)
def test_messages_have_exactly_the_words_clients_know(message: str, words: str) -> None:
    assert message == words


@pytest.mark.parametrize("hidden", ["\x1b]0;title\x07", "\u202e", "\u200b", "\r", "\n"])
def test_a_message_with_characters_that_a_gateway_never_sends_is_no_peers(hidden: str) -> None:
    assert progress.is_ours("files/copy: completed")
    assert not progress.is_ours(f"{hidden}files/copy: completed")
    assert hidden not in progress.of_server("any", "tool", f"{hidden}files/copy: completed", 1, 1)
