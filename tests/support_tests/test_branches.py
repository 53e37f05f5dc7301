"""The comparison of two measurements of branch coverage."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.branches import main


def measured(**percents: tuple[float, float]) -> str:
    """What coverage writes of files: percent of branches (-1: it has none), and of lines."""

    def summary(branches: float, lines: float) -> dict[str, Any]:
        known = {"percent_branches_covered": branches, "percent_statements_covered": lines}
        return {"summary": {"num_branches": 0 if branches < 0 else 4, **known}}

    return json.dumps({"files": {f"{name}.py": summary(*both) for name, both in percents.items()}})


@pytest.mark.parametrize(
    ("after", "code", "printed"),
    [
        ({"calls": (75.0, 90.0), "plain": (-1, 100.0), "new": (0.0, 0.0)}, 0, "0 of 3 files fell\n"),
        (
            {"calls": (50.0, 95.0), "plain": (-1, 99.0)},
            1,
            "calls.py: 75.0 % before, 50.0 % after\nplain.py: 100.0 % before, 99.0 % after\n2 of 2 files fell\n",
        ),
    ],
)
def test_files_that_are_covered_less_are_named_worst_first(
    after: dict[str, Any], code: int, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(measured(calls=(75.0, 95.0), plain=(-1, 100.0), gone=(100.0, 100.0)))
    new.write_text(measured(**after))

    assert main([str(old), str(new)]) == code
    assert capsys.readouterr().out == printed
