"""Image, compose file, Kubernetes base and Traefik, as far as they can be judged without an engine, cluster or Traefik.

None of them runs here: there is a Docker client without an engine, and `kubectl` without a cluster. So these tests read
them, render what can be rendered, and run the parts that are the gateway's own: its configuration, the health check.
"""

import re
import shlex
import subprocess
from importlib.metadata import distribution
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from pallas_gateway.config.model.deployment import GatewaySettings
from tests.deploy.adapting import DEPLOY, ROOT, shipped
from tests.support.commands import Program
from tests.support.configuration import load_deployment
from tests.support_programs import program

STATE_KEY = "0123456789abcdef" * 4
LEAVING_SECONDS = 30  # what agents get to leave in
PUBLIC_PATHS = {
    "/agents/", "/.well-known/mcp/server.json", "/v0.1/servers", "/v0/servers",
    "/.well-known/oauth-protected-resource", "/livez", "/readyz",
}  # fmt: skip
COMPOSE = yaml.safe_load(shipped("compose.yaml"))
DEPLOYING = (ROOT / "docs/operate/deploy.md").read_text()
INSTRUCTIONS = [
    line for line in re.sub(r"\\\n\s*", "", shipped("Dockerfile")).splitlines() if line[:1] not in ("", "#")
]


@pytest.fixture(scope="module")
def cluster() -> dict[str, dict[str, Any]]:
    """What `kubectl apply -k` would send, by kind."""
    command = [program("kubectl"), "kustomize", str(DEPLOY / "kubernetes" / "base")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}


# --- The image


def test_the_base_image_of_both_stages_can_be_given_by_digest() -> None:
    assert INSTRUCTIONS[0].startswith("ARG PYTHON_IMAGE=python:3.")
    assert INSTRUCTIONS[0].endswith("-slim")
    assert [line.split()[1] for line in INSTRUCTIONS if line.startswith("FROM")] == ["${PYTHON_IMAGE}"] * 2
    [build] = re.findall(r"^\$ docker build .*$", DEPLOYING, re.MULTILINE)
    assert '--file deploy/Dockerfile --build-arg PYTHON_IMAGE="$digest" ' in build
    assert INSTRUCTIONS[0].partition("=")[2] in DEPLOYING


def test_the_image_runs_as_nobody_and_the_gateway_is_its_first_process() -> None:
    last_stage = INSTRUCTIONS[max(n for n, line in enumerate(INSTRUCTIONS) if line.startswith("FROM")) :]
    [user] = [line for line in last_stage if line.startswith("USER")]
    assert user.split()[1].split(":")[0].isdecimal()
    assert user.split()[1] != "0:0"
    assert 'ENTRYPOINT ["pallas-gateway"]' in last_stage


def test_nothing_is_installed_without_its_hash() -> None:
    installs = [line for line in shipped("install.sh").splitlines() if "/bin/pip" in line and " install " in line]
    assert len(installs) == 3
    for install in installs:
        assert "--require-hashes" in install or "--no-deps --no-index" in install
    assert not any("pip " in line for line in INSTRUCTIONS)


def test_what_the_build_backend_needs_is_picked_from_the_lock() -> None:
    picked = set(re.findall(r"[\w-]+", re.findall(r"/\^\((.*?)\)==/", shipped("install.sh"))[0]))
    needed, seen = {"hatchling"}, set[str]()
    while missing := needed - seen:
        for name in missing:
            found = [Requirement(one) for one in distribution(name).requires or []]
            needed |= {one.name for one in found if one.marker is None or one.marker.evaluate()}
        seen |= missing
    assert needed == picked


def test_what_is_copied_into_the_image_is_not_ignored() -> None:
    allowed = {line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    for line in INSTRUCTIONS:
        if line.startswith("COPY") and "--from" not in line:
            for source in shlex.split(line)[1:-1]:
                assert (ROOT / source).exists()
                assert source.split("/")[0] in allowed


def test_the_health_check_asks_whether_the_process_turns(gateway: Program) -> None:
    [line] = [line for line in INSTRUCTIONS if line.startswith("HEALTHCHECK")]
    words = yaml.safe_load(line.partition("CMD ")[2])
    port = gateway.url.rpartition(":")[2]
    up = [word.replace(":24200", f":{port}") for word in words]
    down = [word.replace(":24200", ":9") for word in words]
    assert subprocess.run(up, check=False, timeout=30).returncode == 0
    assert subprocess.run(down, check=False, timeout=30, stderr=subprocess.DEVNULL).returncode != 0


# --- compose


def test_only_the_ingress_is_reached_from_outside() -> None:
    published = {name: service.get("ports", []) for name, service in COMPOSE["services"].items()}
    assert published == {
        "gateway": [],
        "ingress": ["80:80", "443:443"],
        "prometheus": [],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_the_gateway_of_compose_has_no_more_rights_than_it_needs_and_time_to_stop() -> None:
    gateway = COMPOSE["services"]["gateway"]
    assert (gateway["read_only"], gateway["cap_drop"], gateway["init"]) == (True, ["ALL"], True)
    assert int(gateway["stop_grace_period"][:-1]) > GatewaySettings().drain_seconds + LEAVING_SECONDS


def test_the_ingress_of_compose_is_where_its_configuration_says_and_nobody_else_gets_its_address() -> None:
    address = ip_address(COMPOSE["services"]["ingress"]["networks"]["default"]["ipv4_address"])
    [network] = COMPOSE["networks"]["default"]["ipam"]["config"]
    assert address in ip_network(network["subnet"])
    assert address not in ip_network(network["ip_range"])
    assert f"trusted_proxies: [{address}]" in shipped("compose.yaml")


def test_every_file_and_service_that_compose_names_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source.startswith("$") or source in COMPOSE["volumes"] or (DEPLOY / source).exists()
    assert (DEPLOY / COMPOSE["services"]["gateway"]["build"]["context"] / "deploy/Dockerfile").resolve().exists()
    assert COMPOSE["services"]["ingress"]["environment"]["PALLAS_GATEWAYS"] == "gateway:24200"
    [job] = yaml.safe_load(shipped("prometheus/prometheus.yml"))["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["gateway:24200"]}]
    [source] = yaml.safe_load(shipped("grafana/datasource.yaml"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    folder = yaml.safe_load(shipped("grafana/dashboards.yaml"))["providers"][0]["options"]["path"]
    assert any(f":{folder}/" in volume for volume in COMPOSE["services"]["grafana"]["volumes"])


# --- Kubernetes


def test_the_base_has_all_there_is_to_have(cluster: dict[str, dict[str, Any]]) -> None:
    assert set(cluster) == {
        "ConfigMap", "Deployment", "HorizontalPodAutoscaler", "Ingress", "PodDisruptionBudget", "Service",
    }  # fmt: skip
    labels = cluster["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert cluster["Service"]["spec"]["selector"].items() <= labels
    assert cluster["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels
    assert (
        cluster["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
        == cluster["Deployment"]["metadata"]["name"]
    )


def test_probes_do_not_take_a_replica_out_for_one_bad_agent(cluster: dict[str, dict[str, Any]]) -> None:
    [container] = cluster["Deployment"]["spec"]["template"]["spec"]["containers"]
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
    assert paths == ["/livez", "/livez", "/readyz"]


def test_a_pod_has_time_to_drain_and_no_rights(cluster: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    pod = cluster["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    (tmp_path / "agents.yaml").write_text(cluster["ConfigMap"]["data"]["agents.yaml"])
    environ = {one["name"]: one.get("value", STATE_KEY) for one in container["env"]}
    gateway = load_deployment(tmp_path / "agents.yaml", environ=environ).deployment.gateway
    pause = int(re.findall(r"sleep\((\d+)\)", str(container["lifecycle"]["preStop"]))[0])
    assert pod["terminationGracePeriodSeconds"] > pause + gateway.drain_seconds + LEAVING_SECONDS - 1
    assert gateway.state_keys == (STATE_KEY,)
    assert (gateway.public_url, gateway.trusted_proxies) == ("https://agents.example.com", ("10.0.0.0/8",))
    security = container["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    assert (security["capabilities"], pod["securityContext"]["runAsNonRoot"]) == ({"drop": ["ALL"]}, True)


def test_every_pod_has_the_key_of_the_secret_for_the_questions_of_agents(cluster: dict[str, dict[str, Any]]) -> None:
    [container] = cluster["Deployment"]["spec"]["template"]["spec"]["containers"]
    [reference] = [one["valueFrom"] for one in container["env"] if one["name"] == "PALLAS_STATE_KEY"]
    assert reference == {"secretKeyRef": {"name": "pallas-state", "key": "key"}}  # not optional
    assert "kubectl create secret generic pallas-state --from-literal=key=" in DEPLOYING


@pytest.mark.parametrize(
    "name",
    [
        "compose.yaml",
        "nginx/pallas-gateway.conf",
        "caddy/Caddyfile",
        "traefik/pallas.yaml",
        "kubernetes/base/agents.yaml",
        "kubernetes/overlay/agents.yaml",
        "kubernetes/production/agents.yaml",
    ],
)
def test_every_example_for_replicas_takes_the_key_of_questions_from_the_environment(name: str, tmp_path: Path) -> None:
    text = shipped(name)
    agents = "name: pallas\nhost: localhost\nagents: {echo: {module: pallas_gateway.example.echo}}\n"
    snippets = re.findall(r"^#\s+(gateway: .*)$", text, re.MULTILINE)
    (tmp_path / "agents.yaml").write_text(f"{agents}{snippets[0]}\n" if snippets else text)
    environ = {
        "PALLAS_STATE_KEY": STATE_KEY,
        "PALLAS_PUBLIC_URL": "https://agents.example.com",
        "PALLAS_INGRESS_NETWORK": "10.0.0.0/8",
        "DATABASE_URL": "postgresql://host/name",
    }
    gateway = load_deployment(tmp_path / "agents.yaml", environ=environ).deployment.gateway
    assert gateway.state_keys == (STATE_KEY,)


def test_the_cluster_opens_what_may_be_asked_from_outside_and_sends_no_call_twice(
    cluster: dict[str, dict[str, Any]],
) -> None:
    [rule] = cluster["Ingress"]["spec"]["rules"]
    assert {path["path"] for path in rule["http"]["paths"]} == PUBLIC_PATHS
    annotations = cluster["Ingress"]["metadata"]["annotations"]
    retries = annotations["nginx.ingress.kubernetes.io/proxy-next-upstream"].split()
    assert "non_idempotent" not in retries
    assert int(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600


# --- Traefik


def test_traefiks_parts_name_each_other_and_open_the_same_paths() -> None:
    static, dynamic = yaml.safe_load(shipped("traefik/traefik.yaml")), yaml.safe_load(shipped("traefik/pallas.yaml"))
    http = dynamic["http"]
    [router] = http["routers"].values()
    assert set(router["entryPoints"]) <= set(static["entryPoints"])
    assert router["service"] in http["services"]
    assert set(router["middlewares"]) <= set(http["middlewares"])
    assert router["tls"]["certResolver"] in static["certificatesResolvers"]
    assert http["services"]["pallas"]["loadBalancer"]["serversTransport"] in http["serversTransports"]
    [headers] = [one["headers"] for one in http["middlewares"].values() if "headers" in one]
    removed = {"Forwarded": "", "Upgrade": "", "HTTP2-Settings": ""}  # X-Forwarded-* are set anew by itself
    assert headers == {"customRequestHeaders": removed}
    assert not any("forwardedHeaders" in entry for entry in static["entryPoints"].values())
    assert set(re.findall(r"Path(?:Prefix)?\(`([^`]+)`\)", router["rule"])) == PUBLIC_PATHS
    assert not any("buffering" in middleware for middleware in http["middlewares"].values())
