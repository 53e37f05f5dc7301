"""The project of a benchmark: peers are downstreams of the gateway, and agents inside fast-agent's own server."""

from pathlib import Path

import yaml

from benchmarks.project import PACKAGE, Agent, with_peers_as_downstreams, write_project

AGENTS = {
    "caller": Agent("http://127.0.0.1:1/v1", peers=("first", "second")),
    "first": Agent("http://127.0.0.1:1/v1"),
    "second": Agent("http://127.0.0.1:1/v1", settings={"retries": 1}),
}


def test_peers_are_downstreams_of_the_gateway_at_the_ports_of_their_agents(tmp_path: Path) -> None:
    write_project(tmp_path / "project", with_peers_as_downstreams(AGENTS))

    agents = yaml.safe_load((tmp_path / "project/agents.yaml").read_text())["agents"]
    servers = yaml.safe_load((tmp_path / "project/fastagent.config.yaml").read_text())["mcp"]["servers"]
    ports = {name: agents[name]["port"] for name in ("first", "second")}
    assert {name: server["url"] for name, server in servers.items()} == {
        name: f"http://localhost:{port}/mcp" for name, port in ports.items()
    }
    assert len(set(ports.values())) == 2
    assert (agents["second"]["retries"], "port" in agents["caller"]) == (1, False)


def test_peers_are_agents_inside_fast_agents_own_server(tmp_path: Path) -> None:
    write_project(tmp_path / "project", {"caller": AGENTS["caller"]})

    module = (tmp_path / "project" / PACKAGE / "caller.py").read_text()
    compile(module, "caller.py", "exec")
    assert "servers=[], agents=['first', 'second'], default=True" in module
    assert '@fast.agent(name="first", instruction="You are first.")' in module
