"""Each feature can be left out of the composition: the gateway answers calls, and has nothing of it."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.composition.features import FEATURES
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.core.feature import CORE_SETTINGS, Feature
from pallas_gateway.doors.api.base import operations_of
from tests.support.clients import raw_client
from tests.support.gateway import Agent, running, write_project

SETTINGS: dict[str, Any] = {
    "database": "sqlite:///threads.db",
    "openai_api": True,
    "console": True,
    "audit_log": "audit.log",
    "limits": {"rules": [{"calls_per_minute": 1000}]},
    "agents_may_use": {"models": ["*"]},
    "thread_expire_days": 3,
    "usage_days": 5,
}
"""Everything is switched on."""
DATABASE = ["database", "agents_may_use", "thread_expire_days", "usage_days"]
"""The settings of what is only there with a database."""


def paths_of(feature: type[Feature]) -> set[str]:
    """The paths that it alone answers to GET."""
    listed = {one.path for one in feature.listed if one.method == "GET"}
    api = feature.api()
    operations = operations_of(api) if api is not None else []
    return {path for path in (*listed, *(one.path for one in operations if one.method == "GET")) if "{" not in path}


def without(left_out: type[Feature]) -> list[type[Feature]]:
    """The features without one, and without those that need it."""
    return [one for one in FEATURES if one is not left_out and left_out not in one.needs]


@pytest.mark.parametrize("left_out", FEATURES, ids=lambda one: one.__name__)
async def test_without_a_feature_a_call_is_answered_and_its_routes_are_not_there(
    left_out: type[Feature], tmp_path: Path
) -> None:
    features = without(left_out)
    settings = {name: value for name, value in SETTINGS.items() if name not in left_out.settings}
    project = write_project(tmp_path, {"echo": Agent()}, gateway=settings)
    async with running(project, features=features) as served:
        async with raw_client(served.url("echo")) as client:
            said = await client.call_tool("send_message", {"message": "hello"})
        async with httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http:
            answers = {path: (await http.get(path)).status_code for path in paths_of(left_out)}
            others = {path: (await http.get(path)).status_code for one in features for path in paths_of(one)}
    assert said.result["content"][0]["text"] == "hello"
    assert set(answers.values()) <= {HTTPStatus.NOT_FOUND}
    assert {path for path, status in others.items() if status == HTTPStatus.NOT_FOUND} == set()


CONSOLE = dict.fromkeys(("/console/", "/api/agents/echo", "/api/gateway", "/api/rights"), "gateway.console")
OFF: list[tuple[list[str], dict[str, str]]] = [
    (["openai_api"], {"/v1/models": "gateway.openai_api"}),
    (["console"], {**CONSOLE, "/api/sign-in": "gateway.auth.console_client_id"}),
    (DATABASE, {"/api/v1/threads": "gateway.database", "/api/v1/agents": "gateway.database"}),
    (["audit_log", "limits"], {}),
]


@pytest.mark.parametrize(("settings", "off"), OFF, ids=["openai", "console", "database", "audit and limits"])
async def test_a_feature_that_is_switched_off_names_its_setting_and_a_call_is_answered(
    settings: list[str], off: dict[str, str], tmp_path: Path
) -> None:
    gateway = {name: value for name, value in SETTINGS.items() if name not in settings}
    gateway.setdefault("console", False)  # on this machine alone it is on by default
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway=gateway)) as served:
        async with raw_client(served.url("echo")) as client:
            said = await client.call_tool("send_message", {"message": "hello"})
        async with httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http:
            answers = {path: await http.get(path) for path in off}
    assert said.result["content"][0]["text"] == "hello"
    for path, setting in off.items():
        assert (answers[path].status_code, f"`{setting}" in answers[path].text) == (HTTPStatus.NOT_FOUND, True), path


@pytest.mark.parametrize("left_out", [one for one in FEATURES if one.settings], ids=lambda one: one.__name__)
async def test_settings_of_a_feature_that_is_left_out_are_problems(left_out: type[Feature], tmp_path: Path) -> None:
    project = write_project(tmp_path, {"echo": Agent()}, gateway=SETTINGS)
    with pytest.raises(ConfigurationError) as refused:
        async with running(project, features=without(left_out)):
            raise AssertionError("it has started")
    given = [name for name in sorted(SETTINGS) if name in left_out.settings]
    why = "this gateway was built without the feature that uses this key"
    assert [(one.path, one.message) for one in refused.value.problems] == [(f"gateway.{name}", why) for name in given]
    assert all(one.line for one in refused.value.problems)


def test_each_setting_of_the_gateway_belongs_to_the_core_or_to_one_feature() -> None:
    of_features = [name for feature in FEATURES for name in feature.settings]
    assert sorted([*CORE_SETTINGS, *of_features]) == sorted(GatewaySettings.model_fields)
