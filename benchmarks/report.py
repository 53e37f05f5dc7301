"""docs/performance.md and the table on the terminal, from the results alone: no figure is typed by hand.

`python -m benchmarks.report [FOLDER]` writes the document anew, from a folder of results.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import at_once, counts, fast_paths, providers, sizing, tables
from benchmarks.figures import Verdict, figure
from benchmarks.processes import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESULTS = REPOSITORY / "benchmarks/results"
SHORT_RESULTS = RESULTS / "short"
"""Of short runs, which are rough: never mixed with those of full ones, and not kept in git."""
DOCUMENT = REPOSITORY / "docs/performance.md"
PLOTTER = REPOSITORY / "benchmarks/.venv/bin/python"
_FILE = "latest.json"
_TOP = 15
_WITH_OWN_TABLES = ("providers", "fast-paths")

type Results = Mapping[str, Any]


def keep(part: str, results: Results, folder: Path) -> None:
    """Put one part's results beside those of earlier runs; of a part measured again in part, the rest stays."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = load(folder)
    earlier = kept.get(part)
    kept[part] = renewed(earlier, results) if earlier and results["only"] else results
    (folder / _FILE).write_text(json.dumps(kept, indent=1) + "\n")


def renewed(earlier: Results, again: Results) -> dict[str, Any]:
    """A part's results with what was measured again; when that was stands beside when it all was."""
    measured = {check["id"]: check for check in again["checks"]}
    checks = [measured.pop(check["id"], check) for check in earlier["checks"]]
    more = {key: value for key, value in again.items() if key not in {"plan", "at", "only", "machine"}}
    by_name = {key: {**earlier.get(key, {}), **more[key]} for key in ("scenarios", "growth")}
    noted = [*_still_kept(earlier.get("again", []), again["only"]), {key: again[key] for key in ("at", "only", "plan")}]
    return {**earlier, **more, **by_name, "checks": [*checks, *measured.values()], "again": noted}


def _still_kept(again: Sequence[Results], measured: Sequence[str]) -> list[Results]:
    """Earlier runs without the scenarios that were measured since."""
    left = [{**one, "only": [name for name in one["only"] if name not in measured]} for one in again]
    return [one for one in left if one["only"]]


def load(folder: Path) -> dict[str, Any]:
    """The kept results, by part; empty before the first run."""
    file = folder / _FILE
    return dict(json.loads(file.read_text())) if file.exists() else {}


def publish(folder: Path) -> Path:
    """Draw the plots of the kept results and write the document; returns where it is.

    That of a full run is docs/performance.md, that of a short one stays beside its results.
    """
    subprocess.run([PLOTTER, "-m", "benchmarks.plots", folder / _FILE, folder], cwd=REPOSITORY, check=True)
    document = DOCUMENT if folder == RESULTS else folder / DOCUMENT.name
    document.write_text(markdown(load(folder)))
    return document


def markdown(results: Results) -> str:
    """The whole document."""
    sections = (
        _opening,
        _table,
        _beside,
        _requests,
        _mixed,
        providers.section,
        _growth,
        counts.section,
        _time,
        fast_paths.section,
        sizing.section,
        _machine,
        _REPEAT,
    )
    parts = [section if isinstance(section, str) else section(results) for section in sections]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def table(results: Results) -> str:
    """The checks of all parts, with their verdicts."""
    checks = _checks(results)
    rows = [(check["title"], tables.measured(check), *tables.bounds(check), tables.verdict(check)) for check in checks]
    return tables.rows(("", "measured", "must", "reach", ""), rows)


def _checks(results: Results) -> list[Results]:
    return [check for part in results.values() for check in part["checks"]]


def _opening(results: Results) -> str:
    missed = sum(one["verdict"] == Verdict.MISSED for one in _checks(results))
    rough = [name for name, part in results.items() if part["plan"] != "full"]
    warning = f"\n\nFrom a **short run** ({', '.join(rough)}): the figures are rough." if rough else ""
    return f"""# Performance

The cost of a call in the gateway and in other servers of agents, without the model's time. For operators:
[Sizing](#sizing). For developers: [benchmarks/decisions.md](../benchmarks/decisions.md) has single decisions.{warning}

Targets that were missed: {f"{missed}, in bold." if missed else "none."}"""


def _table(results: Results) -> str:
    below = " [Providers](#providers)\nhave limits of their own." if "providers" in results else ""
    return f"""## Targets and results

{table({name: part for name, part in results.items() if name not in _WITH_OWN_TABLES})}

`must` is the limit, `reach` the target; `met` is between the two. The floor is a FastMCP server on Hypercorn that
repeats the message. Ratios are medians of rounds that alternate between the servers (least-most). The gateway and
fast-agent's server have a new instance for each call; agno shares agents and connections.{below}"""


def _beside(results: Results) -> str:
    scenarios = results.get("full", {}).get("scenarios", {})
    if not scenarios:
        return ""
    rows = [
        (scenario, name, *(tables.median(samples, key) for key in ("calls_per_second", "p50_ms", "p95_ms", "cpu_ms")))
        for scenario, contenders in scenarios.items()
        for name, samples in contenders.items()
    ]
    header = ("scenario", "server", "calls/s", "p50 ms", "p95 ms", "CPU ms per call")
    return f"""## Beside the alternatives

{tables.rows(header, rows)}

`passthrough` has no LLM; `bare` one turn; `tooled` two turns and a tool call; `far` is `bare` with three
downstreams, 50 ms away; `nested` is `tooled` with an agent as the tool; `asking` is `tooled` with a question to
the client; `stdio, unused` is `bare` with a stdio server. In `forwarded` the downstream receives the caller's token, or
one exchanged for it; agno's callers share a session. 16 clients and one process per server; `one client` and
`stdio` have one client, `workers` 64. Answers come at once, in eight pieces. `trust store shared`: with nothing in it.
The memory of {at_once.CALLS} calls at once is that of a second wave.
`calibration` is the load generator on a stand-in{_cost_of_load(scenarios)}."""


def _cost_of_load(scenarios: Mapping[str, Any]) -> str:
    if set(scenarios) <= {"calibration"} or "calibration" not in scenarios:
        return ""
    samples = next(iter(scenarios["calibration"].values()))
    own = figure([sample["generator_cpu_ms"] for sample in samples]).median
    stand_in = figure([sample["cpu_ms"] for sample in samples]).median
    rate = figure([sample["calls_per_second"] for sample in samples]).median
    fastest = max(
        figure([sample["calls_per_second"] for sample in taken]).median
        for scenario, contenders in scenarios.items()
        if scenario != "calibration"
        for taken in contenders.values()
    )
    return (
        f" ({own:.3f} ms of CPU per call, {stand_in:.3f} ms in the stand-in):\n"
        f"{rate:,.0f} calls/s, {rate / fastest:.0f} times those of the fastest server here"
    )


def _requests(results: Results) -> str:
    counted = results.get("full", {}).get("requests", [])
    if not counted:
        return ""
    uses = {"tooled": "uses it once", "holding": "does not use it"}
    rows = [
        (
            one["contender"],
            uses[one["agent"]],
            f"{sum(one['by_method'].values()):g}",
            ", ".join(f"{method} {count:g}" for method, count in sorted(one["by_method"].items())) or "none",
        )
        for one in counted
    ]
    return f"""## Requests a downstream sees per call

{tables.rows(("server", "a call that", "requests", "which"), rows)}"""


def _mixed(results: Results) -> str:
    mixed = results.get("full", {}).get("mixed")
    if not mixed:
        return ""
    kinds = mixed["kinds"].items()
    rows = [(kind, *(tables.number(one[key]) for key in ("calls", "p50_ms", "p95_ms"))) for kind, one in kinds]
    return f"""## A day of a company

{tables.rows(("kind of call", "calls", "p50 ms", "p95 ms"), rows)}

{mixed["calls"]:,} calls in {mixed["seconds"]:g} s, {len(mixed["errors"])} errors,
{mixed["cpu_ms"]:.1f} ms of CPU per call: short turns, tool calls with the caller's token, calls of two agents at once,
histories of 1,000 entries, images of 1 MB. Models take a second for 30 pieces. Calls begin at 70 % of
{mixed["capacity"]:.0f} calls/s, the most that 200 clients reach."""


def _growth(results: Results) -> str:
    growth = results.get("growth", {}).get("growth", {})
    if not growth:
        return ""
    titles = {
        "agents": "Agents of the gateway, one client",
        "downstreams": "Downstreams of the agent, used by no call, one client",
        "history": "Entries of history (300 characters each), one client",
        "images": "An image of so many KB, one client",
        "pieces": "Pieces of the answer, streamed one by one over 4 s, 32 clients (a piece is about a token)",
        "clients": "Clients at once",
    }
    measured = {name: title for name, title in titles.items() if name in growth}
    parts = [f"### {title}\n\n{_curve(growth[name], several=name == 'clients')}" for name, title in measured.items()]
    return "## How the cost grows\n\n" + "\n\n".join(parts)


def _curve(points: Sequence[Mapping[str, Any]], *, several: bool) -> str:
    # Of a fixed number of clients, the rate is in the latency.
    columns = {
        "at": "",
        **({"calls_per_second": "calls/s"} if several else {}),
        "p50_ms": "p50 ms",
        "cpu_ms": "CPU ms per call",
        "seconds_to_ready": "s to ready",
        "memory_mb": "MB",
    }
    present = {key: title for key, title in columns.items() if key in points[0]}
    return tables.rows(tuple(present.values()), [[tables.number(point[key]) for key in present] for point in points])


def _time(results: Results) -> str:
    profiles = results.get("profile", {}).get("profile", {})
    if not profiles:
        return ""
    parts = [_profile(name, profile) for name, profile in profiles.items()]
    return (
        "## Where the time goes\n\nShares of the time the gateway's process runs; waiting is not in it.\n\n"
        + "\n\n".join(parts)
    )


def _profile(name: str, profile: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{one['where']} {one['share']:.0%}" for one in profile["packages"][:_TOP])
    return f"""### {name}: {profile["cpu_ms"]:.1f} ms of CPU per call

By package: {packages}.

{_top(profile)}"""


def _top(profile: Mapping[str, Any]) -> str:
    pairs = zip(profile["alone"][:_TOP], profile["in_all"][:_TOP], strict=False)
    rows = [(_share(alone), _share(in_all)) for alone, in_all in pairs]
    return tables.rows(("by itself", "with all it calls"), rows)


def _share(entry: Mapping[str, Any]) -> str:
    return f"{entry['share']:.1%} `{entry['where']}`"


def _machine(results: Results) -> str:
    rows = []
    for name, part in results.items():
        machine = part["machine"]
        what = f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, {machine['system']}"
        load_before = f"{machine['load_before']:.1f}"
        python = f"Python {machine['python']}"
        rows.append((name, _when(part), f"{what}, {python}", load_before, machine["commit"]))
    last = list(results.values())[-1]["machine"] if results else {"versions": {}, "agno_versions": {}}
    header = ("part", "when", "machine", "load before", "commit")
    return f"""## The machine

{tables.rows(header, rows)}

Measured with {_versions(last["versions"])}; agno's environment has {_versions(last["agno_versions"])}."""


def _when(part: Mapping[str, Any]) -> str:
    again = [f"{', '.join(one['only'])} again {one['at']} ({one['plan']})" for one in part.get("again", [])]
    return "; ".join([part["at"], *again])


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


_REPEAT = """## How to repeat

```
make bench                  # everything but the soak and the profiles
make bench FLAGS=--short    # minutes, rough, into benchmarks/results/short/
make bench FLAGS='--only workers'   # one scenario again; --help names them
make bench-soak             # 20,000 calls, 30 % of whose clients hang up
make bench-profile          # flame graphs; py-spy must be allowed to look at processes
```

Linux only. `benchmarks/results/` gets plots and flame graphs. Close other programs: all parts share the machine, so
ratios mean more than figures. fast-agent's server runs with its displays and session files off."""


if __name__ == "__main__":
    publish(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else RESULTS)
