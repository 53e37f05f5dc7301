"""Alerts and queries of docs/operate/observability.md, for the tests that run them."""

from __future__ import annotations

import re

import yaml

from tests.support.documents import pages

TEXT = pages()["docs/operate/observability.md"].split("\n## Logging\n")[0]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_blocks: dict[str, str] = dict(_BLOCK.findall(TEXT))  # of each language the last one

ALERTS: dict[str, str] = {
    rule["alert"]: rule["expr"] for group in yaml.safe_load(_blocks["yaml"])["groups"] for rule in group["rules"]
}
QUESTIONS = [line for line in _blocks["promql"].splitlines() if line and not line.startswith("#")]
