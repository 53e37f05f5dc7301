"""The Grafana dashboard of deploy/, read for the tests that hold its queries against the metrics."""

import json
from pathlib import Path
from typing import Any

_DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "pallas-gateway.json").read_text())
PANELS: list[dict[str, Any]] = _DASHBOARD["panels"]
QUERIES: list[str] = [target["expr"] for panel in PANELS for target in panel["targets"]]


def as_promql(query: str) -> str:
    """A query with Grafana's variables filled in, "all agents" for the agent."""
    return query.replace("$__rate_interval", "5m").replace('agent=~"$agent",', "").replace('{agent=~"$agent"}', "")
