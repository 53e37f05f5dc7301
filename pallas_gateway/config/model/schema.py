"""`agents.yaml` as frozen models, one per section; reading the file and rules between sections are elsewhere.

The docstring under each field is its meaning in `docs/configuration.md` and in the JSON Schema.
"""

from pydantic import ConfigDict, Field, field_validator

from pallas_gateway.config.model.auth import AuthSettings
from pallas_gateway.config.model.parameters import CallerParameters, CallerParams, DefaultParameters
from pallas_gateway.config.model.section import Section
from pallas_gateway.config.model.values import (
    BindPort,
    Count,
    CountOrZero,
    Flag,
    HistoryEntries,
    Host,
    IconSizes,
    IconSource,
    LeaseSeconds,
    Namespace,
    Port,
    ProxyNetwork,
    PublicHost,
    PublicUrl,
    Seconds,
    SecondsOrZero,
    Text,
    ThreadsUrl,
    ToolNames,
    Version,
)

MAKINGS = ("module", "instruction", "instruction_file", "card")
"""The keys of an agent that say what it is made of; it has one of them."""


class ModelCapabilities(Section):
    """What the model can do, declared instead of guessed from its name."""

    vision: Flag = False
    """Whether the model takes images."""

    context_window: Count = 131072
    """Context window in tokens."""

    max_output_tokens: Count = 16384
    """Longest answer in tokens."""


class IconSettings(Section):
    """One icon of an agent in the registry."""

    src: IconSource
    """URL of the image; a relative one is resolved against `gateway.public_url`."""

    sizes: IconSizes = ()
    """Sizes it is made for, such as `48x48` or `any`: a list, or one text with spaces between them."""


class AgentSettings(Section):
    """One hosted agent."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [key]} for key in MAKINGS]})

    module: Text | None = None
    """Importable Python module that holds the agent's `FastAgent`, under any name; several agents may name \
one module. Each agent has this or one of the next three."""

    instruction: Text | None = None
    """What an agent without Python is and does: its system prompt, which may hold fast-agent's own placeholders."""

    instruction_file: Text | None = None
    """The same in a text file, relative to this one, in which `${ENV}` is left alone."""

    card: Text | None = None
    """fast-agent's agent card (Markdown with front matter, or YAML), or a folder of cards that belong together, \
relative to this file."""

    agent: Text | None = None
    """With a module or card that defines several agents: the one to serve, by its name there. Without it: the default \
one, else the only one that no other one uses."""

    model: Text | None = None
    """With an instruction: the model as fast-agent names it. Without it: `default_model` of `fastagent.config.yaml`."""

    servers: tuple[Text, ...] = ()
    """With an instruction: the MCP servers it uses, by their names under `mcp.servers` of `fastagent.config.yaml`."""

    tools: tuple[Text, ...] | None = None
    """With an instruction: the only tools it may use, as it sees them: `server__tool`, with `*` and `?` in the tool's \
part. `[]` allows none. Without it: every tool of its `servers`. Sub-agents need no entry."""

    agents: tuple[Text, ...] = ()
    """Agents of this file that it calls as its sub-agents; each is started first and offers it its message tool. A \
`module` or `card` must name them in its own `servers`, too."""

    watch: tuple[Text, ...] = ()
    """Files that the agent reads and that are neither named above nor modules it imports, such as a prompt: paths or \
patterns (`prompts/**/*.md`), relative to this file. A reload starts the agent again when one of them changed."""

    port: Port | None = None
    """The agent's own port; needed with `--per-port` and `--agent`. Without them it only names the address under \
which peers know the agent."""

    title: Text | None = None
    """Name shown in the registry. Without one: the agent's name through Python's `str.title()`."""

    description: Text | None = None
    """What the agent does, in one line for the registry. Without one: the title."""

    depends_on: tuple[Text, ...] = ()
    """Agents that are started first. Each can be called as a server of its name."""

    max_iterations: Count = 15
    """Most LLM turns of the agent's loop in one call; a partial answer is returned at the limit. Each agent of a \
workflow, and each that is used as a tool, has the limit for its own loop."""

    loop_repeat_threshold: CountOrZero = 3
    """The loop is halted after this many identical tool rounds in a row; 0 switches the loop guard off."""

    icon: IconSource | None = None
    """URL of the agent's icon; short for `icons` with one entry."""

    icons: tuple[IconSettings, ...] = ()
    """Icons for the registry, when one is not enough."""

    model_capabilities: ModelCapabilities | None = None
    """What this agent's model can do; takes the place of the block in `fastagent.config.yaml`."""

    call_timeout_seconds: Seconds = 600.0
    """Longest time one call may run; what there is by then is the answer."""

    max_in_flight: Count | None = None
    """Calls of this agent at once, per worker process. Without one: only the gateway's own limit."""

    default_params: DefaultParameters = Field(default_factory=DefaultParameters)
    """Parameters of every call that does not say otherwise."""

    caller_params: CallerParams = Field(default_factory=CallerParameters)
    """Parameters that callers may set in `params`: a list (`[]` lets them set none), or a mapping of `names` and \
`extra`, more keys that their `extra` may hold; see [parameters.md](parameters.md)."""

    models: tuple[Text, ...] = ()
    """Models that callers may choose from with the parameter `model`, as fast-agent writes them \
(`anthropic.claude-sonnet-4-5`)."""

    @field_validator("tools", mode="before")
    @classmethod
    def _not_blank(cls, value: object) -> object:
        """A list whose entries are all commented out must not allow everything."""
        if value is None:
            raise ValueError("is empty; remove it to allow every tool of its servers, or write [] to allow none")
        return value

    @property
    def makings(self) -> tuple[str, ...]:
        """The keys that say what the agent is made of; in a sound configuration there is exactly one."""
        return tuple(key for key in MAKINGS if getattr(self, key) is not None)

    @property
    def is_instructed(self) -> bool:
        """Whether it is made of an instruction that stands here or in a file of its own."""
        return self.instruction is not None or self.instruction_file is not None

    @property
    def peers(self) -> tuple[str, ...]:
        """The agents that it needs, its sub-agents included."""
        return tuple(dict.fromkeys((*self.depends_on, *self.agents)))

    def shown_title(self, name: str) -> str:
        """The title, or the one made from the agent's `name` as documented."""
        return self.title or name.title()

    def shown_icons(self) -> tuple[IconSettings, ...]:
        """`icons`, or the one `icon` as a list."""
        return (IconSettings(src=self.icon),) if self.icon else self.icons


class TlsSettings(Section):
    """Certificate for serving HTTPS."""

    certfile: Text
    """Certificate chain in PEM form, relative to this file."""

    keyfile: Text
    """Its private key in PEM form, relative to this file."""


class GatewaySettings(Section):
    """The process that hosts the agents: where it listens and what it allows."""

    host: Host | None = None
    """Address to bind, and nothing else. Without one: `127.0.0.1`, in per-port mode `0.0.0.0`."""

    port: BindPort | None = None
    """Port to bind; 0 takes any free one. Without one: `registry_port`. Not used in per-port mode."""

    public_url: PublicUrl | None = None
    """Base of every URL that clients see. Without one: `http(s)://{host}:{port}` with the top-level `host`."""

    per_port: Flag = False
    """Serve every agent at `/mcp` on its own port, and the registry on `registry_port`."""

    tls: TlsSettings | None = None
    """Serve HTTPS with this certificate."""

    auth: AuthSettings | None = None
    """Who may call. Without it: everybody who reaches the port."""

    trusted_proxies: tuple[ProxyNetwork, ...] = ()
    """Addresses and networks of the proxies in front, such as `127.0.0.1`, `10.0.0.0/8` or (in quotes) `"::1"`. Who \
the client is, and by which scheme it comes, is taken from their `Forwarded` or `X-Forwarded-*`; nobody else's count."""

    allowed_hosts: tuple[Text, ...] = ()
    """More names for the Host guard. Always allowed: the host of `public_url`, the top-level `host` and loopback."""

    allowed_origins: tuple[Text, ...] = ()
    """Web pages' origins that may call the gateway; they also get CORS headers."""

    max_body_bytes: Count = 33554432
    """Largest request body."""

    max_history_entries: HistoryEntries = 10000
    """Most entries of `history` (of `messages` and their parts at `/v1`) in one call, and most images. A call with \
more is refused."""

    max_in_flight: Count = 256
    """Calls at once over all agents, per worker process."""

    queue_seconds: SecondsOrZero = 5.0
    """How long a call may wait for a free place, and for an agent's first start, before it is refused."""

    heartbeat_seconds: Seconds = 15.0
    """Longest silence of a running call whose client asked for progress."""

    drain_seconds: SecondsOrZero = 30.0
    """How long running calls may take to end when the gateway stops."""

    max_relay_depth: CountOrZero = 3
    """How many agents an assistant-stream message may pass through on its way to the caller."""

    max_nesting: CountOrZero = 8
    """Calls between hosted agents nested deeper than this are refused."""

    openai_api: Flag = False
    """Serve the agents to OpenAI clients as well: `/v1/models` and `/v1/chat/completions`, on the gateway's port (in \
per-port mode on `registry_port`)."""

    tool_names: ToolNames = ("send_message", "{agent}")
    """Names under which the message tool is offered; `{agent}` stands for the agent's name."""

    threads: ThreadsUrl | None = Field(default=None, repr=False)
    """Database of conversations for clients that keep none: `sqlite:///threads.db` (relative to this file) or \
`postgresql://user:password@host/name`; see [threads.md](threads.md). Requires `pip install \
'pallas-gateway[threads]'`. Without one there are no `/api/v1` routes."""

    threads_lease_seconds: LeaseSeconds = 30.0
    """How long a thread stays locked after the process that was answering in it has died; at least 1."""

    @field_validator("auth", mode="before")
    @classmethod
    def _not_blank(cls, value: object) -> object:
        """A section whose lines are all commented out must not open the gateway to everybody."""
        if value is None:
            raise ValueError("is empty; remove it to let everybody call, or write {} to let in nobody without a token")
        return value


class Deployment(Section):
    """The whole of `agents.yaml`."""

    name: Text
    """Name of the project."""

    version: Version = "1.0.0"
    """Version shown in the registry; one version, not a range."""

    host: PublicHost = "localhost"
    """Host name in the URLs that clients see."""

    namespace: Namespace | None = None
    """First part of registry names, a reversed domain. Without one: `local.{name}`."""

    registry_port: Port = 24200
    """Port of the registry in per-port mode, and of everything otherwise unless `gateway.port` says another."""

    fastagent_config: Text | None = None
    """fast-agent's own configuration file, relative to this file. Without one: in the working directory, then in the \
folder of this file."""

    agents: dict[str, AgentSettings] = Field(min_length=1)
    """The hosted agents by name."""

    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    """The process that hosts them."""
