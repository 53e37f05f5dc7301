"""The shipped alerts and the queries of docs/operate/observability.md, for the tests that run them."""

import re

import yaml

from tests.support.documents import ROOT, pages

_TEXT = pages()["docs/operate/observability.md"]
_QUERIES = re.search(r"^```promql\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)
assert _QUERIES
_ALERTS = (ROOT / "deploy/prometheus/alerts.yml").read_text()

ALERTS: dict[str, str] = {
    rule["alert"]: rule["expr"] for group in yaml.safe_load(_ALERTS)["groups"] for rule in group["rules"]
}
QUESTIONS = [line for line in _QUERIES[1].splitlines() if line and not line.startswith("#")]
