"""Each fault of docs/upstream.md that has a script is still there; on the day that one is gone, its repair can go."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if not path.name.startswith("test_"))
DOCUMENT = (FOLDER.parents[1] / "docs" / "upstream.md").read_text()


@pytest.mark.whole
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_locked_version_still_has_the_fault(script: str, tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path), "NO_PROXY": "*"}
    command = [sys.executable, str(FOLDER / script)]
    ran = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    last = ran.stdout.splitlines()[-1]
    assert last.startswith("fault: "), f"{last}; remove the repair, see {script} in docs/upstream.md"


def test_the_document_names_every_script() -> None:
    assert sorted({*re.findall(r"`tests/upstream/(\w+\.py)`", DOCUMENT)}) == SCRIPTS
