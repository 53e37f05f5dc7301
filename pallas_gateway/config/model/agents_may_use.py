"""`gateway.agents_may_use` as frozen models: what agents of the database may have. Empty by default.

The docstring under each field is its meaning in `docs/operate/configuration.md` and in the JSON Schema.
"""

from typing import Annotated

from pydantic import Field, ModelWrapValidatorHandler, WrapValidator

from pallas_gateway.config.model.section import Section
from pallas_gateway.config.model.values import ApprovalGlob, Count, CountOrZero, Flag, ReleasedServer, Seconds, Text


class ServerRelease(Section):
    """What agents of the database may use of one server."""

    tools: tuple[Text, ...]
    """Its tools, with `*` and `?`; `[]` for none."""

    forwards: Flag = False
    """Required for a server that receives callers' tokens (`forward_inbound_auth`): the owner of an agent decides \
what the agent does there in the name of each caller."""


def _release(value: object, validate: ModelWrapValidatorHandler[ServerRelease]) -> ServerRelease:
    """Accept a list as short for `tools`."""
    if value is None:
        raise ValueError('is empty; list its tools, such as ["*"], or remove it')
    if isinstance(value, dict) and "tools" not in value:
        raise ValueError("requires 'tools', a list of its tools")
    return validate({"tools": value} if isinstance(value, (list, tuple)) else value)


Release = Annotated[ServerRelease, WrapValidator(_release, json_schema_input_type=tuple[Text, ...] | ServerRelease)]


class MostSettings(Section):
    """Upper bounds for agents of the database; an agent that does not set one of these has at most the bound."""

    max_iterations: Count | None = 100
    """LLM turns in one call. The default holds for new and changed definitions, a bound that is set here for all. \
`null`: any number."""

    call_timeout_seconds: Seconds | None = 600
    """Duration of a call; the default as above. `null`: any duration."""

    max_tokens_per_call: Count | None = None
    """Tokens of one call."""


class AgentsMayUseSettings(Section):
    """What agents of the database may use; see [agents-as-data.md](../use/agents-as-data.md)."""

    models: tuple[Text, ...] = ()
    """Globs over models (`anthropic.*`, `openai.gpt-5-mini`), also for `default_model`. Settings after `?` that do \
more than change the answer are released literally (`anthropic.*?web_search=on`). Without any, no agent can be \
created."""

    servers: dict[ReleasedServer, Release] = Field(default_factory=dict)
    """Servers by name, each with globs over its tools: `notes: ["get_*", search]`, or a mapping of `tools` and \
`forwards`."""

    agents: tuple[Text, ...] = ()
    """Globs over agents that they may have as sub-agents."""

    approve: tuple[ApprovalGlob, ...] = ()
    """Added to `approve` of each of them."""

    most_agents: CountOrZero = 100
    """Agents that the database may have."""

    most_agents_per_owner: CountOrZero | None = None
    """Those of one owner, when it creates or is given another one. Default: a quarter of `most_agents`; without \
`auth`, `most_agents`."""

    most: MostSettings = Field(default_factory=MostSettings)
    """Upper bounds."""
