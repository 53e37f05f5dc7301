"""Which tests belong to which part of the package: what `make quick` runs when a file there has changed.

The unit tests of a module belong to it by the layout (tests/layout.py) and are not named here. Paths are below tests/,
as globs. A test keeps the table complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

AREAS: dict[str, tuple[str, ...]] = {
    "calls": ("e2e/test_conversation.py", "e2e/test_loop_guard.py", "e2e/test_resumed_calls.py"),
    "calls/asking": ("e2e/test_question_table.py", "e2e/test_questions.py"),
    "calls/events": ("e2e/test_watching.py", "e2e/test_relay.py"),
    "changes": ("repairs", "e2e/test_modes.py"),
    "cli": ("cli",),
    "client": ("client",),
    "composition": ("e2e/test_features.py", "e2e/test_modes.py"),
    "config": ("cli/test_check.py", "cli/test_project.py", "e2e/test_features.py", "unit/test_pages.py"),
    "core": (
        *("e2e/test_main_job.py", "e2e/test_lives.py", "e2e/test_peers.py", "e2e/test_load.py"),
        *("e2e/test_end_of_a_call.py", "e2e/test_refused_calls.py"),
        *("e2e/test_plain_text_door.py", "e2e/test_features.py"),
    ),
    "core/health": ("e2e/test_health.py",),
    "core/long_calls": (
        "threads/test_tasks.py",
        "threads/test_long_calls.py",
        "threads/test_mcp_tasks.py",
        "threads/test_task_clients.py",
        "threads/test_tasks_through_faults.py",
    ),
    "docs": (
        *("cli/test_documented_*.py", "e2e/test_documented_*.py", "e2e/test_front_page.py", "unit/test_pages.py"),
        "example/test_first_hour.py",
    ),
    "doors/api": ("e2e/test_documents.py", "e2e/test_threads.py"),
    "doors/http": ("e2e/test_http_surface.py", "e2e/test_front_page.py"),
    "doors/mcp": ("e2e/test_main_job.py", "e2e/test_protocols.py", "e2e/test_tool_lists.py", "e2e/test_all_agents.py"),
    "doors/openai": ("e2e/test_openai_api.py", "e2e/test_responses_api.py"),
    "example": ("example",),
    "fast_paths": ("fast_paths", "e2e/test_main_job.py"),
    "features/audit": ("e2e/test_audit.py", "cli/test_audit.py"),
    "features/console": ("console/test_files.py", "e2e/test_tool_runs.py"),
    "features/definitions": ("threads/test_definitions.py", "e2e/test_agents_api.py", "e2e/test_definitions.py"),
    "features/limits": ("e2e/test_limits.py", "e2e/test_budgets.py", "threads/test_stored_limits.py"),
    "features/registry": ("e2e/test_registry.py",),
    "features/running_calls": ("e2e/test_running_calls.py", "e2e/test_answers_after_a_restart.py"),
    "features/sign_in": ("e2e/test_sign_in.py",),
    "features/threads": ("threads/test_store.py", "e2e/test_threads.py"),
    "features/pages": ("e2e/test_front_page.py",),
    "features/tries": ("e2e/test_agents_try.py",),
    "features/usage": ("*/test_usage.py", "threads/test_stored_usage.py", "e2e/test_documented_answers.py"),
    "identity": ("e2e/test_identity.py", "e2e/test_protected_surface.py"),
    "process": ("e2e/test_connections.py", "e2e/test_reload.py", "cli/test_serve.py"),
    "process/workers": ("e2e/test_workers.py", "unit/process/workers"),
    "repairs": ("repairs",),
    "runtime": (
        "e2e/test_main_job.py",
        "e2e/test_downstreams.py",
        "e2e/test_providers.py",
        "e2e/test_stdio_servers.py",
    ),
    "shared": ("threads/test_shared.py", "threads/test_shared_sql.py", "e2e/test_limits.py"),
    "shared/database": ("threads/test_database.py", "threads/test_database_commands.py"),
    "telemetry": ("e2e/test_metrics.py", "e2e/test_logs.py", "e2e/test_traces.py", "unit/test_pages.py"),
}
"""By folder of the package; a module belongs to the entry with the longest path."""

GROUND = ("e2e/test_main_job.py",)
"""Of modules directly below the package."""


def area_of(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the files for a module in these folders below the package."""
    known = ("/".join(folders[:length]) for length in range(len(folders), 0, -1))
    return next((AREAS[one] for one in known if one in AREAS), ()) if folders else GROUND
