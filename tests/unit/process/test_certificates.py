"""The end of a certificate, as the log, `check` and the metrics have it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.process import certificates
from pallas_gateway.telemetry.metrics import Metrics
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.configuration import load_deployment
from tests.support.gateway import Agent, write_project


def configured(path: Path, *days: float) -> Configuration:
    """A configuration whose certificate file has one that ends in each of `days`."""
    project = write_project(path / "project", {"echo": Agent()}, gateway={"tls": TLS_FILES})
    certfile, texts = project.path / TLS_FILES["certfile"], []
    for one in days:
        write_certificate(project.path, days=one)
        texts.append(certfile.read_text())
    certfile.write_text("".join(texts))
    return load_deployment(project.path / "agents.yaml", environ={})


@pytest.mark.parametrize(
    ("days", "says"),
    [
        ([90], None),
        ([14.1], None),
        ([13.9], "in 13.9 days; renew it"),
        ([90, 2], "in 2.0 days; renew it"),
        ([-1], "and clients refuse it; renew it"),
    ],
)
def test_a_certificate_is_named_within_two_weeks_of_its_end(
    days: list[float], says: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = configured(tmp_path, *days)
    why = certificates.warning_of(configuration)
    assert (why is None) == (says is None)
    assert (why or "").endswith(says or "")
    certificates.warn_of_end(configuration)
    assert [vars(record)["why"] for record in caplog.records] == ([why] if why else [])


def test_the_metrics_have_the_time_of_the_first_end_in_the_file(tmp_path: Path) -> None:
    metrics = Metrics(CollectorRegistry())
    certificates.measure_end(configured(tmp_path, 90, 2), metrics)
    end = metrics.registry.get_sample_value("pallas_certificate_expires_seconds", {"setting": "gateway.tls"})
    assert end == pytest.approx(datetime.now(UTC).timestamp() + 2 * 86400, abs=600)


def test_without_a_certificate_that_can_be_read_there_is_no_end(tmp_path: Path) -> None:
    configuration, metrics = configured(tmp_path, 90), Metrics(CollectorRegistry())
    (configuration.folder / TLS_FILES["certfile"]).write_text("no certificate")
    certificates.measure_end(configuration, metrics)
    assert certificates.warning_of(configuration) is None
    (configuration.folder / TLS_FILES["certfile"]).unlink()
    certificates.measure_end(configuration, metrics)
    assert certificates.warning_of(configuration) is None
    assert "pallas_certificate_expires_seconds" not in {
        sample.name for family in metrics.registry.collect() for sample in family.samples
    }
