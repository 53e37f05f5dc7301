"""Log levels that clients set: which sessions get the assistant stream."""

import pytest

from pallas_gateway.core.parts import MOST_SESSIONS, LogLevels


@pytest.mark.parametrize(
    ("level", "shows"), [("debug", True), ("info", True), ("notice", False), ("warning", False), ("emergency", False)]
)
def test_a_session_gets_the_messages_of_its_level_and_above(level: str, shows: bool) -> None:
    levels = LogLevels()
    levels.set("ann", level)
    assert levels.shows_info("ann") == shows
    assert levels.shows_info("bob")
    assert levels.shows_info(None)


def test_the_latest_level_of_a_session_counts() -> None:
    levels = LogLevels()
    levels.set("ann", "error")
    levels.set("ann", "info")
    assert levels.shows_info("ann")


def test_a_client_without_a_session_changes_nothing() -> None:
    handed: list[tuple[str, bool]] = []
    levels = LogLevels(lambda session, shows_info: handed.append((session, shows_info)))
    levels.set(None, "error")
    assert handed == []
    assert levels.shows_info(None)


def test_another_process_goes_by_the_level_too_and_reads_no_session_id() -> None:
    there = LogLevels()
    handed: list[str] = []

    def hand_on(session: str, shows_info: bool) -> None:
        handed.append(session)
        there.apply(session, shows_info=shows_info)

    LogLevels(hand_on).set("the-id-of-anns-session", "error")
    assert not there.shows_info("the-id-of-anns-session")
    assert "ann" not in handed[0]


def test_made_up_sessions_take_no_more_than_a_bounded_place() -> None:
    levels = LogLevels()
    for number in range(MOST_SESSIONS + 1):
        levels.set(str(number), "error")
    assert levels.shows_info("0")
    assert not levels.shows_info("1")
