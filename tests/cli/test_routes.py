"""`pallas-gateway routes` shows every route with what it requires."""

import json
import re

from tests.support.commands import Command


def test_it_shows_each_route_with_who_may_use_it_and_the_setting_that_enables_it(run: Command) -> None:
    ran = run("routes")
    rows = [re.split(r" {2,}", line) for line in ran.out.splitlines()]
    assert (ran.code, rows[0]) == (0, ["METHOD", "PATH", "REQUIRES", "SETTING", "DOES"])
    assert [
        "POST", "/api/v1/agents/{name}/chat", "run of the agent", "gateway.database",
        "Say something to an agent, in a thread or in a new one.",
    ] in rows  # fmt: skip


def test_it_prints_the_same_as_json(run: Command) -> None:
    found = json.loads(run("routes", "--json").out)
    assert {"method": "GET", "path": "/metrics", "does": "metrics", "requires": "view:metrics", "setting": ""} in found
