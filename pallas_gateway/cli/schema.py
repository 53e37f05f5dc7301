"""`pallas-gateway schema`: the JSON Schema of `agents.yaml`, for editors."""

from __future__ import annotations

import json

from pallas_gateway.cli.output import result
from pallas_gateway.config.reference import json_schema


def schema() -> None:
    """Print the JSON Schema of agents.yaml, for editors."""
    result(json.dumps(json_schema(), indent=2))
