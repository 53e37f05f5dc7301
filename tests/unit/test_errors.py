"""`errors.py` has the meaning of every reason of a call."""

import ast
from pathlib import Path

import pallas_gateway
from pallas_gateway.calls.asking.approvals import ApprovalRequiredError
from pallas_gateway.calls.asking.used_states import StatesUnavailableError
from pallas_gateway.calls.parameters import BadParametersError
from pallas_gateway.errors import (
    FAILURES,
    REFUSALS,
    AgentUnavailableError,
    CallFailedError,
    CallLimitedError,
    CallRefusedError,
)
from pallas_gateway.features.audit.audit_log import AuditUnavailableError

FOLDERS = ("doors", "calls", "runtime", "core")
BY_DEFAULT = (
    AgentUnavailableError, ApprovalRequiredError, AuditUnavailableError, BadParametersError, CallLimitedError,
    StatesUnavailableError,
)  # fmt: skip


def reasons_of(exception: type) -> set[str]:
    """The constant reasons with which the package makes an exception."""
    package = Path(pallas_gateway.__file__).parent
    files = (path.read_text() for name in FOLDERS for path in (package / name).rglob("*.py"))
    nodes = (node for text in files for node in ast.walk(ast.parse(text)))
    made = (one for one in nodes if isinstance(one, ast.Call) and ast.unparse(one.func) == exception.__name__)
    given = (key.value for one in made for key in one.keywords if key.arg == "reason")
    constants = (part for value in given for part in ast.walk(value) if isinstance(part, ast.Constant))
    return {one.value for one in constants if isinstance(one.value, str)}


def test_every_reason_of_a_call_has_a_meaning() -> None:
    of_classes = {one.reason for one in BY_DEFAULT}
    assert reasons_of(CallRefusedError) | of_classes == REFUSALS.keys()
    assert reasons_of(CallFailedError) <= FAILURES.keys()
