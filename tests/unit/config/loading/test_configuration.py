"""What a reload leaves for a restart."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pallas_gateway.config.loading.configuration import Configuration, needing_a_restart
from tests.support.configuration import load_deployment

PORT = 24200


@pytest.fixture
def configured(tmp_path: Path) -> Any:
    for name in ("cert.pem", "key.pem", "other.pem", "other.yaml"):
        (tmp_path / name).write_text("default_model: playback" if name.endswith("yaml") else "")

    def load(gateway: dict[str, Any], **more: Any) -> Configuration:
        agents = {"echo": {"module": "agents.echo", "port": 1}}
        (tmp_path / "agents.yaml").write_text(
            yaml.safe_dump({"name": "x", "agents": agents, "gateway": gateway, **more})
        )
        return load_deployment(tmp_path / "agents.yaml", environ={})

    return load


TLS = {"certfile": "cert.pem", "keyfile": "key.pem"}


@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        ({}, {"port": 1}, ["gateway.port"]),
        ({"port": PORT}, {"port": PORT}, []),
        ({}, {"per_port": True}, ["gateway.per_port", "gateway.host"]),  # whose default is another one
        ({"host": "127.0.0.1"}, {"host": "0.0.0.0"}, ["gateway.host"]),  # noqa: S104  nobody listens
        ({}, {"tls": TLS}, ["gateway.tls"]),
        ({"tls": TLS}, {}, ["gateway.tls"]),
        ({"tls": TLS}, {"tls": {**TLS, "certfile": "other.pem"}}, []),
        ({}, {"database": "sqlite:///threads.db"}, ["gateway.database"]),
        ({}, {"threads_lease_seconds": 5}, ["gateway.threads_lease_seconds"]),
        ({}, {"max_in_flight": 1, "drain_seconds": 1, "public_url": "https://x.example"}, []),
    ],
)
def test_what_listens_stays(configured: Any, before: dict[str, Any], after: dict[str, Any], keys: list[str]) -> None:
    present = configured(before).with_bound_port(PORT)
    assert [key for key, _, _ in needing_a_restart(present, configured(after))] == keys


def test_another_file_of_fast_agent_needs_a_restart_and_nothing_of_it_counts_before(configured: Any) -> None:
    present, wanted = configured({}), configured({}, fastagent_config="other.yaml")
    assert [key for key, _, _ in needing_a_restart(present, wanted)] == ["fastagent_config"]
    assert wanted.fastagent.default_model == "playback"
    kept = wanted.with_fastagent_of(present)
    assert (kept.named_fastagent_file, kept.fastagent) == (None, present.fastagent)
    assert list(needing_a_restart(present, kept)) == []
