"""`make docs`: writes the generated files, or those that the arguments name; tests/unit/test_pages.py compares them."""

from __future__ import annotations

import sys
from pathlib import Path
from pkgutil import resolve_name

ROOT = Path(__file__).parents[1]
PAGES = {
    "deploy/kubernetes/components/monitoring/rules.yaml": "tests.deploy.prometheus_rule:prometheus_rule",
    "docs/operate/configuration.md": "tests.unit.config.configuration_page:markdown",
    "docs/operate/log-events.md": "tests.unit.telemetry.log_events_page:markdown",
    "docs/operate/metrics.md": "tests.unit.telemetry.metrics_page:markdown",
    "docs/operate/providers.md": "tests.e2e.provider_page:page",
    "docs/upstream.md": "tests.unit.changes.upstream_page:markdown",
    "docs/use/error-reasons.md": "tests.unit.reasons_page:markdown",
    "docs/use/connect.md": "tests.client.connect_page:markdown",
    "docs/use/routes.md": "tests.unit.doors.http.routes_page:markdown",
}
"""The function that returns the text of each."""


def text_of(path: str) -> str:
    """Return the text that the file should have."""
    text: str = resolve_name(PAGES[path])()
    return text


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        (ROOT / name).write_text(text_of(name), encoding="utf-8")
