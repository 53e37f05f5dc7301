"""Outages of downstreams and their tools, as they are logged."""

import pytest

from pallas_gateway.runtime.downstreams import downstream_log
from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog, Outages


def test_tools_that_are_left_out_are_logged_once_and_no_longer_when_there_were_too_many(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downstream_log, "_MOST_SAID", 2)
    log = DownstreamLog("lead")
    for faults in (["a"], ["a", "b"], ["c"], ["c"]):
        log.on_listed("tools", [], faults)
    assert [vars(record)["problems"] for record in caplog.records] == [["a"], ["b"]]


def test_going_down_and_coming_back_are_said_once_each() -> None:
    outages = Outages()
    assert not outages.up("tools")
    assert [outages.down("tools", second) for second in (0.0, 1.0, 100.0)] == [0, None, None]
    assert [outages.up("tools") for _ in range(2)] == [True, False]


def test_a_server_that_flaps_is_one_pair_a_minute_with_the_changes_left_out() -> None:
    outages = Outages()
    said = [(outages.down("tools", float(second)), outages.up("tools")) for second in range(130)]
    pairs = {second: pair for second, pair in enumerate(said) if pair != (None, False)}
    assert pairs == {0: (0, True), 60: (118, True), 120: (118, True)}


def test_a_server_that_stays_down_after_flapping_is_said_when_the_minute_is_over() -> None:
    outages = Outages()
    outages.down("tools", 0.0)
    outages.up("tools")
    assert [outages.down("tools", second) for second in (30.0, 59.0, 60.0, 120.0)] == [None, None, 0, None]
    assert outages.up("tools")


def test_a_server_that_is_back_before_its_going_down_was_said_is_not_said_to_be_back() -> None:
    outages = Outages()
    outages.down("tools", 0.0)
    outages.up("tools")
    outages.down("tools", 1.0)
    assert not outages.up("tools")


def test_servers_do_not_quieten_each_other() -> None:
    outages = Outages()
    assert (outages.down("tools", 0.0), outages.down("graph", 1.0)) == (0, 0)
