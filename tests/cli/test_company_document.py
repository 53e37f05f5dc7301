"""The configurations of docs/operate/company.md pass `check`, and its overlay is rendered."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.deploy.adapting import DEPLOY, ROOT
from tests.support_programs import program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.commands import Command

TEXT = (ROOT / "docs" / "operate" / "company.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
CONFIGURED = [title for title, text in SECTIONS.items() if "# agents.yaml" in text]
ENVIRON = {
    "PALLAS_PUBLIC_URL": "https://agents.company.example",
    "PALLAS_INGRESS_NETWORK": "10.0.0.0/8",
    "PALLAS_STATE_KEY": "0123456789abcdef" * 4,
    "DB_PASSWORD": "secret",
    "HELPDESK_TOKEN": "secret",
    "CRM_SECRET": "secret",
    "OPENAI_API_KEY": "secret",
}


def write_files(title: str, folder: Path) -> None:
    """Write the files that a section shows, by the names in their first lines."""
    for name, text in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", SECTIONS[title], re.MULTILINE | re.DOTALL):
        (folder / name).write_text(text)


@pytest.mark.parametrize("title", CONFIGURED)
def test_a_configuration_of_the_page_has_no_problem(
    title: str, run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    write_files(title, folder)
    done = run("check")
    assert (done.code, "warning" in f"{done.out}{done.err}".lower()) == (0, False), f"{done.out}{done.err}"


def test_every_configuration_of_the_page_is_tried() -> None:
    assert len(CONFIGURED) == TEXT.count("# agents.yaml\n") == 3


@pytest.mark.needs("kubectl")
def test_the_overlay_has_three_replicas_of_the_company(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kubernetes" / "base", tmp_path / "base")
    (tmp_path / "ours").mkdir()
    write_files("Three replicas on Kubernetes", tmp_path / "ours")
    command = [program("kubectl"), "kustomize", str(tmp_path / "ours")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    cluster: dict[str, Any] = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
    [container] = cluster["Deployment"]["spec"]["template"]["spec"]["containers"]
    host = "agents.company.example"
    assert {one["name"]: one.get("value") for one in container["env"]}["PALLAS_PUBLIC_URL"] == f"https://{host}"
    assert cluster["Deployment"]["spec"]["replicas"] == cluster["HorizontalPodAutoscaler"]["spec"]["minReplicas"] == 3
    assert cluster["Ingress"]["spec"]["rules"][0]["host"] == cluster["Ingress"]["spec"]["tls"][0]["hosts"][0] == host
    assert "state_keys" in cluster["ConfigMap"]["data"]["agents.yaml"]
