"""Plots of the results, as PNG and SVG: `python -m benchmarks.plots RESULTS.json FOLDER`.

Runs in an environment of its own, with matplotlib and without the gateway: it imports nothing of either.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

_GATEWAY = "gateway"
_COLOURS = {_GATEWAY: "#1f6f54"}
_OTHER = "#a8b0b8"
_CURVES = {
    "agents": "agents",
    "downstreams": "downstreams the agent holds",
    "history": "entries of history",
    "images": "KB of image",
    "pieces": "pieces of the streamed answer",
    "clients": "clients at once",
}
_LOGARITHMIC = {"history", "images", "clients"}


def main(results_file: Path, folder: Path) -> None:
    # The same results make the same bytes, so that a run changes no plot without a reason.
    mpl.rcParams.update(
        {"svg.hashsalt": "pallas", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    )
    results = json.loads(results_file.read_text())
    scenarios = results.get("full", {}).get("scenarios", {})
    several = [name for name in ("passthrough", "bare", "tooled") if name in scenarios]
    if several:
        _save(_bars(scenarios, several, "calls_per_second", "calls per second, 16 clients"), folder / "throughput")
        _save(_bars(scenarios, several, "cpu_ms", "CPU per call, ms"), folder / "cpu")
    if "one client" in scenarios:
        _save(_bars(scenarios, ["one client"], "p50_ms", "one client, p50, ms"), folder / "latency")
    for name, points in results.get("growth", {}).get("growth", {}).items():
        _save(_curve(name, points), folder / name)


def _bars(scenarios: dict[str, Any], names: list[str], key: str, title: str) -> Figure:
    """One group of bars per scenario; the whiskers are the least and the most of the rounds."""
    rows = [(scenario, server, samples) for scenario in names for server, samples in scenarios[scenario].items()]
    picture = Figure(figsize=(7, 0.6 + 0.32 * len(rows)), layout="constrained")
    axes = picture.subplots()
    for position, (_, server, samples) in enumerate(rows):
        values = [sample[key] for sample in samples]
        middle = median(values)
        spread = [[middle - min(values)], [max(values) - middle]]
        axes.barh(position, middle, xerr=spread, color=_COLOURS.get(server, _OTHER), error_kw={"linewidth": 0.8})
        axes.annotate(f" {middle:.3g}", (max(values), position), va="center")
    axes.set_yticks(range(len(rows)), [f"{scenario}: {server}" for scenario, server, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel(title)
    axes.margins(x=0.12)
    return picture


def _curve(name: str, points: list[dict[str, Any]]) -> Figure:
    """Latency and CPU over what grows."""
    picture = Figure(figsize=(7, 2.8), layout="constrained")
    axes = picture.subplots()
    at = [point["at"] for point in points]
    for key, title, colour in (("p50_ms", "p50, ms", "#1f6f54"), ("cpu_ms", "CPU per call, ms", "#c9772b")):
        axes.plot(at, [point[key] for point in points], marker="o", markersize=3, color=colour, label=title)
    if name in _LOGARITHMIC:
        axes.set_xscale("symlog")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(_CURVES[name])
    axes.legend(frameon=False)
    return picture


def _save(picture: Figure, stem: Path) -> None:
    picture.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
    picture.savefig(stem.with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
