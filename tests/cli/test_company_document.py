"""The configurations of docs/operate/company.md pass `check`."""

import re
from pathlib import Path

import pytest

from tests.support.commands import Command
from tests.support.documents import ROOT

TEXT = (ROOT / "docs" / "operate" / "company.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
CONFIGURED = [title for title, text in SECTIONS.items() if "# agents.yaml" in text]
ENVIRON = {
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
    assert len(CONFIGURED) == TEXT.count("# agents.yaml\n") == 2
