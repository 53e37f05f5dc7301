"""The documents list every reason of a failed call, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from pallas_gateway.audit.audit_log import AuditUnavailableError
from pallas_gateway.calls.parameters import BadParametersError
from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.questions.approvals import ApprovalRequiredError
from pallas_gateway.questions.used_states import StatesUnavailableError

ROOT = Path(__file__).parents[2]
PACKAGES = ("mcp_server", "calls", "runtime", "hosting")
RAISED = {"CallRefusedError", "CallFailedError"}
BY_DEFAULT = {
    AgentUnavailableError.reason,
    BadParametersError.reason,
    StatesUnavailableError.reason,
    AuditUnavailableError.reason,
}
OF_TOOL_RUNS = {"no_tool", ApprovalRequiredError.reason, "server_unavailable", "deadline"}
"""Of calls that run a tool; no client of MCP makes such calls."""
RETURNED = {"runtime_error"}
"""By `runtime/failures.py`, as the first of a pair."""


def raised_in(tree: ast.AST) -> set[str]:
    """The constant reasons with which the exceptions of calls are made."""
    made = (one for one in ast.walk(tree) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name))
    reasons = (
        key.value for one in made if ast.unparse(one.func) in RAISED for key in one.keywords if key.arg == "reason"
    )
    return {
        part.value
        for value in reasons
        for part in ast.walk(value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def in_code() -> set[str]:
    files = (file for name in PACKAGES for file in (ROOT / "pallas_gateway" / name).rglob("*.py"))
    return {reason for file in files for reason in raised_in(ast.parse(file.read_text()))} | BY_DEFAULT | RETURNED


def listed(document: str, begins: str, ends: str) -> set[str]:
    text = (ROOT / "docs" / document).read_text()
    found = re.search(f"{re.escape(begins)}(.*?){re.escape(ends)}", text, re.DOTALL)
    assert found is not None, f"docs/{document} has no list that begins with '{begins}'"
    return set(re.findall(r"`(\w+)`", found[1]))


def test_the_page_for_clients_lists_every_reason_of_a_failed_call() -> None:
    stated = listed("use/clients.md", "Of a failed call, `stop_reason` is the reason:", "\n\n")
    assert stated == in_code() - OF_TOOL_RUNS


def test_the_log_of_calls_lists_every_reason_of_a_failed_call() -> None:
    assert (
        listed("operate/observability.md", "| `reason`, `error` | of any other: one word (", "), and the sentence")
        == in_code() | OF_TOOL_RUNS
    )
