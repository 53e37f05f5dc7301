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
    """A call without an answer becomes a task after this time; not while a question of it is open."""

    poll_seconds: Seconds = 2.0
    """Pause that clients are told to keep between two requests for a task."""

    ttl_seconds: Seconds = 86400.0
    """How long a task is kept after it was created, and its result for an hour at least."""

    ask_seconds: Seconds = 86400.0
    """How long a question of a task stays open; at most `ttl_seconds`."""

    timeout_seconds: Seconds = 3600.0
    """Longest duration of one run of a task, without the time of open questions, instead of `call_timeout_seconds`."""

    most_per_caller: Count = 100
    """Tasks of one caller that have not ended; further calls of it become none."""


class GatewaySettings(Section):
    """The process that hosts the agents: its addresses and limits."""

    model_config = ConfigDict(validate_by_name=True)

    host: Host | None = None
    """Address to bind. Default: `127.0.0.1`, with `--per-port` and `--agent` `0.0.0.0`."""

    port: BindPort | None = None
    """Port to bind; 0 takes any free port. Default: `registry_port`. Not used in per-port mode."""

    public_url: PublicUrl | None = None
    """Base of every URL for clients. Default: `http(s)://{host}:{port}` with the top-level `host`."""

    per_port: Flag = False
    """Serve every agent at `/mcp` on its own port, and the registry on `registry_port`."""

    tls: TlsSettings | None = None
    """Serve HTTPS with this certificate."""

    auth: AuthSettings | None = None
    """Who may call. Default: anyone who reaches the port."""

    trusted_proxies: tuple[ProxyNetwork, ...] = ()
    """Addresses and networks of the proxies in front, such as `127.0.0.1`, `10.0.0.0/8` or (in quotes) `"::1"`. The \
client's address and scheme are taken from their `Forwarded` or `X-Forwarded-*` headers, and from no others."""

    allowed_hosts: tuple[Text, ...] = ()
    """More names for the Host guard. Always allowed: the host of `public_url`, the top-level `host` and loopback."""

    allowed_origins: tuple[Text, ...] = ()
    """Origins of web pages that may call the gateway; they also get CORS headers."""

    max_body_bytes: Count = 33554432
    """Largest request body."""

    max_message_bytes: Count = 1048576
    """Largest text of one message to a thread; a longer one is refused with 413. Images, `messages`, and calls by MCP \
and `/v1` are limited by `max_body_bytes` alone."""

    max_history_entries: HistoryEntries = 10000
    """Largest number of entries of `history` (of `messages` or `input` and their parts at `/v1`) in one call, and of \
images. A call with more is refused."""

    max_in_flight: Count = 256
    """Calls at once over all agents, per worker process."""

    queue_seconds: SecondsOrZero = 5.0
    """How long a call may wait for a free slot, and for an agent's first start, before it is refused."""

    heartbeat_seconds: Seconds = 15.0
    """Interval of heartbeats in a call without other progress, if the client requests progress."""

    ask_seconds: Seconds = 300.0
    """How long a question to a caller stays open; after that it counts as cancelled. See \
[asking.md](../use/asking.md)."""

    max_open_questions: CountOrZero = 256
    """Calls that may wait for answers of their callers at once, per worker process; further questions are declined. \
With `auth`, a caller has half of them at most; those without a token count as one."""

    state_keys: tuple[StateKey, ...] = Field(default=(), repr=False)
    """Secrets of at least 32 bytes by which the states of open questions (2026-07-28) are sealed: the first one \
seals, all open. Without any: a key of the gateway's own, lost with its process. See [asking.md](../use/asking.md)."""

    health_seconds: SecondsOrZero = 60.0
    """Interval at which the gateway checks the downstreams of its agents by itself, for the metrics; 0 for never. \
Servers that receive callers' tokens are asked at most every 10 minutes, and no program is started."""

    drain_seconds: SecondsOrZero = 30.0
    """How long running calls may continue when the gateway stops."""

    max_relay_depth: CountOrZero = 3
    """How many agents an assistant-stream message may pass through on its way to the caller."""

    max_nesting: CountOrZero = 8
    """Calls between hosted agents nested deeper than this are refused."""

    openai_api: Flag = False
    """Serve the agents to OpenAI clients: `/v1/models`, `/v1/chat/completions` and `/v1/responses`, on the gateway's \
port (in per-port mode on `registry_port`)."""

    console: Flag | None = None
    """Serve the [console](../use/console.md) at `/console/`, on the gateway's port (in per-port mode on \
`registry_port`). Default: only if the gateway listens on loopback alone, also behind `trusted_proxies`."""

    console_run_tools: Flag = True
    """Callers that may run an agent may run single tools of its downstreams in the console, without the agent's model \
and instruction. See [console.md](../use/console.md#run-a-tool)."""

    console_registries: tuple[PublicUrl, ...] = ()
    """URLs of other gateways whose agents the console may show and call; those must have this gateway's origin in \
their `allowed_origins`."""

    trace_url: TraceUrl | None = None
    """Page of a call's trace, such as `https://jaeger.example.com/trace/{trace_id}`. Results of calls have it in \
`_meta["pallas/trace_url"]`, and the console shows a link. See [traces](observability.md#traces)."""

    tool_names: ToolNames = ("send_message", "{agent}")
    """Names of the message tool; `{agent}` stands for the agent's name."""

    limits: LimitsSettings = Field(default_factory=LimitsSettings)
    """What callers may use: calls and tokens, per caller and agent; see [limits.md](limits.md)."""

    prices: dict[Text, PriceSettings] = Field(default_factory=dict)
    """Prices of models by `provider.model` (`openai.gpt-5`); see [limits.md](limits.md)."""

    audit_log: Text | None = None
    """Write a line for each decision: to this file (relative to this one), `-` for stdout, or `syslog:` (also \
`syslog:/dev/log`, `syslog:HOST:PORT`); see [audit.md](audit.md)."""

    audit_names: Literal["plain", "hashed"] = "plain"
    """`hashed`: the audit log has HMACs of callers and addresses by the first of `state_keys`, which it requires."""

    audit_sync: Literal["never", "second", "line"] = "second"
    """When lines of the audit log are forced to disk: `line` before the call goes on, `second` once a second."""

    audit_required: Flag = False
    """Refuse calls whose first line cannot be written to the audit log; requires `audit_log`."""

    database: DatabaseUrl | None = Field(default=None, validation_alias=AliasChoices("database", "threads"), repr=False)
    """Database of conversations: `sqlite:///pallas.db` (relative to this file) or \
`postgresql://user:password@host/name`; see [threads.md](../use/threads.md). The older name of this key is `threads`. \
Requires `pip install 'pallas-gateway[database]'`. Without it there are no threads and no agents that are changed over \
HTTP."""

    upgrade_database: Flag = True
    """Upgrade the tables of `database` at the start. `false`: a gateway whose tables are older does not start; \
`pallas-gateway database upgrade` upgrades them. See [upgrading.md](upgrading.md#the-database)."""

    agents_may_use: AgentsMayUseSettings = Field(default_factory=AgentsMayUseSettings)
    """What [agents of the database](../use/agents-as-data.md) may use, which are made and changed over HTTP. Default: \
nothing, so that none can be created."""

    threads_lease_seconds: LeaseSeconds = 30.0
    """How long a thread stays locked after the process that answered in it has ended; at least 1."""

    tasks: TasksSettings | None = None
    """Long calls become [tasks](../use/long-calls.md), which go on without their connection, and after their process \
was replaced; `{}` for the defaults. Requires `database`. Default: they do not."""

    threads_max_bytes: Count | None = 1024 * 1024 * 1024
    """The most that one owner may store in threads: messages, answers, images as Base64, results of tools, and 1 KB \
for each turn and thread. Further messages and copies are refused with 413. `null`: any amount. Callers without a \
token are one owner."""

    keep_tool_results: Flag = True
    """Store the tool calls of a turn with their results, the first 16 KB of each: clients can read them, and the \
model reads them in later turns. See [threads.md](../use/threads.md#tools-of-earlier-turns)."""

    thread_expire_days: Seconds | None = None
    """Delete threads that nothing has changed for so many days. Default: threads are kept."""

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
    """fast-agent's own configuration file, relative to this file. Default: the one in the working directory, else in \
the folder of this file."""

    agents: dict[str, AgentSettings] = Field(min_length=1)
    """The hosted agents by name."""

    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    """The process that hosts them."""
