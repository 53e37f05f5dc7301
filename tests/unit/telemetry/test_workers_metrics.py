"""Metrics of two workers, each a process of its own, as whoever of them is asked tells them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from pallas_gateway.telemetry import workers_metrics
from pallas_gateway.telemetry.metrics import Metrics
from tests.support.exposition import Exposition

WORKER = """
import json, sys
from pathlib import Path
from prometheus_client import Counter
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from pallas_gateway.telemetry import workers_metrics

workers_metrics.join(Path(sys.argv[1]), int(sys.argv[2]))
from pallas_gateway.telemetry.metrics import Metrics

metrics = Metrics()
live = 0
metrics.expect_agent("echo", lambda: live)
for line in sys.stdin:
    exec(json.loads(line))
    print("done", flush=True)
"""


class Worker:
    def __init__(self, folder: Path, number: int) -> None:
        command = [sys.executable, "-c", WORKER, str(folder), str(number)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def does(self, code: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(code)}\n")
        self.process.stdin.flush()
        said: list[str] = []
        while (line := self.process.stdout.readline()) != "done\n":
            assert line, "it has ended"
            said.append(line)
        return "".join(said)

    def exposes(self) -> Exposition:
        return Exposition(self.does("metrics.refresh(); print(generate_latest(metrics.exposed).decode())"))

    def dies(self, folder: Path, number: int) -> None:
        """End it, as its parent notes."""
        self.process.kill()
        self.process.communicate()
        workers_metrics.forget_gauges(folder, number)


@pytest.fixture
def workers(tmp_path: Path) -> Any:
    started = [Worker(tmp_path, 1), Worker(tmp_path, 2)]
    yield started
    for worker in started:
        worker.process.kill()
        worker.process.communicate()


def test_a_file_that_a_worker_has_just_created_does_not_make_a_scrape_fail(
    workers: list[Worker], tmp_path: Path
) -> None:
    one, _ = workers
    one.does("metrics.heartbeats.labels('echo').inc(2)")
    (tmp_path / "counter_3.db").touch()
    assert one.exposes().value("pallas_heartbeats_total", agent="echo") == 2


def test_counters_and_histograms_are_summed_and_stay_when_a_worker_dies(workers: list[Worker], tmp_path: Path) -> None:
    one, other = workers
    for worker in workers:
        worker.does('metrics.send_message.labels("echo", "ok").inc(3)')
        worker.does('metrics.send_message_seconds.labels("echo").observe(0.2)')
        worker.does('metrics.calls_in_flight.labels("echo").inc()')
    assert one.exposes().series == other.exposes().series
    told = one.exposes()
    assert told.value("pallas_send_message_total", agent="echo", outcome="ok") == 6
    assert told.value("pallas_send_message_duration_seconds_bucket", agent="echo", le="0.25") == 2
    assert told.value("pallas_calls_in_flight", agent="echo") == 2

    one.dies(tmp_path, 1)
    told = other.exposes()
    assert told.value("pallas_send_message_total", agent="echo", outcome="ok") == 6
    assert told.value("pallas_calls_in_flight", agent="echo") == 1

    workers[0] = successor = Worker(tmp_path, 1)
    successor.does('metrics.send_message.labels("echo", "ok").inc()')
    assert other.exposes().value("pallas_send_message_total", agent="echo", outcome="ok") == 7
    assert len(list(tmp_path.glob("counter_*"))) == 2  # who comes later takes the place of who was there


def test_each_gauge_says_what_it_makes_of_several(workers: list[Worker]) -> None:
    one, other = workers
    one.does('metrics.agent_state.labels("echo", "ready").set(1); metrics.agent_info.labels("echo", "1").set(1)')
    other.does('metrics.agent_state.labels("echo", "failed").set(1); metrics.agent_info.labels("echo", "1").set(1)')
    one.does('metrics.health_status.labels("echo").set(0.5)')
    other.does('metrics.health_status.labels("echo").set(1)')
    one.does("metrics.config_reload_successful.set(1)")
    other.does("metrics.config_reload_successful.set(0)")
    one.does("live = 2; metrics.refresh()")
    other.does("live = 1; metrics.refresh()")

    told = one.exposes()
    assert [told.value("pallas_agent_state", agent="echo", state=state) for state in ("ready", "failed")] == [1, 1]
    assert told.value("pallas_agent_health_status", agent="echo") == 1
    assert told.value("pallas_config_last_reload_successful") == 0
    assert told.value("pallas_instances_live", agent="echo") == 3
    assert told.value("pallas_up") == 1


def test_an_agent_that_is_gone_is_hidden_and_what_others_measure_stays_out(workers: list[Worker]) -> None:
    one, _ = workers
    one.does('metrics.agent_info.labels("echo", "1").set(1); metrics.agent_state.labels("echo", "ready").set(1)')
    one.does('Counter("of_an_agent_module", "Its own.").inc()')
    assert one.exposes().value("pallas_agent_info", agent="echo", port="1") == 1

    one.does('metrics.forget_agent("echo")')
    told = one.exposes()
    assert not told.has_sample("pallas_agent_info")
    assert not told.has_sample("pallas_agent_state")
    assert "of_an_agent_module" not in told.text


def test_counters_of_an_agent_that_people_have_deleted_are_hidden_until_it_comes_back(workers: list[Worker]) -> None:
    one, other = workers
    for worker in workers:
        worker.does('metrics.send_message.labels("echo", "ok").inc(); metrics.forget_counts("echo")')
        worker.does("print(len(metrics.send_message._metrics), metrics.send_message.left)")
        assert not worker.exposes().has_sample("pallas_send_message_total")
    assert one.does("print(len(metrics.send_message._metrics), metrics.send_message.left)") == "0 2\n"
    other.does('metrics.expect_agent("echo", lambda: live)')
    assert other.exposes().value("pallas_send_message_total", agent="echo", outcome="ok") == 2


def test_a_server_or_a_port_that_is_gone_is_not_told_of(workers: list[Worker]) -> None:
    one, other = workers
    for worker in workers:
        worker.does('metrics.set_agent("echo", 1); metrics.downstream_up.labels("echo", "dead").set(0)')
        worker.does('metrics.downstream_up.labels("echo", "alive").set(1)')
    assert one.exposes().value("pallas_downstream_up", agent="echo", server="dead") == 0
    for worker in workers:
        worker.does('metrics.set_agent("echo", 2); metrics.forget_downstream("echo", "dead")')
    for worker in (one, other):
        told = worker.exposes()
        assert told.labels_of("pallas_downstream_up") == {"agent": {"echo"}, "server": {"alive"}}
        assert told.labels_of("pallas_agent_info") == {"agent": {"echo"}, "port": {"2"}}


def test_an_agent_that_comes_back_counts_its_calls_in_flight_again(workers: list[Worker]) -> None:
    one, other = workers
    one.does('metrics.set_agent("echo", 1); metrics.forget_calls("echo")')
    one.does('metrics.expect_agent("echo", lambda: live); metrics.calls_in_flight.labels("echo").inc()')
    assert other.exposes().value("pallas_calls_in_flight", agent="echo") == 1


def test_the_process_is_told_of_for_all_together_in_the_same_words(workers: list[Worker]) -> None:
    one, other = workers
    other.does("metrics.refresh()")
    text = one.exposes().text
    described = {line for line in text.splitlines() if line.startswith("# ")}
    assert described == {line for line in generate_latest(Metrics().registry).decode().splitlines() if line[:2] == "# "}
    memory = float(text.split("\nprocess_resident_memory_bytes ")[1].split("\n")[0])
    sizes = [Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1] for worker in workers]
    assert memory == pytest.approx(sum(map(int, sizes)) * 4096, rel=0.2)
    assert text.count("\npython_info{") == 1


def test_openmetrics_is_told_as_well(workers: list[Worker]) -> None:
    one, _ = workers
    one.does('metrics.send_message_seconds.labels("echo").observe(0.2)')
    families = parse_openmetrics(one.does("metrics.refresh(); print(openmetrics(metrics.exposed).decode(), end='')"))  # type: ignore[no-untyped-call]
    assert "pallas_send_message_duration_seconds" in {family.name for family in families}
