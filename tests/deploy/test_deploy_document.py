"""docs/operate/deploy.md shows what is in deploy/, and its steps for one box run, with doubles of pip and systemctl."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.adapting import DEPLOY, ROOT
from tests.support_programs import program

TEXT = (ROOT / "docs" / "operate" / "deploy.md").read_text()
SNIPPETS = re.findall(r"^<!-- (\S+) -->\n```\w+\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ ([^#\n]+)", TEXT, re.MULTILINE)
PYTHON = """#!/bin/sh
# Stands for a Python: says that it is usable and where it is; the pip of `-m venv FOLDER` notes what it is asked for.
if [ "$1" = -c ]; then
    echo "$0"
    exit
fi
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho pip "$@" >> "$NOTES"\\n' > "$3/bin/pip"
chmod +x "$3/bin/pip"
"""
OLD_PYTHON = "#!/bin/sh\nexit 1\n"  # as .ci/python.sh sees one: not usable
SYSTEMCTL = '#!/bin/sh\necho systemctl "$@" >> "$NOTES"\n'


@pytest.mark.parametrize(("name", "snippet"), SNIPPETS)
def test_a_snippet_stands_in_its_file_word_for_word(name: str, snippet: str) -> None:
    text = re.sub(r"^# +", "", (ROOT / name).read_text(), flags=re.MULTILINE) if "docker" in snippet else ""
    assert snippet in (text or (ROOT / name).read_text())


def test_every_snippet_but_the_first_names_its_file() -> None:
    assert len(SNIPPETS) == len(re.findall(r"^```(?!console)\w+\n", TEXT, re.MULTILINE)) - 1


def test_everything_in_the_folder_is_told_of() -> None:
    for entry in DEPLOY.iterdir():
        assert f"../../deploy/{entry.name}" in TEXT


@pytest.mark.needs("kubectl")
def test_the_overlay_is_rendered_as_the_document_says() -> None:
    [look] = [command for command in COMMANDS if command.startswith("kubectl kustomize")]
    words = [program("kubectl"), *look.split()[1:]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "image: registry.example.com/pallas-gateway:1" in done.stdout
    assert "name: my-project" in done.stdout


def test_the_steps_for_one_box_put_everything_where_the_unit_looks_for_it(tmp_path: Path) -> None:
    root, notes = tmp_path / "root", tmp_path / "notes"
    environ = _with_stand_ins(tmp_path, {"python3.14": PYTHON, "systemctl": SYSTEMCTL})
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


def test_the_program_is_installed_with_a_python_that_is_new_enough_whatever_python3_is(tmp_path: Path) -> None:
    environ = _with_stand_ins(tmp_path, {"python3": OLD_PYTHON, "python3.14": OLD_PYTHON, "python3.13": PYTHON})
    command = [str(DEPLOY / "install.sh"), str(tmp_path / "opt")]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    installs = [line for line in (tmp_path / "notes").read_text().splitlines() if line.startswith("pip install")]
    assert len(installs) == 3
    assert all("--no-deps" in line for line in installs)


def test_a_python_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old = '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.11.2\n'
    environ = _with_stand_ins(tmp_path, {"python3.11": old}) | {"PYTHON": str(tmp_path / "bin/python3.11")}
    command = [str(DEPLOY / "install.sh"), str(tmp_path / "opt")]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    why = "cannot be used: Python 3.12 to 3.15 with venv and ensurepip is required"
    assert done.stderr == f"PYTHON={environ['PYTHON']} (Python 3.11.2) {why}\n"


def test_a_python_in_a_home_directory_is_warned_about(tmp_path: Path) -> None:
    at_home = PYTHON.replace('echo "$0"', "echo /home/operator/python/bin/python3.14")
    environ = _with_stand_ins(tmp_path, {"python3.14": at_home})
    source = (DEPLOY / "install.sh").read_text().replace('"$python" -m venv', "python3.14 -m venv")
    command = ["sh", "-c", source, "install.sh", str(tmp_path / "opt")]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "uses /home/operator/python/bin/python3.14, which the systemd unit cannot read" in done.stderr


def _with_stand_ins(folder: Path, programs: dict[str, str]) -> dict[str, str]:
    """An environment whose `PATH` begins with these programs; what they were asked is in `notes`."""
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "ROOT": str(folder / "root"), "NOTES": str(folder / "notes")}
    environ.pop("PYTHON", None)
    return environ
