"""What docs/operate/observability.md says of the metrics, read for the tests that hold it against the code."""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml

from tests.support.observability_page import section

TEXT = section("Metrics")


@dataclass(frozen=True)
class Row:
    """One metric of the tables."""

    type: str
    labels: set[str]
    says: str


_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\| ([^|]*) \|", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_blocks: dict[str, str] = dict(_BLOCK.findall(TEXT))  # of each language the last one

ROWS = {name: Row(type_, set(re.findall(r"`(\w+)`", labels)), says) for name, type_, labels, says in _ROW.findall(TEXT)}
ALERTS: dict[str, str] = {
    rule["alert"]: rule["expr"] for group in yaml.safe_load(_blocks["yaml"])["groups"] for rule in group["rules"]
}
QUESTIONS = [line for line in _blocks["promql"].splitlines() if line and not line.startswith("#")]
