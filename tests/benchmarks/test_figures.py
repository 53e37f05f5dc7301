"""The benchmarks' arithmetic, and the document made of a run that never was."""

import re
from contextlib import nullcontext
from itertools import islice
from typing import Any

import pytest

from benchmarks import console, fast_paths, machine, report, soak
from benchmarks.figures import Bounds, Figure, Verdict, difference, figure, ratio
from benchmarks.load import Answered
from benchmarks.profiling import PY_SPY, anywhere, top_functions

SAMPLE = {"calls_per_second": 40.0, "p50_ms": 20.0, "p95_ms": 30.0, "cpu_ms": 25.0, "generator_cpu_ms": 0.02}
SHARES = [{"where": "f (a.py)", "share": 0.5}]
PART: dict[str, Any] = {
    "plan": "full",
    "at": "2026-01-01T00:00:00+00:00",
    "machine": {
        "cores": 2,
        "processor": "a processor",
        "memory_gib": 8,
        "system": "Linux 6",
        "python": "3.13.0",
        "load_before": 0.1,
        "commit": "abc",
        "versions": {"mcp": "2.3.0"},
        "agno_versions": {"agno": "3.1.10"},
    },
    "checks": [],
}
CHECK = {"id": "c", "title": "throughput", "unit": "x", "must": 0.8, "reach": 1.2, "at_least": True}
RESULTS: dict[str, Any] = {
    "full": {
        **PART,
        "checks": [
            {**CHECK, "measured": {"median": 0.9, "low": 0.8, "high": 1.0}, "verdict": "must met"},
            {**CHECK, "title": "workers", "measured": None, "verdict": "not measured"},
        ],
        "scenarios": {
            "calibration": {"fakes alone": [{**SAMPLE, "calls_per_second": 8000.0}]},
            "bare": {"gateway": [{**SAMPLE, "cpu_ms": 10.0}]},
            "tooled": {"gateway": [SAMPLE]},
        },
        "requests": [{"contender": "gateway", "agent": "tooled", "by_method": {"tools/call": 1.0}}],
        "memory": {"gateway": 200.0, "agno": 180.0, "agents": 20, "calls": 500},
        "at_once": {"kb_per_call": 256.0, "descriptors": 24, "descriptors_per_call": 4.0},
    },
    "growth": {
        **PART,
        "growth": {"pieces": [{**SAMPLE, "at": 8, "cpu_ms": 5.0}, {**SAMPLE, "at": 508, "cpu_ms": 30.0}]},
    },
    "profile": {
        **PART,
        "plan": "short",
        "profile": {"bare": {"cpu_ms": 10.0, "packages": SHARES, "alone": SHARES, "in_all": SHARES}},
    },
}


def test_figure_is_median_and_extremes() -> None:
    assert figure([3.0, 1.0, 2.0]) == Figure(2.0, 1.0, 3.0)


def test_ratio_and_difference_are_taken_round_by_round() -> None:
    assert ratio([2.0, 6.0, 9.0], [1.0, 2.0, 3.0]) == Figure(3.0, 2.0, 3.0)
    assert difference([2.0, 6.0], [1.0, 2.0]) == Figure(2.5, 1.0, 4.0)


@pytest.mark.parametrize(
    ("value", "at_least", "verdict"),
    [
        (2.0, True, Verdict.REACHED),
        (1.5, True, Verdict.ENOUGH),
        (0.9, True, Verdict.MISSED),
        (None, True, Verdict.UNMEASURED),
        (0.9, False, Verdict.REACHED),
        (1.5, False, Verdict.ENOUGH),
        (2.1, False, Verdict.MISSED),
    ],
)
def test_verdict_says_how_a_value_stands(value: float | None, at_least: bool, verdict: Verdict) -> None:
    must, reach = (1.0, 2.0) if at_least else (2.0, 1.0)
    assert Bounds(must, reach, at_least=at_least).verdict(value) is verdict


@pytest.mark.parametrize(
    ("began", "ended", "part"), [(0, 4, 0.5), (1, 3, 1.0), (2, 8, 1 / 6), (-1, 0.5, 0.0), (4, 5, 0.0)]
)
def test_call_counts_for_the_part_of_it_in_the_window(began: float, ended: float, part: float) -> None:
    assert Answered(began, ended, 0, 0).part_within(1, 3) == pytest.approx(part)


def test_profile_leaves_out_the_loop_and_idle_threads() -> None:
    stacks = [
        "main (a.py:1);Handle._run (asyncio/events.py:89);call (pkg/b.py:1);dump (lib/c.py:2) 3",
        "main (a.py:1);Handle._run (asyncio/events.py:89);call (pkg/b.py:7) 1",
        "run (threading.py:1);_worker (concurrent/futures/thread.py:89) 96",
    ]

    assert top_functions(stacks) == {
        "packages": [{"where": "lib", "share": 0.75}, {"where": "pkg", "share": 0.25}],
        "alone": [{"where": "dump (lib/c.py)", "share": 0.75}, {"where": "call (pkg/b.py)", "share": 0.25}],
        "in_all": [{"where": "call (pkg/b.py)", "share": 1.0}, {"where": "dump (lib/c.py)", "share": 0.75}],
    }


def test_profile_leaves_out_what_stands_below_uvloop_which_is_named_for_its_own_time() -> None:
    below = "<module> (benchmarks/a.py:1);run (asyncio/runners.py:195);Runner.run (asyncio/runners.py:118)"
    stacks = [
        f"{below} 1",
        f"{below};call (pkg/b.py:1) 1",
        f"{below};call (pkg/b.py:1);Runner.run (asyncio/runners.py:118);dump (lib/c.py:2) 2",
        f"{below};run_forever (asyncio/base_events.py:6);Handle._run (asyncio/events.py:89);dump (lib/c.py:2) 4",
    ]

    assert top_functions(stacks) == {
        "packages": [
            {"where": "lib", "share": 0.75},
            {"where": "uvloop", "share": 0.125},
            {"where": "pkg", "share": 0.125},
        ],
        "alone": [
            {"where": "dump (lib/c.py)", "share": 0.75},
            {"where": "the event loop (uvloop)", "share": 0.125},
            {"where": "call (pkg/b.py)", "share": 0.125},
        ],
        "in_all": [{"where": "dump (lib/c.py)", "share": 0.75}, {"where": "call (pkg/b.py)", "share": 0.125}],
    }


def test_a_picture_does_not_tell_where_it_was_made() -> None:
    assert (
        anywhere(f"<text>{PY_SPY} record --output flame.svg</text>") == "<text>py-spy record --output flame.svg</text>"
    )


def test_document_is_made_of_the_results() -> None:
    text = report.markdown(RESULTS)

    assert "| throughput | 0.90x (0.80-1.00) | ≥ 0.8 | ≥ 1.2 | met |" in text
    assert "missed: none." in text
    assert "| workers | - | ≥ 0.8 | ≥ 1.2 | not measured |" in text
    assert "\n8,000 calls/s, 200 times those of the fastest server" in text
    assert "such a call takes **54 ms**" in text  # 25 ms, and 2 x 292 pieces of 0.05 ms
    assert "a replica does **11.1 calls/s** of that kind, and\n332 of them run at once:" in text  # 60 % of a core
    assert "allow 1,352 open files" in text
    assert "**one core and\n354 MB**" in text  # (200 MB + 332 calls of 256 KB) and a quarter
    assert "| 200 | 19 | 6.6 GB | 6,000 |" in text
    assert "**What saturates first is 1,024 open files (`ulimit -n`)**" in text
    assert re.findall(r"^\|.* \| ([\d.]+) \| [\d,]+ \|$", text, re.MULTILINE) == ["8.3", "8.5", "11.1", "82.6"]
    assert "From a **short run** (profile)" in text
    assert "50.0% `f (a.py)`" in text


def test_the_build_of_the_interpreter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_config_var", {"CONFIG_ARGS": "'--with-lto'"}.get)
    assert machine._build() == "PGO not configured, LTO on"


def test_document_has_a_table_of_fast_paths() -> None:
    savings = {case: {"median": 1.25, "low": 1.2, "high": 1.3} for case in fast_paths.CASES}
    text = report.markdown({**RESULTS, "fast-paths": {**PART, "fast_paths": {"copying": savings}}})

    assert "| fast path | bare | tooled | history 100 | 300 streamed pieces |" in text
    assert "| `copying` |" + 4 * " 1.25x (1.20-1.30) |" in text
    assert "## Fast paths" not in report.markdown({**RESULTS, "fast-paths": {**PART, "fast_paths": {}}})


def test_fast_paths_are_those_that_the_metrics_name() -> None:
    metrics = """# TYPE pallas_fast_path gauge
pallas_fast_path{name="copying"} 1.0
pallas_fast_path{name="parsing"} 0.0
pallas_fast_paths_total{name="other"} 1.0
"""

    assert fast_paths.states(metrics) == {"copying": True, "parsing": False}
    assert fast_paths.states("pallas_up 1.0\n") == {}


@pytest.mark.parametrize(
    ("name", "switched", "wrong"),
    [
        ("copying", {"copying": False, "parsing": True}, None),
        ("off", {"copying": False, "parsing": False}, None),
        ("none", {"copying": True, "parsing": True}, None),
        ("none", {"copying": True, "parsing": False}, "parsing"),
        ("copying", {"copying": True, "parsing": True}, "copying"),
        ("copying", {"copying": False, "parsing": False}, "parsing"),
        ("off", {"copying": True, "parsing": False}, "copying"),
    ],
)
def test_a_switch_without_effect_fails_the_run(name: str, switched: dict[str, bool], wrong: str | None) -> None:
    expected = nullcontext() if wrong is None else pytest.raises(RuntimeError, match=f"={name}: .*: {wrong}$")
    with expected:
        fast_paths.require_off(name, switched)


def test_what_is_measured_again_takes_the_place_of_what_was() -> None:
    again = {
        **PART,
        "at": "2026-02-02T00:00:00+00:00",
        "only": ["workers"],
        "checks": [{**CHECK, "id": "workers", "title": "workers", "measured": None, "verdict": "missed"}],
        "scenarios": {"workers": {"2 workers": [SAMPLE]}},
        "growth": {},
    }
    earlier = {**RESULTS["full"], "checks": [{**CHECK, "id": "rate"}, {**CHECK, "id": "workers", "verdict": "reached"}]}

    renewed = report.renewed(earlier, again)

    assert [(check["id"], check.get("verdict")) for check in renewed["checks"]] == [
        ("rate", None),
        ("workers", "missed"),
    ]
    assert renewed["scenarios"] == {**earlier["scenarios"], "workers": {"2 workers": [SAMPLE]}}
    assert (renewed["at"], renewed["memory"]) == (earlier["at"], earlier["memory"])
    assert "2026-01-01T00:00:00+00:00; workers again 2026-02-02T00:00:00+00:00 (full)" in report.markdown(
        {**RESULTS, "full": {**RESULTS["full"], "again": renewed["again"]}}
    )


def test_a_run_of_which_everything_was_measured_since_is_not_named() -> None:
    renewed: Any = RESULTS["full"]
    for at, only in (("1", ["bare", "even"]), ("2", ["stdio"]), ("3", ["even", "stdio"])):
        renewed = report.renewed(renewed, {**PART, "scenarios": {}, "growth": {}, "at": at, "only": only})

    assert [(one["at"], one["only"]) for one in renewed["again"]] == [("1", ["bare"]), ("3", ["even", "stdio"])]


@pytest.mark.parametrize("kept", [("calibration",), ("bare",), ("tooled", "bare")])
def test_document_can_be_made_of_a_part_of_a_run(kept: tuple[str, ...]) -> None:
    scenarios = {name: RESULTS["full"]["scenarios"][name] for name in kept}

    assert "## Beside the alternatives" in report.markdown({"full": {**PART, "scenarios": scenarios}})


def test_soak_counts_what_is_more_than_at_the_start() -> None:
    start = {"instances": 3, "tasks": 20, "descriptors": 30, "memory_kb": 100}

    assert soak.left(start, {**start, "tasks": 22, "descriptors": 29, "memory_kb": 900}) == {
        "instances": 0,
        "tasks": 2,
        "descriptors": 0,
    }


def test_document_without_results_says_how_to_get_some() -> None:
    assert "make bench" in report.markdown({})


def test_document_is_that_of_the_kept_results() -> None:
    assert report.DOCUMENT.read_text() == report.markdown(report.load(report.RESULTS))


def test_frames_are_the_cpu_of_tasks_of_the_pages_main_thread_alone() -> None:
    main, other = {"pid": 1, "tid": 2}, {"pid": 1, "tid": 3}
    named = {"name": "thread_name", "args": {"name": "CrRendererMain"}, **main}
    tasks = [{"name": "RunTask", "tdur": 2500, **main}, {"name": "RunTask", "tdur": 9000, **other}]
    assert console._tasks({"traceEvents": [named, *tasks, {"name": "Layout", "tdur": 1, **main}]}) == [2.5]


def test_the_console_is_sent_as_many_events_as_the_row_says() -> None:
    told = list(islice(console._payloads(), console.EVENTS))
    assert {one["kind"] for one in told} == {"assistant_delta", "assistant_chunk", "assistant_chunk_results"}
    assert len(told) == 1000
    agents_own = {one["iteration"] for one in told if "call_path" not in one}
    assert len(agents_own) == console._TURNS_OF_EVENTS
    text = list(islice(console._pieces(), console.EVENTS))
    assert {one["kind"] for one in text} == {"assistant_delta"}
    assert len(text) == 1000
