"""What a scraper sees: the exposition as series, and what Prometheus itself says of it (promtool)."""

import re
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support_programs import program

type Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Exposition:
    text: str

    @cached_property
    def families(self) -> dict[str, Metric]:
        """The gateway's own metrics by their documented names: a counter's ends in `_total`."""
        families = text_string_to_metric_families(self.text)
        named = ((f"{f.name}_total" if f.type == "counter" else f.name, f) for f in families)
        return {name: family for name, family in named if name.startswith("pallas_")}

    @cached_property
    def series(self) -> dict[Series, float]:
        """The value of each of the gateway's own series."""
        samples = (sample for family in self.families.values() for sample in family.samples)
        return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series, None if there is none."""
        return self.series.get((name, frozenset(labels.items())))

    def labels_of(self, name: str) -> dict[str, set[str]]:
        """The labels of one sample name, each with its values."""
        found: dict[str, set[str]] = {}
        for sample, labels in self.series:
            for label, value in labels if sample == name else ():
                found.setdefault(label, set()).add(value)
        return found

    def has_sample(self, name: str) -> bool:
        """Whether there is a series of that name, with whatever labels."""
        return any(sample == name for sample, _ in self.series)


def unknown_in(expression: str, exposition: Exposition) -> list[str]:
    """The metrics, labels and label values of a PromQL expression that the exposition does not have.

    Metrics that are not the gateway's (`up`) are left to Prometheus.
    """
    names = set(re.findall(r"\bpallas_\w+", expression))
    unknown = sorted(name for name in names if not exposition.has_sample(name))
    labels = {label: values for name in names for label, values in exposition.labels_of(name).items()}
    grouped = [label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")]
    unknown += [label for label in grouped if label not in labels]
    matchers = " ".join(re.findall(r"\bpallas_\w+\{([^}]*)\}", expression))
    for label, pattern in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
        unknown += [f'{label}="{value}"' for value in pattern.split("|") if value not in labels.get(label, ())]
    return unknown


def lint(exposition: str) -> str:
    """What `promtool check metrics` finds; the empty string if nothing."""
    return _output([program("promtool"), "check", "metrics"], stdin=exposition)


def check_alerts(alerts: Mapping[str, str], folder: Path) -> str:
    """What `promtool check rules` says against the alerts (name: expression); the empty string if nothing."""
    rules = [{"alert": name, "expr": expression} for name, expression in alerts.items()]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "docs", "rules": rules}]}))
    return _output([program("promtool"), "check", "rules", str(folder / "rules.yml")])


def without_result(expressions: Collection[str], before: Exposition, after: Exposition, folder: Path) -> str:
    """What Prometheus says of the expressions that yield nothing after two scrapes a minute apart; "" if all yield."""
    asked_for = set(re.findall(r"\bpallas_\w+", " ".join(expressions)))
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [
            {"series": _selector(*series), "values": f"{before.series.get(series, '_')} {value}"}
            for series, value in after.series.items()
            if series[0] in asked_for
        ],
        "promql_expr_test": [
            {
                "expr": f"count({expression}) > bool 0",
                "eval_time": "1m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
            for expression in expressions
        ],
    }
    (folder / "test.yml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    return _output([program("promtool"), "test", "rules", str(folder / "test.yml")])


def _selector(name: str, labels: frozenset[tuple[str, str]]) -> str:
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in sorted(labels)) + "}"


def _output(command: list[str], *, stdin: str = "") -> str:
    """What a failing command said."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    return f"{done.stdout}{done.stderr}" if done.returncode else ""
