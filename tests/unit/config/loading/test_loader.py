"""Deployments that load: what the values become and which addresses follow from them."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.loader import Overrides
from tests.support.configuration import load_deployment

SMALL = "name: demo\nagents:\n  jarvis:\n    module: agents.jarvis\n"

DOCUMENTED = """\
name: my-project
version: "1.0.0"
host: my-host.example.com
namespace: com.example.project
registry_port: 8200

agents:
  jarvis:
    module: agents.jarvis
    port: 8201
    title: Jarvis
    description: "My assistant"
    depends_on: [research]
  tech_research:
    module: agents.tech_research
    port: 8202
  research:
    module: agents.research
    port: 8250
    title: Research Agent
    description: "Web search and knowledge graph"
    max_iterations: 20
    loop_repeat_threshold: 0
"""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, environ: Mapping[str, str] | None = None, overrides: Overrides | None = None) -> Configuration:
    path = Path("agents.yaml")
    path.write_text(text, encoding="utf-8")
    return load_deployment(path, environ=environ or {}, overrides=overrides or Overrides())


def test_the_documented_pallas_file_loads_unchanged_also_in_per_port_mode() -> None:
    configuration = load(DOCUMENTED)
    deployment = configuration.deployment
    assert (deployment.name, deployment.version, deployment.registry_port) == ("my-project", "1.0.0", 8200)
    assert list(deployment.agents) == ["jarvis", "tech_research", "research"]
    assert deployment.agents["jarvis"].depends_on == ("research",)
    assert deployment.agents["jarvis"].max_iterations == 15
    assert deployment.agents["research"].loop_repeat_threshold == 0
    assert configuration.lines["agents.research.module"] == 18
    assert configuration.registry_name("tech_research") == "com.example.project/tech-research"

    configuration = load(DOCUMENTED, overrides=Overrides(per_port=True))
    assert configuration.agent_url("jarvis") == "http://my-host.example.com:8201/mcp"
    assert configuration.public_base_url == "http://my-host.example.com:8200"
    assert configuration.bind_host == "0.0.0.0"  # noqa: S104 - the documented default


def test_a_file_of_four_lines_gets_every_documented_default() -> None:
    configuration = load(SMALL)
    deployment, gateway = configuration.deployment, configuration.deployment.gateway
    assert deployment.model_dump(exclude={"agents", "gateway"}) == {
        "name": "demo",
        "version": "1.0.0",
        "host": "localhost",
        "namespace": None,
        "registry_port": 24200,
        "fastagent_config": None,
    }
    assert deployment.agents["jarvis"].call_timeout_seconds == 600
    assert deployment.agents["jarvis"].shown_title("jarvis") == "Jarvis"
    assert gateway.model_dump() == {
        "host": None,
        "port": None,
        "public_url": None,
        "per_port": False,
        "tls": None,
        "auth": None,
        "trusted_proxies": (),
        "allowed_hosts": (),
        "allowed_origins": (),
        "max_body_bytes": 33554432,
        "max_message_bytes": 1048576,
        "max_history_entries": 10000,
        "max_in_flight": 256,
        "queue_seconds": 5,
        "heartbeat_seconds": 15,
        "ask_seconds": 300,
        "max_open_questions": 256,
        "state_keys": (),
        "health_seconds": 60,
        "drain_seconds": 30,
        "max_relay_depth": 3,
        "max_nesting": 8,
        "openai_api": False,
        "trace_url": None,
        "console": None,
        "console_registries": (),
        "console_run_tools": True,
        "tool_names": ("send_message", "{agent}"),
        "limits": {"store": None, "when_store_is_away": "count_alone", "rules": ()},
        "prices": {},
        "audit_log": None,
        "audit_names": "plain",
        "audit_sync": "second",
        "audit_required": False,
        "database": None,
        "upgrade_database": True,
        "agents_may_use": {
            "models": (),
            "servers": {},
            "agents": (),
            "approve": (),
            "most_agents": 100,
            "most_agents_per_owner": None,
            "most": {"max_iterations": 100, "call_timeout_seconds": 600, "max_tokens_per_call": None},
        },
        "threads_lease_seconds": 30,
        "threads_max_bytes": 1024 * 1024 * 1024,
        "keep_tool_results": True,
        "tasks": None,
        "usage_days": 400,
        "thread_expire_days": None,
    }
    assert (configuration.bind_host, configuration.gateway_port) == ("127.0.0.1", 24200)
    assert configuration.agent_url("jarvis") == "http://localhost:24200/agents/jarvis/mcp"
    assert configuration.registry_name("jarvis") == "local.demo/jarvis"


def test_the_deployment_cannot_be_changed_after_loading() -> None:
    deployment = load(SMALL).deployment
    with pytest.raises(ValidationError):
        deployment.name = "other"  # type: ignore[misc]  # the point of the test


def test_the_command_line_takes_the_place_of_the_file() -> None:
    text = SMALL + "gateway:\n  host: 10.0.0.1\n  port: 1\n  public_url: http://old\n"
    given = Overrides(host="::", port=9000, public_url="https://agents.example.com/pallas/")
    configuration = load(text, overrides=given)
    assert (configuration.bind_host, configuration.gateway_port) == ("::", 9000)
    assert configuration.agent_url("jarvis") == "https://agents.example.com/pallas/agents/jarvis/mcp"


def test_the_command_line_can_switch_per_port_mode_off() -> None:
    assert not load(SMALL + "gateway: {per_port: true}\n", overrides=Overrides(per_port=False)).per_port


def test_one_agent_alone_needs_no_other_agents_port() -> None:
    text = SMALL + "    port: 8201\n  research:\n    module: agents.research\n"
    configuration = load(text, overrides=Overrides(agent="jarvis"))
    assert configuration.only_agent == "jarvis"
    assert configuration.agent_url("jarvis") == "http://localhost:8201/mcp"
    with pytest.raises(ValueError, match="agent 'research' has no port"):
        configuration.agent_url("research")


def test_an_ephemeral_port_shows_in_the_urls_once_it_is_bound() -> None:
    configuration = load(SMALL, overrides=Overrides(port=0))
    assert configuration.gateway_port == 0
    assert configuration.with_bound_port(41234).agent_url("jarvis") == "http://localhost:41234/agents/jarvis/mcp"


def test_urls_follow_tls_and_bracket_an_ipv6_host() -> None:
    Path("cert.pem").touch()
    Path("key.pem").touch()
    text = SMALL + 'host: "::1"\ngateway:\n  tls: {certfile: cert.pem, keyfile: key.pem}\n'
    configuration = load(text)
    assert configuration.public_base_url == "https://[::1]:24200"
    assert configuration.tls_files == (Path("cert.pem"), Path("key.pem"))
    assert load(SMALL).tls_files is None


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("HTTPS://Agents.Example.COM:443/", "https://agents.example.com"),
        ("https://Agents.Example.COM:443/Base/", "https://agents.example.com/Base"),
        ("http://agents.example.com:80", "http://agents.example.com"),
        ("https://agents.example.com:80", "https://agents.example.com:80"),
        ("https://agents.example.com:8443", "https://agents.example.com:8443"),
        ("http://[FE80::1]:80/", "http://[fe80::1]"),
    ],
)
def test_a_public_url_is_as_clients_write_it_into_their_tokens(written: str, canonical: str) -> None:
    configuration = load(SMALL + f'gateway:\n  public_url: "{written}"\n')
    assert configuration.public_base_url == canonical
    assert configuration.agent_url("jarvis") == f"{canonical}/agents/jarvis/mcp"


def test_a_host_is_as_clients_write_it_too_and_the_schemes_own_port_is_left_out() -> None:
    configuration = load(SMALL + "    port: 80\nhost: Agents.Example.COM\n", overrides=Overrides(agent="jarvis"))
    assert configuration.agent_url("jarvis") == "http://agents.example.com/mcp"
    assert configuration.public_base_url == "http://agents.example.com:24200"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "127.8.0.1", "[::1]:8080", "LOCALHOST"])
def test_an_authorization_server_on_this_machine_needs_no_https(host: str) -> None:
    jwt = f"{{issuer: 'http://{host}/', jwks_uri: 'http://{host}/jwks', authorization_servers: ['http://{host}']}}"
    auth = load(SMALL + f"gateway:\n  auth:\n    jwt: {jwt}\n").deployment.gateway.auth
    assert auth is not None
    assert auth.jwt is not None
    assert auth.jwt.issuer == f"http://{host}/"


def test_a_project_name_that_the_registry_refuses_is_made_fit_for_it() -> None:
    assert load(SMALL.replace("demo", "My Project_2")).registry_name("jarvis") == "local.My-Project-2/jarvis"


def test_one_icon_is_a_list_of_one_and_sizes_may_be_a_text_or_a_list() -> None:
    text = (
        SMALL
        + "    icons:\n      - {src: a.png, sizes: 48x48 96x96}\n      - {src: b.svg, sizes: [any]}\n      - src: c\n"
    )
    icons = load(text).deployment.agents["jarvis"].shown_icons()
    assert [icon.sizes for icon in icons] == [("48x48", "96x96"), ("any",), ()]
    (icon,) = load(SMALL + "    icon: a.svg\n").deployment.agents["jarvis"].shown_icons()
    assert (icon.src, icon.sizes) == ("a.svg", ())


def test_watched_files_are_named_or_matched_beside_the_file_whatever_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a.md", "b.txt", "deep/deeper/c.md", "[x].md", "x.md", ".hidden.md", "elsewhere.md"]
    folder = tmp_path / "a [project]"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    path = folder / "agents.yaml"
    patterns = [
        "**/c.md",
        "[x].md",
        "b.txt",
        "gone.md",
        "none/*.md",
        "?.md",
        "deep",
        str(tmp_path / "a ?project?" / "else*"),
    ]
    path.write_text(f"{SMALL}    watch: {patterns}\n")
    (folder / "deep").joinpath("agents.yaml").touch()
    configuration = load_deployment(path, environ={})
    monkeypatch.chdir(folder / "deep")
    found = configuration.watched_files(configuration.deployment.agents["jarvis"])
    expected = ["deep/deeper/c.md", "[x].md", "b.txt", "gone.md", "none/*.md", "a.md", "x.md", "deep", "elsewhere.md"]
    assert [file.relative_to(folder).as_posix() for file in found] == expected
    assert configuration.declared_files == found


def test_sections_and_lists_may_be_left_blank() -> None:
    deployment = load(SMALL + "    depends_on:\n    icons:\ngateway:\n").deployment
    assert deployment.agents["jarvis"].depends_on == ()
    assert deployment.gateway.max_in_flight == 256


def test_keys_beginning_with_x_are_free_at_every_level_and_can_be_merged() -> None:
    text = """\
name: demo
x-note: ${NOT_SET}
x-defaults: &defaults
  max_iterations: 7
  call_timeout_seconds: 30
x-more: &more {max_iterations: 9, title: Shared}
agents:
  x-template: {}
  jarvis:
    <<: [*defaults, *more]
    module: agents.jarvis
    x-owner: me
    call_timeout_seconds: 60
  on: {<<: *more, module: agents.switch}
gateway:
  x-why: because
"""
    configuration = load(text)
    jarvis = configuration.deployment.agents["jarvis"]
    assert (jarvis.max_iterations, jarvis.call_timeout_seconds, jarvis.title) == (7, 60, "Shared")
    assert list(configuration.deployment.agents) == ["jarvis", "on"]
    assert configuration.lines["agents.jarvis.max_iterations"] == 4


def test_placeholders_fill_values_of_every_kind() -> None:
    text = """\
name: demo-${STAGE}
version: "${V}"
host: ${HOST:-fallback.example}
registry_port: ${PORT}
agents:
  jarvis:
    module: ${MODULE:agents.jarvis}
    max_in_flight: ${LIMIT:-}
    title: ${TITLE:-}
    call_timeout_seconds: "${SECONDS:-2.5}"
    depends_on: ["${OTHER}"]
  research: {module: agents.research, description: "costs $$5 or $${STAGE}", default_params: {maxTokens: "${PORT}"}}
gateway: {per_port: "${PER_PORT}"}
"""
    environ = {"STAGE": "test", "V": "1.0", "HOST": "", "PORT": "8200", "OTHER": "research", "PER_PORT": "no"}
    deployment = load(text, environ).deployment
    assert (deployment.name, deployment.version, deployment.host) == ("demo-test", "1.0", "fallback.example")
    assert (deployment.registry_port, deployment.gateway.per_port) == (8200, False)
    jarvis = deployment.agents["jarvis"]
    assert (jarvis.module, jarvis.max_in_flight, jarvis.title) == ("agents.jarvis", None, None)
    assert (jarvis.call_timeout_seconds, jarvis.depends_on) == (2.5, ("research",))
    assert deployment.agents["research"].description == "costs $$5 or $test"
    assert deployment.agents["research"].default_params.max_tokens == 8200


@pytest.mark.parametrize(
    ("value", "environ", "database"),
    [
        ("sqlite:///kept.db", {}, "sqlite:///kept.db"),
        ("${DB}", {"DB": "sqlite:///kept.db"}, "sqlite:///kept.db"),
        ("${DB:-}", {}, None),
    ],
)
def test_the_database_may_have_its_older_name(value: str, environ: dict[str, str], database: str | None) -> None:
    for key in ("database", "threads"):
        assert load(f"{SMALL}gateway:\n  {key}: {value}\n", environ).deployment.gateway.database == database


def test_a_file_with_a_byte_order_mark_loads() -> None:
    assert load("\ufeff" + SMALL).deployment.name == "demo"


def test_agents_that_depend_on_one_another_without_a_circle_load() -> None:
    text = (
        "name: d\nagents:\n  a: {module: m, depends_on: [b, c]}\n  b: {module: m, depends_on: [c]}\n  c: {module: m}\n"
    )
    assert len(load(text).deployment.agents) == 3


def test_grants_may_name_agents_of_the_database() -> None:
    granted = "  auth:\n    anonymous: [run:agents:poet, edit:agents:poet]\n"
    auth = load(f"{SMALL}gateway:\n  threads: sqlite:///pallas.db\n{granted}").deployment.gateway.auth
    assert auth is not None
    assert auth.anonymous == ("run:agents:poet", "edit:agents:poet")
