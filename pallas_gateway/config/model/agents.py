"""The sections of `agents.yaml` that describe one agent; `schema.py` has the others.

The docstring under each field is its meaning in `docs/operate/configuration.md` and in the JSON Schema.
"""

from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from pallas_gateway.config.model.parameters import CallerParameters, CallerParams, DefaultParameters
from pallas_gateway.config.model.section import Section
from pallas_gateway.config.model.values import (
    ApprovalGlob,
    Count,
    CountOrZero,
    Flag,
    IconSizes,
    IconSource,
    Port,
    Price,
    Seconds,
    Text,
    ToolGlob,
)

MAKINGS = ("module", "instruction", "instruction_file", "card")
"""The keys that define what an agent is made of; it has exactly one of them."""


class ModelCapabilities(Section):
    """Declared capabilities of a model."""

    vision: Flag = False
    """The model accepts images."""

    documents: Flag | None = None
    """The model accepts documents (PDF). Default: as fast-agent knows the model."""

    context_window: Count = 131072
    """Context window in tokens."""

    max_output_tokens: Count = 16384
    """Longest answer in tokens. Sent to `generic`, `googleoai` and `tensorzero` only if declared, to Claude always."""


class IconSettings(Section):
    """One icon of an agent in the registry."""

    src: IconSource
    """URL of the image; relative to `gateway.public_url`."""

    sizes: IconSizes = ()
    """Its sizes, such as `48x48` or `any`."""


class AgentSettings(Section):
    """One hosted agent."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [key]} for key in MAKINGS]})

    module: Text | None = None
    """Importable Python module with the agent's `FastAgent`, under any name. Each agent has this key or one of the \
next three."""

    instruction: Text | None = None
    """The system prompt of an agent without Python; it may contain fast-agent's own placeholders."""

    instruction_file: Text | None = None
    """The same in a text file, relative to this one; `${ENV}` in it is not expanded."""

    card: Text | None = None
    """fast-agent's agent card (Markdown with front matter, or YAML), or a folder of cards that belong together."""

    agent: Text | None = None
    """With a module or card of several agents: the name of the one to serve. Default: its default agent, else the \
only one that no other uses."""

    model: Text | None = None
    """With an instruction: the model as fast-agent names it. Default: `default_model` of `fastagent.config.yaml`."""

    servers: tuple[Text, ...] = ()
    """With an instruction: its MCP servers, by their names under `mcp.servers`."""

    tools: tuple[Text, ...] | None = None
    """With an instruction: the only tools that it may use, as `server__tool`, with `*` and `?` in the part after \
`__`. Default: all tools of its `servers`."""

    agents: tuple[Text, ...] = ()
    """Agents of this file that it can call as sub-agents; they are started first. A `module` or `card` must name \
them in its own `servers` as well."""

    human_input: Flag = False
    """With an instruction: the model gets a tool by which it [asks the caller](../use/asking.md)."""

    watch: tuple[Text, ...] = ()
    """Other files that the agent reads: paths or patterns (`prompts/**/*.md`), relative to this file; a change \
[reloads](reloading.md) the agent."""

    port: Port | None = None
    """The agent's own port; required with `--per-port` and `--agent`."""

    title: Text | None = None
    """Name in the registry. Default: the agent's name, changed by Python's `str.title()`."""

    description: Text | None = None
    """One line about the agent for the registry. Default: the title."""

    examples: tuple[Text, ...] = ()
    """Messages that people may send to the agent; clients and the console show them."""

    depends_on: tuple[Text, ...] = ()
    """Agents that are started first. Each can be used as an MCP server of its name."""

    max_iterations: Count = 15
    """Largest number of LLM turns in one call; at the limit, a partial answer is returned. Each agent of a workflow \
or used as a tool has its own loop."""

    loop_repeat_threshold: CountOrZero = 3
    """The loop is stopped after so many identical tool rounds in a row; 0: never."""

    icon: IconSource | None = None
    """URL of the agent's icon; short for `icons` with one entry."""

    icons: tuple[IconSettings, ...] = ()
    """Icons for the registry."""

    model_capabilities: ModelCapabilities | None = None
    """Capabilities of this agent's model, instead of those in `fastagent.config.yaml`."""

    call_timeout_seconds: Seconds = 600.0
    """Longest duration of a call; then the partial answer is returned."""

    tasks: Literal["never", "allowed", "required"] = "allowed"
    """Its long calls become [tasks](../use/long-calls.md) with `gateway.tasks`; `required`: MCP clients that do not \
declare them are refused."""

    max_in_flight: Count | None = None
    """Calls of this agent at once, per worker process. Default: the gateway's limit."""

    max_tokens_per_call: Count | None = None
    """Tokens that one call may use, with its nested calls; see [budgets](limits.md#budgets-of-a-call)."""

    max_cost_per_call: Price | None = None
    """The same for its cost by `gateway.prices`."""

    tool_limits: dict[ToolGlob, CountOrZero] = Field(default_factory=dict)
    """Calls of tools in one call, by globs over `server/tool` (`search/*: 10`)."""

    ask_caller: Flag = True
    """Questions in the agent's calls are put to the caller; otherwise they are declined. See \
[asking.md](../use/asking.md)."""

    approve: tuple[ApprovalGlob, ...] = ()
    """Tools that the caller has to [approve](../use/asking.md): globs over `server/tool` (`files/delete_*`; \
`local/tool` for functions of the agent), and `destructive` for those whose annotations tell that they are."""

    approve_unasked: Literal["deny", "allow"] = "deny"
    """`allow`: tools under `approve` run when the caller cannot be asked."""

    default_params: DefaultParameters = Field(default_factory=DefaultParameters)
    """Parameters of calls that do not set them."""

    caller_params: CallerParams = Field(default_factory=CallerParameters)
    """[Parameters](../use/parameters.md) that callers may set in `params`: a list (`[]` for none), or a mapping of \
`names` and `extra`, which lists keys that their `extra` may contain."""

    models: tuple[Text, ...] = ()
    """Models that callers may choose with the parameter `model` (`anthropic.claude-sonnet-4-5`)."""

    @field_validator("tools", mode="before")
    @classmethod
    def _not_blank(cls, value: object) -> object:
        """Refuse a list whose entries are all commented out: it must not allow every tool."""
        if value is None:
            raise ValueError("is empty; remove it to allow every tool of its servers, or write [] to allow none")
        return value

    @property
    def makings(self) -> tuple[str, ...]:
        """The keys that define what the agent is made of; a valid configuration has exactly one."""
        return tuple(key for key in MAKINGS if getattr(self, key) is not None)

    @property
    def is_instructed(self) -> bool:
        """True if it is made of an instruction, here or in a file."""
        return self.instruction is not None or self.instruction_file is not None

    @property
    def peers(self) -> tuple[str, ...]:
        """The agents that it depends on, with its sub-agents."""
        return tuple(dict.fromkeys((*self.depends_on, *self.agents)))

    def shown_title(self, name: str) -> str:
        return self.title or name.title()

    def shown_icons(self) -> tuple[IconSettings, ...]:
        return (IconSettings(src=self.icon),) if self.icon else self.icons
