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
from pallas_gateway.config.model.downstreams import ProcessSettings
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
TYPE_NAMES = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean", "array": "list"}

INTRODUCTION = """\
# Configuration

<!-- Made by `make docs`; the meanings are docstrings in `config/model/`. -->

Every key of `agents.yaml`, and those of fast-agent's file that the gateway reads. The gateway reads `agents.yaml` from
the working directory, or the file that `--config` or the variable `PALLAS_AGENTS_CONFIG` names. `pallas-gateway check`
prints all its problems, `pallas-gateway schema` its JSON Schema for editors.

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

Keys that begin with `x-` are ignored at every level, for anchors to merge with `<<`; any other unknown key is an error.
Options of `serve` (`--host`, `--port`, `--public-url`, `--per-port`) override the file. Paths are relative to it.

An agent's name begins with a letter or digit and contains only letters, digits, `_`, `.` and `-`. Names that differ
only in `_` and `-`, and names of tools that every agent has, are refused.
"""

ENVIRONMENT = """\
## Environment

`${NAME}` in a value of `agents.yaml` or fast-agent's files is replaced by the environment variable, also within longer
text. `${NAME:-default}` uses the default if the variable is unset or empty, `${NAME:default}` only if it is unset.

- In `agents.yaml`, an unset variable without a default is an error. A value that is a single placeholder can also be a
  number or true/false; if it is empty, an optional key counts as not given.
- In fast-agent's files, a placeholder of an unset variable is left unchanged, and `pallas-gateway check` lists it.

`.env` in the working directory is loaded first; variables that are set already are kept.
"""

_DEFAULTS = """\
The parameters of [parameters.md](../use/parameters.md) but `model`; `extra` may have any key here.
"""

PROCESSES = ", ".join(f"`mcp.servers.<name>.{key}`" for key in ProcessSettings.model_fields)
FASTAGENT = f"""\
## `fastagent.config.yaml`

fast-agent's own file (also `fast-agent.yaml` and `fast-agent.config.yaml`) is `fastagent_config`, or is searched in the
working directory, then in the folder of `agents.yaml`. `fastagent.secrets.yaml` in the same folder is merged over it.
The gateway reads these keys, fast-agent all others:

| key | use |
|---|---|
| `default_model` | `provider.model-name`: shown in the registry until the agent has started |
| `model_capabilities` | `vision`, `documents`, `context_window`, `max_output_tokens` of agents that declare none |
| `mcp.servers.<name>` | `url` or `command`, `transport`, `headers` and `access_token`: what health checks probe |
| `mcp.servers.<name>.forward_inbound_auth` | [receives](security.md#where-a-callers-token-goes) callers' tokens |
| `mcp.servers.<name>.token_exchange` | receives an [exchanged token](token-exchange.md) instead |
| `mcp.servers.<name>.listing_seconds` | 60; 0: [lists of tools](health.md#what-downstreams-are-asked) are not cached |
| {PROCESSES} | processes of [stdio servers](stdio-servers.md) |
| `logger.level` | log level when `PALLAS_LOG_LEVEL` is not set |
| `<provider>.stream_live_only` | `true`: only live text is streamed, at [a cost](providers-at-work.md#whole-answers) |
| `<provider>.base_url` | address of the provider; without one: its variable (`OPENAI_BASE_URL`, …), else its own |

A server without `transport` is `stdio`; with a `url` it is `http`, or `sse` when the URL ends in `/sse`.

fast-agent ignores unknown keys; `pallas-gateway check` reports every unknown key of a server, and elsewhere those
similar to a known one (`default_modle`). Keys that begin with `x-` are ignored here as well.
"""

PEERS = """\
## Agents that call each other

An agent can call another agent of the same gateway (its peer) as the server of its name (`servers=["research"]`), if
`depends_on` names it. For a [declared agent](../use/declared-agents.md), `agents: [research]` is sufficient.

A server of that name in `fastagent.config.yaml` takes the place of this. One with the peer's address on its own port
(`http://localhost:8250/mcp`) leads to the peer as well: the gateway calls it in the process, whatever listens there.
"""


def markdown() -> str:
    """Return the page `docs/operate/configuration.md`."""
    tables = [
        f"## {title}\n\n{_DEFAULTS if model is DefaultParameters else _table(model)}" for title, model in SECTIONS
    ]
    return "\n".join([INTRODUCTION, *tables, ENVIRONMENT, FASTAGENT, PEERS])


def _table(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    rows = ["| key | type, default | meaning |", "|---|---|---|"]
    for key, value in schema["properties"].items():
        default = ", required" if key in schema.get("required", ()) else _default(value)
        rows.append(f"| `{key}` | {_type_name(value)}{default} | {value['description']} |")
    return "\n".join(rows) + "\n"


def _alternatives(value: JsonObject) -> list[JsonObject]:
    found: list[JsonObject] = value.get("anyOf", [value])
    return found


def _default(value: JsonObject) -> str:
    default = value.get("default")
    if default is None or default == []:
        return ""
    if isinstance(default, float):
        return f", `{default:g}`"
    return f", `{default if isinstance(default, str) else json.dumps(default)}`"


def _type_name(value: JsonObject) -> str:
    names = [_one_type_name(one) for one in _alternatives(value) if one.get("type") != "null"]
    return " or ".join(names)


def _one_type_name(value: JsonObject) -> str:
    return TYPE_NAMES.get(value.get("type", ""), "mapping")
