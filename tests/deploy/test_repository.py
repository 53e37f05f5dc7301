"""What git keeps: no plots of a measurement, and no file that makes every clone slow."""

import subprocess
from pathlib import PurePath

import pytest

from tests.deploy.adapting import ROOT

PICTURES = {".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf"}
MOST_BYTES = 300_000


@pytest.fixture(scope="module")
def kept() -> list[PurePath]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    # The checkout may belong to another user than the one who tests it.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [PurePath(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_pictures_are_those_of_the_documents_alone(kept: list[PurePath]) -> None:
    pictures = [path for path in kept if path.suffix in PICTURES]
    assert [str(path) for path in pictures if path.parent != PurePath("docs/images")] == []
    texts = [(ROOT / path).read_text() for path in kept if path.suffix == ".md"]
    assert [str(path) for path in pictures if not any(f"images/{path.name})" in text for text in texts)] == []


def test_no_file_is_large_but_a_lock(kept: list[PurePath]) -> None:
    large = {str(path) for path in kept if path.suffix != ".lock" and (ROOT / path).stat().st_size > MOST_BYTES}
    assert large == set()
