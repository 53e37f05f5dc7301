"""filelock is imported without its audit hook. In processes of their own."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("switched_off", "imported", "hooks"), [("", "pallas_gateway.runtime.runtime", 0), ("file_locks", "sys", 1)]
)
def test_no_audit_hook_is_called_for_each_id_of_what_serves(switched_off: str, imported: str, hooks: int) -> None:
    program = f"""
import sys
from pallas_gateway import composition
from pallas_gateway.serving import process
composition.use_changes()
added = []
sys.addaudithook(lambda event, _: added.append(event) if event == "sys.addaudithook" else None)
process.expect_calls()
import {imported}
import filelock
print(len(added), sys.addaudithook.__name__)
"""
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PALLAS_FAST_PATHS": switched_off}

    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert shown.stdout.split() == [str(hooks), "addaudithook"]
