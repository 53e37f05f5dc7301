"""The components and the example for production of deploy/kubernetes/, rendered and read: no cluster runs here."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.adapting import DEPLOY, promtool_accepts, shipped
from tests.support.configuration import load_deployment
from tests.support_programs import program

KUBERNETES = DEPLOY / "kubernetes"
POLICY = "kubernetes/components/network/policy.yaml"
SECRETS = list(yaml.safe_load_all(shipped("kubernetes/secrets.example.yaml")))


@pytest.fixture(scope="module")
def production() -> dict[str, dict[str, Any]]:
    """What `kubectl apply -k` would send, by kind."""
    done = kubectl("kustomize", KUBERNETES / "production")
    return {document["kind"]: document for document in yaml.safe_load_all(done)}


def kubectl(*arguments: object) -> str:
    command = [program("kubectl"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.needs("kubectl")
def test_kubectl_reads_the_example_of_secrets_which_has_no_values() -> None:
    named = kubectl(
        "label", "--local", "--dry-run=client", "-f", KUBERNETES / "secrets.example.yaml", "a=b", "-o", "name"
    )
    assert named.split() == ["secret/pallas-state", "secret/pallas-keys", "secret/pallas-database"]
    for secret in SECRETS:
        for value in secret["stringData"].values():
            assert "<" in value
    for file in KUBERNETES.rglob("*.yaml"):
        if file.name != "secrets.example.yaml":
            assert "kind: Secret" not in file.read_text()


def test_every_secret_that_a_pod_reads_is_in_the_example(production: dict[str, dict[str, Any]]) -> None:
    pod = production["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    there = {(secret["metadata"]["name"], key) for secret in SECRETS for key in secret["stringData"]}
    references = [one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one]
    read = {(one["name"], one["key"]) for one in references}
    read |= {
        (volume["secret"]["secretName"], item["key"])
        for volume in pod["volumes"]
        if "secret" in volume
        for item in volume["secret"]["items"]
    }
    assert read == {("pallas-state", "key"), ("pallas-database", "url"), ("pallas-database", "ca.crt")}
    assert read <= there
    assert {one["secretRef"]["name"] for one in container["envFrom"]} == {"pallas-keys"}


def test_the_database_is_reached_over_tls_with_the_authority_that_the_pod_has(
    production: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    pod = production["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [example] = [secret["stringData"]["url"] for secret in SECRETS if "url" in secret["stringData"]]
    url = re.sub(r"<(\w+)>", r"\1", example)
    environ = {one["name"]: one.get("value", "0123456789abcdef" * 4) for one in container["env"]} | {
        "DATABASE_URL": url
    }
    (tmp_path / "agents.yaml").write_text(production["ConfigMap"]["data"]["agents.yaml"])
    gateway = load_deployment(tmp_path / "agents.yaml", environ=environ).deployment.gateway
    assert (gateway.database, gateway.limits.store) == (url, "database")
    assert "sslmode=verify-full" in url
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    [secret] = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "database-authority"]
    [item] = secret["items"]
    assert url.endswith(f"sslrootcert={mounted['database-authority']}/{item['path']}")


def test_prometheus_finds_the_service_and_names_the_job_as_the_alerts_do(
    production: dict[str, dict[str, Any]],
) -> None:
    monitor, service = production["ServiceMonitor"]["spec"], production["Service"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    [job] = yaml.safe_load(shipped("prometheus/prometheus.yml"))["scrape_configs"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": job["job_name"]}]


@pytest.mark.needs("promtool")
def test_promtool_passes_the_rules(production: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(production["PrometheusRule"]["spec"]))
    (tmp_path / "alerts.test.yml").write_text(shipped("prometheus/alerts.test.yml"))
    promtool_accepts("check", "rules", tmp_path / "alerts.yml")
    promtool_accepts("test", "rules", tmp_path / "alerts.test.yml")


def test_the_policy_is_of_the_pods_and_opens_their_port_to_the_ingress_and_prometheus_alone(
    production: dict[str, dict[str, Any]],
) -> None:
    template = production["Deployment"]["spec"]["template"]
    policy = production["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    for rule in policy["ingress"]:
        [source] = rule["from"]
        assert set(source) == {"namespaceSelector", "podSelector"}  # in one entry: both must hold
        assert {port["port"] for port in rule["ports"]} == ports
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 443, 5432}
    assert all(rule["to"] for rule in policy["egress"])


def test_the_choices_of_the_policy_are_rules_once_they_are_not_comments() -> None:
    text = shipped(POLICY)
    chosen = re.sub(r"^(    )# (?=[- ])", r"\1", text, flags=re.MULTILINE)
    before, after = (yaml.safe_load(one)["spec"]["egress"] for one in (text, chosen))
    assert len(after) == len(before) + 2
    assert [rule["ports"][0]["port"] for rule in after[len(before) :]] == [8000, 5432]
    for rule in after:
        assert set(rule) == {"to", "ports"}
