"""Writes docs/operate/metrics.md: help texts and types of the metrics, and the docstrings below their definitions."""

import ast
import inspect
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics import MetricWrapperBase

from pallas_gateway.telemetry import metrics

INTRODUCTION = """\
# Metrics

<!-- Made by `make docs` from `telemetry/metrics.py`. -->

Every metric of `/metrics`, and what to do when one moves; [observability.md](observability.md#metrics) has queries and
alerts. Buckets are from {0[0]} to {0[1]} seconds (calls) and from {1[0]} to {1[1]} seconds (downstream operations).
The words after `gauge` are how the values of several workers are combined. `process_*` and `python_*` are
prometheus_client's.
"""
ACROSS = {"livesum": "the sum", "livemin": "the smallest", "livemax": "the largest", "livemostrecent": "the latest"}
VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "send_message": {"outcome": metrics.OUTCOMES},
    "questions": {"kind": metrics.QUESTION_KINDS, "outcome": metrics.QUESTION_OUTCOMES},
    "loops_aborted": {"reason": metrics.HALTS},
    "llm_tokens": {"kind": (*metrics.TOKEN_KINDS, "cache_hit")},
    "tool_calls": {"operation": ("tool", "prompt", "resource"), "outcome": metrics.OUTCOMES},
    "agent_state": {"state": metrics.STATES},
    "auth_refused": {"reason": metrics.AUTH_REFUSALS},
}
"""Closed sets of label values, by attribute."""


def named(metric: MetricWrapperBase) -> str:
    return f"{metric._name}_total" if metric._type == "counter" else metric._name


def made() -> dict[str, MetricWrapperBase]:
    """All metrics, by attribute of `Metrics`."""
    attributes = vars(metrics.Metrics(CollectorRegistry())).items()
    return {name: one for name, one in attributes if isinstance(one, MetricWrapperBase)}


def markdown() -> str:
    """Return the page `docs/operate/metrics.md`."""
    buckets = [(one[0], one[-1]) for one in (metrics.DURATION_BUCKETS, metrics.OPERATION_BUCKETS)]
    return "\n".join([INTRODUCTION.format(*buckets), *_sections()])


def _sections() -> Iterator[str]:
    metric_of = made()
    [of_all] = ast.parse(inspect.getsource(metrics.Metrics)).body
    assert isinstance(of_all, ast.ClassDef)
    for function in (one for one in of_all.body if isinstance(one, ast.FunctionDef)):
        rows = [_row(name, metric_of[name], said) for name, said in _attributes(function.body) if name in metric_of]
        if rows:
            title = (ast.get_docstring(function) or "").removesuffix(".")
            yield "\n".join([f"## {title}\n", "| metric | type, labels | meaning |", "|---|---|---|", *rows, ""])


def _attributes(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """The attributes that a function sets, with the docstring below each."""
    for statement, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        match statement, following:
            case ast.Assign(targets=[ast.Attribute(attr=name)]), ast.Expr(value=ast.Constant(value=str(said))):
                yield name, said
            case ast.Assign(targets=[ast.Attribute(attr=name)]), _:
                yield name, ""


def _row(name: str, metric: MetricWrapperBase, said: str) -> str:
    values = VALUES.get(name, {})
    labels = (f"`{one}`{_listed(values.get(one, ()))}" for one in metric._labelnames)
    kind = f"gauge, {ACROSS[metric._multiprocess_mode]}" if isinstance(metric, Gauge) else str(metric._type)
    meaning = f"{metric._documentation} {' '.join(said.split())}".strip()
    return f"| `{named(metric)}` | {', '.join((kind, *labels))} | {meaning} |"


def _listed(values: tuple[str, ...]) -> str:
    return f" ({', '.join(f'`{one}`' for one in values)})" if values else ""
