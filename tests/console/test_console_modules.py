"""The modules of the console that know no page, by tests that Node runs: calls, Markdown, forms, conversations."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from pallas_gateway.calls.parameters import schemas_by_name
from pallas_gateway.features.console.files import STATIC
from tests.support_programs import program

TESTS = Path(__file__).parent / "js"


@pytest.mark.needs("console-tools")
def test_the_console_modules_pass_their_own_tests() -> None:
    files = [str(path) for path in sorted(TESTS.glob("*.test.mjs"))]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NODE_")}
    command = [program("console-tools"), "--test", *files]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, check=False)
    assert run.returncode == 0, run.stdout
    assert "fail 0" in run.stdout


def test_the_console_knows_the_schema_of_each_parameter() -> None:
    module = (STATIC / "parameters.js").read_text(encoding="utf-8")
    _, _, table = module.partition("export const SCHEMAS = ")
    assert json.loads(table.rstrip(";\n").replace(",\n}", "\n}")) == schemas_by_name()
