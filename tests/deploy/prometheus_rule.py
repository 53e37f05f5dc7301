"""The PrometheusRule of Kubernetes, made from deploy/prometheus/alerts.yml; `make docs` writes it."""

from textwrap import indent

from tests.deploy.adapting import shipped

_HEAD = """\
# Written by `make docs` from deploy/prometheus/alerts.yml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: pallas-gateway
spec:
"""


def prometheus_rule() -> str:
    alerts = shipped("prometheus/alerts.yml")
    return _HEAD + indent(alerts[alerts.index("groups:") :], "  ")
