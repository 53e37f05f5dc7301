"""Calls are answered in the same way with every fast path off; the metric shows which are on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from pallas_gateway.changes.registry import ALL, FAST_PATHS
from tests.support.gateway import Agent, running, write_project
from tests.support.scripted_llm import say, scripted_llm

COVER_EACH_ONCE = (
    "test_fast_paths.py::test_the_metric_shows_which_fast_paths_are_on",
    "test_main_job.py",
    *(f"test_providers.py::test_it_answers[{one}]" for one in ("openai", "responses", "anthropic", "google")),
    "test_llm_sockets.py::test_a_turn_cut_off_ends_its_answer_and_nobody_elses",
)
"""Tests that take every fast path at least once: calls of both eras, each provider's stream, histories, tools."""


@pytest.mark.whole("e2e/test_main_job.py::test_an_agent_answers_clients_of_each_era")
@pytest.mark.timeout(300)
def test_calls_are_answered_with_every_fast_path_off() -> None:
    folder = Path(__file__).parent
    tests = [str(folder / one) for one in COVER_EACH_ONCE]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "PYTEST_"))}
    run = subprocess.run(
        command,
        cwd=folder.parents[1],
        env={**environment, FAST_PATHS: ALL},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stdout


async def test_the_metric_shows_which_fast_paths_are_on(tmp_path: Path) -> None:
    async with scripted_llm([say("Hello")]) as llm:
        project = write_project(tmp_path, {"one": Agent()}, llm_url=llm.base_url)
        async with running(project) as served, httpx.AsyncClient(base_url=served.base_url) as http:
            text = (await http.get("/metrics")).text
    shown = {name: float(value) for name, value in re.findall(r'pallas_fast_path\{name="(\w+)"\} (\S+)', text)}
    assert shown.keys() >= {"deep_copies", "kept_clients", "openai_texts"}
    assert set(shown.values()) == ({0} if os.environ.get(FAST_PATHS) == ALL else {1})
