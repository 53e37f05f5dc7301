"""Which tests belong to which part of the package: what `make quick` runs when a file there has changed.

The unit tests of a module belong to it by the layout (tests/layout.py) and are not named here. Paths are below tests/,
as globs. A test keeps the table complete.
"""

from __future__ import annotations

AREAS: dict[str, tuple[str, ...]] = {
    "audit": ("e2e/test_audit.py", "cli/test_audit.py"),
    "calls": ("e2e/test_conversation.py", "e2e/test_loop_guard.py", "e2e/test_tool_limits.py"),
    "changes": ("repairs", "e2e/test_switched_off.py"),
    "cli": ("cli",),
    "client": ("client",),
    "config": ("cli/test_check.py", "cli/test_project.py", "unit/test_pages.py"),
    "database": ("threads/test_database.py", "threads/test_database_commands.py"),
    "definitions": ("threads/test_definitions.py", "e2e/test_agents_api.py", "e2e/test_definitions.py"),
    "docs": ("cli/test_documented_*.py", "e2e/test_documented_*.py", "e2e/test_documentation.py", "unit/test_pages.py"),
    "events": ("e2e/test_watching.py", "e2e/test_relay.py"),
    "example": ("example",),
    "fast_paths": ("fast_paths", "e2e/test_main_job.py"),
    "health": ("e2e/test_health.py", "e2e/test_health_rounds.py"),
    "hosting": (
        *("e2e/test_main_job.py", "e2e/test_lives.py", "e2e/test_peers.py", "e2e/test_load.py"),
        *("e2e/test_end_of_a_call.py", "e2e/test_refused_calls.py", "e2e/test_clients_of_a_call.py"),
        "e2e/test_plain_text_door.py",
    ),
    "identity": ("e2e/test_identity.py", "e2e/test_issuer_keys.py", "e2e/test_protected_surface.py"),
    "ledger": ("e2e/test_limits.py", "e2e/test_budgets.py", "threads/test_stored_limits.py"),
    "long_calls": (
        "threads/test_tasks.py",
        "threads/test_long_calls.py",
        "threads/test_mcp_tasks.py",
        "threads/test_task_clients.py",
        "threads/test_tasks_through_faults.py",
    ),
    "mcp_server": ("e2e/test_main_job.py", "e2e/test_protocols.py", "e2e/test_tool_lists.py", "e2e/test_all_agents.py"),
    "questions": ("e2e/test_question_table.py", "e2e/test_questions.py"),
    "repairs": ("repairs",),
    "runtime": (
        "e2e/test_main_job.py",
        "e2e/test_downstreams.py",
        "e2e/test_providers.py",
        "e2e/test_stdio_servers.py",
    ),
    "serving": ("e2e/test_connections.py", "e2e/test_reload.py", "cli/test_serve.py"),
    "shared": ("threads/test_shared.py", "threads/test_shared_sql.py", "e2e/test_limits.py"),
    "telemetry": ("e2e/test_metrics.py", "e2e/test_logs.py", "e2e/test_traces.py", "unit/test_pages.py"),
    "threads": ("threads/test_store.py", "e2e/test_threads.py"),
    "web": (
        "e2e/test_http_surface.py",
        "e2e/test_openai_api.py",
        "e2e/test_responses_api.py",
        "e2e/test_registry.py",
        "console/test_files.py",
    ),
    "workers": ("e2e/test_workers.py", "unit/workers"),
}
"""By folder of the package."""

GROUND = ("e2e/test_main_job.py",)
"""Of modules directly below the package."""
