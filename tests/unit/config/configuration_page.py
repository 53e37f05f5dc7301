"""Writes docs/operate/configuration.md from the models: `make docs`.

The meanings of keys are the docstrings of the models.
"""

import json
from typing import Any

from pydantic import BaseModel

from pallas_gateway.config.model.agents import AgentSettings, IconSettings, ModelCapabilities
from pallas_gateway.config.model.agents_may_use import AgentsMayUseSettings, MostSettings
from pallas_gateway.config.model.auth import AuthSettings, JwtSettings, StaticKeySettings
from pallas_gateway.config.model.deployment import Deployment, GatewaySettings, TasksSettings, TlsSettings
from pallas_gateway.config.model.parameters import DefaultParameters

type JsonObject = dict[str, Any]

SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("Top level", Deployment),
    ("`agents.<name>`", AgentSettings),
    ("`agents.<name>.icons`, each entry", IconSettings),
    ("`agents.<name>.model_capabilities`", ModelCapabilities),
    ("`agents.<name>.default_params`", DefaultParameters),
    ("`gateway`", GatewaySettings),
    ("`gateway.tls`", TlsSettings),
    ("`gateway.tasks`", TasksSettings),
    ("`gateway.agents_may_use`", AgentsMayUseSettings),
    ("`gateway.agents_may_use.most`", MostSettings),
    ("`gateway.auth`", AuthSettings),
    ("`gateway.auth.tokens`, each entry", StaticKeySettings),
    ("`gateway.auth.jwt`", JwtSettings),
)
TYPE_NAMES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}

INTRODUCTION = """\
# Configuration

<!-- Made by `make docs`; the meanings are docstrings in `config/model/`. -->

The gateway reads `agents.yaml` from the working directory, or the file that `--config` or the variable
`PALLAS_AGENTS_CONFIG` names. `pallas-gateway check` prints all its problems, with file and line; `pallas-gateway
schema` prints its JSON Schema for editors.

```yaml
name: my-project
agents:
  jarvis:
    module: agents.jarvis
    depends_on: [research]
  research:
    module: agents.research
  guide:
    instruction: You guide newcomers, in short answers.
    agents: [research]
```

An agent consists of a Python `module`, or [without Python](../use/declared-agents.md) of an `instruction`, an
`instruction_file` or a `card`.

Keys that begin with `x-` are ignored at every level, so they can contain anchors to merge with `<<`. Any other key that
is not listed here is an error. Options of `serve` (`--host`, `--port`, `--public-url`, `--per-port`) override the file.

An agent's name begins with a letter or digit and contains only letters, digits, `_`, `.` and `-`. Names that differ
only in `_` and `-` are refused, because the registry writes both as `-`; so are names of tools that every agent has.
"""

ENVIRONMENT = """\
## Environment

`${NAME}` in a value of `agents.yaml`, `fastagent.config.yaml` or `fastagent.secrets.yaml` is replaced by the
environment variable, also within longer text. `${NAME:-default}` uses the default if the variable is unset or empty,
`${NAME:default}` only if it is unset. Keys are never expanded.

- In `agents.yaml`, an unset variable without a default is an error. A value that is a single placeholder can also be a
  number or true/false; if it is empty, an optional key counts as not given.
- In fast-agent's files, a placeholder of an unset variable is left unchanged, and `pallas-gateway check` lists it.

`.env` in the working directory is loaded first; variables that are set already are kept.
"""

FASTAGENT = """\
## `fastagent.config.yaml`

The file is fast-agent's own (`fast-agent.yaml` and `fast-agent.config.yaml` are other names for it). Unless
`fastagent_config` names it, it is searched in the working directory, then in the folder of `agents.yaml`.
`fastagent.secrets.yaml` in the same folder is merged over it. The gateway reads these keys, fast-agent all others:

| key | use |
|---|---|
| `default_model` | `provider.model-name`: shown in the registry until the agent has started |
| `model_capabilities` | `vision`, `documents`, `context_window`, `max_output_tokens` of agents that declare none |
| `mcp.servers.<name>` | `url` or `command`, `transport`, `headers` and `access_token`: what health checks probe |
| `mcp.servers.<name>.forward_inbound_auth` | `true`: receives the caller's bearer, unless it has its own header |
| `mcp.servers.<name>.token_exchange` | receives an exchanged token instead, see [token exchange](token-exchange.md) |
| `mcp.servers.<name>.listing_seconds` | 60; 0: no cache; see [listings](health.md#what-downstreams-are-asked) |
| `mcp.servers.<name>.warm` | [stdio](stdio-servers.md): processes that are started in advance, default 1 |
| `mcp.servers.<name>.max_processes` | stdio: processes at once in each worker, default 16 |
| `mcp.servers.<name>.idle_seconds` | stdio: a process that was ready for so long is ended, default 300 |
| `mcp.servers.<name>.shared` | stdio: `true`: all calls use one process, of a server that keeps no state of a caller |
| `mcp.servers.<name>.stderr` | stdio: a file for what its processes write to stderr; default: discarded |
| `logger.level` | log level when `PALLAS_LOG_LEVEL` is not set |
| `<provider>.stream_live_only` | `true`: only live text is streamed, at [a cost](providers-at-work.md#whole-answers) |
| `<provider>.base_url` | address of the provider; without one: its variable (`OPENAI_BASE_URL`, …), else its own |

A server without `transport` is `stdio`; with a `url` it is `http`, or `sse` when the URL ends in `/sse`.

fast-agent ignores unknown keys. `pallas-gateway check` reports every unknown key of a server, elsewhere those similar
to a known one (`default_modle`), values that fast-agent refuses, servers with neither `url` nor `command`, and a
`default_model` that cannot be used. Keys that begin with `x-` are ignored here as well.
"""

PEERS = """\
## Agents that call each other

An agent can call another agent of the same gateway (its peer). Name the peer in `depends_on`, which also starts it
first: it can then be used as the server of its name (`servers=["research"]`), without an entry in
`fastagent.config.yaml`. For a [declared agent](../use/declared-agents.md), `agents: [research]` is sufficient.

A server of that name in `fastagent.config.yaml` takes the place of this. One that is written there with the peer's
address on the peer's own port, `http://localhost:8250/mcp` or with the top-level `host` in place of `localhost`, leads
to the peer as well. The gateway calls the peer in the process, whatever listens there, and logs this once.
"""


def markdown() -> str:
    """Return the page `docs/operate/configuration.md`."""
    tables = [f"## {title}\n\n{_table(model)}" for title, model in SECTIONS]
    return "\n".join([INTRODUCTION, *tables, ENVIRONMENT, FASTAGENT, PEERS])


def _table(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, value in schema["properties"].items():
        default = "required" if key in schema.get("required", ()) else _default(value)
        rows.append(f"| `{key}` | {_type_name(value)} | {default} | {value['description']} |")
    return "\n".join(rows) + "\n"


def _alternatives(value: JsonObject) -> list[JsonObject]:
    found: list[JsonObject] = value.get("anyOf", [value])
    return found


def _default(value: JsonObject) -> str:
    default = value.get("default")
    if default is None:
        return "none"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def _type_name(value: JsonObject) -> str:
    names = [_one_type_name(one) for one in _alternatives(value) if one.get("type") != "null"]
    return " or ".join(names)


def _one_type_name(value: JsonObject) -> str:
    if "items" in value:
        return f"list of {_type_name(value['items'])}"
    return TYPE_NAMES.get(value.get("type", ""), "mapping")
