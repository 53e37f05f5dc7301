"""docs/deploy.md shows what is in deploy/, and its steps for one box are run, with stand-ins for pip and systemctl."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.deploy.adapting import DEPLOY, ROOT
from tests.support_programs import program

if TYPE_CHECKING:
    from pathlib import Path

TEXT = (ROOT / "docs" / "deploy.md").read_text()
SNIPPETS = re.findall(r"^<!-- (\S+) -->\n```\w+\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ ([^#\n]+)", TEXT, re.MULTILINE)
PYTHON = """#!/bin/sh
# Stands for `python3 -m venv FOLDER`; the pip it makes notes what it is asked for.
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho pip "$@" >> "$NOTES"\\n' > "$3/bin/pip"
chmod +x "$3/bin/pip"
"""
SYSTEMCTL = '#!/bin/sh\necho systemctl "$@" >> "$NOTES"\n'


@pytest.mark.parametrize(("name", "snippet"), SNIPPETS)
def test_a_snippet_stands_in_its_file_word_for_word(name: str, snippet: str) -> None:
    text = re.sub(r"^# +", "", (ROOT / name).read_text(), flags=re.MULTILINE) if "docker" in snippet else ""
    assert snippet in (text or (ROOT / name).read_text())


def test_every_snippet_but_the_first_names_its_file() -> None:
    assert len(SNIPPETS) == len(re.findall(r"^```(?!console)\w+\n", TEXT, re.MULTILINE)) - 1


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)", TEXT))))
def test_what_the_document_links_to_is_there(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


def test_everything_in_the_folder_is_told_of() -> None:
    for entry in DEPLOY.iterdir():
        assert f"../deploy/{entry.name}" in TEXT


def test_the_overlay_is_rendered_as_the_document_says() -> None:
    [look] = [command for command in COMMANDS if command.startswith("kubectl kustomize")]
    words = [program("kubectl", "kubernetes-client"), *look.split()[1:]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "image: registry.example.com/pallas-gateway:1" in done.stdout
    assert "name: my-project" in done.stdout


def test_the_steps_for_one_box_put_everything_where_the_unit_looks_for_it(tmp_path: Path) -> None:
    stand_ins, root, notes = tmp_path / "bin", tmp_path / "root", tmp_path / "notes"
    stand_ins.mkdir()
    for name, text in (("python3", PYTHON), ("systemctl", SYSTEMCTL)):
        (stand_ins / name).write_text(text)
        (stand_ins / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{stand_ins}:{os.environ['PATH']}", "ROOT": str(root), "NOTES": str(notes)}
    subprocess.run([DEPLOY / "systemd" / "install.sh"], cwd=ROOT, env=environ, check=True, timeout=60)

    unit = (root / "etc/systemd/system/pallas-gateway.service").read_text()
    for key in ("WorkingDirectory=", "ExecStart=", "EnvironmentFile=-"):
        place = unit.partition(f"\n{key}")[2].split()[0]
        assert (root / place.lstrip("/")).parent.is_dir()
    assert (root / "etc/pallas-gateway").stat().st_mode & 0o077 == 0
    done = [line.split(" --", 1)[0] for line in notes.read_text().splitlines()]
    assert done == [
        "pip install", "pip wheel", "pip install", "pip install", "systemctl daemon-reload",
        "systemctl enable pallas-gateway",
    ]  # fmt: skip
    assert (root / "opt/pallas-gateway/bin/pip").exists()
