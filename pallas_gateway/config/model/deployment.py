"""`agents.yaml` as frozen models, one per section; loading and rules between sections are in `loading/`.

The docstring under each field is its meaning in `docs/operate/configuration.md` and in the JSON Schema.
"""

from typing import Literal, override

from pydantic import AliasChoices, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo

from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.config.model.agents_may_use import AgentsMayUseSettings
from pallas_gateway.config.model.auth import AuthSettings
from pallas_gateway.config.model.limits import LimitsSettings, PriceSettings
from pallas_gateway.config.model.section import Section
from pallas_gateway.config.model.values import (
    BindPort,
    Count,
    CountOrZero,
    DatabaseUrl,
    Flag,
    HistoryEntries,
    Host,
    LeaseSeconds,
    Namespace,
    Port,
    ProxyNetwork,
    PublicHost,
    PublicUrl,
    Seconds,
    SecondsOrZero,
    StateKey,
    Text,
    ToolNames,
    TraceUrl,
    Version,
)

OLDER_NAMES = {"threads": "database"}
"""Present names of keys under `gateway` by their older ones."""


class TlsSettings(Section):
    """Certificate for serving HTTPS."""

    certfile: Text
    """Certificate chain in PEM form, relative to this file."""

    keyfile: Text
    """Its private key in PEM form, relative to this file."""


class TasksSettings(Section):
    """Long calls of MCP clients that become tasks, if the clients declare `io.modelcontextprotocol/tasks`."""

    after_seconds: SecondsOrZero = 20.0
    """A call without an answer becomes a task after this time; not while a question is open."""

    poll_seconds: Seconds = 2.0
    """Pause between two requests of a client for a task."""

    ttl_seconds: Seconds = 86400.0
    """How long a task is kept after its creation, its result for an hour at least."""

    ask_seconds: Seconds = 86400.0
    """How long a question of a task stays open; at most `ttl_seconds`."""

    timeout_seconds: Seconds = 3600.0
    """Longest duration of one run, without open questions, instead of `call_timeout_seconds`."""

    most_per_caller: Count = 100
    """Open tasks of one caller; further calls become none."""


class GatewaySettings(Section):
    """The process that hosts the agents: its addresses and limits."""

    model_config = ConfigDict(validate_by_name=True)

    host: Host | None = None
    """Address to bind. Default: `127.0.0.1`, with `--per-port` and `--agent` `0.0.0.0`."""

    port: BindPort | None = None
    """Port to bind; 0: any free port. Default: `registry_port`. Not used in per-port mode."""

    public_url: PublicUrl | None = None
    """Base of every URL for clients. Default: `http(s)://{host}:{port}` with the top-level `host`."""

    per_port: Flag = False
    """Serve every agent at `/mcp` on its own port, and the registry on `registry_port`."""

    tls: TlsSettings | None = None
    """Serve HTTPS with this certificate."""

    auth: AuthSettings | None = None
    """Who may call. Default: anyone who reaches the port."""

    trusted_proxies: tuple[ProxyNetwork, ...] = ()
    """Addresses and networks of the [proxies](security.md#proxies) in front, such as `127.0.0.1`, `10.0.0.0/8` or \
(in quotes) `"::1"`."""

    allowed_hosts: tuple[Text, ...] = ()
    """More names for the Host check. `host`, the host of `public_url` and loopback always pass."""

    allowed_origins: tuple[Text, ...] = ()
    """Origins of web pages that may call the gateway (CORS)."""

    max_body_bytes: Count = 33554432
    """Largest request body."""

    max_message_bytes: Count = 1048576
    """Largest text of one message to a thread (else 413). Other requests are limited by `max_body_bytes` alone."""

    max_history_entries: HistoryEntries = 10000
    """Largest number of entries of `history` (at `/v1` of `messages` or `input` and their parts) in one call, and of \
images."""

    max_in_flight: Count = 256
    """Calls at once over all agents, per worker process."""

    queue_seconds: SecondsOrZero = 5.0
    """How long a call may wait for a free slot, or for an agent's first start, before it is refused."""

    heartbeat_seconds: Seconds = 15.0
    """Interval of heartbeats in a call without other progress, if the client requests progress."""

    ask_seconds: Seconds = 300.0
    """How long a [question](../use/asking.md) to a caller stays open; then it counts as cancelled."""

    max_open_questions: CountOrZero = 256
    """Calls that may wait for answers of their callers at once, per worker process; further questions are declined. \
With `auth`, one caller has at most half."""

    state_keys: tuple[StateKey, ...] = Field(default=(), repr=False)
    """Secrets of at least 32 bytes that seal the states of open [questions](../use/asking.md): the first one seals, \
all open. Default: a key that is lost with its process."""

    health_seconds: SecondsOrZero = 60.0
    """Interval at which the gateway [checks](health.md#get_health) its agents' downstreams; 0: never."""

    drain_seconds: SecondsOrZero = 30.0
    """How long running calls may continue when the gateway stops."""

    max_relay_depth: CountOrZero = 3
    """Number of agents that an assistant-stream message may pass on its way to the caller."""

    max_nesting: CountOrZero = 8
    """Deepest nesting of calls between hosted agents."""

    openai_api: Flag = False
    """Serve `/v1/models`, `/v1/chat/completions` and `/v1/responses` to [OpenAI clients](../use/openai-api.md) (in \
per-port mode on `registry_port`)."""

    console: Flag | None = None
    """Serve the [console](../use/console.md) at `/console/` (in per-port mode on `registry_port`). Default: only if \
the gateway listens on loopback alone, also behind `trusted_proxies`."""

    console_run_tools: Flag = True
    """Callers may [run single tools](../use/console.md#run-a-tool) of the agents that they may run, in the console."""

    console_registries: tuple[PublicUrl, ...] = ()
    """URLs of other gateways whose agents the console may show and call; they must allow this gateway's origin."""

    trace_url: TraceUrl | None = None
    """Page of a call's [trace](observability.md#traces), such as `https://jaeger.example.com/trace/{trace_id}`, for \
results and the console."""

    tool_names: ToolNames = ("send_message", "{agent}")
    """Names of the message tool; `{agent}` stands for the agent's name."""

    limits: LimitsSettings = Field(default_factory=LimitsSettings)
    """Calls and tokens that callers may use; see [limits.md](limits.md)."""

    prices: dict[Text, PriceSettings] = Field(default_factory=dict)
    """Prices of models by `provider.model` (`openai.gpt-5`); see [limits.md](limits.md#prices)."""

    audit_log: Text | None = None
    """Write the [audit log](audit.md) to this file (relative to this one), `-` for stdout, or `syslog:` (also \
`syslog:/dev/log`, `syslog:HOST:PORT`)."""

    audit_names: Literal["plain", "hashed"] = "plain"
    """`hashed`: the audit log, and stored usage, have HMACs of callers and addresses by the first of `state_keys`."""

    audit_sync: Literal["never", "second", "line"] = "second"
    """When lines are forced to [disk](audit.md#operation): `never`, `second` or `line`."""

    audit_required: Flag = False
    """Refuse calls whose first line cannot be written to the audit log."""

    database: DatabaseUrl | None = Field(default=None, validation_alias=AliasChoices("database", "threads"), repr=False)
    """Database of [threads](../use/threads.md) and agents: `sqlite:///pallas.db` (relative to this file) or \
`postgresql://user:password@host/name`; formerly `threads`. Requires `pip install 'pallas-gateway[database]'`."""

    upgrade_database: Flag = True
    """Upgrade older [tables](upgrading.md#the-database) at the start; `false`: refuse to start on them."""

    agents_may_use: AgentsMayUseSettings = Field(default_factory=AgentsMayUseSettings)
    """What [agents of the database](../use/agents-as-data.md) may use. Default: nothing, so that none can be \
created."""

    threads_lease_seconds: LeaseSeconds = 30.0
    """How long a thread stays locked after its process has ended; at least 1."""

    tasks: TasksSettings | None = None
    """Long calls become [tasks](../use/long-calls.md), which go on without their connection and process; `{}` for \
the defaults. Requires `database`."""

    threads_max_bytes: Count | None = 1024 * 1024 * 1024
    """The most that one owner may store in threads: messages, answers, images as Base64, results of tools, and 1 KB \
for each turn and thread (else 413). `null`: any amount. Callers without a token are one owner."""

    keep_tool_results: Flag = True
    """Store the [tool calls](../use/threads.md#tools-of-earlier-turns) of a turn with the first 16 KB of each \
result, for clients and later turns."""

    usage_days: CountOrZero = 400
    """How many days of usage are kept in the `database`, a row for each day, caller, agent and model. 0: none, \
and the days that are stored are deleted. See [limits.md](limits.md#usage)."""

    thread_expire_days: Seconds | None = None
    """Delete threads that have not changed for so many days."""

    @classmethod
    @override
    def _field(cls, key: str) -> FieldInfo | None:
        return super()._field(OLDER_NAMES.get(key, key))

    @field_validator("auth", mode="before")
    @classmethod
    def _not_blank(cls, value: object) -> object:
        """Refuse a section whose lines are all commented out: it must not open the gateway."""
        if value is None:
            raise ValueError("is empty; remove it to let anyone call, or write {} to require a token")
        return value


class Deployment(Section):
    """The whole of `agents.yaml`."""

    name: Text
    """Name of the project."""

    version: Version = "1.0.0"
    """Version shown in the registry; one version, not a range."""

    host: PublicHost = "localhost"
    """Host name in URLs for clients."""

    namespace: Namespace | None = None
    """First part of registry names, a reversed domain. Default: `local.{name}`."""

    registry_port: Port = 24200
    """Port of the registry in per-port mode; otherwise the default of `gateway.port`."""

    fastagent_config: Text | None = None
    """fast-agent's own configuration file, relative to this file. Default: see [below](#fastagentconfigyaml)."""

    agents: dict[str, AgentSettings] = Field(min_length=1)
    """The hosted agents by name."""

    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    """The process that hosts them."""
