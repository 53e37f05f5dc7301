"""docs/operate/from-one-machine-to-many.md: its settings exist, its figures are measured, its memory is a pod's."""

import re
from pathlib import Path

import pytest
import yaml

from benchmarks.bench import SHORT, bench
from benchmarks.resources import HEADING, measure
from pallas_gateway.config.model.deployment import GatewaySettings
from tests.deploy.adapting import ROOT, shipped

TEXT = (ROOT / "docs" / "operate" / "from-one-machine-to-many.md").read_text()
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()
ROWS = [
    list(map(float, row)) for row in re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) % \|$", TEXT, re.MULTILINE)
]


def test_every_setting_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`gateway\.(\w+)", TEXT))
    assert len(named) > 6
    assert named <= set(GatewaySettings.model_fields)
    assert set(re.findall(r"`gateway\.limits\.(\w+)", TEXT)) <= set(GatewaySettings().limits.__class__.model_fields)


@pytest.mark.parametrize("text", [TEXT, (ROOT / "README.md").read_text()], ids=["page", "readme"])
def test_every_bold_figure_is_one_of_the_benchmarks(text: str) -> None:
    figures = re.findall(r"\*\*([\d.,]+(?: ?[a-zA-Z/]+)?)\*\*", text)
    assert len(figures) > 6
    assert [one for one in figures if one not in PERFORMANCE] == []


def test_a_pod_gets_the_memory_that_the_page_says() -> None:
    deployment = yaml.safe_load(shipped("kubernetes/base/deployment.yaml"))
    resources = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]
    memory = {name: resources[name]["memory"] for name in ("requests", "limits")}
    assert f"requests {memory['requests']} and half a core, and limits memory to {memory['limits']}" in TEXT
    assert resources["requests"]["cpu"] == "500m"
    assert "cpu" not in resources["limits"]
    assert [row[0] for row in ROWS] == [1, 10, 50, 100]
    most = max(row[2] for row in ROWS) + GatewaySettings().max_in_flight * 244 / 1024
    assert 1.25 * most < 400 < int(memory["requests"].removesuffix("Mi"))


@pytest.mark.whole
async def test_the_command_of_the_page_measures_a_gateway(tmp_path: Path) -> None:
    async with bench(SHORT, tmp_path) as run:
        row = await measure(run, 2, idle_seconds=0.1, calls=40)
    assert row.line.count("|") == HEADING.partition("\n")[0].count("|")
    assert row.idle_mb > 20
    assert row.cpu_ms_per_call > 0
    assert "python -m benchmarks.resources" in TEXT
